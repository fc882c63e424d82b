/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/train_check.h"

#include <check.h>
#include <math.h>
#include <string.h>

static struct train_run reference;

static void check_result(const struct cst_step_result *got, const struct cst_step_result *want)
{
    ck_assert_uint_eq(got->step, want->step);
    ck_assert_int_eq(got->skipped, want->skipped);
    ck_assert_uint_eq(got->n_skipped, want->n_skipped);
    ck_assert_int_eq(got->overflow, want->overflow);
    ck_assert(memcmp(&got->grad_norm, &want->grad_norm, sizeof got->grad_norm) == 0 ||
              (isnan(got->grad_norm) && isnan(want->grad_norm)));
    ck_assert_mem_eq(&got->clip, &want->clip, sizeof got->clip);
    ck_assert_mem_eq(&got->loss, &want->loss, sizeof got->loss);
}

void train_check_states(struct train_report *const *reports, uint32_t world, uint64_t n_steps,
                        struct train_bad bad)
{
    const struct train_states *got = &reports[0]->run.states, *want = &reference.states;

    train_reference(&reference, world, reports[0]->micro_batches, reports[0]->overlap, n_steps,
                    bad);
    ck_assert(reports[0]->has_states);
    for (int t = 0; t < TRAIN_N_TENSORS; t++) {
        uint64_t at = train_tensors[t].start, n = train_tensors[t].n_elems;
        const char *name = train_tensors[t].name;

        ck_assert_msg(memcmp(got->master + at, want->master + at, 4 * n) == 0, "master of %s",
                      name);
        ck_assert_msg(memcmp(got->exp_avg + at, want->exp_avg + at, 4 * n) == 0, "exp_avg of %s",
                      name);
        ck_assert_msg(memcmp(got->exp_avg_sq + at, want->exp_avg_sq + at, 4 * n) == 0,
                      "exp_avg_sq of %s", name);
        ck_assert_msg(memcmp(got->weight + at, want->weight + at, 2 * n) == 0, "weight of %s",
                      name);
    }
}

void train_check(struct train_report *const *reports, uint32_t world, uint64_t from,
                 uint64_t n_steps, struct train_bad bad)
{
    train_check_states(reports, world, n_steps, bad);
    for (uint32_t r = 0; r < world; r++) {
        for (uint64_t s = from; s < n_steps; s++) {
            check_result(&reports[r]->run.results[s], &reference.results[s]);
        }
    }
}
