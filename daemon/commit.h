/* SPDX-License-Identifier: Apache-2.0 */
/* Commit of a job's model: the barrier at which all ranks agree on the model, followed by plan,
 * layout, memory and the start of the core. The commit of a training step is not here
 * (offload/commit.c). */
#ifndef CST_COMMIT_H
#define CST_COMMIT_H

#include "daemon/job.h"

/* Handle Commit request @id of the worker at @session. @n_tensors and @n_operators are the worker's
 * numbers; @copies: the worker can copy weights to its accelerator itself. The request is always
 * answered: with MSG_COMMITTED when all ranks have committed and the memory is populated (for a
 * committed job at once, or after the closing step), or with an error. */
void cstd_commit(struct cstd_session *session, uint64_t id, uint32_t n_tensors,
                 uint32_t n_operators, bool copies);

/* Write the ranks that others wait for in the barrier to @text, such as "0, 3 (absent)". The text
 * is empty if no rank has committed. */
void cstd_commit_missing(const struct cstd_job *job, char *text, size_t size);

/* Fail all waiting Commits with @why and cancel the search for a plan. The ranks may commit
 * again. */
void cstd_commit_break(struct cstd_job *job, const struct cst_err *why);

/* Withdraw the waiting Commit of rank @rank; the caller answers the request. A search for a plan of
 * the job is cancelled. Other ranks that have committed wait for this rank again, at most for the
 * job's time limit. */
void cstd_commit_withdraw(struct cstd_job *job, uint32_t rank);

/* Continue the commits that waited for an accelerator's engine, which is up or has failed now. @arg
 * is the daemon. */
void cstd_commit_resume(void *arg);

/* Continue the commit of the job that @memory belongs to, when all engines have answered;
 * memory->err has the outcome. Also called when a pool was made again in a ready job. */
void cstd_commit_populated(struct cstd_memory *memory);

/* Answer the Commits that came while a step was closing, if the step has closed. A worker that
 * replaces one which died in the last step must know whether there is another step, because its
 * peers leave after the last one. Called after each event of the core. */
void cstd_commit_settled(struct cstd_job *job);

/* Return @job to the declaring state, after the memory of a failed commit was given back. */
void cstd_commit_undone(struct cstd_job *job);

/* Free the layout of @job, if it has one. */
void cstd_commit_drop_layout(struct cstd_job *job);

#endif
