/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/readers.h"
#include "daemon/job/saver.h"
#include "daemon/job/job.h"

#include "daemon/job/base_job.h"
#include "daemon/job/commit.h"
#include "daemon/job/comms.h"
#include "daemon/job/declare.h"
#include "daemon/base/daemon_state.h"
#include "daemon/memory/rank_devices.h"
#include "daemon/job/done.h"
#include "daemon/job/ended_parts.h"
#include "daemon/job/migrate.h"
#include "daemon/job/reshape.h"
#include "daemon/job/shut_out.h"
#include "daemon/job/standby.h"
#include "daemon/base/log.h"
#include "daemon/session/session.h"
#include "daemon/job/worker.h"
#include "proto/cistern.pb-c.h"
#include "daemon/budget/quota.h"
#include "daemon/job/jobs.h"
#include "daemon/settings/settings.h"
#include "daemon/memory/tiers/tier.h"
#include "proto/reason.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void on_close(struct cstd_deferred *later);
static void on_memory_gone(struct cstd_memory *memory);
static void on_memory_less(struct cstd_memory *memory);
static void on_pools_gone(struct cstd_deferred *later);

/* -- creation and removal ------------------------------------------------------------------- */

static void on_ttl(uv_timer_t *timer)
{
    struct cstd_job *job = timer->data;
    struct cst_err why = {0};

    /* A base job lives on for its users, and a job that is being replaced for its successor. */
    if (cstd_base_job_user(job, NULL) != NULL || job->successor != NULL) {
        (void)uv_timer_start(&job->ttl, on_ttl, (uint64_t)job->spec.limits.ttl_s * 1000, 0);
        return;
    }
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job),
                   "removed, because it had no worker for %u s", job->spec.limits.ttl_s);
    (void)cst_err_set(&why, CST_ENOTFOUND, "job '%s': its time to live is over", job->name);
    cstd_job_remove(job, 0, &why);
}

/* Take one of the jobs that the daemon and the user of @session may have. CST_EBUDGET: there are
 * too many, and the text names those that are done. */
static int take_one_of_all(struct cstd_session *session, const char *what, struct cst_err *err)
{
    struct cstd_daemon *daemon = session->daemon;
    const uint32_t n = daemon->jobs->n, most = daemon->config->max_jobs;
    int rc = n >= most ? cst_err_give_reason(
                             err, CST_REASON_JOBS,
                             cst_err_set(err, CST_EBUDGET,
                                         "%u jobs, the limit is %u (max_jobs in [job])", n, most))
                       : cstd_quota_take(session->account, CSTD_QUOTA_JOBS, 1, what, err);

    if (rc == CST_EBUDGET) {
        cstd_done_suggest_oldest(daemon, session->peer.uid, n >= most && session->manager, err);
    }
    return rc;
}

/* Charge a job to the user of @session and determine its time to live. A job that asks for no time
 * gets the configured one, or the longest time that its owner may have if this is shorter. */
static int take_job(struct cstd_session *session, const struct cstd_job_request *request,
                    uint32_t *ttl_s, struct cst_err *err)
{
    const struct cstd_settings *config = session->daemon->config;
    struct cstd_quota_account *account = session->account;
    uint64_t longest = cstd_quota_left(account, CSTD_QUOTA_TTL);
    char what[80];
    int rc;

    (void)snprintf(what, sizeof what, "job '%s'", request->spec.name);
    rc = cstd_quota_check(account, CSTD_QUOTA_TTL, request->spec.limits.ttl_s, what, err);
    if (rc == CST_OK) {
        *ttl_s = request->spec.limits.ttl_s > 0 ? request->spec.limits.ttl_s : config->ttl_s;
        *ttl_s = *ttl_s > longest ? (uint32_t)longest : *ttl_s;
        rc = cstd_quota_check(account, CSTD_QUOTA_FILES, request->spec.world, what, err);
    }
    return rc == CST_OK ? take_one_of_all(session, what, err) : rc;
}

static void free_texts(struct cst_job_model *model)
{
    free((char *)(uintptr_t)model->model_config);
    free((char *)(uintptr_t)model->adapter_config);
}

/* Free the memory that belongs to @job, which may be NULL, and @job. */
static void free_job(struct cstd_job *job)
{
    if (job != NULL) {
        free(job->workers);
        free_texts(&job->spec.model);
        free(job);
    }
}

