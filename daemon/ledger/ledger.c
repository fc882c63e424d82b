/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/ledger.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/migrate.h"
#include "daemon/ledger/kept_job.h"
#include "daemon/ledger/ledger_make.h"
#include "daemon/ledger/lent_slabs.h"
#include "daemon/ledger/revive_engines.h"
#include "daemon/base/log.h"
#include "daemon/engine/engines.h"
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"
#include "daemon/ledger/kept_span.h"
#include "daemon/revive/revive.h"
#include "daemon/memory/tiers/tier.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* -- the store -------------------------------------------------------------------------------- */

static struct cstd_kept_name name_of(enum cstd_kept_kind kind, const struct cstd_job *job)
{
    return (struct cstd_kept_name){.kind = kind, .serial = job->serial};
}

static struct cstd_kept_name name_of_device(const struct cstd_job *job, uint32_t i)
{
    return (struct cstd_kept_name){.kind = CSTD_KEPT_DEVICE, .serial = job->serial, .i = i};
}

/* Store the segments in host memory under one name. Drivers' handles of memory can all have the
 * same file, so each segment of an accelerator has a name of its own. The store holds an open file
 * once, so that the segments of a file on a drive have one descriptor there. */
static int store_segments(struct cstd_job *job, bool sent, struct cst_err *err)
{
    struct cstd_keeper *keeper = &job->daemon->keeper;
    const struct cstd_kept_name host = name_of(CSTD_KEPT_HOST, job);
    uint32_t n = cstd_ledger_n_segments(job), n_host = 0;
    int rc = cstd_keeper_reserve(keeper, n, err);

    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        const struct cstd_segment *segment = cstd_ledger_segment(job, i);

        if (segment->device && cstd_ledger_holder(job->daemon, &job->layout, i) == i) {
            const struct cstd_kept_name name = name_of_device(job, i);

            rc = cstd_keeper_store(keeper, &name, &segment->fd, 1, sent, err);
        } else if (!segment->device) {
            keeper->fds[n_host++] = segment->fd;
        }
    }
    return rc == CST_OK ? cstd_keeper_store(keeper, &host, keeper->fds, n_host, sent, err) : rc;
}

/* The ledger comes last: without it, segments in the store are of no job. */
static int store(struct cstd_job *job, const struct cstd_ledger_file *file, bool sent,
                 struct cst_err *err)
{
    const struct cstd_kept_name name = name_of(CSTD_KEPT_LEDGER, job);
    int rc = cstd_ledger_store_engines(job->daemon, err);

    if (rc == CST_OK) {
        rc = store_segments(job, sent, err);
    }
    rc = rc == CST_OK ? cstd_lent_slabs_store(job, sent, err) : rc;
    if (rc == CST_OK) {
        rc = cstd_keeper_store(&job->daemon->keeper, &name, &file->fd, 1, sent, err);
    }
    return rc;
}

/* Remove from the store what store() has put there of @job. */
static void unstore(struct cstd_job *job)
{
    const struct cstd_kept_name ledger = name_of(CSTD_KEPT_LEDGER, job),
                                host = name_of(CSTD_KEPT_HOST, job);
    struct cstd_keeper *keeper = &job->daemon->keeper;

    cstd_keeper_forget(keeper, &ledger);
    cstd_keeper_forget(keeper, &host);
    for (uint32_t i = 0; i < cstd_ledger_n_segments(job); i++) {
        if (cstd_ledger_segment(job, i)->device) {
            const struct cstd_kept_name name = name_of_device(job, i);

            cstd_keeper_forget(keeper, &name);
        }
    }
    for (uint32_t r = 0; r < job->world; r++) {
        cstd_lent_slabs_forget(job, r);
    }
}

/* -- a job ------------------------------------------------------------------------------------ */

uint32_t cstd_ledger_n_fds(const struct cstd_job *job)
{
    return cstd_ledger_n_segments(job) + 1 + job->daemon->engines->n_nodes + 1 +
           cstd_lent_slabs_count(job);
}

