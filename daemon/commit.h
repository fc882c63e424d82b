/* SPDX-License-Identifier: Apache-2.0 */
/* Commit: the barrier at which all ranks agree on the model, then layout, memory and core. */
#ifndef CST_COMMIT_H
#define CST_COMMIT_H

#include "daemon/job.h"

/* Commit request @id of the worker at @session. Every outcome is an answer: MSG_COMMITTED when all
 * ranks have come and the memory is populated (at once, for a job that is committed already), or an
 * error. */
void cst_commit(struct cst_session *session, uint64_t id, uint32_t n_tensors, uint32_t n_operators,
                bool copies);

/* The ranks that have not committed, where others have: "0, 3 (absent)". "": none is waited for. */
void cst_commit_missing(const struct cst_job *job, char *text, size_t size);

/* All Commits that wait fail with @why; the ranks may commit again. */
void cst_commit_break(struct cst_job *job, const struct cst_err *why);

/* The worker of rank @rank takes its Commit back, which waits and which the caller answers. A plan
 * search for the job ends; other ranks that have committed wait for this rank again, for the
 * job's time limit at most. */
void cst_commit_withdraw(struct cst_job *job, uint32_t rank);

/* An engine of a GPU is up or has failed: commits that waited for it go on. @arg: the daemon. */
void cst_commit_resume(void *arg);

/* The engines are done with the job's memory, for better or worse. */
void cst_commit_populated(struct cst_memory *memory);

/* The core has moved on: answer Commits that came while a step closed. A worker that takes the
 * place of one that died in the last step must know whether there is another, for its peers leave
 * with the last one. */
void cst_commit_settled(struct cst_job *job);

/* The memory of a commit that failed is given back. */
void cst_commit_undone(struct cst_job *job);

/* Free the layout, if there is one. */
void cst_commit_drop_layout(struct cst_job *job);

#endif
