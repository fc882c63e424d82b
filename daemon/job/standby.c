/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/standby.h"

#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"
#include "daemon/session/session.h"
#include "proto/cistern.pb-c.h"
#include "proto/job_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cstd_standby {
    TAILQ_ENTRY(cstd_standby) link;
    struct cstd_session *session;
    struct cstd_pending *request; /* The request that waits; NULL: the standby holds a rank. */
    char name[CST_JOB_NAME_BYTES];
    uint32_t hold_ms;
    bool saw_workers;           /* The job has had a worker while the standby waited. */
    struct cst_err ended;       /* Why the job was removed; status 0: it was not. */
    const struct cstd_job *job; /* Job of the rank that the standby holds; NULL: it waits. */
    uint32_t rank;              /* Number of the rank that the standby holds. */
    uint64_t until_ms;          /* Time of the loop at which the reservation of the rank ends. */
};

/* -- ranks ------------------------------------------------------------------------------------ */

static struct cstd_standby *holder_of(const struct cstd_worker *worker)
{
    struct cstd_standby *standby;

    TAILQ_FOREACH(standby, &worker->job->daemon->standbys->list, link)
    {
        if (standby->job == worker->job && standby->rank == worker->rank) {
            return standby;
        }
    }
    return NULL;
}

/* The time of the loop from which on a worker of an earlier daemon counts as dead. */
static uint64_t return_ms(const struct cstd_job *job)
{
    return job->revived_ms + CSTD_STANDBY_RETURN_S * 1000;
}

/* Return whether the worker of an earlier daemon's job has not come back yet. */
static bool is_awaited_back(const struct cstd_worker *worker)
{
    return worker->job->state == CSTD_JOB_READY && worker->job->revived_ms > 0 &&
           !worker->present && !worker->left && !worker->died;
}

static bool has_failed(const struct cstd_job *job)
{
    struct cst_core_stats stats = {0};

    if (job->core != NULL) {
        cst_core_stats(job->core, &stats);
    }
    return job->core != NULL && stats.phase == CST_PHASE_FAILED;
}

static bool is_vacant(const struct cstd_worker *worker)
{
    const uint64_t now_ms = uv_now(&worker->job->daemon->loop);

    return (worker->died || (is_awaited_back(worker) && now_ms >= return_ms(worker->job))) &&
           holder_of(worker) == NULL;
}

static struct cstd_worker *find_vacant(struct cstd_job *job)
{
    if (!cstd_job_is_committed(job) || job->state == CSTD_JOB_REVIVING || job->successor != NULL ||
        has_failed(job)) {
        return NULL;
    }
    for (uint32_t r = 0; r < job->world; r++) {
        if (is_vacant(&job->workers[r])) {
            return &job->workers[r];
        }
    }
    return NULL;
}

/* -- the end of a standby --------------------------------------------------------------------- */

static void forget(struct cstd_standby *standby)
{
    struct cstd_daemon *daemon = standby->session->daemon;

    if (standby->request != NULL) {
        standby->request->on_close = NULL;
        standby->request->standby = NULL;
    }
    standby->session->standby = NULL;
    TAILQ_REMOVE(&daemon->standbys->list, standby, link);
    free(standby);
}

/* The request ends with its connection, or with the daemon. */
static void on_request_closed(struct cstd_pending *request)
{
    forget(request->standby);
}

void cstd_standby_drop(struct cstd_session *session)
{
    struct cstd_standby *standby = session->standby;
    const struct cst_err why = {.status = CST_ECANCELLED,
                                .text = "this connection has opened a job meanwhile"};
    struct cstd_pending *request;

    if (standby == NULL) {
        return;
    }
    request = standby->request;
    forget(standby);
    if (request != NULL) {
        cstd_session_fail(session->daemon, request, &why);
    } else {
        cstd_standbys_look(session->daemon); /* The rank may still be vacant. */
    }
}

int cstd_standby_check(const struct cstd_worker *worker, const struct cstd_session *session,
                       struct cst_err *err)
{
    const struct cstd_standby *holder = holder_of(worker);
    const struct cstd_daemon *daemon = session->daemon;

    if (holder == NULL || holder->session == session || holder->until_ms <= uv_now(&daemon->loop) ||
        (session->peer.pid != 0 && holder->session->peer.pid == session->peer.pid)) {
        return CST_OK;
    }
    return cst_err_set(err, CST_EBUSY,
                       "rank %u of job '%s' is reserved for a standby, pid %d, for %.1f s",
                       worker->rank, worker->job->name, (int)holder->session->peer.pid,
                       (double)(holder->until_ms - uv_now(&daemon->loop)) * 1e-3);
}

