/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks and attempts: attach, sync, leave, death; begin and end of attempts. */
#include "offload/core/ranks.h"

#include "offload/core/agreement.h"
#include "offload/core/epochs.h"
#include "offload/gradient/collection.h"
#include "offload/core/core_state.h"
#include "offload/core/open_writes.h"
#include "offload/weights/residency.h"
#include "offload/books/waiting.h"
#include "offload/update/overlap.h"
#include "offload/update/replicas.h"

#include <inttypes.h>
#include <stdio.h>

/* -- attempts --------------------------------------------------------------------------------- */

bool cst_ranks_admit(struct cst_core *core, const struct cst_event *event)
{
    const struct cst_rank *rank = &core->ranks[event->rank];

    if (core->attempt.phase == CST_PHASE_FAILED) {
        cst_core_refuse_err(core, event->tag, &core->attempt.why);
    } else if (rank->state != CST_RANK_ATTACHED) {
        cst_core_refuse(core, event->tag, CST_EINVAL, "rank %" PRIu32 " is not attached",
                        event->rank);
    } else if (rank->gone.status != CST_OK) {
        cst_core_refuse_err(core, event->tag, &rank->gone);
    } else if (core->attempt.phase == CST_PHASE_READY) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "sync first: no attempt at step %" PRIu64 " runs", core->step);
    } else if (event->attempt > core->attempt.number) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "attempt %" PRIu64 " was never begun, the last one is %" PRIu64,
                        event->attempt, core->attempt.number);
    } else if (core->attempt.phase == CST_PHASE_INTERRUPTED ||
               core->attempt.phase == CST_PHASE_IDLE) {
        cst_core_refuse_err(core, event->tag, &core->attempt.why);
    } else if (event->attempt < core->attempt.number || !rank->joined) {
        cst_core_refuse(core, event->tag, CST_EPEERDIED,
                        "attempt %" PRIu64 " is over, rank %" PRIu32 " must sync", event->attempt,
                        event->rank);
    } else {
        return true;
    }
    return false;
}

int cst_core_check_attempt(const struct cst_core *core, uint64_t attempt, struct cst_err *err)
{
    const struct cst_attempt *last = &core->attempt;

    if (last->phase == CST_PHASE_RUNNING && attempt == last->number) {
        return CST_OK;
    }
    if (last->phase == CST_PHASE_READY || attempt > last->number) {
        return cst_err_set(err, CST_EINVAL,
                           "attempt %" PRIu64 " was never begun, the last one is %" PRIu64, attempt,
                           last->number);
    }
    if (attempt < last->number) {
        return cst_err_set(err, CST_EPEERDIED, "attempt %" PRIu64 " is over", attempt);
    }
    *err = last->why;
    return err->status;
}

bool cst_ranks_admit_before_step(struct cst_core *core, const struct cst_event *event)
{
    if (core->ranks[event->rank].stepped) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "rank %" PRIu32 " has asked for step %" PRIu64 " already", event->rank,
                        core->step);
        return false;
    }
    return true;
}

/* INTERRUPTED becomes IDLE if all ranks have left in good order, unless a chunk is ahead of its
 * step. Then nothing remains of a death that was made good, or of ranks that did not leave at the
 * same time: the contributions to the step are dropped. */
static void settle(struct cst_core *core)
{
    if (core->attempt.phase != CST_PHASE_INTERRUPTED || cst_overlap_has_begun(core)) {
        return;
    }
    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (core->ranks[rank].state != CST_RANK_LEFT) {
            return;
        }
    }
    core->attempt.phase = CST_PHASE_IDLE;
}

/* End the part that each rank has in the attempt, and forget all contributions. */
static void end_parts(struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        cst_rank_end_step(&core->ranks[rank]);
        core->ranks[rank].joined = false;
    }
    cst_collection_drop(core);
    core->schedule->begin(core);
}

