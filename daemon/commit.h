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
