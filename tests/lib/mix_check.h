/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the reports of mix workers. */
#ifndef MIX_CHECK_H
#define MIX_CHECK_H

#include "tests/lib/mix_worker.h"

/* Check that the states which rank 0 read are those of an undisturbed run of @n_steps. */
void mix_check_states(struct mix_report *const *reports, uint32_t world, uint32_t micro_batches,
                      uint64_t n_steps);

/* Like mix_check_states; also check each rank's results from step @from on. */
void mix_check(struct mix_report *const *reports, uint32_t world, uint32_t micro_batches,
               uint64_t from, uint64_t n_steps);

/* Bytes of a pool with the least number of blocks of each size class. */
uint64_t mix_smallest_pool(const struct cst_plan *plan);

#endif
