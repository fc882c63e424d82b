/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/worker.h"

#include "cistern/cistern.h"
#include "daemon/job/commit.h"
#include "daemon/base/daemon_state.h"
#include "daemon/job/declare.h"
#include "daemon/memory/files.h"
#include "daemon/memory/rank_devices.h"
#include "daemon/job/core_driver.h"
#include "daemon/job/given.h"
#include "daemon/base/log.h"
#include "daemon/job/relocate.h"
#include "daemon/job/reshape.h"
#include "daemon/job/shut_out.h"
#include "daemon/job/standby.h"
#include "daemon/memory/device_reservation.h"
#include "daemon/session/session.h"
#include "daemon/job/jobs.h"
#include "daemon/ledger/ledger.h"
#include "daemon/session/peer.h"
#include "daemon/memory/tiers/tier.h"
#include "proto/config_compare.h"
#include "proto/reason.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* -- leaving -------------------------------------------------------------------------------- */

static void feed_worker(struct cstd_job *job, enum cst_event_kind kind, uint32_t rank)
{
    struct cst_event event = {.kind = kind, .rank = rank};

    if (job->core != NULL) {
        cstd_job_feed(job, &event);
    }
}

/* Fail the Commits of the other ranks, which would wait for @worker for ever. */
static void break_commit_of(struct cstd_job *job, const struct cstd_worker *worker,
                            const char *what)
{
    struct cst_err why = {0};

    if (job->state == CSTD_JOB_DECLARING) {
        (void)cst_err_set(&why, CST_EPEERDIED, "rank %u (pid %d) %s before all ranks had committed",
                          worker->rank, (int)worker->pid, what);
        cstd_commit_break(job, &why);
    }
}

static void vacate(struct cstd_worker *worker)
{
    struct cst_err err = {0};

    if (worker->session != NULL) {
        worker->session->job = NULL;
        worker->session = NULL;
    }
    worker->commit = NULL;
    worker->present = false;
    if (cstd_declare_forget(worker, &err) != CST_OK) {
        cstd_commit_break(worker->job, &err);
    }
    cstd_watch_close(worker->watch);
    worker->watch = NULL;
}

static void worker_dead(struct cstd_worker *worker)
{
    struct cstd_job *job = worker->job;

    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT_RANK(job, worker->rank),
                   "rank %u (pid %d) ended without leaving the job", worker->rank,
                   (int)worker->pid);
    vacate(worker);
    worker->died = true;
    cstd_standbys_look(job->daemon);
    break_commit_of(job, worker, "died");
    feed_worker(job, CST_EV_DEAD, worker->rank);
    cstd_job_check_idle(job);
}

/* The worker's process has ended. Another process that still holds the socket (a child that
 * inherited it) has no right to the rank. */
static void on_process_gone(void *arg)
{
    struct cstd_worker *worker = arg;

    if (worker->session != NULL) {
        struct cstd_session *session = worker->session;

        worker->session = NULL;
        session->job = NULL;
        cstd_session_doom(session, NULL);
    }
    worker_dead(worker);
}

void cstd_worker_hangup(struct cstd_job *job, uint32_t rank)
{
    struct cstd_worker *worker = &job->workers[rank];

    worker->session->job = NULL;
    worker->session = NULL;
    worker->commit = NULL;
    /* Without a core the worker never had a block that its process could still access. */
    if (job->core == NULL || worker->watch == NULL || !cstd_watch_lives(worker->watch)) {
        worker_dead(worker);
        return;
    }
    feed_worker(job, CST_EV_HANGUP, rank);
    cstd_shut_out_watch(job, rank);
    cstd_job_check_idle(job);
}

void cstd_worker_left(struct cstd_job *job, uint32_t rank)
{
    struct cstd_worker *worker = &job->workers[rank];
    struct cst_err why = {0};

    cstd_log_about(CSTD_LOG_INFO, CSTD_JOB_ABOUT_RANK(job, rank), "rank %u (pid %d) left", rank,
                   (int)worker->pid);
    break_commit_of(job, worker, "left");
    /* All ranks have committed, and the job's memory is being populated. */
    if (worker->commit != NULL) {
        (void)cst_err_set(&why, CST_ECANCELLED, "rank %u left before job '%s' was populated", rank,
                          job->name);
        cstd_session_fail(job->daemon, worker->commit, &why);
    }
    vacate(worker);
    worker->left = true;
    cstd_standbys_look(job->daemon);
    worker->has_token = false;
    cstd_ledger_note(job);
    cstd_job_check_idle(job);
}

