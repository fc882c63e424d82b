/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/revive.h"

#include "daemon/daemon.h"
#include "daemon/job/commit.h"
#include "daemon/job/core_driver.h"
#include "daemon/job/migrate.h"
#include "daemon/ledger/kept_job.h"
#include "daemon/ledger/revive_devices.h"
#include "daemon/ledger/revive_engines.h"
#include "daemon/ledger/revive_job.h"
#include "daemon/report/log.h"
#include "proto/cistern.pb-c.h"
#include "proto/size.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- one job ---------------------------------------------------------------------------------- */

static int finish(struct cstd_job *job, struct cstd_kept_job *kept, struct cst_err *err)
{
    const struct cstd_ledger_record record = kept->file.last;
    struct cst_event event = {
        .kind = CST_EV_REVIVE, .record = &record.core, .table = job->memory.table};
    char arenas[CST_SIZE_TEXT];

    if (cstd_revive_job_own(job, kept, err) != CST_OK) {
        return err->status;
    }
    job->phase = CSTD_COMMIT_DONE;
    job->state = CSTD_JOB_READY;
    cstd_job_feed(job, &event);
    cstd_job_check_idle(job);
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job),
                   "goes on after step %" PRIu64 ", its states (%s) were kept",
                   record.core.counters.step, cst_size_text(job->memory.arena_bytes, arenas));
    return CST_OK;
}

/* @job has replaced @older, which is removed. */
static void end_older(struct cstd_job *older, const struct cstd_job *job)
{
    struct cst_err reshaped;

    cstd_memory_disown(&older->memory, &job->memory);
    (void)cst_err_set(&reshaped, CST_ECANCELLED, "job '%s' was reshaped", older->name);
    cstd_job_remove(older, 0, &reshaped);
}

static int revive(struct cstd_daemon *daemon, struct cstd_kept_job *kept, struct cst_err *err)
{
    /* A job of the same name was being reshaped: both have the same states, and this one is newer.
     */
    struct cstd_job *older = cstd_job_find(daemon, kept->ledger->uid, kept->description->name);
    struct cstd_job *job = NULL;
    int rc =
        cstd_kept_job_is_moving(kept)
            ? cst_err_set(err, CST_ELOST, "the job whose states were being moved to it is lost")
            : cstd_revive_job_make(daemon, kept, &job, err);

    rc = rc == CST_OK ? finish(job, kept, err) : rc;
    if (rc != CST_OK && job != NULL) {
        cstd_job_remove(job, 0, err);
    } else if (rc == CST_OK && older != NULL) {
        end_older(older, job);
    }
    return rc;
}

/* -- a move of states ------------------------------------------------------------------------- */

/* Plan the move from @older to @job again, which has come as far as @kept says. */
static int take_move(struct cstd_job *job, struct cstd_job *older, const struct cstd_kept_job *kept,
                     struct cst_err *err)
{
    const struct cstd_ledger_record *record = &kept->file.last;
    int rc;

    job->predecessor = older;
    older->successor = job;
    rc = cstd_migrate_open(job, err);
    if (rc != CST_OK) {
        return rc;
    }
    job->migrate->n_moved = record->n_moved;
    if (job->migrate->plan.n_portions != record->n_portions ||
        record->n_moved > record->n_portions) {
        return cst_err_set(
            err, CST_EVERSION,
            "%" PRIu32 " of %" PRIu32
            " portions of its states have moved, and this daemon would move %" PRIu32,
            record->n_moved, record->n_portions, job->migrate->plan.n_portions);
    }
    cstd_memory_make_sparse(&older->memory);
    return cstd_migrate_charge(job, true, err);
}

static int finish_move(struct cstd_job *job, struct cstd_kept_job *kept, struct cst_err *err)
{
    int rc = cstd_revive_job_own(job, kept, err);

    if (rc != CST_OK) {
        return rc;
    }
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job),
                   "%" PRIu32 " of %" PRIu32
                   " portions of its states have moved, the others follow",
                   job->migrate->n_moved, job->migrate->plan.n_portions);
    job->state = CSTD_JOB_POPULATING;
    cstd_commit_go_on(job);
    cstd_job_check_idle(job);
    return CST_OK;
}

/* Go on with @to, which was taking the states of @from portion by portion or has all of them.
 * Neither goes on alone. */
