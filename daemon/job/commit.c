/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/commit.h"

#include "daemon/job/commit_wait.h"
#include "daemon/job/core_driver.h"
#include "daemon/base/daemon_state.h"
#include "daemon/job/declare.h"
#include "daemon/memory/device_reservation.h"
#include "daemon/job/done.h"
#include "daemon/job/given.h"
#include "daemon/job/job_core.h"
#include "daemon/job/job_memory.h"
#include "daemon/job/layout_work.h"
#include "daemon/job/migrate.h"
#include "daemon/job/reshape.h"
#include "daemon/job/committed.h"
#include "daemon/base/log.h"
#include "daemon/job/pool_share.h"
#include "daemon/memory/rank_devices.h"
#include "daemon/job/relocate.h"
#include "proto/cistern.pb-c.h"
#include "proto/size.h"
#include "daemon/job/jobs.h"
#include "daemon/job/planner.h"
#include "daemon/job/span.h"
#include "daemon/job/standby.h"
#include "daemon/job/state_copy.h"
#include "daemon/ledger/ledger.h"
#include "daemon/memory/memory.h"
#include "daemon/session/session.h"

#include <stdio.h>
#include <string.h>

static int collect_ranks(struct cstd_job *job, struct cst_err *err);
static int await_engines(struct cstd_job *job, struct cst_err *err);
static int make_plan(struct cstd_job *job, struct cst_err *err);
static int lay_out(struct cstd_job *job, struct cst_err *err);
static int make_memory(struct cstd_job *job, struct cst_err *err);
static int open_core(struct cstd_job *job, struct cst_err *err);
static int make_ledger(struct cstd_job *job, struct cst_err *err);
static int take_states(struct cstd_job *job, struct cst_err *err);
static int attach_ranks(struct cstd_job *job, struct cst_err *err);
static int answer_ranks(struct cstd_job *job, struct cst_err *err);
static int cancel_plan(struct cstd_job *job);
static int drop_layout(struct cstd_job *job);
static int close_memory(struct cstd_job *job);
static int close_core(struct cstd_job *job);
static int size_pools(struct cstd_job *job, struct cst_err *err);

/* A phase of a commit.
 *
 *   COLLECT -> MEET -> ENGINES -> PLAN -> CHUNKS -> LAYOUT -> POOLS -> MEMORY -> JOIN -> CORE
 *      ^_____________________________________________________________________________|     v
 *         an error, or a rank that leaves in DECLARING                             STATES <- LEDGER
 *                                                             DONE <- ANSWER <- ATTACH <-|
 *                                                               |________^
 *          a Commit of a worker that has opened the job again */
struct phase {
    enum cst_job_state shown; /* For users. */
    /* State of the job in this phase.
     * DECLARING: a rank that leaves or hangs up ends the commit, because the model needs all ranks;
     * a cancelled Commit makes the other ranks wait again.
     * POPULATING and READY: the commit goes on without ranks that leave, because the job and its
     * memory outlive its workers. */
    enum cstd_job_state state;
    /* Does the work of the phase. CST_OK: the next phase follows. CST_EAGAIN: the phase takes time,
     * and end_phase or end_layout is called at its end. Another status: the phase has failed and
     * has left nothing to undo. NULL: there is nothing to do. */
    int (*enter)(struct cstd_job *job, struct cst_err *err);
    /* Gives back what the phase has made, or cancels its work. CST_EAGAIN: this takes time, and
     * cstd_commit_memory_gone is called at its end. NULL: there is nothing to give back. */
    int (*undo)(struct cstd_job *job);
    /* If the phase fails when it is entered, the commit goes back to LAYOUT and is tried again with
     * a smaller plan (cstd_planner_forgo) or the chunks of the predecessor. A pool that is one slab
     * larger than the plan assumed, or an accelerator whose memory another job has taken meanwhile,
     * must not fail the job. */
    bool may_replan;
};