/* -- attaching ------------------------------------------------------------------------------- */

static bool same_token(const struct cstd_worker *worker, const uint8_t *token)
{
    uint8_t difference = 0;

    if (!worker->has_token || token == NULL) {
        return false;
    }
    /* Compare all bytes, for the time not to depend on how many are equal. */
    for (unsigned i = 0; i < CSTD_JOB_TOKEN_BYTES; i++) {
        difference |= worker->token[i] ^ token[i];
    }
    return difference == 0;
}

/* Free the rank if its holder is gone or is the claimant itself. The claimant is the holder if it
 * has the token, or if it is the same process and the holder's connection is closed. */
static int claim_rank(struct cstd_worker *worker, const struct cstd_session *session,
                      const uint8_t *token, struct cst_err *err)
{
    struct cstd_session *held = worker->session;
    bool own = same_token(worker, token);

    if (!worker->present) {
        return cstd_standby_check(worker, session, err);
    }
    if (held != NULL && !own && !cstd_session_is_gone(held)) {
        return cst_err_set(err, CST_EBUSY, "rank %u of job '%s' is used by pid %d", worker->rank,
                           worker->job->name, (int)worker->pid);
    }
    own = own || (worker->pid != 0 && worker->pid == session->peer.pid);
    if (!own && worker->watch != NULL && cstd_watch_lives(worker->watch)) {
        return cst_err_set(err, CST_EBUSY,
                           "rank %u of job '%s': pid %d has disconnected but still runs, and may "
                           "still use the memory of the rank",
                           worker->rank, worker->job->name, (int)worker->pid);
    }
    if (held != NULL) {
        cstd_session_doom(held, "its rank was taken over");
    }
    worker_dead(worker);
    return CST_OK;
}

/* Check a number of bytes on the accelerator that @request names. They are fixed once the job's
 * memory is decided. */
static int check_bytes(const struct cstd_job *job, const struct cstd_job_request *request,
                       const char *what, uint64_t theirs, uint64_t mine, struct cst_err *err)
{
    if (!cstd_job_is_decided(job) || mine == 0 || mine == CST_PLAN_DEVICE_UPDATE_AUTO ||
        mine == theirs) {
        return CST_OK;
    }
    return cst_err_give_reason(
        err, CST_REASON_OPTION,
        cst_err_set(err, CST_EMISMATCH,
                    "job '%s' was opened with %s %llu, not %llu as rank %u wants", job->name, what,
                    (unsigned long long)theirs, (unsigned long long)mine, request->spec.rank));
}

static int check_reservations(const struct cstd_job *job, const struct cstd_job_request *request,
                              struct cst_err *err)
{
    const struct cstd_worker *worker = &job->workers[request->spec.rank];
    uint64_t bytes = cstd_device_reservation_is_lent(worker) ? CST_DEVICE_UPDATE_LENT
                                                             : worker->device_update_bytes;
    int rc = check_bytes(job, request, "device_update_bytes", bytes,
                         request->spec.memory.device_update_bytes, err);

    return rc == CST_OK ? check_bytes(job, request, "device_states", worker->device_states,
                                      request->spec.memory.device_states, err)
                        : rc;
}

/* The first key in which two configurations differ, and how many there are. */
struct config_difference {
    char text[CST_CONFIG_KEY_BYTES + 128];
    unsigned n;
};

static void note_key(void *arg, const char *key, const char *theirs, const char *mine)
{
    struct config_difference *difference = arg;

    if (difference->n++ == 0) {
        (void)snprintf(difference->text, sizeof difference->text, "%s %.40s, not %.40s", key,
                       theirs != NULL ? theirs : "absent", mine != NULL ? mine : "absent");
    }
}

/* Compare the values of all keys, which may be in another order. A text that is no JSON is compared
 * as it is. */
static int check_model_config(const struct cstd_job *job, const struct cstd_job_request *request,
                              struct cst_err *err)
{
    const char *theirs = job->spec.model.model_config, *mine = request->spec.model.model_config;
    struct config_difference difference = {.n = 0};
    char more[40] = "";

