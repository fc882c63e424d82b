/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/daemon.h"

#include "daemon/job/commit.h"
#include "daemon/job/commit_wait.h"
#include "daemon/job/comms.h"
#include "daemon/job/core_driver.h"
#include "daemon/revive/handover.h"
#include "daemon/base/log.h"
#include "daemon/memory/staging.h"
#include "daemon/job/state_copy.h"
#include "daemon/job/worker.h"
#include "proto/size.h"
#include "proto/sched_slice.h"
#include "daemon/base/access.h"
#include "daemon/budget/arena.h"
#include "daemon/budget/quota.h"
#include "daemon/budget/remains.h"
#include "daemon/engine/engines.h"
#include "daemon/engine/drives.h"
#include "daemon/engine/gpus.h"
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"
#include "daemon/job/readers.h"
#include "daemon/job/searches.h"
#include "daemon/job/standby.h"
#include "daemon/ledger/ledger.h"
#include "daemon/revive/revive.h"
#include "daemon/job/ended_parts.h"
#include "daemon/job/span.h"
#include "daemon/links/links.h"
#include "daemon/serve/open_files.h"
#include "daemon/serve/server.h"
#include "daemon/session/linger.h"
#include "daemon/session/listen.h"
#include "daemon/session/pending.h"
#include "daemon/session/session.h"
#include "daemon/session/unpack.h"
#include "daemon/session/unread.h"
#include "daemon/settings/settings.h"
#include "daemon/memory/tiers/tier.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* -- iterations of the loop -------------------------------------------------------------------- */

/* Called after the loop has polled the sockets: read the requests that have arrived. */
static void on_readable(uv_check_t *reader)
{
    struct cstd_daemon *daemon = reader->data;

    cstd_session_read_turns(daemon->server);
}

static void format_status(const struct cstd_daemon *daemon, char *out, size_t n)
{
    char host[CST_SIZE_TEXT], host_limit[CST_SIZE_TEXT], pool[CST_SIZE_TEXT],
        pool_limit[CST_SIZE_TEXT], reviving[64] = "";

    if (cstd_revive_is_under_way(daemon)) {
        (void)snprintf(reviving, sizeof reviving, "%u of %u jobs of the earlier daemon settled, ",
                       daemon->revival->n_settled, daemon->revival->n);
    }
    (void)snprintf(
        out, n, "%s%u job%s, host memory %s of %s, pools %s of %s", reviving, daemon->jobs->n,
        daemon->jobs->n == 1 ? "" : "s", cst_size_text(daemon->host->used, host),
        cst_size_text(daemon->host->limit, host_limit), cst_size_text(daemon->pool->used, pool),
        cst_size_text(daemon->pool->limit, pool_limit));
}

static void tell_status(struct cstd_daemon *daemon)
{
    char text[256];

    format_status(daemon, text, sizeof text);
    cstd_notify_status(&daemon->notify, text);
}

/* End of an iteration of the loop, after all callbacks and before the loop sleeps. The order
 * matters: deferred work first, then the commands for engines that it produced, then work of low
 * priority. */
static void on_iteration(uv_prepare_t *prepare)
{
    struct cstd_daemon *daemon = prepare->data;

    cstd_deferred_run(&daemon->later);
    cstd_engines_flush(daemon->engines);
    cstd_deferred_run(&daemon->idle_work);
    if (daemon->status_changed) {
        daemon->status_changed = false;
        tell_status(daemon);
    }
    if (daemon->leaving && cstd_engines_all_ended(daemon->engines)) {
        uv_stop(&daemon->loop);
    }
}

static void on_watchdog(uv_timer_t *timer)
{
    struct cstd_daemon *daemon = timer->data;

    if (cstd_engines_alive(daemon->engines)) {
        cstd_notify_alive(&daemon->notify);
    } else {
        cstd_log(CSTD_LOG_WARNING, "an engine that has commands makes no progress");
    }
}

/* -- signals -------------------------------------------------------------------------------- */

