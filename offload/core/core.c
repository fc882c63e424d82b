/* SPDX-License-Identifier: Apache-2.0 */
/* The step of the core: checks what all parts rely on, passes the event to the part that handles
 * it, and routes the facts that the parts find. Also the statistics. */
#include "offload/core/core.h"

#include "offload/books/chunk_update.h"
#include "offload/core/agreement.h"
#include "offload/gradient/collection.h"
#include "offload/core/commit.h"
#include "offload/core/core_state.h"
#include "offload/core/deadlines.h"
#include "offload/core/epochs.h"
#include "offload/core/device_loss.h"
#include "offload/update/staged_update.h"
#include "offload/books/exposure.h"
#include "offload/gradient/drift.h"
#include "offload/weights/fetch.h"
#include "offload/books/group.h"
#include "offload/books/instant.h"
#include "offload/gradient/landing.h"
#include "offload/gradient/partials.h"
#include "offload/weights/load.h"
#include "offload/books/lookahead.h"
#include "offload/weights/multi_gpu_load.h"
#include "offload/core/next.h"
#include "offload/update/overlap.h"
#include "offload/core/pause.h"
#include "offload/core/prepare.h"
#include "offload/core/ranks.h"
#include "offload/weights/residency.h"
#include "offload/core/revival.h"
#include "offload/core/save.h"
#include "offload/update/seal.h"
#include "offload/gradient/spill.h"
#include "offload/core/states.h"
#include "offload/gradient/sum.h"
#include "offload/update/update_end.h"
#include "offload/update/versions.h"
#include "offload/books/weight_row.h"

#include <inttypes.h>
#include <stdlib.h>

/* What each kind of event requires before it is passed on. */
enum needs {
    NEEDS_NOTHING = 0,
    NEEDS_RANK = 1,    /* rank < world. */
    NEEDS_ATTEMPT = 2, /* The rank takes part in the running attempt. */
    NEEDS_CHUNK = 4,   /* chunk < n_chunks. */
    NEEDS_REQUEST = 8, /* Memory for a request, which may have to wait. */
    NEEDS_GROUP = 16,  /* The rank is in the chunk's group. */
    NEEDS_GRAD = 32,   /* The chunk is not frozen. */
};

#define IN_STEP (NEEDS_RANK | NEEDS_ATTEMPT | NEEDS_REQUEST)

static void on_done(struct cst_core *core, const struct cst_event *event);

static void on_tick(struct cst_core *core, const struct cst_event *event)
{
    (void)event;
    cst_deadlines_expire(core);
    cst_drift_expire(core);
    cst_save_expire(core);
    cst_versions_expire(core);
}

