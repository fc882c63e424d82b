/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the tier of a GPU that other tiers have too whose memory belongs to one engine.
 * Their contracts are those of struct cstd_tier_kind. */
#ifndef CSTD_TIER_GPU_H
#define CSTD_TIER_GPU_H

#include "daemon/memory/tiers/tier.h"

int cstd_tier_gpu_create(struct cstd_memory *memory, const struct cstd_tier *tier,
                         const struct cstd_tier_piece *piece, struct cst_err *err);
void cstd_tier_gpu_count(const struct cstd_tier *tier);
struct cst_set cstd_tier_gpu_unreachable(const struct cstd_tier *tier);
unsigned cstd_tier_gpu_n_updaters(const struct cstd_tier *tier);
const struct cstd_tier *cstd_tier_gpu_updater(const struct cstd_tier *tier, uint32_t rank);
const struct cstd_tier *cstd_tier_gpu_buffers(const struct cstd_tier *tier);
unsigned cstd_tier_gpu_explain(const struct cstd_tier *tier, uint32_t rank, char lines[][192],
                               unsigned max);

#endif
