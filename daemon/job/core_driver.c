/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/core_driver.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/done.h"
#include "daemon/job/durable.h"
#include "daemon/base/log.h"
#include "daemon/session/session.h"
#include "daemon/job/readers.h"
#include "daemon/job/saver.h"
#include "daemon/job/updates.h"
#include "proto/cistern.pb-c.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/engines.h"
#include "daemon/job/jobs.h"
#include "daemon/job/planner.h"
#include "daemon/job/span.h"
#include "daemon/ledger/ledger.h"
#include "daemon/memory/upkeep.h"
#include "daemon/session/pending.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_TRACE = 256 }; /* Entries that are charged first. */

/* -- replies -------------------------------------------------------------------------------- */

static void put_item(struct cstd_pending_item *item, const struct cst_reply *reply)
{
    item->done = true;
    item->status = reply->status;
    item->hit = reply->hit;
    item->slab = reply->slab;
    item->offset = reply->offset;
    item->generation = reply->generation;
    item->home = reply->home;
    item->home_bytes = reply->home_bytes;
    if (reply->status != CST_OK) {
        item->reason = reply->err.reason;
        item->text = strdup(reply->err.text); /* If this is NULL the status alone is sent. */
    }
}

/* Returns the record, which is created at the first use. NULL: out of memory; the job works without
 * a record. */
static struct cstd_record *record_of(struct cstd_job *job)
{
    const struct cstd_record_job of = cstd_upkeep_record(job);

    if (job->record == NULL) {
        job->record = cstd_record_open(&of);
    }
    return job->record;
}

static void answer_sync(struct cstd_daemon *daemon, struct cstd_pending *request,
                        const struct cst_reply *reply)
{
    Cistern__Synced synced = CISTERN__SYNCED__INIT;

    if (request->job != NULL) {
        cstd_record_begin(record_of(request->job), reply->step, uv_hrtime());
        synced.edges_replaced = request->job->memory.slots_replaced;
        synced.has_edges_replaced = synced.edges_replaced > 0;
    }
    synced.attempt = reply->attempt;
    synced.step = reply->step;
    synced.has_kept = 1;
    synced.kept = request->job != NULL && request->job->ledger.state == CSTD_LEDGER_KEPT;
    cstd_session_answer(daemon, request, CISTERN__MSG_TYPE__MSG_SYNCED, &synced.base, NULL, 0);
}

/* Add the committed step to the history. */
static void add_to_history(struct cstd_job *job, const struct cst_reply *reply, uint64_t now,
                           uint64_t ns)
{
    cstd_history_add(&job->history,
                     &(struct cstd_history_step){.step = reply->step,
                                                 .ended_ns = now,
                                                 .ns = ns,
                                                 .exposed_ns = cst_core_exposed_ns(job->core),
                                                 .tokens = job->tokens,
                                                 .loss = reply->loss,
                                                 .grad_norm = reply->grad_norm,
                                                 .n_skipped = reply->skipped});
    job->tokens = 0;
}

/* Account for a committed step. Every rank's reply reports it; the first one counts. */
static void on_commit(struct cstd_job *job, const struct cst_reply *reply)
{
    const uint64_t now = uv_hrtime();
    struct cstd_drift *drift = &job->drift;
    enum cstd_drift_news news;
    uint64_t ns;

    cstd_record_commit(job->record, reply->step, cst_core_exposed_ns(job->core), now, &ns);
    /* The step was reported by another rank already, or its start is unknown. */
    if (ns == 0) {
        return;
    }
    add_to_history(job, reply, now, ns);
    cstd_updates_step(job);
    news = cstd_drift_step(drift, (double)ns * 1e-9);
    if (news != CSTD_DRIFT_NONE) {
        cstd_log_about(CSTD_LOG_DEBUG, CSTD_JOB_ABOUT(job),
                       "%s: the last %d steps took %.4g s each, %s %.4g s (%+.0f %%)",
                       news == CSTD_DRIFT_OFF ? "its steps differ from the expected time"
                                              : "its steps take the expected time again",
                       CSTD_DRIFT_STEPS, drift->mean_s,
                       drift->learned ? "the first ones took" : "the plan says", drift->predicted_s,
                       100 * (drift->mean_s / drift->predicted_s - 1));
        cstd_planner_drifted(job);
    }
}

