/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that copy weights into their blocks themselves. A copy takes several turns, and its
 * source must not change meanwhile. */
#include "tests/sim/sim.h"

#include <inttypes.h>

/* True if the worker's attempt is over: the data that the worker copies are then not used. */
static bool is_void(const struct sim *sim, const struct worker *w)
{
    struct cst_core_stats stats;

    cst_core_stats(sim->core, &stats);
    return w->state != WORKER_RUN || stats.phase != CST_PHASE_RUNNING ||
           stats.attempt != w->attempt;
}

void fill_begin(struct sim *sim, uint32_t rank, uint32_t chunk, struct lease *lease,
                const struct cst_reply *reply)
{
    struct spot home = memory_find(&sim->memory, reply->home);

    if (!sim->memory.pools[rank].worker_copies) {
        sim_fail(sim, "rank %u is to copy chunk %u, which an engine should", rank, chunk);
    }
    if (home.kind != PLACE_ROW ||
        (home.row != CST_ROW_WEIGHT && home.row != CST_ROW_WEIGHT_OTHER) || home.chunk != chunk ||
        !home.at_start ||
        reply->home_bytes != cst_layout_weight_bytes(&sim->layout.chunks[chunk])) {
        sim_fail(sim, "rank %u is to copy chunk %u from where it is not", rank, chunk);
    }
    lease->filling = true;
    lease->row = home.row;
    lease->changes = memory_changes(&sim->memory, sim->memory.states[lease->row], chunk);
    lease->value = memory_weights(&sim->memory, sim->memory.states[lease->row], chunk);
    memory_begin(&sim->memory.blocks[rank][lease->block]);
    sim->n_fills++;
}

void fill_end(struct sim *sim, uint32_t rank, uint32_t chunk, struct lease *lease)
{
    if (!lease->held || !lease->filling) {
        return;
    }
    lease->filling = false;
    if (memory_changes(&sim->memory, sim->memory.states[lease->row], chunk) != lease->changes) {
        if (!is_void(sim, &sim->workers[rank])) {
            sim_fail(sim, "rank %u: weights of chunk %u were written while it copied them", rank,
                     chunk);
        }
        lease->value = MEMORY_GARBAGE;
    }
    memory_end(&sim->memory.blocks[rank][lease->block], lease->value);
}

void fills_end(struct sim *sim, uint32_t rank)
{
    struct worker *w = &sim->workers[rank];

    for (uint32_t c = 0; c < sim->layout.n_chunks; c++) {
        fill_end(sim, rank, c, &w->weights[c]);
        fill_end(sim, rank, c, &w->old[c]);
    }
}

bool fills_turn(struct sim *sim, uint32_t rank)
{
    struct worker *w = &sim->workers[rank];
    uint32_t first = sim_below(sim, sim->layout.n_chunks);

    for (uint32_t k = 0; k < sim->layout.n_chunks; k++) {
        uint32_t c = (first + k) % sim->layout.n_chunks;

        if (w->weights[c].held && w->weights[c].filling) {
            fill_end(sim, rank, c, &w->weights[c]);
            return true;
        }
    }
    return false;
}
