/* SPDX-License-Identifier: Apache-2.0 */
/* Pauses at random moments, some of which take the pools away, and what must hold meanwhile. They
 * have a generator of their own: other runs stay as they are. */
#include "tests/sim/sim.h"

static bool chance(struct sim *sim, unsigned per_10000)
{
    sim->pause_rng = sim->pause_rng * 6364136223846793005u + 1442695040888963407u;
    return (sim->pause_rng >> 33) % 10000 < per_10000;
}

void pauses_open(struct sim *sim)
{
    sim->pause_rng = sim->options.seed;
    sim->p_pause = chance(sim, 3000) ? 50 : 0;
}

void pauses_turn(struct sim *sim)
{
    struct cst_core_stats stats;

    cst_core_stats(sim->core, &stats);
    if (stats.pause != CST_PAUSE_NONE) {
        if (sim->ending || sim_is_calm(sim) || chance(sim, 100)) {
            sim_event(sim, (struct cst_event){.kind = CST_EV_RESUME});
        }
    } else if (sim->p_pause > 0 && !sim->ending && !sim_is_calm(sim) && chance(sim, sim->p_pause)) {
        sim_event(sim, (struct cst_event){.kind = CST_EV_PAUSE, .release = chance(sim, 5000)});
    }
}

bool pauses_end(struct sim *sim)
{
    struct cst_core_stats stats;

    cst_core_stats(sim->core, &stats);
    if (stats.pause == CST_PAUSE_NONE) {
        return false;
    }
    sim_event(sim, (struct cst_event){.kind = CST_EV_RESUME});
    return true;
}

/* The memory of all pools is gone. */
static void lose_pools(struct sim *sim)
{
    for (uint32_t rank = 0; rank < sim->world; rank++) {
        struct cst_rank_stats stats;

        cst_core_rank_stats(sim->core, rank, &stats);
        for (uint32_t b = 0; b < stats.books.capacity; b++) {
            struct cell *block = &sim->memory.blocks[rank][b];

            if (workers_lease_block(sim, rank, b) || block->writers > 0) {
                sim_fail(sim, "block %u of rank %u is in use while the pools are released", b,
                         rank);
            }
            block->value = MEMORY_GARBAGE;
            block->n_pieces = 0;
            block->changes++;
        }
    }
    sim->n_released++;
}

/* True if the reply lets a rank go on. */
static bool grants(struct sim *sim, const struct cst_action *action)
{
    const struct pending *p =
        action->kind == CST_ACT_REPLY ? sim_find_pending(sim, action->reply.tag) : NULL;

    return p != NULL && action->reply.status == CST_OK &&
           (p->kind == CST_EV_FETCH_WEIGHT || p->kind == CST_EV_FETCH_GRAD ||
            p->kind == CST_EV_SYNC || p->kind == CST_EV_STEP);
}

void pauses_follow(struct sim *sim, const struct cst_core_stats *before)
{
    struct cst_core_stats now;

    cst_core_stats(sim->core, &now);
    if (now.pause == CST_PAUSE_PAUSED && before->pause < CST_PAUSE_PAUSED) {
        sim->n_pauses++;
        if (now.chunks_updating > 0 || now.chunks_ahead > 0) {
            sim_fail(sim, "the job is paused, but %u updates are not over",
                     now.chunks_updating + now.chunks_ahead);
        }
    }
    if (now.pools_empty && !before->pools_empty) {
        lose_pools(sim);
    }
    if (before->pause < CST_PAUSE_HELD || now.pause < CST_PAUSE_HELD) {
        return;
    }
    if (now.step != before->step || now.attempt != before->attempt) {
        sim_fail(sim, "a step or an attempt goes on during a pause");
    }
    for (size_t i = 0; i < sim->actions.n; i++) {
        if (grants(sim, &sim->actions.v[i])) {
            sim_fail(sim, "something is granted during a pause");
        }
    }
}
