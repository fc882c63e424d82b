/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a job of this daemon from one that an earlier daemon has left: the same options, model,
 * plan, layout and memory, without a search and without a commit. Loop thread only. */
#ifndef CSTD_REVIVE_JOB_H
#define CSTD_REVIVE_JOB_H

struct cst_err;
struct cstd_daemon;
struct cstd_job;
struct cstd_kept_job;

/* Make the job with its memory and core, which still belong to the store: if the job is removed
 * again, the store keeps them for a later daemon. CST_OK: it is *out. CST_ELOST: something of it is
 * missing. CST_EVERSION: this daemon would lay it out differently. CST_EMISMATCH: the machine has
 * changed. Others: as when a job is opened. After an error nothing of it is left. */
int cstd_revive_job_make(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                         struct cstd_job **out, struct cst_err *err);

/* The job goes on: its memory and the ledger of @kept belong to it as if it had been made now.
 * After an error they still belong to the store. */
int cstd_revive_job_own(struct cstd_job *job, struct cstd_kept_job *kept, struct cst_err *err);

#endif