/* Copy @text, which may be NULL. False: out of memory. */
static bool copy_text(const char *text, const char **out)
{
    *out = text != NULL ? strdup(text) : NULL;
    return text == NULL || *out != NULL;
}

int cstd_job_set_model(struct cstd_job *job, const struct cst_job_model *from, struct cst_err *err)
{
    struct cst_job_model model = {.base = job->base != NULL ? job->base->name : NULL};

    if (!copy_text(from->model_config, &model.model_config) ||
        !copy_text(from->adapter_config, &model.adapter_config)) {
        free_texts(&model);
        return cst_err_set(err, CST_ENOMEM, "no memory for the configuration of job '%s'",
                           job->name);
    }
    free_texts(&job->spec.model);
    job->spec.model = model;
    return CST_OK;
}

int cstd_job_set_options(struct cstd_job *job, const struct cst_job_spec *from, struct cst_err *err)
{
    int rc = cstd_job_set_model(job, &from->model, err);

    if (rc == CST_OK) {
        job->spec.name = job->name;
        job->spec.world = job->world;
        job->spec.nodes = from->nodes;
        job->spec.states = from->states;
        job->spec.updates = from->updates;
        job->spec.planning = from->planning;
        job->spec.limits = from->limits;
        job->spec.planning.plan_file = NULL;
        cst_job_texts_make(&job->spec_texts, &job->spec);
    }
    return rc;
}

/* Add @job to the living jobs, which are in the order of their serial numbers. */
static void insert(struct cstd_jobs *jobs, struct cstd_job *job)
{
    struct cstd_job *after = TAILQ_LAST(&jobs->living, cstd_job_list);

    while (after != NULL && after->serial > job->serial) {
        after = TAILQ_PREV(after, cstd_job_list, link);
    }
    if (after != NULL) {
        TAILQ_INSERT_AFTER(&jobs->living, after, job, link);
    } else {
        TAILQ_INSERT_HEAD(&jobs->living, job, link);
    }
    jobs->n++;
}

int cstd_job_create(struct cstd_daemon *daemon, struct cstd_quota_account *account,
                    const struct cstd_job_request *request, struct cstd_job *base, uint32_t ttl_s,
                    struct cstd_job **out, struct cst_err *err)
{
    struct cstd_job *job = calloc(1, sizeof *job);

    if (job != NULL) {
        job->workers = calloc(request->spec.world, sizeof *job->workers);
    }
    if (job == NULL || job->workers == NULL) {
        free_job(job);
        return cst_err_set(err, CST_ENOMEM, "no memory for a job");
    }
    (void)snprintf(job->name, sizeof job->name, "%s", request->spec.name);
    job->world = request->spec.world;
    job->base = base;
    if (cstd_job_set_options(job, &request->spec, err) != CST_OK) {
        free_job(job);
        return err->status;
    }
    job->daemon = daemon;
    job->serial = ++daemon->jobs->serial;
    job->uid = account->uid;
    job->account = cstd_quota_ref(account);
    cstd_quota_force(account, CSTD_QUOTA_FILES, job->world); /* The workers' watches. */
    job->given = request->plan;
    if (job->spec.limits.timeout_ms == 0) {
        job->spec.limits.timeout_ms = daemon->config->timeout_s * 1000;
    }
    job->spec.limits.ttl_s = ttl_s;
    for (uint32_t r = 0; r < job->world; r++) {
        job->workers[r].job = job;
        job->workers[r].rank = r;
        job->workers[r].tier = job->workers[r].update_tier = cstd_tiers_host(daemon);
    }
    cst_model_init(&job->model);
    job->traces = (struct cstd_charge){.budget = daemon->host, .account = job->account};
    job->declared = (struct cstd_charge){.budget = daemon->host, .account = job->account};
    cstd_memory_init(&job->memory, daemon, job->name);
    job->memory.on_ready = cstd_commit_memory_ready;
    job->memory.on_gone = on_memory_gone;
    job->memory.on_less = on_memory_less;
    job->pools_gone.fn = on_pools_gone;
    TAILQ_INIT(&job->requests);
    cstd_readers_init(&job->readers);
    (void)uv_timer_init(&daemon->loop, &job->deadline);
    (void)uv_timer_init(&daemon->loop, &job->ttl);
    job->deadline.data = job->ttl.data = job;
    cstd_comms_init(job);
    cstd_shut_out_init(job);
    job->deadline_ns = CST_CORE_NEVER;
    job->n_holds = 5; /* Four timers and the memory. */
    job->created_ns = job->idle_since_ns = uv_hrtime();
    job->close.fn = on_close;
    insert(daemon->jobs, job);
    *out = job;
    return CST_OK;
}