static int check(const struct cstd_job *job, struct cst_err *err)
{
    const struct cstd_kept_name name = name_of(CSTD_KEPT_HOST, job);

    if (job->base != NULL && job->base->ledger.state != CSTD_LEDGER_KEPT) {
        return cst_err_set(err, CST_EUNSUPPORTED, "its base '%s' is not kept", job->base->name);
    }
    return cstd_keeper_check(&job->daemon->keeper, &name, cstd_ledger_n_fds(job), err);
}

/* Write to *out how far @job is, which has a core. */
static void record_of(const struct cstd_job *job, struct cstd_ledger_record *out)
{
    memset(out, 0, sizeof *out);
    cst_core_record(job->core, &out->core);
    out->n_moved = job->migrate != NULL ? job->migrate->n_moved : 0;
    out->n_portions = out->n_moved > 0 ? job->migrate->plan.n_portions : 0;
    if (cstd_job_is_paused(job)) {
        out->pause = job->pause.release ? 2 : 1;
        out->paused_since_s = job->pause.since_s;
    }
    out->torn = job->successor != NULL && cstd_migrate_is_torn(job->successor);
    for (uint32_t r = 0; r < job->world; r++) {
        if (job->workers[r].left) {
            cst_set_add(&out->left, r);
        }
        out->pools[r] = cstd_ledger_hash_uuid(job->workers[r].tier->uuid);
    }
}

/* @job has @file now, whose memory was charged with the job's (daemon/memory/upkeep.h). */
static void take(struct cstd_job *job, const struct cstd_ledger_file *file,
                 enum cstd_ledger_state state)
{
    job->ledger = (struct cstd_ledger){.state = state, .file = *file};
}

static void write_members(struct cstd_job *job)
{
    struct cstd_ledger_members members;

    cstd_kept_span_record(job, &members);
    cstd_ledger_file_write_members(&job->ledger.file, &members);
}

static int begin(struct cstd_job *job, const struct cstd_ledger_record *record, struct cst_err *err)
{
    struct cstd_ledger *ledger = &job->ledger;
    struct cstd_ledger_file file;
    int rc = check(job, err);

    if (rc == CST_OK && ledger->state != CSTD_LEDGER_MADE) {
        rc = cstd_ledger_make(job, &file, err);
        if (rc == CST_OK) {
            take(job, &file, CSTD_LEDGER_MADE);
        }
    }
    if (rc == CST_OK) {
        ledger->state = CSTD_LEDGER_KEPT;
        cstd_ledger_file_write(&ledger->file, record);
        if (job->span != NULL) {
            write_members(job);
        }
        rc = store(job, &ledger->file, false, err);
    }
    if (rc != CST_OK) {
        cstd_ledger_forget(job);
    }
    return rc;
}

int cstd_ledger_begin(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_ledger_record record;

    record_of(job, &record);
    return begin(job, &record, err);
}

static void refuse(struct cstd_job *job, const struct cst_err *why)
{
    job->ledger.state = CSTD_LEDGER_REFUSED;
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job),
                   "it will end with the daemon, also if the service is restarted: %s", why->text);
}

/* True if the job may be kept later. */
static bool may_begin(const struct cstd_job *job)
{
    return job->ledger.work == NULL && /* Otherwise its ledger is being made. */
           (job->ledger.state == CSTD_LEDGER_NONE || job->ledger.state == CSTD_LEDGER_MADE) &&
           job->daemon->keeper.limit > 0;
}

void cstd_ledger_note(struct cstd_job *job)
{
    struct cstd_ledger *ledger = &job->ledger;
    bool begins = may_begin(job) && cstd_kept_span_is_open(job);
    struct cstd_ledger_record record;
    struct cst_err err;

    if (job->core == NULL || job->state == CSTD_JOB_CLOSING ||
        !(begins || ledger->state == CSTD_LEDGER_KEPT)) {
        return;
    }
    record_of(job, &record);
    if (ledger->state == CSTD_LEDGER_KEPT) {
        cstd_ledger_file_write(&ledger->file, &record);
    } else if (record.core.initialised && begin(job, &record, &err) != CST_OK) {
        refuse(job, &err);
    }
}

void cstd_ledger_note_members(struct cstd_job *job)
{
    if (job->ledger.state == CSTD_LEDGER_KEPT) {
        write_members(job);
    }
}

