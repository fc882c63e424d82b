/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a committed job again in place, with other ranks, pools, chunks or options. The daemon
 * makes a successor, a job of the same name that is found only by JobOpen with `reshape`. Its ranks
 * declare and commit as those of a new job do. In the phase STATES of its commit it gets the states
 * of the old job, the predecessor, and takes its place.
 *
 *   job --JobOpen(reshape), no worker--> job, successor --states are there--> successor is the job
 *    ^                                      |
 *    +--the successor's commit fails, and its workers end; or the successor is removed
 *
 * Until then the predecessor keeps everything but its pools, which are given back when the
 * successor is made, and nobody can attach to it. If it is removed, so is its successor.
 *
 * How the states get there, the first that is possible:
 *
 *   1. They stay in the arenas of the predecessor, which the successor inherits.
 *   2. They are copied, and exist twice until the end.
 *   3. If memory is too short for that: they stay, in chunks of the earlier size.
 *   4. They are moved in portions (migrate.h). From the first portion on, the job is the new one.
 */
#ifndef CSTD_RESHAPE_H
#define CSTD_RESHAPE_H

#include "daemon/job/job.h"
#include "daemon/job/state_copy.h"

struct cstd_job_request;

/* Find the job that a worker with @request joins, if there is the job *job of its name: *job, its
 * successor, or NULL if a successor must be made. *predecessor: the job to replace then, else NULL.
 * CST_EBUSY: *job cannot be replaced now, or @request does not ask for `reshape` and *job is being
 * replaced; CST_EMISMATCH: @request has another optimizer or base than *job; CST_EUNSUPPORTED: one
 * of both is durable. */
int cstd_reshape_find(const struct cstd_job_request *request, struct cstd_job **job,
                      struct cstd_job **predecessor, struct cst_err *err);

/* @job, which was just made, is the successor of @predecessor. */
void cstd_reshape_begin(struct cstd_job *job, struct cstd_job *predecessor);

/* Compare the declarations of a successor with those of its predecessor, before anything is made.
 * CST_OK also if @job is no successor. CST_EMISMATCH: they do not have the same parameters. */
int cstd_reshape_check(const struct cstd_job *job, struct cst_err *err);

/* Returns whether phase POOLS of @job must wait until the pools of its predecessor are given back.
 * cstd_commit_pools_gone follows then. */
bool cstd_reshape_awaits_pools(struct cstd_job *job);

/* The core of @old, or its memory, has moved on: its successor looks at it at the end of the
 * iteration of the loop, if it waits for that. */
void cstd_reshape_look(struct cstd_job *old);

/* Decide whether @job, which has its layout, uses the arenas of its predecessor (job->inherits): if
 * everything is where it was. */
void cstd_reshape_settle(struct cstd_job *job);

/* There was no memory for @job, because of @err. Returns whether its layout should be built again
 * with the chunks of its predecessor (job->keeps_chunks), whose arenas it may then use. This
 * happens once, and only if the daemon has chosen the chunks. */
bool cstd_reshape_keep_chunks(struct cstd_job *job, const struct cst_err *err);

/* There was no memory for @job in addition to its predecessor, because of @err. Returns whether the
 * states are moved in portions now (migrate.h), which needs less: not if chunks may be kept. */
bool cstd_reshape_migrate(struct cstd_job *job, const struct cst_err *err);

/* Returns whether @job has a predecessor that has states. */
static inline bool cstd_reshape_has_states(const struct cstd_job *job)
{
    struct cst_core_stats stats = {0};

    if (job->predecessor != NULL) {
        cst_core_stats(job->predecessor->core, &stats);
    }
    return stats.initialised;
}

/* Returns the host memory that copying the states to @job takes while it runs, in addition to the
 * arenas; 0: nothing is copied, or the states are moved in portions, which is charged elsewhere. */
static inline uint64_t cstd_reshape_staging_bytes(const struct cstd_job *job)
{
    return cstd_reshape_has_states(job) && !job->inherits && job->migrate == NULL
               ? CSTD_STATE_COPY_STAGING
               : 0;
}

/* Returns the memory whose arenas @job inherits; NULL: none. */
static inline const struct cstd_memory *cstd_reshape_arenas(const struct cstd_job *job)
{
    return job->inherits ? &job->predecessor->memory : NULL;
}

/* The memory of @job is too small, because of @err: tell what the predecessor holds of it, and what
 * moving its states would need. They are not moved then. */
void cstd_reshape_explain(struct cstd_job *job, struct cst_err *err);

/* Give @job, which has a predecessor and no configurations of models of its own, copies of those of
 * the predecessor. CST_ENOMEM. */
int cstd_reshape_take_configs(struct cstd_job *job, struct cst_err *err);

/* Begin to take the states of the predecessor for @job. @done is called at the end, and then
 * cstd_reshape_end or cstd_reshape_cancel. CST_EAGAIN: it has begun; CST_OK: there is nothing to
 * copy, and @job is no successor any more. */
int cstd_reshape_copy(struct cstd_job *job, void (*done)(struct cstd_job *, const struct cst_err *),
                      struct cst_err *err);

/* All states are in @job: it takes the place of its predecessor, which is removed. */
void cstd_reshape_end(struct cstd_job *job);

/* Stop the copying; a move stops between two portions. Returns CST_OK. */
int cstd_reshape_cancel(struct cstd_job *job);

/* @job is being removed and freed soon: it is no successor any more. */
void cstd_reshape_forget(struct cstd_job *job);

#endif