static void on_terminate(uv_signal_t *signal, int number)
{
    struct cstd_daemon *daemon = signal->data;

    if (daemon->draining) {
        cstd_log(CSTD_LOG_WARNING, "second %s: exiting now", strsignal(number));
        /* Engines end by themselves when their sockets are closed. */
        _exit(1);
    }
    cstd_log(CSTD_LOG_NOTICE, "%s: shutting down; %u job%s", strsignal(number), daemon->jobs->n,
             daemon->jobs->n == 1 ? "" : "s");
    cstd_daemon_drain(daemon);
}

static void on_reload(uv_signal_t *signal, int number)
{
    struct cstd_daemon *daemon = signal->data;
    struct cstd_quota_rules rules;
    struct cst_err err = {0};

    (void)number;
    if (cstd_settings_reload(daemon->config, &rules, &err) != CST_OK) {
        cstd_log(CSTD_LOG_ERROR, "SIGHUP: the limits of users are unchanged: %s", err.text);
        return;
    }
    cstd_quota_reload(daemon->quota, &rules);
    if (daemon->links != NULL && cstd_links_reload(daemon->links, &err) != CST_OK) {
        cstd_log(CSTD_LOG_ERROR, "SIGHUP: the list of nodes and the key are unchanged: %s",
                 err.text);
    } else if (daemon->links != NULL) {
        cstd_span_add_nodes(daemon);
    }
    cstd_log(CSTD_LOG_NOTICE,
             "SIGHUP: the limits in [quota]%s were read again; other changes of the configuration "
             "need a restart",
             daemon->links != NULL ? ", the list of nodes and the key" : "");
}

static void start_signals(struct cstd_daemon *daemon)
{
    (void)signal(SIGPIPE, SIG_IGN);
    (void)uv_signal_init(&daemon->loop, &daemon->terminate);
    (void)uv_signal_init(&daemon->loop, &daemon->interrupt);
    (void)uv_signal_init(&daemon->loop, &daemon->reload);
    daemon->terminate.data = daemon->interrupt.data = daemon->reload.data = daemon;
    (void)uv_signal_start(&daemon->terminate, on_terminate, SIGTERM);
    (void)uv_signal_start(&daemon->interrupt, on_terminate, SIGINT);
    (void)uv_signal_start(&daemon->reload, on_reload, SIGHUP);
}

/* -- start ---------------------------------------------------------------------------------- */

/* Tell the quota module the total of each resource, because users' limits may be parts of it.
 * Accelerators add their memory when they are found. */
static void init_quota(struct cstd_daemon *daemon, const struct cstd_settings *config)
{
    struct cstd_quota *quota = daemon->quota;
    uid_t sole;

    cstd_quota_init(quota, &config->quota,
                    cstd_access_is_sole(&config->access, &sole) ? &sole : NULL);
    cstd_quota_set_total(quota, CSTD_QUOTA_HOST, config->host_bytes);
    cstd_quota_set_total(quota, CSTD_QUOTA_JOBS, config->max_jobs);
    cstd_quota_set_total(quota, CSTD_QUOTA_SESSIONS, config->max_sessions);
    cstd_quota_set_total(quota, CSTD_QUOTA_DESCRIPTORS, daemon->server->unread.limit);
    cstd_quota_set_total(quota, CSTD_QUOTA_FILES,
                         cstd_open_files_count(&daemon->server->unread, config));
    cstd_quota_set_total(quota, CSTD_QUOTA_REQUESTS,
                         (uint64_t)config->max_sessions * config->credits);
    cstd_quota_set_total(quota, CSTD_QUOTA_SEARCHES, config->max_jobs);
    cstd_quota_set_total(quota, CSTD_QUOTA_TTL, config->ttl_s);
    daemon->host->resource = CSTD_QUOTA_HOST;
    daemon->pool->resource = cstd_quota_add_pool(quota, daemon->pool->name, daemon->pool->limit);
}