    if (theirs == NULL || mine == NULL || strcmp(theirs, mine) == 0) {
        return CST_OK;
    }
    if (!cst_config_compare(theirs, mine, note_key, &difference)) {
        return cst_err_set(err, CST_EMISMATCH,
                           "job '%s' was opened with another model: its model_config is another "
                           "text than that of rank %u",
                           job->name, request->spec.rank);
    }
    if (difference.n > 1) {
        (void)snprintf(more, sizeof more, " (%u other keys differ, too)", difference.n - 1);
    }
    return difference.n == 0
               ? CST_OK
               : cst_err_set(err, CST_EMISMATCH,
                             "job '%s' was opened with another model: its model_config has %s as "
                             "rank %u has%s",
                             job->name, difference.text, request->spec.rank, more);
}

/* Check that the states of @job are on the drives on which @request wants them. Before its memory
 * is decided, its files are those that rank 0 will give. */
static int check_drives(const struct cstd_job *job, const struct cstd_job_request *request,
                        struct cst_err *err)
{
    const bool durable = job->spec.states.durable;
    char has[CSTD_FILES_WORDS], wants[CSTD_FILES_WORDS];

    if (!cstd_job_is_decided(job) || request->n_drives == 0 ||
        cstd_files_are_on(&job->files, request->drives, request->n_drives)) {
        return CST_OK;
    }
    return cst_err_give_reason(
        err, durable ? CST_REASON_FIXED_OPTION : CST_REASON_OPTION,
        cst_err_set(err, CST_EMISMATCH,
                    "job '%s' has its states %s, not %s as rank %u wants: leave disk out, %s",
                    job->name, cstd_files_words(&job->files, has),
                    cstd_files_words_of(request->drives, request->n_drives, wants),
                    request->spec.rank,
                    durable ? "or save the job and load the checkpoint into a new one"
                            : "or give reshape when the job has no worker"));
}

static int check_request(const struct cstd_job *job, const struct cstd_job_request *request,
                         struct cst_err *err)
{
    int rc;

    if (request->spec.world != job->world) {
        return cst_err_give_reason(
            err, CST_REASON_WORLD,
            cst_err_set(err, CST_EMISMATCH, "job '%s' has %u ranks, not %u as rank %u wants%s",
                        job->name, job->world, request->spec.world, request->spec.rank,
                        cstd_job_is_decided(job)
                            ? " (when it has no worker, 'reshape' changes that)"
                            : ""));
    }
    if (request->spec.planning.chunk_elems != job->spec.planning.chunk_elems &&
        (job->state != CSTD_JOB_READY ||
         request->spec.planning.chunk_elems != job->layout.capacity)) {
        return cst_err_give_reason(
            err, CST_REASON_OPTION,
            cst_err_set(err, CST_EMISMATCH,
                        "job '%s' was opened with chunk_elems %llu, not %llu as rank %u wants",
                        job->name, (unsigned long long)job->spec.planning.chunk_elems,
                        (unsigned long long)request->spec.planning.chunk_elems,
                        request->spec.rank));
    }
    if (cstd_job_options_same(&job->spec, &request->spec, err) != CST_OK) {
        return CST_EMISMATCH;
    }
    if (check_model_config(job, request, err) != CST_OK) {
        return cst_err_give_reason(err, CST_REASON_MODEL, CST_EMISMATCH);
    }
    if ((request->spec.model.base != NULL) != (job->base != NULL) ||
        (request->spec.model.base != NULL &&
         strcmp(request->spec.model.base, job->base->name) != 0)) {
        return cst_err_give_reason(
            err, CST_REASON_FIXED_OPTION,
            cst_err_set(err, CST_EMISMATCH,
                        "job '%s' was opened with base '%s', not '%s' as rank %u wants", job->name,
                        job->base != NULL ? job->base->name : "",
                        request->spec.model.base != NULL ? request->spec.model.base : "",
                        request->spec.rank));
    }
    rc = check_drives(job, request, err);
    rc = rc == CST_OK ? cstd_relocate_check(&job->workers[request->spec.rank], request, err) : rc;
    return rc == CST_OK ? check_reservations(job, request, err) : rc;
}