static const struct phase phases[] = {
    [CSTD_COMMIT_COLLECT] = {CST_JOB_IS_DECLARING, CSTD_JOB_DECLARING, collect_ranks, NULL, false},
    [CSTD_COMMIT_MEET] = {CST_JOB_IS_DECLARING, CSTD_JOB_DECLARING, cstd_commit_meet,
                          cstd_commit_part, false},
    [CSTD_COMMIT_ENGINES] = {CST_JOB_IS_STARTING, CSTD_JOB_DECLARING, await_engines, NULL, false},
    [CSTD_COMMIT_PLAN] = {CST_JOB_IS_PLANNING, CSTD_JOB_DECLARING, make_plan, cancel_plan, false},
    [CSTD_COMMIT_CHUNKS] = {CST_JOB_IS_PLANNING, CSTD_JOB_DECLARING, cstd_commit_await_chunks, NULL,
                            false},
    [CSTD_COMMIT_LAYOUT] = {CST_JOB_IS_POPULATING, CSTD_JOB_POPULATING, lay_out, drop_layout, true},
    [CSTD_COMMIT_POOLS] = {CST_JOB_IS_POPULATING, CSTD_JOB_POPULATING, size_pools, NULL, true},
    [CSTD_COMMIT_MEMORY] = {CST_JOB_IS_POPULATING, CSTD_JOB_POPULATING, make_memory, close_memory,
                            true},
    [CSTD_COMMIT_JOIN] = {CST_JOB_IS_POPULATING, CSTD_JOB_POPULATING, cstd_commit_join, NULL,
                          false},
    [CSTD_COMMIT_CORE] = {CST_JOB_IS_POPULATING, CSTD_JOB_POPULATING, open_core, close_core, false},
    [CSTD_COMMIT_LEDGER] = {CST_JOB_IS_POPULATING, CSTD_JOB_POPULATING, make_ledger, NULL, false},
    [CSTD_COMMIT_STATES] = {CST_JOB_IS_RESHAPING, CSTD_JOB_POPULATING, take_states,
                            cstd_reshape_cancel, false},
    [CSTD_COMMIT_ATTACH] = {CST_JOB_IS_READY, CSTD_JOB_READY, attach_ranks, NULL, false},
    [CSTD_COMMIT_ANSWER] = {CST_JOB_IS_READY, CSTD_JOB_READY, answer_ranks, NULL, false},
    [CSTD_COMMIT_DONE] = {CST_JOB_IS_READY, CSTD_JOB_READY, NULL, NULL, false},
};

/* -- forward and back ------------------------------------------------------------------------- */

static void set_phase(struct cstd_job *job, enum cstd_commit_phase phase)
{
    job->phase = phase;
    job->state = phases[phase].state;
}

/* Undo the phases that @job has entered after phase @to, the last one first. Returns false if the
 * memory is among them, because giving it back takes time: cstd_commit_memory_gone goes on later.
 */
static bool undo_to(struct cstd_job *job, enum cstd_commit_phase to)
{
    while (job->phase > to) {
        const struct phase *phase = &phases[job->phase];

        if (phase->undo != NULL && phase->undo(job) == CST_EAGAIN) {
            return false;
        }
        set_phase(job, job->phase - 1);
    }
    return true;
}

/* Answer the waiting Commits with job->failure. */
static void fail_ranks(struct cstd_job *job)
{
    for (uint32_t r = 0; r < job->world; r++) {
        struct cstd_pending *commit = job->workers[r].commit;

        job->workers[r].commit = NULL;
        if (commit != NULL) {
            cstd_session_fail(job->daemon, commit, &job->failure);
        }
    }
}

/* Go back to COLLECT, and answer the waiting Commits with job->failure. If undoing takes time,
 * cstd_commit_memory_gone calls this again, and the Commits are answered then. */
static void go_back(struct cstd_job *job)
{
    if (!undo_to(job, CSTD_COMMIT_COLLECT)) {
        return;
    }
    fail_ranks(job);
    (void)collect_ranks(job, NULL);
}

/* The move of the states to @job has stopped because of @why, after the predecessor has lost some
 * of them: the phases up to CORE stay as they are. The core is made again, because a WRITE that
 * failed has failed it. The next Commit tries again. */
