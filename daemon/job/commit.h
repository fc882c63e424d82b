/* SPDX-License-Identifier: Apache-2.0 */
/* Commit of a job's model: what happens from the first rank's Commit request to the answers to all
 * ranks. This is another commit than that of a training step (offload/core/commit.c).
 *
 * The commit is a sequence of phases. The table in commit.c lists the phases in order; each has a
 * function that enters it and one that undoes it. If a phase fails, all phases that were entered
 * are undone, the last one first, and all ranks are answered with the error. The ranks may then
 * send Commit again.
 *
 * This module has no state of its own: the phase, the cause of a failure and the waiting Commits
 * are members of struct cstd_job and of its workers. Commit requests arrive in serve_job.c; job.c,
 * worker.c, job_info.c, serve_*.c and callbacks of the engines and of the core call the functions
 * below. Loop thread only. */
#ifndef CSTD_COMMIT_H
#define CSTD_COMMIT_H

#include "daemon/job/job.h"
#include "proto/job_states.h"

/* Returns the phase of @job as users see it. Phases that they need not tell apart are the same. */
enum cst_job_state cstd_commit_shown(const struct cstd_job *job);

/* Fail all waiting Commits with @why. @job must be in CSTD_JOB_DECLARING; the commit starts again
 * with the next Commit of a rank. */
void cstd_commit_break(struct cstd_job *job, const struct cst_err *why);

/* A worker has been told @why, a CST_EMISMATCH that cstd_declare, cstd_declare_check or the opening
 * of a job gave: drop the declarations of @worker (NULL: it was not admitted to the job) and, if
 * the job is not committed, the whole model (cstd_declare_drop). Waiting Commits then fail with
 * @why. */
void cstd_commit_disagree(struct cstd_job *job, struct cstd_worker *worker,
                          const struct cst_err *why);

/* @request, the Commit of @worker, was checked: it waits for the other ranks, or for the pools of a
 * job that is committed already. */
void cstd_commit_add(struct cstd_worker *worker, struct cstd_pending *request);

/* The pools of the predecessor of @job may be given back, for which phase POOLS of @job waits. */
void cstd_commit_pools_gone(struct cstd_job *job);

/* @job has a core, and some of its predecessor's states (migrate.h): take the others. */
void cstd_commit_go_on(struct cstd_job *job);

/* What @job waits for from other nodes (span.h) has come, or *err says why it will not. */
void cstd_commit_met(struct cstd_job *job, const struct cst_err *err);

/* Withdraw the waiting Commit of rank @rank; the caller answers the request. A search for a plan of
 * the job is cancelled. Other ranks that have committed wait for this rank again, at most for the
 * job's time limit. A commit whose memory is being made goes on. */
void cstd_commit_withdraw(struct cstd_job *job, uint32_t rank);

/* Continue the commits that wait for an accelerator's engine, because such an engine is up or was
 * given up now. @arg is the struct cstd_daemon. */
void cstd_commit_resume(void *arg);

/* All engines have answered for the segments of @memory; memory->err has the outcome. Also called
 * when pools of a committed job were made again. */
void cstd_commit_memory_ready(struct cstd_memory *memory);

/* The memory of @job, whose commit has failed, is given back: undo the phases before it and answer
 * the Commits. */
void cstd_commit_memory_gone(struct cstd_job *job);

/* Answer the Commits that came while a step was closing, if the step has closed. A worker that
 * replaces one which died in the last step must know whether there is another step, because its
 * peers leave after the last one. Called after each event of the core. */
void cstd_commit_settled(struct cstd_job *job);

/* @job is removed: undo all phases. The caller answers the waiting Commits. The undoing of
 * job->memory only begins here; the caller waits for its end. */
void cstd_commit_close(struct cstd_job *job);

#endif
