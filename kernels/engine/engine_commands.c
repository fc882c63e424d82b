/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/engine_parts.h"

#include <inttypes.h>

static void append(struct cste_engine *engine, struct cste_work *work)
{
    work->sequence = ++engine->n_submitted;
    work->older = engine->youngest;
    if (engine->youngest != NULL) {
        engine->youngest->younger = work;
    } else {
        engine->oldest = work;
    }
    engine->youngest = work;
}

/* Remove @work from the list. Returns whether @work was the oldest. */
static bool detach(struct cste_engine *engine, struct cste_work *work)
{
    bool oldest = engine->oldest == work;

    if (work->younger != NULL) {
        work->younger->older = work->older;
    } else {
        engine->youngest = work->older;
    }
    if (oldest) {
        engine->oldest = work->younger;
    } else {
        work->older->younger = work->younger;
    }
    return oldest;
}

/* End @work, answer the daemon, and make waiting commands ready. */
static void finish(struct cste_engine *engine, struct cste_work *work)
{
    bool ok = work->status == CST_OK;
    const double *value =
        ok && (work->kind == ENGINE__COMMAND_KIND__NORM || work->sums) ? &work->value : NULL;
    struct cst_err err;
    bool oldest;
    int rc;

    if (work->status == CST_EGPU) {
        /* The failed command is not completed: the next engine has to repeat the command. */
        cste_engine_fail(engine, CST_EGPU, &work->err);
        return;
    }
    oldest = detach(engine, work);
    cste_work_count(work);
    cst_ticket_graph_done(&engine->tickets, &work->ticket, work->status);
    rc =
        cste_outbox_complete(&engine->outbox, work->ticket.number, work->status, value,
                             ok ? NULL : work->err.text, work->task.began_ns, work->ended_ns, &err);
    cste_engine_fail(engine, rc, &err);
    cste_engine_close_work(engine, work);
    if (oldest && engine->n_drops > 0) {
        cste_engine_start_drops(engine);
    }
}

static void finish_by_mail(struct cste_mail *mail, void *arg)
{
    finish(arg, (struct cste_work *)(void *)((char *)mail - offsetof(struct cste_work, mail)));
}

/* Restore the undo slots if possible. Returns whether commands may run. Commands may not run while
 * a slot waits for a segment that is being added. The daemon adds the segments of a dead engine
 * before it submits commands again. A slot whose segments are missing by then belongs to a removed
 * job, or to a job of an earlier daemon whose segments are not added yet. The daemon submits no
 * command of a job before all its segments are added. */
static bool recover(struct cste_engine *engine)
{
    struct cste_recovery *recovery = &engine->recovery;

    if (engine->recovered) {
        return true;
    }
    if (cste_recovery_try(recovery, &engine->segments, engine->config.warn) > 0) {
        if (engine->unsettled) {
            return cste_recovery_park(recovery);
        }
        if (engine->n_adding > 0) {
            return recovery->parked;
        }
        cste_recovery_forget(recovery, engine->config.warn);
    }
    engine->recovered = true;
    return true;
}

void cste_engine_settle(struct cste_engine *engine)
{
    engine->unsettled = false;
    cste_engine_start_held(engine);
}

static void start(struct cste_engine *engine, struct cste_work *work)
{
    /* A failed command, or one without pieces, is over without a thread pool. */
    if (cste_work_prepare(work) != CST_OK || work->task.n_pieces == 0) {
        finish(engine, work);
        return;
    }
    cste_work_submit(work, cste_work_is_compute(work)
                               ? &engine->team
                               : cste_engine_lanes(engine, cste_work_lane(work)));
}

static void start_or_hold(struct cste_engine *engine, struct cste_work *work)
{
    /* A cancelled command touches no memory and need not wait for recovery. */
    if (work->ticket.doomed) {
        work->status = cst_err_set(&work->err, CST_ECANCELLED,
                                   "command %" PRIu64 " failed, for which this one waited",
                                   work->ticket.culprit);
        finish(engine, work);
    } else if (!recover(engine)) {
        work->next = NULL;
        *engine->held_tail = work;
        engine->held_tail = &work->next;
    } else {
        start(engine, work);
    }
}

void cste_engine_start_ready(struct cste_engine *engine)
{
    struct cst_ticket *ticket;

    while ((ticket = cst_ticket_graph_take(&engine->tickets)) != NULL) {
        start_or_hold(engine, (struct cste_work *)(void *)((char *)ticket -
                                                           offsetof(struct cste_work, ticket)));
    }
}

void cste_engine_start_held(struct cste_engine *engine)
{
    if (engine->held == NULL || !recover(engine)) {
        return;
    }
    while (engine->held != NULL) {
        struct cste_work *work = engine->held;

        engine->held = work->next;
        start(engine, work);
    }
    engine->held_tail = &engine->held;
}

static int take_command(struct cste_engine *engine, const Engine__Command *command,
                        struct cst_err *err)
{
    struct cste_work *work;
    int rc = cste_work_open(&work, &engine->context, command, err);

    if (rc != CST_OK) {
        return rc;
    }
    work->mail.deliver = finish_by_mail;
    rc = cst_ticket_graph_add(&engine->tickets, &work->ticket, command->after, command->n_after,
                              err);
    if (rc == CST_OK) {
        append(engine, work);
    } else {
        cste_work_close(work);
    }
    return rc == CST_EEXIST ? cst_err_set(err, CST_EPROTO, "ticket %" PRIu64 " is pending already",
                                          command->ticket)
                            : rc;
}

int cste_engine_submit(struct cste_engine *engine, const struct cst_frame *frame,
                       struct cst_err *err)
{
    Engine__Submit *submit = engine__submit__unpack(NULL, frame->body_bytes, frame->body);
    int rc = CST_OK;

    if (submit == NULL) {
        return cst_err_set(err, CST_EPROTO, "malformed SUBMIT");
    }
    for (size_t i = 0; i < submit->n_commands && rc == CST_OK; i++) {
        rc = take_command(engine, submit->commands[i], err);
    }
    engine__submit__free_unpacked(submit, NULL);
    return rc;
}
