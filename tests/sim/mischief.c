/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of workers that must be refused, optional hints, and cancelled requests. */
#include "tests/sim/sim.h"

void worker_lie(struct sim *sim, uint32_t rank)
{
    static const enum cst_event_kind kinds[] = {
        CST_EV_FETCH_WEIGHT, CST_EV_FETCH_GRAD, CST_EV_RELEASE, CST_EV_HAND_IN,
        CST_EV_PREFETCH,     CST_EV_EVICT,      CST_EV_STEP,    CST_EV_PREPARE};
    static const enum cst_event_kind too_late[] = {CST_EV_STEP, CST_EV_FETCH_WEIGHT,
                                                   CST_EV_PREPARE};
    const struct worker *w = &sim->workers[rank];
    struct cst_event event = {.kind = kinds[sim_below(sim, 8)],
                              .rank = rank,
                              .attempt = w->attempt,
                              .chunk = sim_below(sim, sim->layout.n_chunks),
                              .hyper = script_hyper(sim)};

    switch (sim_below(sim, 7)) {
    case 0:
        event.chunk = sim->layout.n_chunks + sim_below(sim, 5);
        event.hyper.beta1 = 1.0f;
        break;
    case 1:
        event.attempt += 1 + sim_below(sim, 5);
        break;
    case 2:
        event.rank = sim->world + sim_below(sim, 3);
        break;
    case 3:
        event.attempt--;
        break;
    case 4: /* a request that the worker has already made */
        if (w->state == WORKER_SYNCING) {
            event.kind = CST_EV_SYNC;
        } else if (w->state == WORKER_STEPPING) {
            event.kind = too_late[sim_below(sim, 3)];
        } else if (sim->handed[event.chunk][rank][w->micro] != 0) {
            event.kind = CST_EV_FETCH_GRAD;
        } else {
            return;
        }
        break;
    case 5: /* a chunk that the rank may not use, or a micro-batch that does not exist */
        if (!model_holds(sim, event.chunk, rank) || !worker_has_blocks(sim, rank, event.chunk)) {
            event.kind = kinds[sim_below(sim, 2)];
        } else if (!model_is_trained(sim, event.chunk)) {
            event.kind = CST_EV_FETCH_GRAD;
        } else if (w->micro + 1 == sim->micro_batches) {
            event.kind = CST_EV_ACCUMULATE;
        } else {
            return;
        }
        break;
    default:
        event.kind = sim_chance(sim, 5000) ? CST_EV_RELEASE : CST_EV_HAND_IN;
        event.generation = sim_chance(sim, 5000) ? 0 : UINT64_MAX - sim_below(sim, 9);
        break;
    }
    sim_ask(sim, event, (struct pending){.rank = rank, .lie = true});
}

void worker_hint(struct sim *sim, uint32_t rank)
{
    if (sim->workers[rank].state == WORKER_RUN) {
        worker_ask(sim, rank, sim_chance(sim, 5000) ? CST_EV_PREFETCH : CST_EV_EVICT,
                   sim_below(sim, sim->layout.n_chunks), 0, false);
    }
}

void worker_cancel(struct sim *sim, uint32_t rank)
{
    const struct pending *p = &sim->pending[sim_below(sim, SIM_MAX_TAGS)];

    if (sim->workers[rank].state == WORKER_GONE || sim->workers[rank].state == WORKER_HUNG) {
        return;
    }
    if (p->tag != 0 && p->rank == rank) {
        sim_ask(sim, (struct cst_event){.kind = CST_EV_CANCEL, .rank = rank, .cancel = p->tag},
                (struct pending){.rank = rank});
    }
}
