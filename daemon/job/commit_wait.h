/* SPDX-License-Identifier: Apache-2.0 */
/* For whom a commit waits (commit.h): for the Commits of all ranks, and for other nodes of the job
 * (span.h). Here are its phases with other nodes, which last for at most the job's time limit. Loop
 * thread only. */
#ifndef CSTD_COMMIT_WAIT_H
#define CSTD_COMMIT_WAIT_H

#include "daemon/job/job.h"

/* Returns the number of ranks whose Commits wait. */
uint32_t cstd_commit_n_waiting(const struct cstd_job *job);

/* Write the ranks whose Commits are missing to @text, such as "rank 0, 3 (absent)". The text is
 * empty if no Commit waits for them. */
void cstd_commit_missing(const struct cstd_job *job, char *text, size_t size);

/* Phases MEET, CHUNKS and JOIN; the undoing of MEET. cstd_commit_met follows. */
int cstd_commit_meet(struct cstd_job *job, struct cst_err *err);
int cstd_commit_part(struct cstd_job *job);
int cstd_commit_await_chunks(struct cstd_job *job, struct cst_err *err);
int cstd_commit_join(struct cstd_job *job, struct cst_err *err);

/* Returns @rc. CST_EAGAIN: the time limit begins, for something that other nodes do. */
int cstd_commit_wait_for_nodes(struct cstd_job *job, int rc);

/* States of @job come from other nodes: its time limit begins anew. */
void cstd_commit_progress(struct cstd_job *job);

#endif