static void stall(struct cstd_job *job, const struct cst_err *why)
{
    struct cst_err err = *why;

    (void)undo_to(job, CSTD_COMMIT_CORE);
    (void)cst_err_prefix(&err,
                         "the move of the states of job '%s' has stopped, and goes on when it is "
                         "opened again",
                         job->name);
    cstd_log_about(CSTD_LOG_ERROR, CSTD_JOB_ABOUT(job), "%s", err.text);
    if (cstd_job_core_renew(job, &err) != CST_OK) {
        cstd_log_about(CSTD_LOG_ERROR, CSTD_JOB_ABOUT(job), "%s", err.text);
    }
    job->failure = err;
    job->stalled = true;
    fail_ranks(job);
}

/* The commit of @job has failed because of @why: undo it. Before MEMORY the usual reason is the
 * request: a model, pool or plan does not fit. This is a warning, because the job's owner gets the
 * error and can mend it. From MEMORY on all sums were checked, and a failure is an error of the
 * daemon or the machine, which its operator should see. */
static void fail(struct cstd_job *job, const struct cst_err *why)
{
    if (cstd_migrate_is_torn(job)) {
        stall(job, why);
        return;
    }
    cstd_log_about(job->phase < CSTD_COMMIT_MEMORY ? CSTD_LOG_WARNING : CSTD_LOG_ERROR,
                   CSTD_JOB_ABOUT(job), "%s", why->text);
    job->failure = *why;
    go_back(job);
}

/* True if the layout should be built again in another way, because of @err. */
static bool may_retry(struct cstd_job *job, const struct cst_err *err)
{
    return cstd_reshape_keep_chunks(job, err) || cstd_planner_forgo(job, err);
}

/* Enter phase @next and the phases after it, up to one that takes time. COLLECT and ANSWER are
 * entered again to check whether they still have to wait. */
static void enter_from(struct cstd_job *job, enum cstd_commit_phase next)
{
    struct cst_err err = {0};
    int rc = CST_OK;

    while (rc == CST_OK && next <= CSTD_COMMIT_DONE) {
        set_phase(job, next);
        rc = phases[next].enter != NULL ? phases[next].enter(job, &err) : CST_OK;
        if (job->state == CSTD_JOB_CLOSING) { /* An action of the core has removed the job. */
            return;
        }
        if (rc == CST_OK) {
            next++;
        } else if (rc != CST_EAGAIN) {
            set_phase(job, next - 1);
            if (phases[next].may_replan && may_retry(job, &err)) {
                (void)undo_to(job, CSTD_COMMIT_PLAN);
                next = CSTD_COMMIT_LAYOUT;
                rc = CST_OK;
            }
        }
    }
    if (rc != CST_OK && rc != CST_EAGAIN) {
        fail(job, &err);
    }
    cstd_standbys_look(job->daemon);
}

/* The current phase of @job took time and has now ended with @err. */
static void end_phase(struct cstd_job *job, const struct cst_err *err)
{
    if (err->status == CST_OK) {
        enter_from(job, job->phase + 1);
    } else {
        fail(job, err);
    }
}

/* -- COLLECT ---------------------------------------------------------------------------------- */

static void on_deadline(uv_timer_t *timer)
{
    struct cstd_job *job = timer->data;
    char missing[160];
    struct cst_err why;

    cstd_commit_missing(job, missing, sizeof missing);
    (void)cst_err_set(&why, CST_ETIMEDOUT, "waited %u ms for the commit of %s",
                      job->spec.limits.timeout_ms, missing);
    cstd_commit_break(job, &why);
}

/* Wait until all ranks have sent Commit. The job's time limit begins with the first Commit. */
static int collect_ranks(struct cstd_job *job, struct cst_err *err)
{
    uint32_t n_waiting = cstd_commit_n_waiting(job);

    (void)err;
    if (n_waiting == 0 || n_waiting == job->world) {
        (void)uv_timer_stop(&job->deadline);
    } else if (!uv_is_active((uv_handle_t *)&job->deadline)) {
        (void)uv_timer_start(&job->deadline, on_deadline, job->spec.limits.timeout_ms, 0);
    }
    return n_waiting == job->world ? CST_OK : CST_EAGAIN;
}

void cstd_commit_break(struct cstd_job *job, const struct cst_err *why)
{
    if (job->state == CSTD_JOB_CLOSING) {
        return;
    }
    job->failure = *why;
    go_back(job);
}

void cstd_commit_disagree(struct cstd_job *job, struct cstd_worker *worker,
                          const struct cst_err *why)
{
    if (cstd_declare_drop(job, worker, why)) {
        cstd_commit_break(job, why);
    }
}

