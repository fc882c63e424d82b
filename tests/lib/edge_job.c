/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/edge_job.h"

#include <check.h>

void edge_job_declare(struct worker *w, uint32_t rank, uint32_t world, uint64_t slot_bytes,
                      bool on_device)
{
    const struct cst_job_spec spec = {.name = "edges", .rank = rank, .world = world};
    const struct cst_edge_spec edges[N_EDGES] = {
        {"there", 0, world - 1, slot_bytes, N_SLOTS, on_device},
        {"back", world - 1, 0, SLOT, 1, false},
        {"stash", 0, 0, SLOT, STASHED, false},
    };
    int tensor;

    worker_open(w, &spec);
    for (int i = 0; i < N_EDGES; i++) {
        ck_assert_int_eq(cst_edge(w->job, &edges[i]), i);
    }
    tensor = cst_tensor(w->job, "t", CST_BF16, 1, (int64_t[]){100}, CST_GROUP_ALL);
    ck_assert_int_eq(tensor, 0);
    ck_assert_int_eq(cst_operator(w->job, "o", &tensor, 1), 0);
}

void edge_job_open(struct worker *w, uint32_t rank, uint32_t world)
{
    edge_job_declare(w, rank, world, SLOT, false);
    worker_must(w, cst_commit(w->job, NULL, &w->err));
}

void edge_job_begin(struct worker *w, uint32_t rank, uint32_t world)
{
    edge_job_open(w, rank, world);
    worker_must(w, cst_sync(w->job, &w->step, &w->err));
}
