/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker does with the replies to its requests, and what it checks in them. */
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <string.h>

void worker_give_up(struct worker *w)
{
    w->state = WORKER_IDLE;
    w->lost = false;
    memset(w->weight_asked, 0, sizeof w->weight_asked);
    memset(w->grad_asked, 0, sizeof w->grad_asked);
}

static void granted(struct sim *sim, uint32_t rank, bool grad, uint32_t chunk,
                    const struct cst_reply *reply)
{
    struct worker *w = &sim->workers[rank];
    struct lease *lease = grad ? &w->grads[chunk] : &w->weights[chunk];
    uint32_t block = memory_block(&sim->memory, rank, reply->slab, reply->offset);
    struct cell *cell = &sim->memory.blocks[rank][block];

    if (!grad && !lease->held && w->old[chunk].held &&
        w->old[chunk].generation == reply->generation) { /* the step was skipped, so the weights did
                                                          * not change */
        *lease = w->old[chunk];
        w->old[chunk].held = false;
    }
    if (lease->held && lease->block == block && lease->generation == reply->generation) {
        if (reply->hit == (reply->home_bytes > 0)) {
            sim_fail(sim, "rank %u: chunk %u was leased and is no hit", rank, chunk);
        }
        lease->count++;
        return;
    }
    if (workers_lease_block(sim, rank, block)) {
        sim_fail(sim, "rank %u: block %u is leased twice", rank, block);
    }
    if (cell->writers > 0) {
        sim_fail(sim, "rank %u: block %u was granted while it is being written", rank, block);
    }
    *lease =
        (struct lease){.held = true, .block = block, .generation = reply->generation, .count = 1};
    if (grad) {
        /* A contribution is never 0, because 0 in sim->handed means none. */
        lease->value =
            (sim->steady ? memory_mix(script_seed(sim, rank), chunk) : sim_random(sim)) | 1;
        memory_begin(cell);
        memory_end(cell, lease->value);
        return;
    }
    if (reply->home_bytes > 0) {
        fill_begin(sim, rank, chunk, lease, reply);
    } else {
        lease->value = memory_read(cell);
    }
    if (lease->value != memory_weights(&sim->memory, sim->reads, chunk)) {
        sim_fail(sim,
                 "rank %u: the weights of chunk %u it was granted are not those of step %" PRIu64,
                 rank, chunk, sim->step);
    }
}

static void fetched(struct sim *sim, const struct pending *asked, const struct cst_reply *reply)
{
    struct worker *w = &sim->workers[asked->rank];
    bool grad = asked->kind == CST_EV_FETCH_GRAD;

    *(grad ? &w->grad_asked[asked->chunk] : &w->weight_asked[asked->chunk]) = false;
    if (reply->status == CST_OK) {
        granted(sim, asked->rank, grad, asked->chunk, reply);
    } else if (reply->status == CST_ECANCELLED && w->state == WORKER_RUN) {
        w->begun = false; /* The worker cancelled the fetch itself, and asks again. */
    } else if (w->state == WORKER_RUN || w->state == WORKER_STEPPING) {
        if (reply->status != CST_EPEERDIED && reply->status != CST_EIO && !sim->failed &&
            reply->status != CST_EENGINE && reply->status != CST_ETIMEDOUT &&
            reply->status != CST_ECANCELLED) {
            sim_fail(sim, "rank %u: fetch of chunk %u: %s: %s", asked->rank, asked->chunk,
                     cst_status_name(reply->status), reply->err.text);
        }
        if (reply->status != CST_ECANCELLED) {
            worker_give_up(w);
        }
    }
}

static void stepped(struct sim *sim, const struct pending *asked, const struct cst_reply *reply)
{
    struct worker *w = &sim->workers[asked->rank];

    if (w->state != WORKER_STEPPING) {
        return;
    }
    if (reply->status == CST_ECANCELLED) {
        w->state = WORKER_RUN; /* the worker asks again */
        return;
    }
    if (reply->status != CST_OK) {
        worker_give_up(w);
        return;
    }
    if (reply->step != w->step + 1) {
        sim_fail(sim, "rank %u: step %" PRIu64 " follows step %" PRIu64, asked->rank, reply->step,
                 w->step);
    }
    w->step = reply->step;
    w->micro = 0;
    w->state = WORKER_RUN;
    for (uint32_t c = 0; c < sim->layout.n_chunks; c++) {
        if (w->weights[c].held) {
            w->old[c] = w->weights[c];
            w->weights[c].held = false;
        }
    }
    script_write(sim, asked->rank);
}

static void synced(struct sim *sim, const struct pending *asked, const struct cst_reply *reply)
{
    struct worker *w = &sim->workers[asked->rank];

    if (reply->status != CST_OK) {
        w->state = WORKER_IDLE;
        w->lost = reply->status == CST_EENGINE; /* the worker leaves and comes back */
        return;
    }
    if (reply->step != sim->step) {
        sim_fail(sim, "rank %u: synced to step %" PRIu64 " instead of %" PRIu64, asked->rank,
                 reply->step, sim->step);
    }
    w->attempt = reply->attempt;
    w->step = reply->step;
    w->micro = 0;
    w->state = WORKER_RUN;
    script_write(sim, asked->rank);
}

void worker_reply(struct sim *sim, const struct pending *asked, const struct cst_reply *reply)
{
    struct worker *w = &sim->workers[asked->rank];

    if (asked->lie) {
        if (reply->status == CST_OK) {
            sim_fail(sim, "rank %u: a lie (event %d) was believed", asked->rank, (int)asked->kind);
        }
        return;
    }
    if (asked->process != sim->process[asked->rank] || w->state == WORKER_GONE ||
        w->state == WORKER_HUNG) {
        return;
    }
    lost_check(sim, asked->rank, reply->status);
    if (asked->kind == CST_EV_FETCH_WEIGHT || asked->kind == CST_EV_FETCH_GRAD) {
        fetched(sim, asked, reply);
    } else if (asked->kind == CST_EV_STEP) {
        stepped(sim, asked, reply);
    } else if (asked->kind == CST_EV_SYNC) {
        synced(sim, asked, reply);
    } else if (asked->kind == CST_EV_RELEASE || asked->kind == CST_EV_HAND_IN ||
               asked->kind == CST_EV_ACCUMULATE || asked->kind == CST_EV_PREPARE) {
        if (reply->status != CST_OK && reply->status != CST_EPEERDIED && !sim->failed &&
            reply->status != CST_EENGINE &&
            (reply->status != CST_EMISMATCH || asked->kind != CST_EV_PREPARE)) {
            sim_fail(sim, "rank %u: event %d on chunk %u: %s", asked->rank, (int)asked->kind,
                     asked->chunk, reply->err.text);
        }
        if (reply->status != CST_OK && w->state == WORKER_RUN) {
            worker_give_up(w);
        }
    }
}