void cstd_commit_withdraw(struct cstd_job *job, uint32_t rank)
{
    job->workers[rank].commit = NULL;
    if (job->state == CSTD_JOB_DECLARING) {
        (void)undo_to(job, CSTD_COMMIT_COLLECT);
        (void)collect_ranks(job, NULL);
    }
}

/* -- other nodes ------------------------------------------------------------------------------ */

void cstd_commit_met(struct cstd_job *job, const struct cst_err *err)
{
    if (job->state == CSTD_JOB_CLOSING) {
        return; /* It is being taken apart already. */
    }
    if (job->phase == CSTD_COMMIT_MEET || job->phase == CSTD_COMMIT_CHUNKS ||
        job->phase == CSTD_COMMIT_JOIN || job->phase == CSTD_COMMIT_STATES) {
        (void)uv_timer_stop(&job->deadline);
        if (err->status == CST_OK && job->phase == CSTD_COMMIT_CHUNKS) {
            enter_from(job, CSTD_COMMIT_CHUNKS);
        } else {
            end_phase(job, err);
        }
    } else if (err->status != CST_OK && job->state == CSTD_JOB_DECLARING) {
        fail(job, err);
    }
}

/* -- ENGINES and PLAN ------------------------------------------------------------------------- */

/* Wait until the engines of all accelerators of the job have reported the granularity of their
 * memory. A successor whose declarations do not fit, and a model whose stages cannot be dispatched,
 * are refused before anything is made. */
static int await_engines(struct cstd_job *job, struct cst_err *err)
{
    if (cstd_reshape_check(job, err) != CST_OK ||
        cst_core_check_stages(&job->model, job->spec.updates.micro_batches,
                              job->spec.updates.overlap, err) != CST_OK) {
        return err->status;
    }
    for (uint32_t r = 0; r < job->world; r++) {
        cstd_rank_devices_need(&job->workers[r]);
    }
    cstd_files_need(&job->files);
    return cstd_rank_devices_await(job, err);
}

/* This function does not call await_engines, which would start an engine again that was given up.
 */
void cstd_commit_resume(void *arg)
{
    struct cstd_daemon *daemon = arg;
    struct cstd_job *job;

    TAILQ_FOREACH(job, &daemon->jobs->living, link)
    {
        struct cst_err err = {0};

        if (job->phase >= CSTD_COMMIT_JOIN && job->span != NULL) {
            cstd_span_engine_up(job);
        } else if (job->phase == CSTD_COMMIT_ENGINES &&
                   cstd_rank_devices_await(job, &err) != CST_EAGAIN) {
            end_phase(job, &err);
        }
    }
}

static void on_planned(struct cstd_job *job)
{
    /* If no plan was found, this is no error. */
    end_phase(job, &(struct cst_err){.status = CST_OK});
}

/* Take the plan that the job was opened with, or else start a search for one. If there is no plan
 * in the end, cst_layout_build chooses the sizes by itself. */
static int make_plan(struct cstd_job *job, struct cst_err *err)
{
    if (cstd_job_has_given_plan(job)) {
        return cstd_given_take(job, err);
    }
    return cstd_planner_start(job, on_planned) ? CST_EAGAIN : CST_OK;
}

static int cancel_plan(struct cstd_job *job)
{
    cstd_planner_cancel(job);
    return CST_OK;
}

/* -- LAYOUT and MEMORY ------------------------------------------------------------------------ */

static int drop_layout(struct cstd_job *job)
{
    cst_layout_close(&job->layout);
    return CST_OK;
}

/* The layout is built, or @err says why not. Without a layout, or if it is not that of the given
 * plan, the commit goes on with a smaller plan or fails (cstd_planner_forgo). */
static void end_layout(struct cstd_job *job, struct cst_err *err)
{
    if (err->status == CST_OK && cstd_given_check(job, err) != CST_OK) {
        (void)drop_layout(job);
    }
    if (err->status == CST_OK) {
        enter_from(job, CSTD_COMMIT_LAYOUT + 1);
        return;
    }
    set_phase(job, CSTD_COMMIT_LAYOUT - 1);
    if (may_retry(job, err)) {
        enter_from(job, CSTD_COMMIT_LAYOUT);
    } else {
        fail(job, err);
        cstd_job_check_idle(job); /* All workers may have left meanwhile. */
    }
}

