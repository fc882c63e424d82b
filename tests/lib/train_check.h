/* SPDX-License-Identifier: Apache-2.0 */
/* What workers report against what training in this process gives. Everything here fails the
 * running test when there is a difference of one bit. */
#ifndef TRAIN_CHECK_H
#define TRAIN_CHECK_H

#include "tests/lib/train_worker.h"

/* The states that rank 0 read are those after @n_steps with @world ranks. */
void train_check_states(struct train_report *const *reports, uint32_t world, uint64_t n_steps,
                        struct train_bad bad);

/* And so are the results that all ranks saw of steps @from and later. */
void train_check(struct train_report *const *reports, uint32_t world, uint64_t from,
                 uint64_t n_steps, struct train_bad bad);

#endif