void cstd_standby_attached(const struct cstd_worker *worker)
{
    struct cstd_standby *holder = holder_of(worker);

    if (holder != NULL) {
        forget(holder);
    }
    cstd_standbys_look(worker->job->daemon); /* Standbys see that the job has workers. */
}

void cstd_standbys_job_ended(const struct cstd_job *job, bool committed, const struct cst_err *why)
{
    struct cstd_standby *standby, *next;

    for (standby = TAILQ_FIRST(&job->daemon->standbys->list); standby != NULL; standby = next) {
        next = TAILQ_NEXT(standby, link);
        if (standby->job == job) {
            forget(standby);
        } else if (committed && standby->request != NULL &&
                   standby->session->peer.uid == job->uid &&
                   strcmp(standby->name, job->name) == 0) {
            standby->ended = *why;
        }
    }
    cstd_standbys_look(job->daemon);
}

/* -- looking ---------------------------------------------------------------------------------- */

static void give(struct cstd_standby *standby, struct cstd_worker *worker)
{
    struct cstd_pending *request = standby->request;
    struct cstd_daemon *daemon = standby->session->daemon;
    Cistern__StandbyRank reply = CISTERN__STANDBY_RANK__INIT;

    standby->job = worker->job;
    standby->rank = worker->rank;
    standby->until_ms = uv_now(&daemon->loop) + standby->hold_ms;
    standby->request = NULL;
    request->on_close = NULL;
    request->standby = NULL;
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT_RANK(worker->job, worker->rank),
                   "rank %u is given to a standby, pid %d", worker->rank,
                   (int)standby->session->peer.pid);
    reply.rank = worker->rank;
    cstd_session_answer(daemon, request, CISTERN__MSG_TYPE__MSG_STANDBY_RANK, &reply.base, NULL, 0);
}

/* Answer @standby that its job is over. */
static void dismiss(struct cstd_standby *standby, const char *why)
{
    struct cstd_pending *request = standby->request;
    struct cstd_daemon *daemon = standby->session->daemon;
    struct cst_err words = {0};

    (void)cst_err_set(&words, CST_ECANCELLED, "job '%s' has ended: %.400s", standby->name, why);
    forget(standby);
    cstd_session_fail(daemon, request, &words);
}

static bool any_present(const struct cstd_job *job)
{
    for (uint32_t r = 0; r < job->world; r++) {
        if (job->workers[r].present) {
            return true;
        }
    }
    return false;
}

static bool all_left(const struct cstd_job *job)
{
    for (uint32_t r = 0; r < job->world; r++) {
        if (!job->workers[r].left) {
            return false;
        }
    }
    return true;
}

/* Give @standby, which waits, a rank, or answer that its job is over. */
static void look_for(struct cstd_standby *standby)
{
    struct cstd_session *session = standby->session;
    struct cstd_job *job = cstd_job_find(session->daemon, session->peer.uid, standby->name);
    struct cstd_worker *vacant = job != NULL ? find_vacant(job) : NULL;

    if (job == NULL) {
        if (standby->ended.status != CST_OK) {
            dismiss(standby, standby->ended.text);
        }
        return;
    }
    standby->ended.status = CST_OK; /* Another job has taken the place and the name. */
    standby->saw_workers = standby->saw_workers || any_present(job);
    if (vacant != NULL) {
        give(standby, vacant);
    } else if (standby->saw_workers && all_left(job)) {
        dismiss(standby, "all its ranks have left");
    }
}

/* Return the time at which @standby has to be looked at again; UINT64_MAX: after an event. */
static uint64_t look_again_ms(const struct cstd_standby *standby)
{
    const struct cstd_session *session = standby->session;
    const uint64_t now_ms = uv_now(&session->daemon->loop);
    const struct cstd_job *job;

    if (standby->request == NULL) {
        return standby->until_ms;
    }
    job = cstd_job_find(session->daemon, session->peer.uid, standby->name);
    if (job == NULL || job->successor != NULL || has_failed(job)) {
        return UINT64_MAX;
    }
    for (uint32_t r = 0; r < job->world; r++) {
        if (is_awaited_back(&job->workers[r]) && return_ms(job) > now_ms) {
            return return_ms(job);
        }
    }
    return UINT64_MAX;
}