static int revive_both(struct cstd_daemon *daemon, struct cstd_kept_job *from,
                       struct cstd_kept_job *to, struct cst_err *err)
{
    bool moving = cstd_kept_job_is_moving(to);
    struct cstd_job *older = NULL, *job = NULL;
    int rc = cstd_revive_job_make(daemon, from, &older, err);

    rc = rc == CST_OK ? cstd_revive_job_make(daemon, to, &job, err) : rc;
    rc = rc == CST_OK && moving ? take_move(job, older, to, err) : rc;
    rc = rc == CST_OK ? finish(older, from, err) : rc;
    rc = rc == CST_OK ? (moving ? finish_move(job, to, err) : finish(job, to, err)) : rc;
    if (rc != CST_OK && job != NULL) {
        cstd_job_remove(job, 0, err);
    }
    if (rc != CST_OK && older != NULL) {
        cstd_job_remove(older, 0, err);
    } else if (rc == CST_OK && !moving) {
        end_older(older, job);
    }
    return rc;
}

/* -- all jobs --------------------------------------------------------------------------------- */

/* Inherited ledgers in the order of serial numbers, so that a base job comes before its users. */
static int compare(const void *a, const void *b)
{
    const struct cstd_kept_job *x = a, *y = b;

    return (x->ledger->serial > y->ledger->serial) - (x->ledger->serial < y->ledger->serial);
}

/* True if jobs[@i] must wait until a job with its name that was made after it is removed. */
static bool has_rival(const struct cstd_kept_job *jobs, uint32_t n, uint32_t i)
{
    for (uint32_t k = i + 1; k < n; k++) {
        const Ledger__Job *later = jobs[k].ledger;

        if (later->uid == jobs[i].ledger->uid && later->replaces != jobs[i].ledger->serial &&
            strcmp(jobs[k].description->name, jobs[i].description->name) == 0) {
            return true;
        }
    }
    return false;
}

static void tell(const char *name, const struct cst_err *why)
{
    cstd_log(CSTD_LOG_ERROR,
             "job '%s' of the earlier daemon cannot go on: %s; its memory stays in the service "
             "manager's store until the service is stopped",
             name, why->text);
}

static bool is_ledger(const struct cstd_kept *kept)
{
    return kept->fd >= 0 && kept->name.kind == CSTD_KEPT_LEDGER;
}

static uint32_t read_all(struct cstd_keeper *keeper, struct cstd_kept_job *jobs)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < keeper->n_kept; i++) {
        struct cstd_kept *kept = &keeper->kept[i];
        struct cst_err err = {0};

        if (!is_ledger(kept)) {
            continue;
        }
        jobs[n] = (struct cstd_kept_job){.file.fd = -1};
        if (cstd_kept_job_read(&jobs[n], kept->fd, &err) == CST_OK) {
            n++;
        } else {
            char name[CSTD_KEPT_NAME_BYTES];

            tell(cstd_kept_name_write(&kept->name, true, name), &err);
            cstd_kept_job_close(&jobs[n]);
        }
        kept->fd = -1;
    }
    return n;
}

int cstd_revive_check(const struct cstd_keeper *keeper, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < keeper->n_kept && rc == CST_OK; i++) {
        struct cstd_kept_job job = {.file.fd = -1};
        char name[CSTD_KEPT_NAME_BYTES];
        int fd = -1;

        if (!is_ledger(&keeper->kept[i])) {
            continue;
        }
        (void)cstd_kept_name_write(&keeper->kept[i].name, true, name);
        fd = fcntl(keeper->kept[i].fd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0) {
            return cst_err_errno(err, CST_ENOMEM, errno, "%s", name);
        }
        rc = cstd_kept_job_read(&job, fd, err);
        cstd_kept_job_close(&job);
        if (rc != CST_OK) {
            (void)cst_err_prefix(err, "%s cannot be taken over", name);
            rc = err->status = CST_EBUSY;
        }
    }
    return rc;
}

/* True if a ledger of job @serial was inherited, readable or not. */
static bool has_ledger(const struct cstd_keeper *keeper, uint64_t serial)
{
    for (uint32_t i = 0; i < keeper->n_kept; i++) {
        const struct cstd_kept_name *name = &keeper->kept[i].name;

        if (name->kind == CSTD_KEPT_LEDGER && name->serial == serial) {
            return true;
        }
    }
    return false;
}

