/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/core/pause.h"

#include "offload/books/waiting.h"
#include "offload/core/commit.h"
#include "offload/core/core_state.h"
#include "offload/update/overlap.h"
#include "offload/update/seal.h"
#include "offload/weights/residency.h"

/* True if no step is under way. */
static bool is_between_steps(const struct cst_core *core)
{
    if (cst_overlap_has_begun(core)) {
        return false;
    }
    return core->attempt.phase != CST_PHASE_RUNNING ||
           (!core->attempt.closing && cst_rank_furthest(core) == CST_BEGUN_NOTHING);
}

/* True if nothing changes states or pools any more. Reads and writes of workers may be in flight.
 */
static bool is_at_rest(const struct cst_core *core)
{
    for (uint32_t i = 0; i < core->flights.n_slots; i++) {
        const struct cst_flight *flight = &core->flights.slots[i];

        if (flight->ticket != 0 && flight->kind != CST_FLIGHT_READ &&
            flight->kind != CST_FLIGHT_WRITE) {
            return false;
        }
    }
    return core->attempt.phase == CST_PHASE_FAILED || !cst_seal_holds_commit(core);
}

/* Empty the blocks that no rank uses. Returns true if these are all. */
static bool empty_pools(struct cst_core *core)
{
    bool empty = true;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_pool *pool = &core->ranks[rank].pool;

        cst_residency_drop(core, rank);
        empty = empty && cst_pool_count(pool, CST_BLOCK_FREE) == pool->n_blocks;
    }
    return empty;
}

void cst_pause_look(struct cst_core *core)
{
    struct cst_pause *pause = &core->pause;

    if (pause->state == CST_PAUSE_ASKED && is_between_steps(core)) {
        pause->state = CST_PAUSE_HELD;
        pause->holds = true;
        pause->held_ns = core->now;
    }
    if (pause->state == CST_PAUSE_HELD && is_at_rest(core)) {
        pause->state = CST_PAUSE_PAUSED;
    }
    if (pause->state == CST_PAUSE_PAUSED && pause->release && !pause->empty) {
        pause->empty = empty_pools(core);
    }
}

void cst_pause_begin(struct cst_core *core, const struct cst_event *event)
{
    if (core->pause.state == CST_PAUSE_NONE) {
        core->pause.state = CST_PAUSE_ASKED;
    }
    core->pause.release = core->pause.release || event->release;
}

void cst_pause_end(struct cst_core *core, const struct cst_event *event)
{
    const struct cst_pause was = core->pause;

    (void)event;
    core->pause = (struct cst_pause){.state = CST_PAUSE_NONE};
    if (!was.holds) {
        return;
    }
    cst_waiting_restart(core);
    for (uint32_t rank = 0; rank < core->world; rank++) {
        cst_pool_wake(&core->ranks[rank].pool);
        cst_rank_want_prefetch(&core->ranks[rank]);
    }
    cst_commit_look(core);
    cst_fact_rank_went_on(&core->facts);
    /* The pause is not part of the time of the next step. */
    if (core->commit.last_ns != 0) {
        core->commit.last_ns += core->now - was.held_ns;
    }
}
