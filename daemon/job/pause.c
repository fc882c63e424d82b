/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/pause.h"

#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/job/core_driver.h"
#include "daemon/job/done.h"
#include "daemon/job/job.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/lent_slabs.h"
#include "daemon/memory/memory.h"
#include "daemon/session/session.h"
#include "proto/cistern.pb-c.h"
#include "proto/size.h"

#include <time.h>

static double seconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-9 : 0;
}

/* -- state ------------------------------------------------------------------------------------ */

/* True if the pause is what was asked for. */
static bool is_complete(const struct cstd_job *job)
{
    return cstd_job_is_paused(job) &&
           (!job->pause.release || job->memory.parked || job->pause.given_ns != 0);
}

int cstd_pause_check(const struct cstd_job *job, bool release, struct cst_err *err)
{
    struct cst_core_stats stats;

    if (job->state != CSTD_JOB_READY || job->core == NULL) {
        return cst_err_set(err, CST_EINVAL, "job '%s' is not committed yet", job->name);
    }
    cst_core_stats(job->core, &stats);
    if (stats.phase == CST_PHASE_FAILED &&
        cst_core_check_attempt(job->core, stats.attempt, err) != CST_OK) {
        return cst_err_prefix(err, "job '%s' has failed", job->name);
    }
    if (job->span != NULL) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "job '%s' has ranks on several nodes and cannot be paused: the other "
                           "nodes would wait for this one until their timeout; save it, and stop "
                           "its workers",
                           job->name);
    }
    if (job->successor != NULL) {
        return cst_err_set(err, CST_EBUSY, "job '%s' is being reshaped", job->name);
    }
    if (job->pause.ends) {
        return cst_err_set(err, CST_EBUSY, "job '%s' is being resumed", job->name);
    }
    if (release && !job->memory.parked && !cstd_pool_pages_can(&job->memory)) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "the pools of job '%s' cannot be released, because it uses a GPU whose "
                           "driver holds them: pause it without --release-pools, or stop its "
                           "workers after a step, which frees its pools and keeps its states",
                           job->name);
    }
    return CST_OK;
}

/* -- answers ---------------------------------------------------------------------------------- */

/* The first request of @type that waits for the job; NULL: none does. */
static struct cstd_pending *first_of(struct cstd_job *job, uint16_t type)
{
    struct cstd_pending *request;

    TAILQ_FOREACH(request, &job->requests, job_link)
    {
        if (request->type == type) {
            return request;
        }
    }
    return NULL;
}

static void fail_all(struct cstd_job *job, uint16_t type, const struct cst_err *why)
{
    struct cstd_pending *request;

    while ((request = first_of(job, type)) != NULL) {
        cstd_session_fail(job->daemon, request, why);
    }
}

static void answer_paused(struct cstd_job *job, struct cstd_pending *request, bool already)
{
    const struct cstd_pause *pause = &job->pause;
    Cistern__Paused paused = CISTERN__PAUSED__INIT;
    struct cst_core_stats stats;

    cst_core_stats(job->core, &stats);
    paused.step = stats.step;
    paused.already = already;
    paused.wait_s = seconds(pause->asked_ns, pause->held_ns);
    paused.update_s = seconds(pause->held_ns, pause->paused_ns);
    paused.has_release_s = paused.has_released_bytes = pause->release;
    paused.release_s = seconds(pause->release_ns, pause->given_ns);
    paused.released_bytes = pause->bytes;
    cstd_session_answer(job->daemon, request, CISTERN__MSG_TYPE__MSG_OK, &paused.base, NULL, 0);
}

/* -- the pools' memory ------------------------------------------------------------------------ */

static void end_pause(struct cstd_job *job, uint64_t bytes);
static void take_pools(struct cstd_job *job);

/* What was asked for cannot be done, and is not tried again. */
static void give_up_release(struct cstd_job *job, const struct cst_err *why)
{
    job->pause.release = false;
    cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT(job), "its pools are not released: %s",
                   why->text);
    fail_all(job, CISTERN__MSG_TYPE__MSG_PAUSE, why);
    cstd_ledger_note(job);
}