static void start_timers(struct cstd_daemon *daemon)
{
    uint64_t ms = cstd_notify_watchdog_ms();

    (void)uv_check_init(&daemon->loop, &daemon->reader);
    (void)uv_prepare_init(&daemon->loop, &daemon->prepare);
    (void)uv_timer_init(&daemon->loop, &daemon->watchdog);
    daemon->reader.data = daemon->prepare.data = daemon->watchdog.data = daemon;
    cstd_standbys_init(daemon);
    (void)uv_check_start(&daemon->reader, on_readable);
    (void)uv_prepare_start(&daemon->prepare, on_iteration);
    if (ms > 0) {
        (void)uv_timer_start(&daemon->watchdog, on_watchdog, ms, ms);
    }
}

/* A command of @job could not be sent to its engine: the job ends. */
static void on_lost(struct cstd_job *job, const struct cst_err *why)
{
    cstd_job_remove(job, 0, why);
}

static void on_settled(struct cstd_job *job)
{
    cstd_comms_look(job);
    cstd_pause_look(job);
    cstd_commit_settled(job);
    cstd_readers_look(job);
}

static const struct cstd_core_driver_ops core_ops = {.settled = on_settled,
                                                     .left = cstd_worker_left,
                                                     .copied = cstd_state_copy_reply,
                                                     .lost = on_lost};

static void on_removed_there(struct cstd_job *job, const struct cst_err *why)
{
    cstd_job_remove(job, 0, why);
}

static const struct cstd_span_ops span_ops = {.met = cstd_commit_met,
                                              .feed = cstd_job_feed,
                                              .reply = cstd_core_driver_reply,
                                              .copied = cstd_state_copy_reply,
                                              .told = cstd_state_copy_look,
                                              .progress = cstd_commit_progress,
                                              .removed = on_removed_there};

struct cstd_modules {
    struct cstd_budget host, pool;
    struct cstd_remains remains;
    struct cstd_quota quota;
    struct cstd_engines engines;
    struct cstd_gpus gpus;
    struct cstd_drives drives;
    struct cstd_tiers tiers;
    struct cstd_planner planner;
    struct cstd_searches searches;
    struct cstd_server server;
    struct cstd_jobs jobs;
    struct cstd_staging_queue staging_queue;
    struct cstd_standbys standbys;
    struct cstd_pendings requests;
    struct cstd_unpack unpack;
    struct cstd_revival revival;
    struct cstd_ended_parts ended_parts;
};

static const struct cstd_tier_kinds kinds = {.host = &cstd_tier_host,
                                             .gpu = &cstd_tier_cuda,
                                             .paced = &cstd_tier_paced,
                                             .disk = &cstd_tier_disk};

static int create_modules(struct cstd_daemon *daemon, struct cst_err *err)
{
    struct cstd_modules *modules = calloc(1, sizeof *modules);

    if (modules == NULL) {
        return cst_err_set(err, CST_ENOMEM, "memory for the daemon's modules");
    }
    daemon->modules = modules;
    daemon->host = &modules->host;
    daemon->pool = &modules->pool;
    daemon->remains = &modules->remains;
    daemon->quota = &modules->quota;
    daemon->engines = &modules->engines;
    daemon->gpus = &modules->gpus;
    daemon->drives = &modules->drives;
    daemon->tiers = &modules->tiers;
    daemon->planner = &modules->planner;
    daemon->searches = &modules->searches;
    daemon->server = &modules->server;
    daemon->jobs = &modules->jobs;
    daemon->staging_queue = &modules->staging_queue;
    daemon->standbys = &modules->standbys;
    daemon->requests = &modules->requests;
    daemon->unpack = &modules->unpack;
    daemon->revival = &modules->revival;
    daemon->ended_parts = &modules->ended_parts;
    return CST_OK;
}

static int init_parts(struct cstd_daemon *daemon, const struct cstd_settings *config,
                      struct cst_err *err)
{
    int rc;