/* The thread has finished building the layout, with @err. Until now only this thread could use
 * job->layout. If the job is removed meanwhile, the removal goes on from here. */
static void on_layout(struct cstd_job *job, struct cst_err *err)
{
    if (job->state != CSTD_JOB_CLOSING) {
        end_layout(job, err);
        return;
    }
    if (err->status != CST_OK) {
        job->phase = CSTD_COMMIT_LAYOUT - 1;
    }
    cstd_deferred_add(&job->daemon->later, &job->close); /* The removal waited for the layout. */
}

static int lay_out(struct cstd_job *job, struct cst_err *err)
{
    int rc;

    cstd_device_reservation_settle(job);
    rc = cstd_layout_work_start(job, on_layout, err);
    return rc == CST_OK ? CST_EAGAIN : rc;
}

static int size_pools(struct cstd_job *job, struct cst_err *err)
{
    int rc;

    if (cstd_reshape_awaits_pools(job)) {
        return CST_EAGAIN;
    }
    cstd_reshape_settle(job);
    rc = cstd_pool_share_divide(job, err);
    if (rc != CST_OK && cstd_reshape_migrate(job, err)) {
        *err = (struct cst_err){0};
        rc = cstd_pool_share_divide(job, err);
    }
    if (rc != CST_OK) {
        cstd_reshape_explain(job, err);
    }
    return rc;
}

void cstd_commit_pools_gone(struct cstd_job *job)
{
    if (job->state == CSTD_JOB_POPULATING && job->phase == CSTD_COMMIT_POOLS && job->awaits_pools) {
        enter_from(job, CSTD_COMMIT_POOLS);
    }
}

static int make_memory(struct cstd_job *job, struct cst_err *err)
{
    int rc = cstd_job_memory_open(job, err);

    if (rc == CST_OK) {
        cstd_span_tell_chunks(job);
    }
    return rc == CST_OK ? CST_EAGAIN : rc; /* cstd_commit_memory_ready follows. */
}

static int close_memory(struct cstd_job *job)
{
    cstd_job_memory_close(job);
    return CST_EAGAIN;
}

void cstd_commit_memory_ready(struct cstd_memory *memory)
{
    struct cstd_job *job = cstd_owner_of(memory, struct cstd_job, memory);

    /* A committed job, or one of another daemon, has new pools or new slots of edges. */
    if (job->state == CSTD_JOB_READY || job->resumes) {
        cstd_slot_refusals_settle(memory);
        cstd_relocate_end(job, &memory->err);
        cstd_pause_pools_made(job, &memory->err);
        cstd_commit_settled(job);
        cstd_done_look(job); /* All workers may have left again meanwhile. */
    } else if (job->phase == CSTD_COMMIT_MEMORY && job->state == CSTD_JOB_POPULATING) {
        end_phase(job, &memory->err);
    }
}

void cstd_commit_memory_gone(struct cstd_job *job)
{
    set_phase(job, CSTD_COMMIT_MEMORY - 1);
    go_back(job);
}

/* -- CORE, STATES and ATTACH ------------------------------------------------------------------ */

static int open_core(struct cstd_job *job, struct cst_err *err)
{
    int rc = cstd_job_core_open(job, err);

    if (rc == CST_OK && job->migrate == NULL) { /* Otherwise the arenas have no pages yet. */
        cstd_memory_tell_populated(&job->memory, CSTD_JOB_ABOUT(job));
    }
    return rc;
}

static int close_core(struct cstd_job *job)
{
    cstd_job_core_close(job);
    return CST_OK;
}

static void on_ledger(struct cstd_job *job)
{
    enter_from(job, CSTD_COMMIT_LEDGER + 1);
    cstd_job_check_idle(job); /* All workers may have left meanwhile. */
}

/* CORE gives the ledger back. */
static int make_ledger(struct cstd_job *job, struct cst_err *err)
{
    if (job->predecessor != NULL && cstd_reshape_take_configs(job, err) != CST_OK) {
        return err->status;
    }
    return cstd_ledger_prepare(job, on_ledger) ? CST_EAGAIN : CST_OK;
}