static const struct {
    unsigned needs;
    void (*digest)(struct cst_core *core, const struct cst_event *event);
} kinds[] = {
    [CST_EV_ATTACH] = {NEEDS_RANK, cst_ranks_attach},
    [CST_EV_HANGUP] = {NEEDS_RANK, cst_ranks_hangup},
    [CST_EV_DEAD] = {NEEDS_RANK, cst_ranks_dead},
    [CST_EV_SHUT_OUT] = {NEEDS_RANK, cst_ranks_shut_out},
    [CST_EV_LEAVE] = {NEEDS_RANK | NEEDS_REQUEST, cst_ranks_leave},
    [CST_EV_SYNC] = {NEEDS_RANK | NEEDS_REQUEST, cst_ranks_sync},
    [CST_EV_FETCH_WEIGHT] = {IN_STEP | NEEDS_CHUNK | NEEDS_GROUP, cst_fetch_weight},
    [CST_EV_FETCH_GRAD] = {IN_STEP | NEEDS_CHUNK | NEEDS_GROUP | NEEDS_GRAD, cst_fetch_grad},
    [CST_EV_RELEASE] = {IN_STEP | NEEDS_CHUNK, cst_residency_release},
    [CST_EV_HAND_IN] = {IN_STEP | NEEDS_CHUNK | NEEDS_GROUP | NEEDS_GRAD, cst_collection_hand_in},
    [CST_EV_ACCUMULATE] = {IN_STEP, cst_commit_accumulate},
    [CST_EV_WANT] = {IN_STEP | NEEDS_CHUNK, cst_fetch_want},
    [CST_EV_PREFETCH] = {IN_STEP | NEEDS_CHUNK | NEEDS_GROUP, cst_load_prefetch},
    [CST_EV_EVICT] = {IN_STEP | NEEDS_CHUNK, cst_residency_evict},
    [CST_EV_PREPARE] = {IN_STEP, cst_prepare},
    [CST_EV_STEP] = {IN_STEP, cst_commit_step},
    [CST_EV_NEXT] = {IN_STEP, cst_next_ask},
    [CST_EV_READ] = {NEEDS_REQUEST, cst_states_read},
    [CST_EV_WRITE] = {NEEDS_REQUEST, cst_states_write},
    [CST_EV_SAVE] = {NEEDS_REQUEST, cst_save_begin},
    [CST_EV_SAVE_END] = {NEEDS_NOTHING, cst_save_end},
    [CST_EV_KEEP] = {NEEDS_NOTHING, cst_versions_keep},
    [CST_EV_UNKEEP] = {NEEDS_NOTHING, cst_versions_unkeep},
    [CST_EV_RESTORE] = {NEEDS_REQUEST, cst_save_restore},
    [CST_EV_MISSED] = {NEEDS_REQUEST, cst_idle_take_missed},
    [CST_EV_REVIVE] = {NEEDS_REQUEST, cst_revival_go_on},
    [CST_EV_PAUSE] = {NEEDS_NOTHING, cst_pause_begin},
    [CST_EV_RESUME] = {NEEDS_NOTHING, cst_pause_end},
    [CST_EV_CANCEL] = {NEEDS_RANK | NEEDS_REQUEST, cst_ranks_cancel},
    [CST_EV_DONE] = {NEEDS_NOTHING, on_done},
    [CST_EV_SEALED] = {NEEDS_NOTHING, cst_commit_sealed},
    [CST_EV_TICK] = {NEEDS_NOTHING, on_tick},
    [CST_EV_NODE_DOWN] = {NEEDS_NOTHING, cst_device_loss_of_node},
    [CST_EV_MACHINES] = {NEEDS_NOTHING, cst_epochs_machines},
    [CST_EV_TOLD] = {NEEDS_NOTHING, cst_agreement_told},
};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

/* -- memory ----------------------------------------------------------------------------------- */

static int reserve_actions(struct cst_actions *actions, size_t n)
{
    struct cst_action *v;

    if (n <= actions->capacity) {
        return CST_OK;
    }
    v = realloc(actions->v, n * sizeof *v);
    if (v == NULL) {
        return CST_ENOMEM;
    }
    actions->v = v;
    actions->capacity = n;
    return CST_OK;
}

/* True if the last call of reserve suffices for the next event, too. */
static bool is_reserved(const struct cst_core *core, const struct cst_actions *actions)
{
    return core->requests.unused != CST_NO_REQUEST &&
           core->reserved.requests == core->requests.capacity &&
           core->reserved.gpus == core->n_gpus && actions->capacity >= core->reserved.actions;
}

/* Make room in @actions and in the core's tables for everything that one event can cause.
 * CST_ENOMEM. */
