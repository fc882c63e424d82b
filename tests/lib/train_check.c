/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/train_check.h"
#include "tests/lib/train_reference.h"

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

static void check_tensor(const struct train_states *got, const struct train_tensor *t,
                         bool reads_grads)
{
    const struct train_states *want = &reference.states;
    const uint64_t at = t->start, n = t->n_elems;
    const struct {
        const char *row;
        const void *got, *want;
        size_t size;
    } rows[] = {{"weight", got->weight + at, want->weight + at, 2},
                {"master", got->master + at, want->master + at, 4},
                {"exp_avg", got->exp_avg + at, want->exp_avg + at, 4},
                {"exp_avg_sq", got->exp_avg_sq + at, want->exp_avg_sq + at, 4},
                {"grad", got->grad + at, want->grad + at, 2}};
    const size_t n_rows = sizeof rows / sizeof *rows - (reads_grads ? 0 : 1);

    for (size_t k = 0; k < n_rows; k++) {
        ck_assert_msg(memcmp(rows[k].got, rows[k].want, n * rows[k].size) == 0, "%s of %s",
                      rows[k].row, t->name);
    }
}

void train_check_states(struct train_report *const *reports, uint32_t world, uint64_t n_steps,
                        struct train_bad bad)
{
    const struct train_report *first = reports[0];
    const struct train_task task = {.mixture = first->mixture,
                                    .world = world,
                                    .micro_batches = first->micro_batches,
                                    .overlap = first->overlap,
                                    .n_steps = n_steps,
                                    .bad = bad};
    struct train_model model;

    train_model_make(&model, task.mixture, world);
    train_reference(&reference, &task);
    ck_assert(first->has_states);
    for (int t = 0; t < model.n_tensors; t++) {
        check_tensor(&first->run.states, &model.tensors[t], model.reads_grads);
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

uint64_t train_smallest_pool(const struct cst_plan *plan)
{
    uint64_t bytes = 0;

    for (uint32_t c = 0; c < plan->n_classes; c++) {
        bytes += plan->classes[c].min_blocks * plan->classes[c].chunk_elems * 2;
    }
    return bytes;
}