static void occupy(struct cstd_worker *worker, struct cstd_session *session,
                   const struct cstd_job_request *request)
{
    struct cstd_job *job = worker->job;

    worker->present = true;
    worker->session = session;
    worker->pid = session->peer.pid;
    worker->watch =
        cstd_watch_open(&job->daemon->loop, session->peer.pidfd, on_process_gone, worker);
    worker->left = worker->died = worker->shut_out = false;
    cstd_standby_attached(worker);
    worker->n_groups = worker->n_edges = worker->n_tensors = worker->n_operators = 0;
    worker->pool_asked = request->spec.memory.pool_bytes;
    /* A decided job's memory stays as it was made, whoever attaches. */
    if (!cstd_job_is_decided(job)) {
        worker->pool_bytes = request->spec.memory.pool_bytes;
        worker->device_update_asked = request->spec.memory.device_update_bytes;
        worker->states_asked = request->spec.memory.device_states;
        cstd_device_reservation_settle(job);
        cstd_rank_devices_set(worker, request->tier);
    } else {
        cstd_rank_devices_need(worker);
    }
    worker->tier->kind->count(worker->tier);
    cstd_standby_drop(session);
    session->job = job;
    session->rank = worker->rank;
    session->job_removed = false;
    job->idle_since_ns = 0;
    (void)uv_timer_stop(&job->ttl);
    feed_worker(job, CST_EV_ATTACH, worker->rank);
}

/* Fill in what the given plan decides, and check what is left to a plan. @job NULL: the job does
 * not exist yet. */
static int settle_request(const struct cstd_job *job, struct cstd_job_request *request,
                          struct cst_err *err)
{
    int rc = cstd_given_settle(job, request, err);

    return rc == CST_OK ? cstd_device_reservation_check_request(request, err) : rc;
}

/* Check that @request fits @job and settle it, and free the rank. */
static int join(struct cstd_job *job, const struct cstd_session *session,
                struct cstd_job_request *request, struct cst_err *err)
{
    int rc = settle_request(job, request, err);

    rc = rc == CST_OK ? check_request(job, request, err) : rc;
    /* The other ranks may be waiting for this process, which cannot join: tell them now. */
    if (rc == CST_EMISMATCH && cstd_job_awaits_rank(job, request->spec.rank)) {
        cstd_commit_disagree(job, NULL, err);
    }
    return rc == CST_OK
               ? claim_rank(&job->workers[request->spec.rank], session, request->token, err)
               : rc;
}

/* If @job lives, return it, else NULL. A job that is not committed ends with its last connection.
 * Connections that have ended are found out now, not at the end of this iteration of the loop,
 * because a request must not be compared with a dead job. */
static struct cstd_job *if_living(struct cstd_job *job)
{
    for (uint32_t r = 0; job != NULL && r < job->world && job->state == CSTD_JOB_DECLARING; r++) {
        struct cstd_session *held = job->workers[r].session;

        if (held != NULL && cstd_session_is_gone(held)) {
            cstd_worker_hangup(job, r);
        }
    }
    return job != NULL && job->state != CSTD_JOB_CLOSING ? job : NULL;
}

/* Find out now which workers of @job have died, because a job with workers is not replaced. */
static void end_dead_workers(struct cstd_job *job)
{
    for (uint32_t r = 0; r < job->world && job->state == CSTD_JOB_READY; r++) {
        struct cstd_worker *worker = &job->workers[r];

        if (worker->session != NULL && cstd_session_is_gone(worker->session)) {
            cstd_worker_hangup(job, r);
        }
        if (worker->present && worker->session == NULL &&
            (worker->watch == NULL || !cstd_watch_lives(worker->watch))) {
            worker_dead(worker);
        }
    }
}

/* Find the living job that a worker with @request joins; *out NULL: none. *predecessor: the job
 * that a new one will replace; NULL: none. */
static int find_living(const struct cstd_session *session, const struct cstd_job_request *request,
                       struct cstd_job **out, struct cstd_job **predecessor, struct cst_err *err)
{
    *out = if_living(cstd_job_find(session->daemon, session->peer.uid, request->spec.name));
    *predecessor = NULL;
    if (*out == NULL) {
        return CST_OK;
    }
    (void)if_living((*out)->successor);
    if (request->spec.reshape) {
        end_dead_workers(*out);
    }
    return cstd_reshape_find(request, out, predecessor, err);
}