static int reserve(struct cst_core *core, struct cst_actions *actions)
{
    /* Each waiting request can cause a reply, a load and a spill; each chunk a reduction or an
     * update; each rank some prefetches, a reply and a log line. */
    size_t fixed = 2 * (size_t)core->n_chunks +
                   (size_t)core->world * (CST_LAYOUT_MAX_CLASSES * CST_PREFETCH_IN_FLIGHT + 2) + 16;
    /* A write of states on an accelerator has four parts. */
    size_t in_flight = 4 * (size_t)core->n_chunks + core->n_blocks + 64;
    uint32_t gpus = cst_multi_gpu_load_most(core);
    int status = cst_requests_reserve(&core->requests);

    /* All contributions to a chunk can land. */
    fixed += (size_t)core->layout->n_landings / CST_LAYOUT_LANDINGS * core->n_chunks;
    in_flight += (size_t)core->layout->n_landings / CST_LAYOUT_LANDINGS * core->n_chunks;
    /* The partials of each chunk are told, and copied to the landings of each node; its weights are
     * told. */
    fixed += (size_t)core->partials.n_here * core->n_chunks;
    if (core->machines != NULL) {
        size_t copies =
            (size_t)core->n_nodes * CST_LAYOUT_PARTIAL_SETS * core->layout->partials.n_come;

        fixed += core->n_chunks + copies + 9;
        in_flight += core->n_chunks + copies;
    }
    if (core->device_updates.n_reservations > 0) {
        /* A fetch can recall all commands that the same event has issued. */
        fixed += 2 * CST_STAGED_UPDATE_COMMANDS * (size_t)core->n_chunks;
        in_flight += CST_STAGED_UPDATE_COMMANDS * (size_t)core->n_chunks;
    }
    /* A gathered block receives a copy from each GPU, and in each group all blocks but one are
     * foreseen. */
    fixed += (size_t)core->world * CST_LAYOUT_MAX_CLASSES * CST_PREFETCH_IN_FLIGHT * 2 * gpus;
    in_flight += core->n_blocks * gpus;

    if (status == CST_OK) {
        status = reserve_actions(actions, 3 * (size_t)core->requests.capacity + fixed);
    }
    if (status == CST_OK) {
        status = cst_flights_reserve(&core->flights,
                                     (uint32_t)(in_flight + 4 * core->requests.capacity));
    }
    if (status == CST_OK) {
        core->reserved = (struct cst_reserved){.requests = core->requests.capacity,
                                               .gpus = core->n_gpus,
                                               .actions = actions->capacity};
    }
    return status;
}

/* -- completions ------------------------------------------------------------------------------ */

static void on_done(struct cst_core *core, const struct cst_event *event)
{
    struct cst_flight flight;

    if (!cst_flights_take(&core->flights, event->ticket, &flight)) {
        cst_core_log(core, CST_EINTERNAL, "completion of a ticket that no command has: %" PRIu64,
                     event->ticket);
        return;
    }
    cst_instant_done(core, &flight);
    if (core->machines != NULL && flight.engine == core->machines->engine &&
        event->status != CST_OK && event->status != CST_ECANCELLED) {
        core->membership.failed_transfers++;
    }
    switch (flight.kind) {
    case CST_FLIGHT_LOAD:
        cst_load_done(core, &flight, event);
        break;
    case CST_FLIGHT_PIECE:
        /* The copy has kept both blocks LOADING: the one it read and the one it wrote. */
        cst_multi_gpu_load_done(core, flight.peer, flight.peer_block, event);
        cst_multi_gpu_load_done(core, flight.rank, flight.block, event);
        break;
    case CST_FLIGHT_SPILL:
        cst_spill_done(core, &flight, event);
        break;
    case CST_FLIGHT_LANDING:
        cst_landing_done(core, &flight, event);
        break;
    case CST_FLIGHT_PARTIAL:
        cst_partials_copied(core, &flight, event);
        break;
    case CST_FLIGHT_REDUCE:
        cst_sum_done(core, &flight, event);
        break;
    case CST_FLIGHT_NORM:
        cst_commit_normed(core, &flight, event);
        break;
    case CST_FLIGHT_UPDATE:
    case CST_FLIGHT_STATES:
    case CST_FLIGHT_UPDATE_ON_DEVICE:
    case CST_FLIGHT_DEVICE_UPDATE:
        cst_update_end(core, &flight, event);
        break;
    case CST_FLIGHT_KEEP:
        cst_update_end_kept(core, &flight, event);
        break;
    /* The WRITE that waits for the part fails with it. */
    case CST_FLIGHT_PART:
        break;
    case CST_FLIGHT_AHEAD:
        cst_staged_ahead_done(core, &flight, event);
        break;
    case CST_FLIGHT_READ:
        cst_states_read_done(core, &flight, event);
        break;
    case CST_FLIGHT_WRITE:
        cst_states_written(core, &flight, event);
        break;
    }
}

