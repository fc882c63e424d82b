/* SPDX-License-Identifier: Apache-2.0 */
/* worker.c checks and begins a relocation, commit.c ends it. done.c sets the same fields of the
 * worker when it makes pools again. */
#include "daemon/job/relocate.h"

#include "daemon/base/daemon_state.h"
#include "daemon/memory/rank_devices.h"
#include "daemon/job/done.h"
#include "daemon/ledger/lent_slabs.h"
#include "daemon/base/log.h"
#include "daemon/session/session.h"
#include "daemon/job/worker.h"
#include "daemon/ledger/ledger.h"
#include "daemon/memory/memory.h"
#include "daemon/memory/tiers/tier.h"
#include "proto/reason.h"

/* True if the job continues without the accelerator of @worker's pool: the pool of another rank was
 * on it and has moved. */
static bool is_left_behind(const struct cstd_worker *worker)
{
    const struct cst_set engines = cstd_tier_engines(worker->tier);

    return !cst_set_within(&engines, &worker->job->memory.pool_engines);
}

/* True if the accelerator of the rank's pool is gone, and the pool may therefore be made on another
 * device. */
static bool may_move(const struct cstd_worker *worker)
{
    return worker->job->state == CSTD_JOB_READY &&
           (worker->relocate_err.status != CST_OK || is_left_behind(worker) ||
            cstd_tier_is_lost(worker->tier));
}

static bool is_elsewhere(const struct cstd_worker *worker, const struct cstd_job_request *request)
{
    return cstd_job_is_decided(worker->job) && !request->any_device &&
           request->tier != worker->tier;
}

int cstd_relocate_check(const struct cstd_worker *worker, const struct cstd_job_request *request,
                        struct cst_err *err)
{
    const struct cstd_job *job = worker->job;

    if (cstd_job_is_decided(job) && !is_elsewhere(worker, request) && is_left_behind(worker)) {
        return cst_err_set(
            err, CST_EMISMATCH,
            "job '%s' continues without %s, which was given up: open rank %u on another device",
            job->name, cstd_rank_devices_name(worker), request->spec.rank);
    }
    if (!is_elsewhere(worker, request) || may_move(worker)) {
        return CST_OK;
    }
    return cst_err_give_reason(err, CST_REASON_POOL,
                               cst_err_set(err, CST_EMISMATCH,
                                           "the pool of rank %u of job '%s' is on %s, not on %s",
                                           request->spec.rank, job->name,
                                           cstd_rank_devices_name(worker), request->tier->name));
}

bool cstd_relocate_is_under_way(const struct cstd_job *job)
{
    bool any = false;

    for (uint32_t r = 0; r < job->world; r++) {
        any = any || job->workers[r].moves;
    }
    return any;
}

int cstd_relocate_begin(struct cstd_worker *worker, const struct cstd_job_request *request,
                        struct cst_err *err)
{
    struct cstd_job *job = worker->job;
    bool gone =
        worker->relocate_err.status == CST_OK; /* Otherwise the pool does not exist there. */
    int rc;

    if (!is_elsewhere(worker, request)) {
        /* The pool stays on its device, but may have been given back when the job was done. */
        return cstd_done_resume(job, err);
    }
    /* Pools of a job that is done do not exist, and cannot move before they are made again. */
    if (job->memory.parked) {
        return cst_err_set(err, CST_EBUSY,
                           "job '%s' is done, and its pools were freed: open it first with all "
                           "pools on their earlier devices",
                           job->name);
    }
    if (cstd_job_lacks_pools(job)) {
        return cst_err_set(err, CST_EBUSY,
                           "job '%s' is paused, and its pools are released: resume it first",
                           job->name);
    }
    if (cstd_relocate_is_under_way(job)) {
        return cst_err_set(err, CST_EBUSY, "job '%s': a rank's pool is being moved already",
                           job->name);
    }
    rc = cst_core_may_move(job->core, worker->rank, gone, err);
    if (rc == CST_OK) {
        cstd_lent_slabs_forget(job, worker->rank);
        request->tier->kind->count(request->tier);
        rc = cstd_memory_move(&job->memory, &job->layout, worker->rank,
                              gone ? cstd_tier_engines(worker->tier) : (struct cst_set){{0}},
                              request->tier, err);
    }
    if (rc != CST_OK) {
        cstd_ledger_note_pools(job); /* The old slabs remain. */
        return rc;
    }
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT_RANK(job, worker->rank),
                   "the pool of rank %u moves from %s to %s", worker->rank,
                   cstd_rank_devices_name(worker), request->tier->name);
    cst_core_move_pool(job->core, worker->rank, &job->memory.pools[worker->rank]);
    cstd_rank_devices_use(&worker->tier, request->tier);
    worker->moves = true;
    worker->relocate_err.status = CST_OK;
    return CST_OK;
}

void cstd_relocate_end(struct cstd_job *job, const struct cst_err *err)
{
    if (job->resumes && err->status != CST_OK) {
        /* The next worker that attaches tries again. Results are still copied from slabs that were
         * adopted. */
        cstd_memory_park(&job->memory, false);
    } else {
        cstd_ledger_note_pools(job);
    }
    job->resumes = false;
    for (uint32_t r = 0; r < job->world; r++) {
        struct cstd_worker *worker = &job->workers[r];
        struct cstd_pending *commit = worker->commit;

        if (!worker->moves) {
            continue;
        }
        worker->moves = false;
        /* Status 0: the pool exists. After an error the rank may be opened on another device. */
        worker->relocate_err = *err;
        if (err->status != CST_OK && commit != NULL) {
            worker->commit = NULL;
            cstd_session_fail(job->daemon, commit, err);
        }
    }
}