/* The thread has finished. If the job is removed meanwhile, the removal goes on from here. */
static void on_made(struct cstd_job *job, struct cstd_ledger_file *file, struct cst_err *err)
{
    cstd_ledger_cb done = job->ledger.done;

    job->ledger.work = NULL;
    if (job->state == CSTD_JOB_CLOSING) {
        cstd_ledger_file_close(file);
        cstd_deferred_add(&job->daemon->later, &job->close);
        return;
    }
    if (err->status == CST_OK) {
        take(job, file, CSTD_LEDGER_MADE);
    } else {
        refuse(job, err);
    }
    done(job);
}

bool cstd_ledger_prepare(struct cstd_job *job, cstd_ledger_cb done)
{
    struct cst_err err;

    if (!may_begin(job) || job->ledger.state == CSTD_LEDGER_MADE) {
        return false;
    }
    job->ledger.done = done;
    if (cstd_ledger_make_start(job, on_made, &job->ledger.work, &err) != CST_OK) {
        refuse(job, &err);
    }
    return job->ledger.work != NULL;
}

void cstd_ledger_note_pools(struct cstd_job *job)
{
    struct cst_err err;

    if (job->ledger.state == CSTD_LEDGER_MADE) {
        cstd_ledger_forget(job); /* It says where the pools were. */
    } else if (job->ledger.state == CSTD_LEDGER_KEPT &&
               cstd_lent_slabs_store(job, false, &err) != CST_OK) {
        cstd_ledger_forget(job);
        refuse(job, &err);
    }
}

void cstd_ledger_continue(struct cstd_job *job, const struct cstd_ledger_file *file)
{
    struct cst_err err;
    int rc = store(job, file, true, &err);

    assert(rc == CST_OK); /* There is room. */
    (void)rc;
    cstd_lent_slabs_settle(job);
    take(job, file, CSTD_LEDGER_KEPT);
}

int cstd_ledger_keep_all(struct cstd_daemon *daemon, struct cst_err *err)
{
    struct cstd_job *job;
    int rc = CST_OK;

    TAILQ_FOREACH(job, &daemon->jobs->living, link)
    {
        struct cstd_ledger_record record = {.torn = 0};

        if (job->core != NULL) {
            record_of(job, &record);
        }
        if (job->state == CSTD_JOB_REVIVING) {
            rc = cst_err_set(err, CST_EBUSY, "it is still being taken over itself: try again");
        } else if (record.core.initialised && !cstd_kept_span_is_open(job)) {
            rc = cst_err_set(err, CST_EBUSY, "its nodes are still meeting: try again");
        } else if (record.core.initialised && job->ledger.work != NULL) {
            rc = cst_err_set(err, CST_EBUSY, "its ledger is being made: try again");
        } else if (record.core.initialised && job->ledger.state != CSTD_LEDGER_KEPT) {
            rc = begin(job, &record, err);
        }
        if (rc != CST_OK) {
            return cst_err_prefix(err, "job '%s' cannot be handed over", job->name);
        }
    }
    return CST_OK;
}

void cstd_ledger_forget(struct cstd_job *job)
{
    if (job->ledger.reviving != NULL) {
        job->ledger.reviving->job = NULL;
        job->ledger.reviving = NULL;
        cstd_deferred_add(&job->daemon->later, &job->daemon->revival->removed);
    }
    if (job->ledger.state != CSTD_LEDGER_KEPT && job->ledger.state != CSTD_LEDGER_MADE) {
        return;
    }
    if (job->ledger.state == CSTD_LEDGER_KEPT) {
        unstore(job);
    }
    cstd_ledger_file_close(&job->ledger.file);
    job->ledger.state = CSTD_LEDGER_NONE;
}

bool cstd_ledger_keeps(const struct cstd_job *job)
{
    const struct cstd_job *base = job->base;

    return job->ledger.state == CSTD_LEDGER_KEPT ||
           (may_begin(job) && (base == NULL || base->ledger.state == CSTD_LEDGER_KEPT));
}

bool cstd_ledger_keeps_any(const struct cstd_daemon *daemon)
{
    const struct cstd_job *job;

    TAILQ_FOREACH(job, &daemon->jobs->living, link)
    {
        if (job->ledger.state == CSTD_LEDGER_KEPT || job->state == CSTD_JOB_REVIVING) {
            return true;
        }
    }
    return false;
}