/* -- facts ------------------------------------------------------------------------------------ */

/* Issue the next sum of the chunk, if there is something to sum. If its gradient is complete, the
 * update can begin early, and the commit may have waited for nothing else. */
static void advance(struct cst_core *core, uint32_t c)
{
    struct cst_sources sources;

    switch (cst_collection_next(core, c, &sources)) {
    case CST_COLLECTION_WAITS:
        break;
    case CST_COLLECTION_SUM:
        if (!cst_overlap_fuse(core, c, &sources)) {
            cst_sum_add(core, c, &sources);
        }
        break;
    case CST_COLLECTION_ZERO:
        cst_sum_add(core, c, &sources); /* A sum of no contributions writes zeros. */
        break;
    case CST_COLLECTION_COMPLETE:
        if (cst_partials_whole(core, c)) {
            cst_collection_complete(core, c);
            cst_overlap_complete(core, c);
            cst_commit_close(core);
        }
        break;
    }
}

static void route(struct cst_core *core, const struct cst_event *event, const struct cst_fact *fact)
{
    switch (fact->kind) {
    case CST_FACT_GRADIENT:
        advance(core, fact->chunk);
        break;
    case CST_FACT_RANK_WENT_ON:
        if (core->pause.holds) {
            break; /* The end of the pause finds it out again. */
        }
        for (uint32_t c = 0; c < core->n_chunks; c++) {
            advance(core, c);
        }
        cst_commit_look(core);
        break;
    case CST_FACT_WEIGHTS_WRITTEN:
        cst_residency_updated(core, fact->chunk, fact->ticket, event);
        cst_commit_close(core); /* It may have waited for weights of another machine. */
        break;
    case CST_FACT_POOLS_LOST:
        cst_device_loss_of_pools(core, fact->engine, event, fact->needed);
        break;
    case CST_FACT_JOB_FAILED:
        cst_ranks_fail(core, &fact->why);
        break;
    case CST_FACT_ATTEMPT_LOST:
        cst_ranks_interrupt(core, &fact->why);
        break;
    case CST_FACT_DECIDED:
        cst_commit_decided(core, &core->agreement.last_decision);
        break;
    case CST_FACT_KEPT_NO_MORE:
        cst_commit_close(core);
        break;
    case CST_FACT_IDLE_KNOWN:
        cst_commit_close(core);
        break;
    }
}

/* -- step ------------------------------------------------------------------------------------- */

/* False: @event was refused. */
static bool admit(struct cst_core *core, const struct cst_event *event)
{
    unsigned needs = kinds[event->kind].needs;

    if ((needs & NEEDS_RANK) != 0 && event->rank >= core->world) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "rank %" PRIu32 ": the job has %" PRIu32 " ranks", event->rank,
                        core->world);
        return false;
    }
    if ((needs & NEEDS_ATTEMPT) != 0 && !cst_ranks_admit(core, event)) {
        return false;
    }
    if ((needs & NEEDS_CHUNK) != 0 && event->chunk >= core->n_chunks) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "chunk %" PRIu32 ": the job has %" PRIu32 " chunks", event->chunk,
                        core->n_chunks);
        return false;
    }
    return (needs & NEEDS_GROUP) == 0 || cst_group_admit(core, event, (needs & NEEDS_GRAD) != 0);
}