/* Add the time for which a rank waited for the commit to the record. */
static void record_closing(const struct cstd_pending *request)
{
    const struct cstd_pending_item *item = &request->items[0];

    if (item->asked_ns != 0) {
        cstd_record_closing(request->job->record, item->rank, item->asked_ns);
    }
}

static void answer_step(struct cstd_daemon *daemon, struct cstd_pending *request,
                        const struct cst_reply *reply)
{
    Cistern__Stepped stepped = CISTERN__STEPPED__INIT;

    if (request->job != NULL) {
        on_commit(request->job, reply);
        record_closing(request);
    }
    stepped.step = reply->step;
    stepped.skipped = reply->skipped;
    stepped.grad_norm = reply->grad_norm;
    stepped.clip = reply->clip;
    stepped.loss = reply->loss;
    stepped.n_skipped = reply->n_skipped;
    stepped.has_overflow = 1;
    stepped.overflow = reply->overflow;
    cstd_session_answer(daemon, request, CISTERN__MSG_TYPE__MSG_STEPPED, &stepped.base, NULL, 0);
}

static void answer_next(struct cstd_daemon *daemon, struct cstd_pending *request,
                        const struct cst_reply *reply)
{
    Cistern__Unit unit = CISTERN__UNIT__INIT;

    unit.kind = CISTERN__UNIT__KIND__DONE;
    if (reply->has_unit) {
        unit.kind =
            reply->unit.backward ? CISTERN__UNIT__KIND__BACKWARD : CISTERN__UNIT__KIND__FORWARD;
        unit.has_stage = unit.has_micro_batch = unit.has_number = 1;
        unit.number = reply->unit.number;
        unit.stage = reply->unit.stage;
        unit.micro_batch = reply->unit.micro;
    }
    cstd_session_answer(daemon, request, CISTERN__MSG_TYPE__MSG_UNIT, &unit.base, NULL, 0);
}

/* Answer a Leave. The core has released the rank; the job must release it before the worker gets
 * the reply. */
