/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a fetch waits for other ranks rather than evict weights. A rank that is ahead of the
 * others fills its blocks with gradients that wait for theirs. If it evicted expected weights for
 * its next gradients, it would load them again and again, only to wait at the commit. Owns
 * `waits_for`, `patient_until` and `impatient` of the ranks. Called by eviction, fetch and core.c.
 *
 * No rank waits for ranks that wait for it. What ranks wait for outside of the core, a barrier for
 * example, is not known here, so that patience ends after a time, and then for the whole step. */
#ifndef CST_DRIFT_H
#define CST_DRIFT_H

#include "offload/books/rank.h"

struct cst_core;
struct cst_rank;

/* True if @rank had better wait for a gradient of @part that waits for other ranks. @fetch: a fetch
 * needs the block; the rank then waits from now on. */
bool cst_drift_waits(struct cst_core *core, uint32_t rank, const struct cst_part *part, bool fetch);

/* No fetch of the rank waits for a block any more. */
static inline void cst_drift_end(struct cst_rank *rank)
{
    rank->waits_for = (struct cst_set){{0}};
    rank->patient_until = CST_CORE_NEVER;
}

/* The rank begins a step: it is patient again. */
static inline void cst_drift_reset(struct cst_rank *rank)
{
    rank->impatient = false;
    cst_drift_end(rank);
}

/* Let the fetches go on whose patience has ended. */
void cst_drift_expire(struct cst_core *core);

/* When patience ends next, in ns; CST_CORE_NEVER: no fetch is patient. */
uint64_t cst_drift_deadline(const struct cst_core *core);

#endif
