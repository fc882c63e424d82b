/* SPDX-License-Identifier: Apache-2.0 */
/* Commit of a job's model, as a sequence of phases: from the first rank that commits to the answers
 * of all ranks. The table in commit.c lists the phases in order, with what each phase does and how
 * it is undone. A commit that fails goes back through the phases that it entered, gives everything
 * back, and answers all ranks with the error; the ranks may commit again. The commit of a training
 * step is not here (offload/commit.c). Loop thread only. */
#ifndef CST_COMMIT_H
#define CST_COMMIT_H

#include "daemon/job.h"

/* Returns the state of @job in a word for users, while the job is not committed. */
const char *cstd_commit_name(const struct cstd_job *job);

/* Write the ranks whose Commits are missing to @text, such as "0, 3 (absent)". The text is empty if
 * no rank has committed. */
void cstd_commit_missing(const struct cstd_job *job, char *text, size_t size);

/* Fail all waiting Commits with @why. @job must be in CSTD_JOB_DECLARING; the commit starts again
 * with the next Commit of a rank. */
void cstd_commit_break(struct cstd_job *job, const struct cst_err *why);

/* A worker has been told @why, a CST_EMISMATCH that cstd_declare, cstd_declare_check or the opening
 * of a job gave: drop the declarations of @worker (NULL: it was not admitted to the job) and, if
 * the job is not committed, the whole model (cstd_declare_drop). Waiting Commits then fail with
 * @why. */
void cstd_commit_disagree(struct cstd_job *job, struct cstd_worker *worker,
                          const struct cst_err *why);

/* Withdraw the waiting Commit of rank @rank; the caller answers the request. A search for a plan of
 * the job is cancelled. Other ranks that have committed wait for this rank again, at most for the
 * job's time limit. A commit whose memory is being made goes on. */
void cstd_commit_withdraw(struct cstd_job *job, uint32_t rank);

/* Continue the commits that wait for an accelerator's engine, which is up or has failed now. @arg
 * is the daemon. */
void cstd_commit_resume(void *arg);

/* All engines have answered for the segments of @memory; memory->err has the outcome. Also called
 * when pools of a committed job were made again. */
void cstd_commit_memory_ready(struct cstd_memory *memory);

/* The memory of a commit that failed is given back. */
void cstd_commit_memory_gone(struct cstd_job *job);

/* Answer the Commits that came while a step was closing, if the step has closed. A worker that
 * replaces one which died in the last step must know whether there is another step, because its
 * peers leave after the last one. Called after each event of the core. */
void cstd_commit_settled(struct cstd_job *job);

/* @job is removed: undo all phases. The caller answers the waiting Commits, and waits for the end
 * of job->memory. */
void cstd_commit_close(struct cstd_job *job);

#endif
