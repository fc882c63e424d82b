/* SPDX-License-Identifier: Apache-2.0 */
/* Compares workers' reports with a training computed in this process. All functions fail the
 * running test if a bit differs. */
#ifndef TRAIN_CHECK_H
#define TRAIN_CHECK_H

#include "tests/lib/train_worker.h"

/* Check that the states which rank 0 read are those after @n_steps with @world ranks. */
void train_check_states(struct train_report *const *reports, uint32_t world, uint64_t n_steps,
                        struct train_bad bad);

/* Like train_check_states; also check the results of steps from @from on that each rank
 * received. */
void train_check(struct train_report *const *reports, uint32_t world, uint64_t from,
                 uint64_t n_steps, struct train_bad bad);

/* Bytes of a pool with the least number of blocks of each size class. */
uint64_t train_smallest_pool(const struct cst_plan *plan);

#endif