void cst_core_step(struct cst_core *core, const struct cst_event *event,
                   struct cst_actions *actions)
{
    actions->n = 0;
    core->out.actions = actions;
    core->now = event->now;
    if ((size_t)event->kind >= N_KINDS) {
        cst_core_refuse(core, event->tag, CST_EUNSUPPORTED, "event %d", (int)event->kind);
        return;
    }
    /* Memory for what waits and what is in flight was reserved when its request was accepted, so
     * only a request can run out of memory. Other events must be processed in any case. */
    if (!is_reserved(core, actions) && reserve(core, actions) != CST_OK &&
        (kinds[event->kind].needs & NEEDS_REQUEST) != 0) {
        if (actions->capacity > 0) {
            cst_core_refuse(core, event->tag, CST_ENOMEM, "no memory for the request");
        }
        return;
    }
    if (admit(core, event)) {
        cst_instant_begin(core, event);
        kinds[event->kind].digest(core, event);
        while (core->facts.n > 0) {
            struct cst_fact fact = cst_facts_take(&core->facts);

            route(core, event, &fact);
        }
        cst_pause_look(core);
        cst_ranks_start(core);
        cst_next_pump(core);
        cst_fetch_pump(core);
        cst_save_look(core);
        cst_versions_look(core);
        cst_seal_look(core);
    }
    core->out.actions = NULL;
}

uint64_t cst_core_deadline(const struct cst_core *core)
{
    uint32_t i = core->pause.holds ? CST_NO_REQUEST : cst_requests_next_late(&core->requests);
    uint64_t request = i == CST_NO_REQUEST ? CST_CORE_NEVER : core->requests.v[i].deadline;
    uint64_t save = cst_save_deadline(core);
    uint64_t versions = cst_versions_deadline(core);
    uint64_t drift = cst_drift_deadline(core);

    request = request < save ? request : save;
    request = request < versions ? request : versions;
    return request < drift ? request : drift;
}

/* -- statistics ------------------------------------------------------------------------------- */

void cst_core_rank_stats(const struct cst_core *core, uint32_t rank, struct cst_rank_stats *out)
{
    const struct cst_rank *r = &core->ranks[rank];

    *out = (struct cst_rank_stats){
        .state = r->state,
        .hits = r->hits,
        .misses = r->misses,
        .late = r->late,
        .weight_wait_ns = r->weight_wait_ns,
        .prefetches = r->prefetches,
        .evictions = r->evictions,
        .surprises = r->trace.surprises,
        .waits = r->waits,
        .micro = r->micro,
        .bytes_up = r->bytes_up,
        .bytes_down = r->bytes_down,
        .bytes_peer = r->bytes_peer,
    };
    cst_pool_books(&r->pool, &out->books);
    for (uint32_t k = 0; k < r->pool.n_parts; k++) {
        cst_pool_part_books(&r->pool, k, &out->class_books[k]);
    }
}

void cst_core_machine_stats(const struct cst_core *core, uint32_t machine,
                            struct cst_machine_stats *out)
{
    const struct cst_machine_waits *waits = &core->machine_waits;

    *out = (struct cst_machine_stats){0};
    if (waits->v == NULL || machine >= core->machines->n) {
        return;
    }
    out->wait_ns = waits->v[machine].ns;
    out->wait_share =
        waits->recent_steps_ns > 0 ? waits->v[machine].recent_ns / waits->recent_steps_ns : 0;
}

uint64_t cst_core_granted_at(const struct cst_core *core, uint32_t rank, uint32_t chunk, bool grad,
                             uint64_t generation)
{
    const struct cst_pool *pool;
    uint32_t b;

    if (rank >= core->world || chunk >= core->n_chunks || generation == 0) {
        return 0;
    }
    pool = &core->ranks[rank].pool;
    b = grad ? pool->grad_of[chunk] : pool->weight_of[chunk];
    return b != CST_NONE && pool->blocks[b].generation == generation ? pool->blocks[b].granted.at
                                                                     : 0;
}

bool cst_core_has_failed(const struct cst_core *core)
{
    return core->attempt.phase == CST_PHASE_FAILED;
}

bool cst_core_may_keep(const struct cst_core *core, uint32_t row)
{
    return cst_versions_may_keep(core, row);
}