/* End the attempt. Its waiting and later requests are answered with @why. */
static void end_attempt(struct cst_core *core, enum cst_core_phase phase, const struct cst_err *why)
{
    cst_agreement_end(core, phase == CST_PHASE_IDLE, false, why);
    core->attempt.phase = phase;
    core->attempt.closing = false;
    core->attempt.interrupt_later = false;
    core->attempt.why = *why;
    core->attempt.why.status = CST_EPEERDIED;
    /* A STEP gets the status of the cause, a fetch gets CST_EPEERDIED with its message. */
    cst_waiting_refuse_step(core, &core->attempt.why, why);
    end_parts(core);
}

void cst_ranks_interrupt(struct cst_core *core, const struct cst_err *why)
{
    if (core->attempt.closing && cst_agreement_binds(core)) {
        /* Keep the first cause. */
        if (!core->attempt.interrupt_later) {
            core->attempt.interrupt_later = true;
            core->attempt.why = *why;
        }
        return;
    }
    end_attempt(core, CST_PHASE_INTERRUPTED, why);
    settle(core);
    if (core->attempt.phase == CST_PHASE_INTERRUPTED) {
        cst_core_log(core, why->status, "attempt %" PRIu64 " interrupted: %s", core->attempt.number,
                     why->text);
    }
}

void cst_ranks_end_as_told(struct cst_core *core, bool idle, const struct cst_err *why)
{
    if (idle && !core->attempt.closing && cst_rank_furthest(core) == CST_BEGUN_NOTHING) {
        end_attempt(core, CST_PHASE_IDLE, why);
    } else {
        cst_ranks_interrupt(core, why);
    }
}

void cst_ranks_interrupt_idle(struct cst_core *core, const struct cst_err *why)
{
    core->attempt.phase = CST_PHASE_INTERRUPTED;
    core->attempt.why = *why;
    cst_core_log(core, why->status, "interrupted: %s", why->text);
}

/* Stop the deadlines of the waiting STEPs. */
void cst_ranks_begin_closing(struct cst_core *core)
{
    core->attempt.closing = true;
    cst_machine_waits_begin(core);
    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (core->ranks[rank].step != CST_NO_REQUEST) {
            cst_requests_untime(&core->requests, core->ranks[rank].step);
        }
    }
}

void cst_ranks_end_closing(struct cst_core *core)
{
    core->attempt.closing = false;
}

void cst_ranks_committed(struct cst_core *core)
{
    struct cst_err why = core->attempt.why;

    if (core->attempt.interrupt_later) {
        core->attempt.interrupt_later = false;
        cst_ranks_interrupt(core, &why);
    }
}

void cst_ranks_restored(struct cst_core *core)
{
    core->attempt.initialised = true;
}

void cst_ranks_revived(struct cst_core *core)
{
    core->attempt.initialised = true;
    core->attempt.phase = CST_PHASE_INTERRUPTED;
    (void)cst_err_set(&core->attempt.why, CST_EPEERDIED, "the daemon was started again");
}

void cst_ranks_abandon(struct cst_core *core, const struct cst_err *why)
{
    core->attempt.closing = false;
    core->attempt.interrupt_later = false;
    cst_ranks_interrupt(core, why);
}

void cst_ranks_fail(struct cst_core *core, const struct cst_err *why)
{
    if (core->attempt.phase == CST_PHASE_FAILED) {
        return;
    }
    cst_agreement_end(core, false, true, why);
    cst_replicas_fail(core);
    core->attempt.phase = CST_PHASE_FAILED;
    core->attempt.closing = false;
    core->attempt.interrupt_later = false;
    core->attempt.why = *why;
    cst_waiting_refuse_all(core, why);
    end_parts(core);
    cst_core_log(core, why->status, "job failed: %s", why->text);
}