    memset(daemon, 0, sizeof *daemon);
    rc = create_modules(daemon, err);
    if (rc != CST_OK) {
        return rc;
    }
    daemon->config = config;
    daemon->core_ops = &core_ops;
    daemon->leave = cstd_daemon_leave;
    *daemon->host = (struct cstd_budget){
        .name = "host memory", .key = "memory in [host]", .limit = config->host_bytes};
    *daemon->pool = (struct cstd_budget){.name = "pools of the host device",
                                         .key = "pool in [device host]",
                                         .limit = config->pool_bytes};
    daemon->started_ns = uv_hrtime();
    cstd_jobs_init(daemon->jobs);
    cstd_ended_parts_init(daemon);
    cstd_pendings_init(daemon->requests);
    cstd_deferred_init(&daemon->later);
    cstd_deferred_init(&daemon->idle_work);
    cstd_staging_queue_init(daemon->staging_queue, daemon);
    cst_actions_init(&daemon->actions);
    /* The epoch tells clients that the daemon was restarted; it need not be secret. */
    if (getrandom(&daemon->epoch, sizeof daemon->epoch, 0) != (ssize_t)sizeof daemon->epoch) {
        daemon->epoch = daemon->started_ns;
    }
    daemon->epoch &= INT64_MAX; /* Clients may store it in a signed integer. */
    return CST_OK;
}

/* Take over from the daemon that listens where this one will. */
static int take_over(struct cstd_daemon *daemon, struct cst_err *err)
{
    const struct cstd_settings *config = daemon->config;
    int rc = cstd_listen_check(config->socket, config->manager_socket, err);

    return rc == CST_OK ? cstd_handover_take(config->manager_socket, daemon, err) : rc;
}

int cstd_daemon_open(struct cstd_daemon *daemon, const struct cstd_settings *config,
                     struct cst_err *err)
{
    char status[256];
    int rc;

    rc = init_parts(daemon, config, err);
    if (rc != CST_OK) {
        return rc;
    }
    cstd_open_files_raise();
    cstd_unread_init(&daemon->server->unread);
    init_quota(daemon, config);
    rc = cstd_unpack_init(daemon->unpack, err);
    if (rc != CST_OK) {
        goto err_after_modules;
    }
    if (uv_loop_init(&daemon->loop) != 0) {
        rc = cst_err_set(err, CST_EINTERNAL, "uv_loop_init");
        goto err_after_unpack;
    }
    rc = cstd_planner_init(daemon->planner, daemon, err);
    if (rc != CST_OK) {
        goto err_after_loop;
    }
    rc = cstd_engines_init(daemon->engines, &daemon->loop, config, &daemon->later,
                           cstd_core_driver_done, cstd_commit_resume, cstd_core_driver_given_up,
                           daemon, err);
    if (rc != CST_OK) {
        goto err_after_loop;
    }
    daemon->engines->on_timed = cstd_core_driver_timed;
    cstd_drives_init(daemon->drives, daemon->engines);
    cstd_tiers_init(daemon->tiers, daemon, &kinds);
    cstd_remains_init(daemon->remains, &daemon->loop);
    cstd_keeper_init(&daemon->keeper, &daemon->notify);
    daemon->host->remains = daemon->pool->remains = daemon->remains;
    cstd_searches_init(daemon->searches, &daemon->loop, &daemon->later, config->search_time_s);
    if (config->handover) {
        cstd_gpus_start(daemon->gpus, daemon);
        rc = take_over(daemon, err);
        if (rc != CST_OK) {
            return rc; /* The process ends: nothing is taken apart that the other daemon has. */
        }
    }
    rc = rc == CST_OK ? cstd_server_open(daemon->server, daemon, err) : rc;
    if (rc != CST_OK) {
        goto err_after_engines;
    }
    rc = cstd_links_open(&daemon->links, &daemon->loop, &daemon->later, &config->node,
                         daemon->epoch, err);
    if (rc != CST_OK) {
        goto err_after_server;
    }
    if (daemon->links != NULL) {
        cstd_span_handle(daemon, &span_ops);
    }
    cstd_notify_init(&daemon->notify, &daemon->loop);
    if (config->handover) {
        cstd_revive_proven(daemon);
    } else {
        cstd_gpus_start(daemon->gpus, daemon);
        cstd_revive_list(daemon);
    }
    start_signals(daemon);
    start_timers(daemon);
    /* The loop has active handles now. If the start fails from here on, they must be ended in the
     * same way as by a shutdown. */
    rc = cstd_engines_start(daemon->engines, err);
    if (rc != CST_OK) {
        /* Engines that were started already must end. */
        cstd_daemon_drain(daemon);
        cstd_daemon_run(daemon);
        if (!daemon->leaving) {
            cstd_daemon_close(daemon);
        }
        return rc;
    }
    cstd_log(CSTD_LOG_NOTICE, "listening at %s, managers at %s, engine %s",
             daemon->server->user.path, daemon->server->manager.path, daemon->engines->program);
    cstd_server_accept(daemon->server);
    format_status(daemon, status, sizeof status);
    cstd_notify_ready(&daemon->notify, status);
    cstd_revive_begin(daemon);
    return CST_OK;

err_after_server:
    cstd_server_stop(daemon->server);
    cstd_lingers_close(&daemon->server->lingers);
err_after_engines:
    cstd_keeper_close(&daemon->keeper);
    cstd_engines_close(daemon->engines);
    cstd_remains_close(daemon->remains);
err_after_loop:
    (void)uv_run(&daemon->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&daemon->loop);
err_after_unpack:
    cstd_unpack_close(daemon->unpack);
err_after_modules:
    free(daemon->modules);
    return rc;
}