uint64_t cst_core_recorded_step(const struct cst_core *core)
{
    return core->agreement.last_decision.step;
}

bool cst_core_awaits_ranks(const struct cst_core *core)
{
    return cst_epochs_await_ranks(core);
}

uint64_t cst_core_failed_transfers(const struct cst_core *core)
{
    return core->membership.failed_transfers;
}

uint64_t cst_core_exposed_ns(const struct cst_core *core)
{
    return core->clock.last_exposed_ns;
}

uint64_t cst_core_attempt_over(const struct cst_core *core)
{
    return core->attempt.number - (core->attempt.phase == CST_PHASE_RUNNING);
}

bool cst_core_uses_reservation(const struct cst_core *core,
                               const struct cst_core_device_reservation *what)
{
    for (uint32_t r = 0; r < core->device_updates.n_reservations; r++) {
        const struct cst_device_reservation *own = &core->device_updates.reservations[r];

        if (own->engine == what->engine && own->home == cst_core_reservation_home(what) &&
            own->lent.on == what->lent && (!what->lent || own->lent.rank == what->rank)) {
            return !own->given_up;
        }
    }
    return false;
}

bool cst_core_seals(const struct cst_core *core)
{
    return cst_seal_holds_commit(core) && core->attempt.phase != CST_PHASE_FAILED;
}

void cst_core_seal_of(const struct cst_core *core, struct cst_core_seal *out)
{
    const struct cst_commit *commit = &core->commit;

    *out = (struct cst_core_seal){
        .place = (uint32_t)((commit->adam_step - commit->restored_adam_step) % 2),
        .sums = core->seal.sums[0]};
}

void cst_core_stats(const struct cst_core *core, struct cst_core_stats *out)
{
    *out = (struct cst_core_stats){
        .phase = core->attempt.phase,
        .initialised = core->attempt.initialised,
        .closing = core->attempt.closing,
        .attempt = core->attempt.number,
        .step = core->step,
        .n_skipped = core->commit.n_skipped,
        .n_overflows = core->commit.n_overflows,
        .adam_step = core->commit.adam_step,
        .sealed_step = core->commit.sealed_step,
        .commands_in_flight = core->flights.n,
        .n_dropped = core->collection.n_dropped,
        .has_hyper = core->commit.has_hyper,
        .hyper = core->commit.hyper,
        .saving = core->save.state != CST_SAVE_NONE,
        .pause = core->pause.state,
        .pools_empty = core->pause.empty,
        .n_writes_left = core->writes.n_left,
        .save_wait_ns = core->save.wait_ns,
        .reader_wait_ns = core->versions.wait_ns,
        .last_loss = core->commit.last_loss,
        .last_grad_norm = core->commit.last_grad_norm,
        .last_step_ns = core->commit.last_step_ns,
        .interleave = core->device_updates.interleave_now,
        .n_updates = core->updates_done.n,
        .n_device_updates = core->updates_done.n_device,
        .n_lent_updates = core->updates_done.n_lent,
    };
    cst_exposure_stats(core, out);
    for (uint32_t r = 0; r < core->device_updates.n_reservations; r++) {
        out->n_reservation_failures += core->device_updates.reservations[r].n_failures;
        out->n_reservations_given_up += core->device_updates.reservations[r].given_up;
    }
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        const struct cst_chunk *chunk = &core->chunks[c];

        out->chunks_updating += !cst_chunk_update_is_over(&chunk->update);
        out->chunks_ahead += cst_weight_row_is_early(&chunk->weight);
        out->chunks_reducing += chunk->gradient.reduce_ticket != 0;
        out->chunks_clean += cst_chunk_update_is_over(&chunk->update) && chunk->writes.n == 0 &&
                             chunk->weight.holds == CST_HOLDS_WEIGHTS;
    }
}

void cst_core_set_prefetch(struct cst_core *core, uint32_t depth)
{
    core->policy.prefetch_depth = depth;
}