static void on_timer(uv_timer_t *timer)
{
    struct cstd_standbys *standbys = timer->data;

    cstd_standbys_look(standbys->daemon);
}

/* End the reservations whose time is over. */
static void expire(struct cstd_standbys *standbys)
{
    struct cstd_standby *standby, *next;

    for (standby = TAILQ_FIRST(&standbys->list); standby != NULL; standby = next) {
        next = TAILQ_NEXT(standby, link);
        if (standby->request == NULL && standby->until_ms <= uv_now(&standbys->daemon->loop)) {
            cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT_RANK(standby->job, standby->rank),
                           "rank %u was given to a standby, pid %d, which did not open the job "
                           "within %u ms",
                           standby->rank, (int)standby->session->peer.pid, standby->hold_ms);
            forget(standby);
        }
    }
}

static void on_look(struct cstd_deferred *look)
{
    struct cstd_standbys *standbys = cstd_owner_of(look, struct cstd_standbys, look);
    const uint64_t now_ms = uv_now(&standbys->daemon->loop);
    struct cstd_standby *standby, *next;
    uint64_t at_ms = UINT64_MAX;

    if (standbys->daemon->draining) {
        return;
    }
    expire(standbys);
    for (standby = TAILQ_FIRST(&standbys->list); standby != NULL; standby = next) {
        next = TAILQ_NEXT(standby, link);
        if (standby->request != NULL) {
            look_for(standby);
        }
    }
    TAILQ_FOREACH(standby, &standbys->list, link)
    {
        const uint64_t again_ms = look_again_ms(standby);

        at_ms = again_ms < at_ms ? again_ms : at_ms;
    }
    if (at_ms == UINT64_MAX) {
        (void)uv_timer_stop(&standbys->timer);
    } else {
        (void)uv_timer_start(&standbys->timer, on_timer, at_ms > now_ms ? at_ms - now_ms : 0, 0);
    }
}

void cstd_standbys_look(struct cstd_daemon *daemon)
{
    if (!TAILQ_EMPTY(&daemon->standbys->list)) {
        cstd_deferred_add(&daemon->later, &daemon->standbys->look);
    }
}

/* -- the beginning ---------------------------------------------------------------------------- */

int cstd_standby_add(struct cstd_session *session, uint64_t id, const char *name, uint32_t hold_ms,
                     struct cst_err *err)
{
    struct cstd_standby *standby;
    int rc;

    if (session->job != NULL) {
        return cst_err_set(err, CST_EINVAL, "job '%s' is open on this connection already",
                           session->job->name);
    }
    if (session->standby != NULL) {
        return cst_err_set(err, CST_EBUSY, "this connection is a standby of job '%s' already",
                           session->standby->name);
    }
    standby = calloc(1, sizeof *standby);
    if (standby == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a standby");
    }
    rc = cstd_session_defer(session, NULL, id, CISTERN__MSG_TYPE__MSG_STANDBY, 1, &standby->request,
                            err);
    if (rc != CST_OK) {
        free(standby);
        return rc;
    }
    standby->request->standby = standby;
    standby->request->on_close = on_request_closed;
    standby->session = session;
    standby->hold_ms = hold_ms;
    (void)snprintf(standby->name, sizeof standby->name, "%s", name);
    session->standby = standby;
    cstd_log_about(CSTD_LOG_INFO,
                   &(struct cstd_log_about){.rank = CSTD_LOG_NONE, .uid = session->peer.uid},
                   "pid %d is a standby of job '%s'", (int)session->peer.pid, standby->name);
    TAILQ_INSERT_TAIL(&session->daemon->standbys->list, standby, link);
    cstd_standbys_look(session->daemon);
    return CST_OK;
}

void cstd_standbys_init(struct cstd_daemon *daemon)
{
    struct cstd_standbys *standbys = daemon->standbys;

    standbys->daemon = daemon;
    TAILQ_INIT(&standbys->list);
    standbys->look.fn = on_look;
    (void)uv_timer_init(&daemon->loop, &standbys->timer);
    standbys->timer.data = standbys;
    uv_unref((uv_handle_t *)&standbys->timer);
}

void cstd_standbys_close(struct cstd_daemon *daemon)
{
    uv_close((uv_handle_t *)&daemon->standbys->timer, NULL);
}
