/* SPDX-License-Identifier: Apache-2.0 */
/* How far each rank is in the step that is not committed yet. */
#include "offload/books/rank.h"

#include "offload/core/core_state.h"
#include "offload/gradient/drift.h"

void cst_rank_promise(struct cst_rank *rank, const struct cst_hyper *hyper)
{
    rank->prepared = true;
    rank->promised = *hyper;
}

void cst_rank_ask_step(struct cst_rank *rank, const struct cst_event *event)
{
    rank->stepped = true;
    rank->hyper = event->hyper;
    rank->loss = event->loss;
}

void cst_rank_withdraw_step(struct cst_rank *rank)
{
    rank->stepped = false;
}

void cst_rank_end_step(struct cst_rank *rank)
{
    rank->stepped = false;
    rank->prepared = false;
    cst_drift_reset(rank);
}

enum cst_rank_begun cst_rank_furthest(const struct cst_core *core)
{
    enum cst_rank_begun most = CST_BEGUN_NOTHING;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        most = core->ranks[rank].begun > most ? core->ranks[rank].begun : most;
    }
    return most;
}

void cst_rank_reset_begun(struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        core->ranks[rank].begun = CST_BEGUN_NOTHING;
    }
}