/* True if nobody trains @job. The workers of one that was interrupted come back. */
static bool is_over(const struct cstd_job *job)
{
    struct cst_core_stats stats;

    if (job->state != CSTD_JOB_READY || job->core == NULL || job->idle_since_ns == 0) {
        return false;
    }
    cst_core_stats(job->core, &stats);
    return stats.phase != CST_PHASE_RUNNING && stats.phase != CST_PHASE_INTERRUPTED;
}

/* While managers wait for the end of all jobs, none begins: check that @job, which a worker joins
 * or replaces, has begun. NULL: it would be a new one. A worker that connects again has not ended.
 */
static int check_barred(const struct cstd_daemon *daemon, const struct cstd_job *job,
                        const struct cstd_job_request *request, struct cst_err *err)
{
    if (daemon->n_barring == 0 || request->again || (job != NULL && !is_over(job))) {
        return CST_OK;
    }
    return cst_err_set(err, CST_EDRAINING,
                       "the daemon takes no %s '%s', because it ends when its jobs are done "
                       "(cistern drain --wait): try again when the next one has started",
                       job == NULL ? "new job" : "worker of job", request->spec.name);
}

/* Find the job that @request names and free the rank, or make the job. @settled: @request with what
 * the job's plan decides. */
static int find_or_make(struct cstd_session *session, const struct cstd_job_request *request,
                        struct cstd_job_request *settled, bool *created, struct cstd_job **out,
                        struct cst_err *err)
{
    struct cstd_job *job, *predecessor;
    int rc = find_living(session, request, &job, &predecessor, err);

    *created = false;
    *settled = *request;
    if (rc == CST_OK) {
        rc = check_barred(session->daemon, job != NULL ? job : predecessor, request, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    if (job != NULL) {
        rc = join(job, session, settled, err);
        /* If claim_rank found the last worker of an uncommitted job dead, the job is closing: make
         * a new one, for which the plan of the old job does not count. */
        if (rc != CST_OK || job->state != CSTD_JOB_CLOSING) {
            *out = job;
            return rc;
        }
        *settled = *request;
    }
    if (request->again) {
        return cst_err_set(err, CST_ELOST,
                           "job '%s' did not outlive the earlier daemon process: %s",
                           request->spec.name,
                           request->spec.states.durable
                               ? "'cistern adopt FILE... DIR' makes a checkpoint of its files"
                               : "its states are lost: start its workers again, with the last "
                                 "checkpoint if there is one");
    }
    rc = settle_request(NULL, settled, err);
    rc = rc == CST_OK ? cstd_job_make(session, settled, out, err) : rc;
    *created = rc == CST_OK && predecessor == NULL;
    if (rc == CST_OK && predecessor != NULL) {
        cstd_reshape_begin(*out, predecessor);
    }
    return rc;
}

int cstd_worker_attach(struct cstd_session *session, const struct cstd_job_request *asked,
                       bool *created, struct cst_err *err)
{
    struct cstd_job_request request;
    struct cstd_job *job = NULL;
    struct cstd_worker *worker;
    uint8_t token[CSTD_JOB_TOKEN_BYTES];
    int rc;

    if (getrandom(token, sizeof token, 0) != (ssize_t)sizeof token) {
        return cst_err_set(err, CST_EINTERNAL, "no random bytes for a token");
    }
    rc = find_or_make(session, asked, &request, created, &job, err);
    if (rc != CST_OK) {
        return rc;
    }
    worker = &job->workers[request.spec.rank];
    if (cstd_relocate_begin(worker, &request, err) != CST_OK) {
        return err->status;
    }
    memcpy(worker->token, token, sizeof token);
    worker->has_token = true;
    occupy(worker, session, &request);
    cstd_log_about(CSTD_LOG_INFO, CSTD_JOB_ABOUT_RANK(job, request.spec.rank),
                   "rank %u of %u is pid %d on %s%s", request.spec.rank, job->world,
                   (int)session->peer.pid, cstd_rank_devices_name(worker),
                   *created ? " (new job)" : "");
    session->daemon->status_changed = true;
    return CST_OK;
}
