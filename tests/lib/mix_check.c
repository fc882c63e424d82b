/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/mix_check.h"

#include <check.h>
#include <string.h>

static struct mix_run reference;

static void check_tensor(const struct mix_states *got, const struct mix_tensor *t)
{
    const struct mix_states *want = &reference.states;
    const uint64_t at = t->start, n = t->n_elems;
    const struct {
        const char *row;
        const void *got, *want;
        size_t size;
    } rows[] = {{"weight", got->weight + at, want->weight + at, 2},
                {"grad", got->grad + at, want->grad + at, 2},
                {"master", got->master + at, want->master + at, 4},
                {"exp_avg", got->exp_avg + at, want->exp_avg + at, 4},
                {"exp_avg_sq", got->exp_avg_sq + at, want->exp_avg_sq + at, 4}};

    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        ck_assert_msg(memcmp(rows[k].got, rows[k].want, n * rows[k].size) == 0, "%s of %s",
                      rows[k].row, t->name);
    }
}

void mix_check_states(struct mix_report *const *reports, uint32_t world, uint32_t micro_batches,
                      uint64_t n_steps)
{
    struct mix_model model;

    mix_model_make(&model, world);
    mix_reference(&model, &reference, micro_batches, n_steps);
    for (int t = 0; t < model.n_tensors; t++) {
        check_tensor(&reports[0]->run.states, &model.tensors[t]);
    }
}

void mix_check(struct mix_report *const *reports, uint32_t world, uint32_t micro_batches,
               uint64_t from, uint64_t n_steps)
{
    mix_check_states(reports, world, micro_batches, n_steps);
    for (uint32_t r = 0; r < world; r++) {
        for (uint64_t s = from; s < n_steps; s++) {
            const struct cst_step_result *got = &reports[r]->run.results[s];
            const struct cst_step_result *want = &reference.results[s];

            ck_assert_uint_eq(got->step, want->step);
            ck_assert(!got->skipped);
            ck_assert_mem_eq(&got->grad_norm, &want->grad_norm, sizeof got->grad_norm);
            ck_assert_mem_eq(&got->clip, &want->clip, sizeof got->clip);
            ck_assert_mem_eq(&got->loss, &want->loss, sizeof got->loss);
        }
    }
}

uint64_t mix_smallest_pool(const struct cst_plan *plan)
{
    uint64_t bytes = 0;

    for (uint32_t c = 0; c < plan->n_classes; c++) {
        bytes += plan->classes[c].min_blocks * plan->classes[c].chunk_elems * 2;
    }
    return bytes;
}