/* Answer the SYNC of @rank, which takes part in the attempt from now on. */
static void join(struct cst_core *core, uint32_t rank)
{
    struct cst_rank *r = &core->ranks[rank];
    struct cst_reply *reply = cst_core_reply(core, core->requests.v[r->sync].tag);

    if (reply != NULL) {
        reply->attempt = core->attempt.number;
        reply->step = core->step;
    }
    cst_requests_remove(&core->requests, r->sync);
    r->sync = CST_NO_REQUEST;
    r->joined = true;
    cst_rank_want_prefetch(r);
    cst_trace_restart(&r->trace);
}

static void join_all(struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (core->ranks[rank].sync != CST_NO_REQUEST) {
            join(core, rank);
        }
    }
}

bool cst_ranks_await(const struct cst_core *core, const struct cst_rank *rank)
{
    bool lives =
        rank->state == CST_RANK_ATTACHED || (rank->state == CST_RANK_HUNG_UP && !rank->shut_out);

    return rank->sync == CST_NO_REQUEST &&
           (lives || !core->schedule->elastic || !core->attempt.initialised);
}

int cst_ranks_wait_in_sync(const struct cst_core *core, struct cst_err *err)
{
    bool any = false;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (cst_ranks_await(core, &core->ranks[rank])) {
            return cst_err_set(err, CST_EPEERDIED, "rank %" PRIu32 " does not wait in a sync",
                               rank);
        }
        any = any || core->ranks[rank].sync != CST_NO_REQUEST;
    }
    return any ? CST_OK : cst_err_set(err, CST_EPEERDIED, "no rank waits in a sync");
}

void cst_ranks_start(struct cst_core *core)
{
    struct cst_err unused;

    if (core->pause.holds) {
        return;
    }
    if (core->attempt.phase == CST_PHASE_RUNNING && core->schedule->elastic &&
        !core->attempt.closing) {
        join_all(core);
        return;
    }
    if (core->attempt.phase == CST_PHASE_FAILED || core->attempt.phase == CST_PHASE_RUNNING) {
        return;
    }
    if (core->writes.n_left > 0 || cst_ranks_wait_in_sync(core, &unused) != CST_OK) {
        cst_machine_waits_end(core);
        return;
    }
    if (!cst_agreement_begin(core)) {
        return;
    }
    core->attempt.phase = CST_PHASE_RUNNING;
    core->attempt.initialised = true;
    cst_rank_reset_begun(core);
    core->attempt.number++;
    join_all(core);
}

/* -- events of ranks -------------------------------------------------------------------------- */

static void set_state(struct cst_core *core, uint32_t rank, enum cst_rank_state state)
{
    core->ranks[rank].state = state;
    core->ranks[rank].state_step = core->step;
    core->ranks[rank].joined = false;
    core->ranks[rank].shut_out = false;
}

/* What @rank has can be given to others. */
static void give_unit_back(struct cst_core *core, uint32_t rank, const char *why)
{
    struct cst_work_unit unit;
    char text[CST_WORK_UNIT_TEXT];

    if (core->schedule->work->gone(core, rank, &unit)) {
        cst_work_unit_say(&unit, text);
        cst_core_log(core, CST_EPEERDIED, "%s: %s can be given to another rank", why, text);
    }
}

static bool anybody_takes_part(const struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (core->ranks[rank].joined) {
            return true;
        }
    }
    return false;
}

/* The attempt goes on without @rank, which does not take part any more. While the step closes,
 * the rank has done everything in it. */
static void go_on_without(struct cst_core *core, uint32_t rank)
{
    if (!core->attempt.closing) {
        cst_rank_end_step(&core->ranks[rank]);
    }
    cst_fact_rank_went_on(&core->facts); /* The step may have waited for this rank only. */
}

/* End the part of a rank that does nothing more ("rank 1 hung up in step 12"): cancel its requests,
 * and end the attempt for all ranks, unless the others can do the rank's work. @phase is the phase
 * that follows. */