int cstd_job_make(struct cstd_session *session, const struct cstd_job_request *request,
                  struct cstd_job **out, struct cst_err *err)
{
    struct cstd_daemon *daemon = session->daemon;
    struct cstd_job *base = NULL;
    uint32_t ttl_s = 0;
    int rc = request->spec.model.base != NULL
                 ? cstd_base_job_find(daemon, session->peer.uid, request->spec.name,
                                      request->spec.model.base, &base, err)
                 : CST_OK;

    if (rc == CST_OK) {
        rc = take_job(session, request, &ttl_s, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    rc = cstd_job_create(daemon, session->account, request, base, ttl_s, out, err);
    if (rc != CST_OK) {
        cstd_quota_give(session->account, CSTD_QUOTA_JOBS, 1);
    }
    return rc;
}

static void release_hold(struct cstd_job *job)
{
    struct cstd_daemon *daemon = job->daemon;

    if (--job->n_holds > 0) {
        return;
    }
    for (uint32_t r = 0; r < job->world; r++) {
        cstd_rank_devices_drop(&job->workers[r]);
    }
    cstd_files_close(&job->files);
    TAILQ_REMOVE(&daemon->jobs->closing, job, link);
    cstd_migrate_close(job);
    cstd_declare_close(job);
    cstd_quota_give(job->account, CSTD_QUOTA_FILES, job->world);
    cstd_quota_unref(job->account);
    free_job(job);
}

static void on_timer_closed(uv_handle_t *handle)
{
    release_hold(handle->data);
}

/* The base job may be removed now, before @job is freed. One that is being removed has waited. */
static void leave_base(struct cstd_job *job)
{
    struct cstd_job *base = job->base;

    job->base = NULL;
    job->spec.model.base = NULL;
    if (base != NULL && base->state == CSTD_JOB_CLOSING && cstd_base_job_user(base, NULL) == NULL) {
        cstd_deferred_add(&job->daemon->later, &base->close);
    }
}

/* All memory of @job is given back. Answer the JobRemove request, or return to DECLARING after a
 * failed commit. */
static void on_memory_gone(struct cstd_memory *memory)
{
    struct cstd_job *job = cstd_owner_of(memory, struct cstd_job, memory);
    struct cstd_daemon *daemon = job->daemon;
    Cistern__Removed removed = CISTERN__REMOVED__INIT;
    struct cstd_pending *remover;
    char *left_on[CST_MACHINES_MAX];
    uint32_t item;

    if (job->state != CSTD_JOB_CLOSING) {
        cstd_commit_memory_gone(job);
        cstd_job_check_idle(job);
        return;
    }
    if (!job->memory_closed) {
        return; /* The memory of a commit that failed: on_close closes what is left. */
    }
    leave_base(job);
    remover = cstd_pending_find(daemon->requests, job->remover, &item);
    if (remover != NULL) { /* Otherwise the requester has disconnected. */
        removed.left_on = left_on;
        removed.n_left_on =
            cstd_ended_parts_untold(daemon, job->uid, job->name, left_on, CST_MACHINES_MAX);
        cstd_session_answer(daemon, remover, CISTERN__MSG_TYPE__MSG_OK, &removed.base, NULL, 0);
    }
    daemon->status_changed = true;
    release_hold(job);
}

static void on_memory_less(struct cstd_memory *memory)
{
    cstd_reshape_look(cstd_owner_of(memory, struct cstd_job, memory));
}

static void on_pools_gone(struct cstd_deferred *later)
{
    cstd_commit_pools_gone(cstd_owner_of(later, struct cstd_job, pools_gone));
}

static void detach_all(struct cstd_job *job)
{
    for (uint32_t r = 0; r < job->world; r++) {
        struct cstd_worker *worker = &job->workers[r];

        if (worker->session != NULL) {
            worker->session->job = NULL;
            worker->session->job_removed = true;
            worker->session->why_removed = job->closing;
            worker->session = NULL;
        }
        worker->commit = NULL;
        cstd_watch_close(worker->watch);
        worker->watch = NULL;
        worker->present = false;
    }
}

static void on_close(struct cstd_deferred *later)
{
    struct cstd_job *job = cstd_owner_of(later, struct cstd_job, close);
    struct cstd_daemon *daemon = job->daemon;

    detach_all(job);
    if (job->saver != NULL) {
        cstd_saver_detach(job->saver);
    }
    cstd_readers_end(job, &job->closing);
    cstd_reshape_forget(job);
    while (!TAILQ_EMPTY(&job->requests)) {
        cstd_session_fail(daemon, TAILQ_FIRST(&job->requests), &job->closing);
    }
    if (job->layout_work != NULL || job->ledger.work != NULL || job->describing != NULL ||
        job->durable.describing != NULL) {
        return; /* Called again when the thread has finished. */
    }
    /* A thread may build the layout of another job with this one's. */
    if (cstd_base_job_user(job, NULL) != NULL) {
        return; /* Called again when the last user has ended. */
    }
    cstd_commit_close(job);
    cstd_upkeep_close(job);
    job->memory_closed = true;
    cstd_memory_close(&job->memory); /* on_memory_gone follows even if there is no memory. */
    cstd_comms_close(job);
    uv_close((uv_handle_t *)&job->comms.deadline, on_timer_closed);
    uv_close((uv_handle_t *)&job->deadline, on_timer_closed);
    uv_close((uv_handle_t *)&job->ttl, on_timer_closed);
    uv_close((uv_handle_t *)&job->hung_up, on_timer_closed);
}

static struct cstd_job *next_living_user(const struct cstd_job *job)
{
    struct cstd_job *user = cstd_base_job_user(job, NULL);

    while (user != NULL && user->state == CSTD_JOB_CLOSING) {
        user = cstd_base_job_user(job, user);
    }
    return user;
}

/* Remove @job alone. */
static void remove_one(struct cstd_job *job, uint64_t remover, const struct cst_err *why)
{
    if (job->state == CSTD_JOB_CLOSING) {
        return;
    }
    job->closing = *why;
    cstd_standbys_job_ended(job, job->state != CSTD_JOB_DECLARING, &job->closing);
    job->state = CSTD_JOB_CLOSING;
    cstd_ledger_forget(job);
    job->remover = remover;
    cstd_planner_cancel(job);
    TAILQ_REMOVE(&job->daemon->jobs->living, job, link);
    job->daemon->jobs->n--;
    cstd_quota_give(job->account, CSTD_QUOTA_JOBS, 1);
    TAILQ_INSERT_TAIL(&job->daemon->jobs->closing, job, link);
    cstd_deferred_add(&job->daemon->later, &job->close);
}

void cstd_job_remove(struct cstd_job *job, uint64_t remover, const struct cst_err *why)
{
    struct cstd_job *user;

    if (job->state == CSTD_JOB_CLOSING) {
        return;
    }
    /* Without its successor, the job whose states are being moved would lack some. */
    job = cstd_migrate_is_torn(job) ? job->predecessor : job;
    if (job->successor != NULL) {
        remove_one(job->successor, 0, why);
    }
    /* Jobs that use @job as their base cannot exist without its weights. */
    while ((user = next_living_user(job)) != NULL) {
        cstd_job_remove(user, 0, why);
    }
    remove_one(job, remover, why);
}

void cstd_job_check_idle(struct cstd_job *job)
{
    bool present = false;
    struct cst_err why = {0};

    for (uint32_t r = 0; r < job->world; r++) {
        if (job->workers[r].session != NULL) {
            return;
        }
        present = present || job->workers[r].present;
    }
    /* Otherwise the time runs since the last worker hung up. */
    if (job->idle_since_ns == 0) {
        job->idle_since_ns = uv_hrtime();
    }
    /* A process that has hung up may connect again and commit. */
    if (job->state == CSTD_JOB_DECLARING && !present) {
        (void)cst_err_set(
            &why, CST_ENOTFOUND,
            "job '%s' was removed, because it was not committed and no worker is attached",
            job->name);
        cstd_job_remove(job, 0, &why);
    } else if (job->state != CSTD_JOB_CLOSING && job->state != CSTD_JOB_DECLARING &&
               !uv_is_active((uv_handle_t *)&job->ttl)) {
        (void)uv_timer_start(&job->ttl, on_ttl, (uint64_t)job->spec.limits.ttl_s * 1000, 0);
    }
    cstd_done_look(job);
}