/* -- run and shutdown ----------------------------------------------------------------------- */

void cstd_daemon_run(struct cstd_daemon *daemon)
{
    /* Workers and engines wait for the loop thread, which never runs for long at a time. A short
     * time slice lets it run sooner if all processors are busy. */
    cst_sched_slice_short();
    (void)uv_run(&daemon->loop, UV_RUN_DEFAULT);
}

/* What is left of @job when it ends after @step. */
static const char *remains_of(const struct cstd_job *job, uint64_t step)
{
    if (job->was_saved && job->saved_step == step) {
        return "its states are in the checkpoint of that step";
    }
    return job->spec.states.durable ? "'cistern adopt FILE... DIR' makes a checkpoint of its files"
                                    : "its states are lost";
}

/* Return why the connection of a worker of @job ends. @job is NULL if the peer has no job. */
static struct cst_err words_of_end(const struct cstd_job *job)
{
    struct cst_core_stats stats = {0};
    struct cst_err why = {0};

    if (job == NULL) {
        (void)cst_err_set(&why, CST_EDRAINING, "the daemon is shutting down");
        return why;
    }
    if (job->core != NULL) {
        cst_core_stats(job->core, &stats);
    }
    stats.step = job->state == CSTD_JOB_REVIVING ? job->ledger.step : stats.step;
    if (job->daemon->leaving &&
        (job->ledger.state == CSTD_LEDGER_KEPT || job->state == CSTD_JOB_REVIVING)) {
        (void)cst_err_set(
            &why, CST_EDRAINING,
            job->daemon->keeper.limit > 0
                ? "the daemon is shutting down: if the service is restarted, job '%s' "
                  "goes on after step %llu, and if it is stopped, %s"
                : "the daemon is replaced: job '%s' goes on after step %llu",
            job->name, (unsigned long long)stats.step, remains_of(job, stats.step));
        return why;
    }
    (void)cst_err_set(&why, CST_EDRAINING,
                      "the daemon is shutting down, and job '%s' ends with it at step %llu: %s",
                      job->name, (unsigned long long)stats.step, remains_of(job, stats.step));
    return why;
}

/* Tell all connected peers why their connection ends, including those without a request. */
static void say_farewell(struct cstd_daemon *daemon)
{
    struct cstd_session *session;

    TAILQ_FOREACH(session, &daemon->server->sessions, link)
    {
        struct cst_err why = words_of_end(session->job);

        cstd_session_farewell(session, &why);
    }
}

static void remove_jobs(struct cstd_daemon *daemon)
{
    struct cstd_job *job;

    while ((job = TAILQ_FIRST(&daemon->jobs->living)) != NULL) {
        struct cst_err why = words_of_end(job);

        cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job), "%s", why.text);
        cstd_job_remove(job, 0, &why);
    }
}

/* Answer all requests and close the connections. A reply that a socket does not accept at once is
 * lost. */