static void lose(struct cst_core *core, uint32_t rank, const char *how, enum cst_core_phase phase)
{
    struct cst_err why;

    (void)cst_err_set(&why, CST_ECANCELLED, "rank %" PRIu32 " %s %" PRIu64, rank, how, core->step);
    cst_waiting_refuse_rank(core, rank, &why);
    if (core->ranks[rank].state != CST_RANK_HUNG_UP) {
        give_unit_back(core, rank, why.text);
    }
    if (core->attempt.phase == CST_PHASE_RUNNING && core->schedule->elastic &&
        anybody_takes_part(core)) {
        go_on_without(core, rank);
    } else if (core->attempt.phase == CST_PHASE_RUNNING) {
        why.status = CST_EPEERDIED;
        if (phase == CST_PHASE_IDLE) {
            end_attempt(core, phase, &why);
        } else {
            cst_ranks_interrupt(core, &why);
        }
    }
}

/* Quarantined blocks stay so until the rank's first SYNC: before its death only the process that
 * had these blocks may attach. */
void cst_ranks_attach(struct cst_core *core, const struct cst_event *event)
{
    if (core->ranks[event->rank].state != CST_RANK_ATTACHED) {
        set_state(core, event->rank, CST_RANK_ATTACHED);
        core->ranks[event->rank].gone.status = CST_OK; /* The accelerator may be back. */
    }
}

void cst_ranks_hangup(struct cst_core *core, const struct cst_event *event)
{
    if (core->ranks[event->rank].state != CST_RANK_ATTACHED) {
        return;
    }
    cst_residency_end_leases(core, event->rank, true);
    set_state(core, event->rank, CST_RANK_HUNG_UP);
    lose(core, event->rank, "disconnected in step", CST_PHASE_INTERRUPTED);
}

void cst_ranks_dead(struct cst_core *core, const struct cst_event *event)
{
    enum cst_rank_state before = core->ranks[event->rank].state;

    if (before != CST_RANK_ATTACHED && before != CST_RANK_HUNG_UP) {
        return;
    }
    cst_residency_reclaim(core, event->rank);
    set_state(core, event->rank, CST_RANK_DEAD);
    if (before == CST_RANK_ATTACHED) {
        lose(core, event->rank, "died in step", CST_PHASE_INTERRUPTED);
    } else {
        char how[64];

        (void)snprintf(how, sizeof how, "rank %" PRIu32 " died in step %" PRIu64, event->rank,
                       core->step);
        give_unit_back(core, event->rank, how);
    }
}

bool cst_core_held_up_by(const struct cst_core *core, uint32_t rank)
{
    const struct cst_rank *r = &core->ranks[rank];
    struct cst_work_unit unit;

    if (r->state != CST_RANK_HUNG_UP || r->shut_out || !core->schedule->elastic) {
        return false;
    }
    return core->attempt.phase == CST_PHASE_RUNNING
               ? core->schedule->work->unit(core, rank, &unit)
               : core->attempt.phase != CST_PHASE_FAILED && core->attempt.initialised;
}

void cst_ranks_shut_out(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *rank = &core->ranks[event->rank];
    struct cst_err why;

    if (rank->state != CST_RANK_HUNG_UP || !core->schedule->elastic) {
        return;
    }
    rank->shut_out = true;
    if (core->attempt.phase == CST_PHASE_RUNNING) {
        (void)cst_err_set(&why, CST_EPEERDIED,
                          "rank %" PRIu32 " disconnected in step %" PRIu64
                          " and its process goes on: the step is done again without it",
                          event->rank, rank->state_step);
        cst_ranks_interrupt(core, &why);
    }
}

/* True if no rank has begun the next step, except that @leaver may have fetched weights. */
static bool leaves_between_steps(const struct cst_core *core, uint32_t leaver)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (core->ranks[rank].begun > (rank == leaver ? CST_BEGUN_READING : CST_BEGUN_NOTHING)) {
            return false;
        }
    }
    return true;
}