static void on_given(struct cstd_memory *memory, const struct cst_err *err)
{
    struct cstd_job *job = cstd_owner_of(memory, struct cstd_job, memory);
    char bytes[CST_SIZE_TEXT];

    if (job->state != CSTD_JOB_READY) {
        return; /* It is being removed. */
    }
    if (err->status != CST_OK) {
        give_up_release(job, err);
    } else {
        job->pause.given_ns = uv_hrtime();
        job->pause.bytes = memory->pool_pages.bytes;
        cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job), "its pools (%s) are released",
                       cst_size_text(job->pause.bytes, bytes));
    }
    if (job->pause.ends) {
        take_pools(job);
    }
    cstd_pause_look(job);
    cstd_done_look(job); /* All workers may have left meanwhile. */
}

/* No rank uses a block. */
static void give_pools(struct cstd_job *job)
{
    struct cst_err err;

    for (uint32_t r = 0; r < job->world; r++) {
        cstd_lent_slabs_forget(job, r);
    }
    if (cstd_pool_pages_give(&job->memory, on_given, &err) != CST_OK) {
        give_up_release(job, &err);
    }
}

static void fail_resume(struct cstd_job *job, const struct cst_err *err)
{
    struct cst_err why = *err;

    job->pause.ends = false;
    (void)cst_err_prefix(&why, "job '%s' stays paused", job->name);
    fail_all(job, CISTERN__MSG_TYPE__MSG_RESUME, &why);
}

static void on_taken(struct cstd_memory *memory, const struct cst_err *err)
{
    struct cstd_job *job = cstd_owner_of(memory, struct cstd_job, memory);

    if (job->state != CSTD_JOB_READY) {
        return; /* It is being removed. */
    }
    if (err->status != CST_OK) {
        fail_resume(job, err);
    } else {
        cstd_ledger_note_pools(job);
        end_pause(job, memory->pool_pages.bytes);
    }
    cstd_done_look(job); /* All workers may have left meanwhile. */
}

static bool has_worker(const struct cstd_job *job)
{
    bool any = false;

    for (uint32_t r = 0; r < job->world; r++) {
        any = any || job->workers[r].present;
    }
    return any;
}

/* A resume waits: take the memory of the pools again, or go on at once if there is nothing to take.
 */
static void take_pools(struct cstd_job *job)
{
    struct cst_err err;
    int rc = CST_OK;

    if (job->memory.parked && has_worker(job)) {
        rc = cstd_done_resume(job, &err);
        if (rc == CST_OK && job->resumes) {
            return; /* cstd_pause_pools_made follows. */
        }
    } else if (!job->memory.parked && job->memory.pool_pages.state == CSTD_POOL_PAGES_GIVEN) {
        rc = cstd_pool_pages_take(&job->memory, on_taken, &err);
        if (rc == CST_OK) {
            return;
        }
    }
    if (rc != CST_OK) {
        fail_resume(job, &err);
    } else {
        end_pause(job, 0);
    }
}

void cstd_pause_pools_made(struct cstd_job *job, const struct cst_err *err)
{
    if (!job->pause.ends) {
        cstd_pause_look(job); /* It may have waited for the pools to be made, to release them. */
        return;
    }
    if (err->status != CST_OK) {
        fail_resume(job, err);
    } else {
        end_pause(job, job->memory.pool_bytes);
    }
}

/* -- begin ------------------------------------------------------------------------------------ */

void cstd_pause_begin(struct cstd_job *job, bool release, struct cstd_pending *request,
                      uint32_t since_s)
{
    struct cst_event event = {.kind = CST_EV_PAUSE, .release = release};
    struct cstd_pause *pause = &job->pause;
    const uint64_t now = uv_hrtime();

    if (pause->wanted && (pause->release || !release) && is_complete(job)) {
        answer_paused(job, request, true);
        return;
    }
    if (!pause->wanted) {
        *pause = (struct cstd_pause){.wanted = true, .since_s = since_s, .asked_ns = now};
    }
    if (release && !pause->release) {
        pause->release = true;
        pause->release_ns = now;
    }
    cstd_job_feed(job, &event);
}