static void end_sessions(struct cstd_daemon *daemon)
{
    struct cstd_session *session;
    struct cst_err why = words_of_end(NULL);

    TAILQ_FOREACH(session, &daemon->server->sessions, link)
    {
        while (!TAILQ_EMPTY(&session->requests)) {
            struct cstd_pending *request = TAILQ_FIRST(&session->requests);

            /* The request is freed below, and the staging must not refer to it any more. */
            if (session->staging != NULL && session->staging->request == request) {
                session->staging->request = NULL;
            }
            cstd_session_fail(daemon, request, &why);
        }
        cstd_session_doom(session, NULL);
    }
}

/* Apply @fn to the daemon's own handles. The drain applies uv_unref: the handles do not keep the
 * loop running any more, but they work until the loop has ended, because there is still deferred
 * work and a second signal must be handled. Then cstd_daemon_close closes them. */
static void for_own_handles(struct cstd_daemon *daemon, void (*fn)(uv_handle_t *handle))
{
    fn((uv_handle_t *)&daemon->terminate);
    fn((uv_handle_t *)&daemon->interrupt);
    fn((uv_handle_t *)&daemon->reload);
    fn((uv_handle_t *)&daemon->watchdog);
    fn((uv_handle_t *)&daemon->reader);
    fn((uv_handle_t *)&daemon->prepare);
}

static void close_handle(uv_handle_t *handle)
{
    uv_close(handle, NULL);
}

void cstd_daemon_leave(struct cstd_daemon *daemon)
{
    const struct cst_err farewell = words_of_end(NULL);
    const struct cstd_job *job;

    daemon->draining = daemon->leaving = true;
    cstd_notify_stopping(&daemon->notify);
    cstd_server_stop(daemon->server);
    say_farewell(daemon);
    TAILQ_FOREACH(job, &daemon->jobs->living, link)
    {
        struct cst_err why = words_of_end(job);

        cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job), "%s", why.text);
    }
    cstd_links_stop(daemon->links, &farewell);
    cstd_revive_stop(daemon);
    cstd_staging_stop(daemon->staging_queue);
    cstd_gpus_stop(daemon->gpus);
    cstd_engines_stop(daemon->engines);
}

void cstd_daemon_drain(struct cstd_daemon *daemon)
{
    const struct cst_err farewell = words_of_end(NULL);

    if (daemon->keeper.limit > 0 && cstd_ledger_keeps_any(daemon)) {
        cstd_daemon_leave(daemon);
        return;
    }
    daemon->draining = true;
    cstd_notify_stopping(&daemon->notify);
    cstd_server_stop(daemon->server);
    cstd_links_stop(daemon->links, &farewell);
    say_farewell(daemon);
    /* Jobs are removed before sessions end. A request that waits for a job then fails with the
     * words about that job, and not with those of end_sessions. */
    remove_jobs(daemon);
    cstd_deferred_run(&daemon->later);
    end_sessions(daemon);
    cstd_deferred_run(&daemon->later);
    cstd_lingers_close(&daemon->server->lingers);
    cstd_revive_stop(daemon);
    cstd_staging_stop(daemon->staging_queue);
    cstd_gpus_stop(daemon->gpus);
    cstd_engines_stop(daemon->engines);
    for_own_handles(daemon, uv_unref);
}

void cstd_daemon_close(struct cstd_daemon *daemon)
{
    cstd_deferred_run(&daemon->later);
    cstd_engines_close(daemon->engines);
    cstd_remains_close(daemon->remains);
    cstd_standbys_close(daemon);
    for_own_handles(daemon, close_handle);
    cstd_notify_close(&daemon->notify);
    (void)uv_run(&daemon->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&daemon->loop);
    cstd_links_close(daemon->links);
    cstd_ended_parts_close(daemon);
    cstd_pendings_close(daemon->requests);
    cst_actions_close(&daemon->actions);
    cstd_unpack_close(daemon->unpack);
    cstd_quota_close(daemon->quota);
    free(daemon->modules);
    cstd_log(CSTD_LOG_NOTICE, "stopped");
}