void cst_ranks_leave(struct cst_core *core, const struct cst_event *event)
{
    bool between;

    if (core->ranks[event->rank].state != CST_RANK_ATTACHED) {
        cst_core_refuse(core, event->tag, CST_EINVAL, "rank %" PRIu32 " is not attached",
                        event->rank);
        return;
    }
    between = leaves_between_steps(core, event->rank);
    cst_residency_reclaim(core, event->rank);
    set_state(core, event->rank, CST_RANK_LEFT);
    lose(core, event->rank, "left after step", between ? CST_PHASE_IDLE : CST_PHASE_INTERRUPTED);
    settle(core);
    (void)cst_core_reply(core, event->tag);
}

/* @rank does not go on with the attempt that runs, but will join it again or another one. It
 * may not take part, but have a unit: it hung up, and the same process has
 * attached again. */
static void give_up(struct cst_core *core, uint32_t rank)
{
    struct cst_err why;

    (void)cst_err_set(&why, CST_EPEERDIED, "rank %" PRIu32 " gave up step %" PRIu64 " and synced",
                      rank, core->step);
    if (!core->schedule->elastic) {
        cst_ranks_interrupt(core, &why);
        return;
    }
    give_unit_back(core, rank, why.text);
    if (core->ranks[rank].joined) {
        cst_waiting_refuse_rank(core, rank, &why);
        core->ranks[rank].joined = false;
        go_on_without(core, rank);
    }
}

void cst_ranks_sync(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *rank = &core->ranks[event->rank];
    struct cst_err err;

    if (core->attempt.phase == CST_PHASE_FAILED) {
        cst_core_refuse_err(core, event->tag, &core->attempt.why);
        return;
    }
    if (cst_open_writes_check_sync(core, event->rank, &err) != CST_OK) {
        cst_core_refuse_err(core, event->tag, &err);
        return;
    }
    if (rank->state != CST_RANK_ATTACHED || rank->sync != CST_NO_REQUEST) {
        cst_core_refuse(core, event->tag, CST_EINVAL, "rank %" PRIu32 " %s", event->rank,
                        rank->state != CST_RANK_ATTACHED ? "is not attached"
                                                         : "is already waiting in a sync");
        return;
    }
    if (rank->gone.status != CST_OK) {
        cst_core_refuse_err(core, event->tag, &rank->gone);
        return;
    }
    if (cst_epochs_check_sync(core, &err) != CST_OK) {
        cst_core_refuse_err(core, event->tag, &err);
        return;
    }
    /* A rank that syncs during an attempt has given the attempt up. */
    if (core->attempt.phase == CST_PHASE_RUNNING) {
        give_up(core, event->rank);
    }
    cst_residency_end_leases(core, event->rank, false);
    rank->sync = cst_requests_add(&core->requests, event, CST_REQUEST_SYNC);
    cst_requests_time(&core->requests, rank->sync, cst_waiting_deadline(core));
}

/* -- cancel ----------------------------------------------------------------------------------- */

void cst_ranks_cancel(struct cst_core *core, const struct cst_event *event)
{
    uint32_t i = cst_requests_find(&core->requests, event->cancel);
    struct cst_err why;

    if (i == CST_NO_REQUEST ||
        (core->requests.v[i].where != CST_REQUEST_IO && core->requests.v[i].rank != event->rank)) {
        cst_core_refuse(core, event->tag, CST_ENOTFOUND,
                        "rank %" PRIu32 " has nothing to cancel: the request has its answer",
                        event->rank);
        return;
    }
    /* An engine executes the command, or the norm: the request will be answered soon. */
    if (core->requests.v[i].where == CST_REQUEST_IO ||
        (core->requests.v[i].where == CST_REQUEST_STEP && core->attempt.closing)) {
        cst_core_refuse(core, event->tag, CST_EBUSY,
                        "too late to cancel: the request ends by itself");
        return;
    }
    if (core->requests.v[i].where == CST_REQUEST_STEP) {
        cst_rank_withdraw_step(&core->ranks[event->rank]);
    }
    (void)cst_err_set(&why, CST_ECANCELLED, "cancelled by rank %" PRIu32, event->rank);
    cst_waiting_refuse(core, i, &why);
    (void)cst_core_reply(core, event->tag);
}
