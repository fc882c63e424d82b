/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/stage_job.h"

#include <check.h>
#include <stdio.h>

void stage_job_declare(struct worker *w, uint32_t rank, uint32_t world, uint32_t timeout_ms)
{
    const struct cst_job_spec spec = {.name = "stages",
                                      .rank = rank,
                                      .world = world,
                                      .limits.timeout_ms = timeout_ms,
                                      .updates.micro_batches = MICRO};

    worker_open(w, &spec);
    for (int i = 0; i < N_EDGES; i++) {
        char name[16];

        (void)snprintf(name, sizeof name, "e%d", i);
        ck_assert_int_eq(
            cst_edge(w->job, &(struct cst_edge_spec){name, CST_ALL_RANKS, CST_ALL_RANKS,
                                                     WIDTH * sizeof(float), MICRO, false}),
            i);
    }
    for (int i = 0; i < TENSORS; i++) {
        char name[16];

        (void)snprintf(name, sizeof name, "t%d", i);
        ck_assert_int_eq(cst_tensor(w->job, name, CST_BF16, 1, (int64_t[]){ELEMS}, CST_GROUP_ALL),
                         i);
    }
    for (int s = 0; s < STAGES; s++) {
        char name[16];

        (void)snprintf(name, sizeof name, "o%d", s);
        ck_assert_int_eq(cst_stage(w->job), s);
        ck_assert_int_eq(
            cst_operator(w->job, name, (int[]){s, STAGES}, s == 0 || s == STAGES - 1 ? 2 : 1), s);
    }
}

void stage_job_open(struct worker *w, uint32_t rank, uint32_t world)
{
    stage_job_declare(w, rank, world, 0);
    worker_must(w, cst_commit(w->job, NULL, &w->err));
}

void stage_job_write_initial(struct worker *w)
{
    float values[ELEMS];

    for (int t = 0; t < TENSORS; t++) {
        for (int i = 0; i < ELEMS; i++) {
            values[i] = (float)((i * 37 + t * 11) % 101 - 50) / 64.0f;
        }
        worker_must(w, cst_tensor_write(w->job, t, CST_STATE_MASTER, 0, ELEMS, values, &w->err));
    }
}