static void answer_leave(struct cstd_daemon *daemon, struct cstd_pending *request)
{
    struct cstd_session *session = request->session;

    if (session != NULL && session->job != NULL) {
        daemon->core_ops->left(session->job, session->rank);
    }
    cstd_session_answer(daemon, request, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
}

static void answer_single(struct cstd_daemon *daemon, struct cstd_pending *request,
                          const struct cst_reply *reply)
{
    if (request->type == CISTERN__MSG_TYPE__MSG_SAVE) {
        cstd_saver_answer(daemon, request, reply);
        return;
    }
    if (reply->status != CST_OK) {
        cstd_session_fail(daemon, request, &reply->err);
        return;
    }
    switch (request->type) {
    case CISTERN__MSG_TYPE__MSG_SYNC:
        answer_sync(daemon, request, reply);
        break;
    case CISTERN__MSG_TYPE__MSG_STEP:
        answer_step(daemon, request, reply);
        break;
    case CISTERN__MSG_TYPE__MSG_NEXT:
        answer_next(daemon, request, reply);
        break;
    case CISTERN__MSG_TYPE__MSG_LEAVE:
        answer_leave(daemon, request);
        break;
    case CISTERN__MSG_TYPE__MSG_RESTORE:
        if (request->job != NULL) {
            cstd_saver_restored(request->job, request->restores);
        }
        cstd_session_answer(daemon, request, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
        break;
    default: /* Tensor reads and writes, SaveEnd. */
        cstd_session_answer(daemon, request, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
        break;
    }
}

/* Add a fetch that had to wait and has its result now to the record. If the worker began to wait
 * for a fetch ahead, its wait is added, too. */
static void record_wait(const struct cstd_pending *request, const struct cstd_pending_item *item)
{
    struct cstd_job *job = request->job;
    struct cstd_worker *worker;
    uint64_t now;

    if (item->asked_ns == 0 || job == NULL) {
        return;
    }
    now = uv_hrtime();
    worker = &job->workers[item->rank];
    cstd_record_wait(job->record, item->rank, item->chunk, item->grad, item->ahead, item->asked_ns,
                     now);
    if (item->ahead && worker->wanted_ns > item->asked_ns && worker->wanted_chunk == item->chunk) {
        cstd_record_wait(job->record, item->rank, item->chunk, item->grad, false, worker->wanted_ns,
                         now);
    }
}

void cstd_core_driver_reply(struct cstd_daemon *daemon, const struct cst_reply *reply)
{
    uint32_t i;
    struct cstd_pending *request = cstd_pending_find(daemon->requests, reply->tag, &i);

    if (request == NULL || request->items[i].done) {
        return; /* The request was answered already, because its job is being removed. */
    }
    if (request->type == CISTERN__MSG_TYPE__MSG_BATCH) {
        put_item(&request->items[i], reply);
        record_wait(request, &request->items[i]);
        if (--request->n_left == 0) {
            request->paused = request->job != NULL && request->job->pause.held_ns != 0;
            cstd_session_answer_batch(daemon, request);
        }
    } else if (request->type == CISTERN__MSG_TYPE__MSG_CANCEL) {
        request->items[i].done = true;
        if (--request->n_left == 0) {
            cstd_session_answer(daemon, request, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
        }
    } else {
        answer_single(daemon, request, reply);
    }
}

/* -- actions -------------------------------------------------------------------------------- */

/* Return the segment with the number @id; NULL: the job does not own it. */
static const struct cstd_segment *segment_of(const struct cstd_memory *memory, uint32_t id)
{
    for (uint32_t i = 0; i < memory->n_segments; i++) {
        if (memory->ids[i] == id) {
            return memory->segments[i];
        }
    }
    return NULL;
}

/* Count a copy from or to a file of the job. */
static void count_drives(struct cstd_job *job, const struct cst_command *command)
{
    const struct cstd_segment *from, *to;

    if (job->files.n == 0 || command->kind != CST_COMMAND_COPY) {
        return;
    }
    from = segment_of(&job->memory, command->src[0].segment);
    to = segment_of(&job->memory, command->dst[0].segment);
    job->drive_read_bytes += from != NULL && from->file ? command->bytes : 0;
    job->drive_written_bytes += to != NULL && to->file ? command->bytes : 0;
}

/* Return the rank whose pool has the segment @id; CSTD_RECORD_NO_RANK: none has. */
static uint32_t rank_of(const struct cstd_memory *memory, uint32_t id)
{
    for (uint32_t r = 0; r < memory->world; r++) {
        const uint32_t n = cstd_memory_n_slabs(memory, r);

        for (uint32_t i = 0; i < n; i++) {
            if (memory->pools[r].segments[i] == id) {
                return r;
            }
        }
    }
    return CSTD_RECORD_NO_RANK;
}

/* Add @command, which is about to be submitted, to the record. */
static void record_command(struct cstd_job *job, const struct cst_command *command)
{
    const struct cstd_memory *memory = &job->memory;
    const struct cstd_record_ids ids = {.v = memory->ids,
                                        .n = memory->n_segments,
                                        .n_arenas = memory->n_arenas,
                                        .n_reservations = memory->n_reservations};
    const enum cstd_record_kind kind = cstd_record_kind_of(command, &ids);

    cstd_record_issue(record_of(job), kind, command,
                      kind == CSTD_RECORD_LOAD ? rank_of(memory, command->dst[0].segment)
                                               : CSTD_RECORD_NO_RANK,
                      uv_hrtime());
}

/* Submit a command. If that fails the core would wait for the command forever; the job is removed,
 * because an error is better than a job that hangs. */
static void submit(struct cstd_job *job, const struct cst_command *command)
{
    struct cst_err err = {0};

    record_command(job, command);
    count_drives(job, command);
    if (cstd_engines_submit(job->daemon->engines, command, &err) != CST_OK) {
        cstd_log_about(CSTD_LOG_ERROR, CSTD_JOB_ABOUT(job), "removed: %s", err.text);
        job->daemon->core_ops->lost(job, &err);
    }
}

/* Have the last step recorded. If that fails the core would wait for ever. */
static void seal(struct cstd_job *job)
{
    struct cst_err err;

    if (cstd_durable_seal(job, &err) != CST_OK) {
        cstd_log_about(CSTD_LOG_ERROR, CSTD_JOB_ABOUT(job), "removed: %s", err.text);
        job->daemon->core_ops->lost(job, &err);
    }
}

static void carry_out(struct cstd_job *job, const struct cst_actions *actions)
{
    for (size_t i = 0; i < actions->n; i++) {
        const struct cst_action *action = &actions->v[i];

        switch (action->kind) {
        case CST_ACT_COMMAND:
            submit(job, &action->command);
            break;
        case CST_ACT_REPLY:
            if (cstd_pending_is_tag(action->reply.tag)) {
                cstd_core_driver_reply(job->daemon, &action->reply);
            } else if (job->span != NULL && action->reply.tag == CSTD_SPAN_READ_TAG) {
                cstd_span_answered(job, &action->reply);
            } else {
                job->daemon->core_ops->copied(job, &action->reply);
            }
            break;
        case CST_ACT_RECALL:
            cstd_engines_recall(job->daemon->engines, action->recall);
            break;
        case CST_ACT_SEAL:
            seal(job);
            break;
        case CST_ACT_TELL:
            cstd_span_tell(job, action->tell.to, &action->tell.message);
            break;
        case CST_ACT_VERSION:
            cstd_readers_version(job, action->version.row, action->version.step);
            break;
        case CST_ACT_REVOKE:
            cstd_readers_revoke(job, action->version.row);
            break;
        case CST_ACT_LOG:
            cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job), "%s", action->log.text);
            break;
        }
    }
}

static void on_deadline(uv_timer_t *timer)
{
    struct cstd_job *job = timer->data;
    struct cst_event event = {.kind = CST_EV_TICK};

    job->deadline_ns = CST_CORE_NEVER;
    cstd_job_feed(job, &event);
}

/* Set the timer for the core's deadline. The time is rounded up, because a tick before the deadline
 * would have to be repeated. */
static void arm(struct cstd_job *job, uint64_t now)
{
    uint64_t deadline = cst_core_deadline(job->core);

    if (deadline == job->deadline_ns) {
        return;
    }
    job->deadline_ns = deadline;
    if (deadline == CST_CORE_NEVER) {
        (void)uv_timer_stop(&job->deadline);
    } else {
        (void)uv_timer_start(&job->deadline, on_deadline,
                             deadline > now ? (deadline - now) / 1000000 + 1 : 1, 0);
    }
}

/* If @event is a fetch or a Step that has no result yet, note its start for the record. */
static void note_wait(struct cstd_daemon *daemon, const struct cst_event *event)
{
    struct cstd_pending *request;
    uint32_t i;

    if (event->kind != CST_EV_FETCH_WEIGHT && event->kind != CST_EV_FETCH_GRAD &&
        event->kind != CST_EV_STEP) {
        return;
    }
    request = cstd_pending_find(daemon->requests, event->tag, &i);
    if (request != NULL && !request->items[i].done) {
        request->items[i].asked_ns = event->now;
        request->items[i].rank = event->rank;
        request->items[i].chunk = event->chunk;
        request->items[i].grad = event->kind == CST_EV_FETCH_GRAD;
        request->items[i].ahead = event->ahead;
    }
}

/* Add the lease that @event is about to end to the record, and note that the worker waits for a
 * fetch ahead. */
static void note_lease(struct cstd_job *job, const struct cst_event *event)
{
    const bool grad = event->kind == CST_EV_HAND_IN;
    uint64_t granted = 0;

    if (event->kind == CST_EV_WANT && event->rank < job->world) {
        job->workers[event->rank].wanted_ns = event->now;
        job->workers[event->rank].wanted_chunk = event->chunk;
    } else if (event->kind == CST_EV_RELEASE || grad) {
        granted =
            cst_core_granted_at(job->core, event->rank, event->chunk, grad, event->generation);
    }
    if (granted != 0) {
        cstd_record_lease(
            job->record, event->rank, event->chunk, grad,
            2 * job->layout.classes[job->layout.chunks[event->chunk].size_class].capacity, granted,
            event->now);
    }
}

/* Charge a longer record of the requests of @rank, which helps to predict them. If the budgets have
 * no more, the record stays as it is. */
static void lengthen_trace(struct cstd_job *job, uint32_t rank)
{
    struct cstd_worker *worker = &job->workers[rank];
    uint32_t more = worker->n_trace > 0 ? worker->n_trace : FIRST_TRACE;
    struct cst_err unused;

    if (cstd_charge_set(&job->traces,
                        job->traces.bytes + (uint64_t)more * CST_CORE_TRACE_ENTRY_BYTES, job->name,
                        &unused) == CST_OK) {
        worker->n_trace += more;
        cst_core_limit_trace(job->core, rank, worker->n_trace);
    }
}

void cstd_job_feed(struct cstd_job *job, struct cst_event *event)
{
    struct cstd_daemon *daemon = job->daemon;

    /* The rank of a connection that reads another job means nothing here. */
    if (event->rank < job->world && cst_core_trace_wants(job->core, event->rank)) {
        lengthen_trace(job, event->rank);
    }
    event->now = uv_hrtime();
    note_lease(job, event);
    cst_core_step(job->core, event, &daemon->actions);
    cstd_ledger_note(job);
    carry_out(job, &daemon->actions);
    note_wait(daemon, event);
    /* An action may have removed the job. */
    if (job->state == CSTD_JOB_READY) {
        /* Ranks that wait for others in shared memory have sent no request. */
        cstd_shared_heads_end(&job->memory.heads, cst_core_attempt_over(job->core));
        daemon->core_ops->settled(job);
        arm(job, event->now);
        if (job->span != NULL) {
            cstd_span_stepped(job);
        }
        cstd_done_look(job);
        cstd_durable_look(job);
    }
}

static struct cstd_job *find_by_serial(struct cstd_daemon *daemon, uint64_t serial)
{
    struct cstd_job *job;

    TAILQ_FOREACH(job, &daemon->jobs->living, link)
    {
        if (job->serial == serial) {
            return job->core != NULL ? job : NULL;
        }
    }
    return NULL;
}

void cstd_core_driver_done(void *arg, uint64_t ticket, int status, double value, const char *text)
{
    struct cstd_daemon *daemon = arg;
    struct cstd_job *job = find_by_serial(daemon, ticket >> CSTD_JOB_TICKET_SHIFT);
    struct cst_event event = {
        .kind = CST_EV_DONE, .ticket = ticket, .status = status, .value = value, .text = text};

    if (job != NULL && cstd_durable_is_ticket(ticket) && job->span != NULL) {
        cstd_span_copied(job, ticket, status, text);
    } else if (job != NULL && cstd_durable_is_ticket(ticket)) {
        cstd_durable_done(job, ticket, status, value, text);
    } else if (job != NULL) {
        cstd_record_over(job->record, ticket, uv_hrtime());
        cstd_job_feed(job, &event);
    }
}

void cstd_core_driver_timed(void *arg, uint64_t ticket, unsigned engine, uint64_t began_ns,
                            uint64_t ended_ns)
{
    struct cstd_job *job = find_by_serial(arg, ticket >> CSTD_JOB_TICKET_SHIFT);

    if (job != NULL && !cstd_durable_is_ticket(ticket)) {
        cstd_record_done(job->record, ticket, engine, began_ns, ended_ns);
    }
}

/* Returns the living job with the next serial number after @serial; NULL: none. The list is ordered
 * by serial number. */
static struct cstd_job *next_made(const struct cstd_daemon *daemon, uint64_t serial)
{
    struct cstd_job *job;

    TAILQ_FOREACH(job, &daemon->jobs->living, link)
    {
        if (job->serial > serial) {
            return job;
        }
    }
    return NULL;
}

/* Iterates by serial number, because handling the event may remove this job and others from the
 * list. */
void cstd_core_driver_given_up(void *arg, unsigned engine, const char *why)
{
    struct cstd_daemon *daemon = arg;
    const struct cstd_commands *commands = &daemon->engines->v[engine].commands;
    struct cstd_job *job;

    for (uint64_t serial = 0; (job = next_made(daemon, serial)) != NULL;) {
        serial = job->serial;
        if (job->core != NULL &&
            cstd_commands_has_any(commands, CSTD_JOB_TICKET_SHIFT, job->serial)) {
            struct cst_event event = {.kind = CST_EV_NODE_DOWN, .text = why};

            cstd_job_feed(job, &event);
        }
    }
}