/* The job is paused now, if it was not before. An earlier daemon may have paused it. */
static void note_paused(struct cstd_job *job)
{
    struct cstd_pause *pause = &job->pause;
    const uint32_t now_s = (uint32_t)time(NULL);
    const uint64_t now = uv_hrtime();
    uint64_t before;

    if (pause->paused_ns != 0) {
        return;
    }
    pause->since_s = pause->since_s != 0 ? pause->since_s : now_s;
    before = now_s > pause->since_s ? (now_s - pause->since_s) * UINT64_C(1000000000) : 0;
    pause->paused_ns = before < now ? now - before : 1;
    job->daemon->status_changed = true;
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job), "is paused");
    cstd_ledger_note(job);
}

void cstd_pause_look(struct cstd_job *job)
{
    struct cstd_pause *pause = &job->pause;
    struct cstd_pending *request;
    struct cst_core_stats stats;
    struct cst_err why;

    if (!pause->wanted || job->state != CSTD_JOB_READY) {
        return;
    }
    cst_core_stats(job->core, &stats);
    if (stats.phase == CST_PHASE_FAILED) {
        (void)cst_err_set(&why, CST_EINVAL, "job '%s' has failed", job->name);
        fail_all(job, CISTERN__MSG_TYPE__MSG_PAUSE, &why);
        return;
    }
    if (stats.pause >= CST_PAUSE_HELD && pause->held_ns == 0) {
        pause->held_ns = uv_hrtime();
        pause->release_ns = pause->release_ns > pause->held_ns ? pause->release_ns : pause->held_ns;
    }
    if (stats.pause != CST_PAUSE_PAUSED) {
        return;
    }
    note_paused(job);
    if (pause->release && stats.pools_empty && !job->memory.parked && job->memory.n_waiting == 0 &&
        job->memory.pool_pages.state == CSTD_POOL_PAGES_WHOLE) {
        give_pools(job);
    }
    while (is_complete(job) && (request = first_of(job, CISTERN__MSG_TYPE__MSG_PAUSE)) != NULL) {
        answer_paused(job, request, false);
    }
}

/* -- end -------------------------------------------------------------------------------------- */

/* The job goes on, and @bytes were taken for its pools. */
static void end_pause(struct cstd_job *job, uint64_t bytes)
{
    const struct cstd_pause was = job->pause;
    const uint64_t now = uv_hrtime();
    struct cst_event event = {.kind = CST_EV_RESUME};
    Cistern__Resumed resumed = CISTERN__RESUMED__INIT;
    struct cstd_pending *request;
    struct cst_core_stats stats;
    struct cst_err why;

    job->pause = (struct cstd_pause){.wanted = false};
    (void)cst_err_set(&why, CST_ECANCELLED, "job '%s' was resumed", job->name);
    fail_all(job, CISTERN__MSG_TYPE__MSG_PAUSE, &why);
    cst_core_stats(job->core, &stats);
    if (stats.phase == CST_PHASE_RUNNING) {
        cstd_record_begin(job->record, stats.step, now); /* The step begins now. */
    }
    resumed.step = stats.step;
    resumed.paused_s = was.paused_ns == 0 ? 0 : seconds(was.paused_ns, now);
    resumed.resume_s = seconds(was.resume_ns, now);
    resumed.pool_bytes = bytes;
    if (was.paused_ns != 0) {
        cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job), "goes on after %.3g s of pause",
                       resumed.paused_s);
    }
    while ((request = first_of(job, CISTERN__MSG_TYPE__MSG_RESUME)) != NULL) {
        cstd_session_answer(job->daemon, request, CISTERN__MSG_TYPE__MSG_OK, &resumed.base, NULL,
                            0);
    }
    job->daemon->status_changed = true;
    cstd_job_feed(job, &event);
}

void cstd_pause_end(struct cstd_job *job, struct cstd_pending *request)
{
    struct cstd_pause *pause = &job->pause;
    struct cst_err err;

    if (!pause->wanted) {
        (void)cst_err_set(&err, CST_EINVAL, "job '%s' is not paused", job->name);
        cstd_session_fail(job->daemon, request, &err);
        return;
    }
    if (pause->ends) {
        (void)cst_err_set(&err, CST_EBUSY, "job '%s' is being resumed already", job->name);
        cstd_session_fail(job->daemon, request, &err);
        return;
    }
    pause->ends = true;
    pause->resume_ns = uv_hrtime();
    if (!cstd_pool_pages_are_moving(&job->memory)) {
        take_pools(job);
    } /* Else on_given does it. */
}