/* The earlier daemon died while it stored or removed a job, and its memory has no ledger: remove it
 * from the store, too. New jobs get numbers that no inherited job has. */
static void settle(struct cstd_daemon *daemon)
{
    struct cstd_keeper *keeper = &daemon->keeper;

    for (uint32_t i = 0; i < keeper->n_kept; i++) {
        uint64_t serial = keeper->kept[i].name.serial;

        if (serial > daemon->jobs.serial) {
            daemon->jobs.serial = serial;
        }
        if (serial != 0 && !has_ledger(keeper, serial)) {
            cstd_keeper_forget(keeper, &keeper->kept[i].name);
        }
    }
}

/* A job that cannot go on here may go on in a later daemon, together with the jobs that are made
 * here: reserve the ids of its segments. */
static void reserve_ids(struct cstd_daemon *daemon, const Ledger__Job *ledger)
{
    for (size_t i = 0; i < ledger->n_segments; i++) {
        cstd_engines_reserve_id(&daemon->engines, ledger->segments[i]->id);
    }
}

/* The job to which the states of jobs[@i] were being moved; NULL: there is none. */
static struct cstd_kept_job *heir_of(struct cstd_kept_job *jobs, uint32_t n, uint32_t i)
{
    for (uint32_t k = i + 1; k < n; k++) {
        if (jobs[k].ledger->has_replaces && jobs[k].ledger->replaces == jobs[i].ledger->serial &&
            (cstd_kept_job_is_moving(&jobs[k]) || jobs[i].file.last.torn)) {
            return &jobs[k];
        }
    }
    return NULL;
}

static int revive_one(struct cstd_daemon *daemon, struct cstd_kept_job *jobs, uint32_t n,
                      uint32_t i, struct cst_err *err)
{
    struct cstd_kept_job *heir = heir_of(jobs, n, i);
    int rc;

    if (has_rival(jobs, n, i)) {
        return cst_err_set(err, CST_EEXIST, "a later job has its name");
    }
    if (heir == NULL) {
        return jobs[i].file.last.torn
                   ? cst_err_set(err, CST_ELOST,
                                 "the job to which its states were being moved is lost")
                   : revive(daemon, &jobs[i], err);
    }
    heir->settled = true;
    rc = revive_both(daemon, &jobs[i], heir, err);
    if (rc != CST_OK) {
        cstd_kept_job_undo_lost(heir);
    }
    return rc;
}

/* Go on with jobs[@i] of @n, or name it. @why: why no job can go on; CST_OK: any may. */
static void revive_or_tell(struct cstd_daemon *daemon, struct cstd_kept_job *jobs, uint32_t n,
                           uint32_t i, const struct cst_err *why)
{
    struct cst_err err = *why;
    int rc = err.status;

    if (rc == CST_OK) {
        rc = revive_one(daemon, jobs, n, i, &err);
        if (rc != CST_OK) {
            cstd_kept_job_undo_lost(&jobs[i]);
        }
    }
    if (rc != CST_OK) {
        tell(jobs[i].description->name, &err);
    }
}

void cstd_revive_jobs(struct cstd_daemon *daemon)
{
    struct cstd_kept_job *jobs = calloc(daemon->keeper.n_kept + 1, sizeof *jobs);
    struct cst_err err = {0};
    uint32_t n = jobs != NULL ? read_all(&daemon->keeper, jobs) : 0;
    bool safe = cstd_revive_adopt_engines(daemon, &err) == CST_OK;

    for (uint32_t i = 0; i < n; i++) {
        reserve_ids(daemon, jobs[i].ledger);
        cstd_revive_await_devices(daemon, jobs[i].ledger);
    }
    if (!safe) {
        /* The undo slots in the store belong to the jobs in it. There is one set of slots. */
        daemon->keeper.limit = 0;
        cstd_log(CSTD_LOG_ERROR,
                 "jobs of this daemon will end with it, also if the service is restarted: %s",
                 err.text);
    }
    qsort(jobs, n, sizeof *jobs, compare);
    for (uint32_t i = 0; i < n; i++) {
        if (!jobs[i].settled) {
            revive_or_tell(daemon, jobs, n, i, &err);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        cstd_kept_job_close(&jobs[i]);
    }
    free(jobs);
    settle(daemon);
    cstd_keeper_close(&daemon->keeper);
}