static void on_states(struct cstd_job *job, const struct cst_err *err)
{
    (void)uv_timer_stop(&job->deadline);
    if (err->status == CST_OK && cstd_span_replaces(job)) {
        char bytes[CST_SIZE_TEXT];

        cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job),
                       "takes the place of a lost part: %s of states came from other nodes",
                       cst_size_text(cstd_state_copy_bytes(job), bytes));
        cstd_state_copy_close(job);
    } else if (err->status == CST_OK) {
        cstd_reshape_end(job);
    }
    end_phase(job, err);
    cstd_job_check_idle(job); /* All workers may have left meanwhile. */
}

static int take_states(struct cstd_job *job, struct cst_err *err)
{
    if (cstd_span_replaces(job)) {
        const int rc = cstd_state_copy_open(job, NULL, on_states, err);

        return rc == CST_OK ? cstd_commit_wait_for_nodes(job, CST_EAGAIN) : rc;
    }
    if (job->predecessor != NULL) {
        struct cst_err why;

        (void)cst_err_set(&why, CST_ESTALE,
                          "job '%s' is being reshaped: open it again when that is over", job->name);
        cstd_readers_end(job->predecessor, &why);
    }
    return cstd_reshape_copy(job, on_states, err);
}

/* Tell the core about the workers that attached before the core existed. */
static int attach_ranks(struct cstd_job *job, struct cst_err *err)
{
    (void)err;
    for (uint32_t r = 0; r < job->world; r++) {
        struct cst_event event = {.kind = CST_EV_ATTACH, .rank = r};

        if (job->workers[r].session != NULL) {
            cstd_job_feed(job, &event);
        }
    }
    cstd_span_open(job);
    return CST_OK;
}

/* -- ANSWER ----------------------------------------------------------------------------------- */

/* Answer all waiting Commits, unless a step is closing, a pool is being made again, or the pools
 * are released. */
static int answer_ranks(struct cstd_job *job, struct cst_err *err)
{
    struct cst_core_stats stats;
    struct cstd_committed committed;

    (void)err;
    cst_core_stats(job->core, &stats);
    if (stats.closing || cstd_relocate_is_under_way(job) || cstd_job_lacks_pools(job)) {
        return CST_EAGAIN;
    }
    for (uint32_t r = 0; r < job->world; r++) {
        struct cstd_pending *commit = job->workers[r].commit;

        job->workers[r].commit = NULL;
        if (commit != NULL) {
            cstd_committed_fill(job, r, &stats, &committed);
            cstd_session_answer(job->daemon, commit, CISTERN__MSG_TYPE__MSG_COMMITTED,
                                &committed.message.base, NULL, 0);
        }
    }
    job->daemon->status_changed = true;
    return CST_OK;
}

void cstd_commit_settled(struct cstd_job *job)
{
    cstd_reshape_look(job);
    if (job->phase == CSTD_COMMIT_ANSWER) {
        enter_from(job, CSTD_COMMIT_ANSWER);
    }
}

void cstd_commit_close(struct cstd_job *job)
{
    for (; job->phase > CSTD_COMMIT_COLLECT; job->phase--) {
        if (phases[job->phase].undo != NULL) {
            (void)phases[job->phase].undo(job); /* job.c waits until the memory is gone. */
        }
    }
    cstd_span_close(job, &job->closing); /* Of a job that does not go on after a restart. */
}

enum cst_job_state cstd_commit_shown(const struct cstd_job *job)
{
    return phases[job->phase].shown;
}

void cstd_commit_go_on(struct cstd_job *job)
{
    job->stalled = false;
    enter_from(job, CSTD_COMMIT_STATES);
}

void cstd_commit_add(struct cstd_worker *worker, struct cstd_pending *request)
{
    struct cstd_job *job = worker->job;

    request->waits_commit = true;
    worker->commit = request;
    if (job->phase == CSTD_COMMIT_COLLECT) {
        enter_from(job, CSTD_COMMIT_COLLECT);
    } else if (job->state == CSTD_JOB_READY) {
        enter_from(job, CSTD_COMMIT_ANSWER);
    } else if (job->stalled) {
        cstd_commit_go_on(job);
    }
}
