/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a job of this daemon from one that an earlier daemon has left: the same options, model,
 * plan, layout and memory, without a search and without a commit. In steps, because a model can
 * have millions of names:
 *
 *   create   loop     the job, in CSTD_JOB_REVIVING: it has a name, an owner, a base, and charges
 *   prepare  loop     its accelerators; what the layout depends on
 *   build    thread   the model and the layout, from the description
 *   open     loop     the memory, which the engines map, and the core
 *   own      loop     the ledger: from now on it is kept as if it had been made now
 *
 * Loop thread only, except build. */
#ifndef CSTD_REVIVE_JOB_H
#define CSTD_REVIVE_JOB_H

#include "daemon/memory/memory.h"

struct cst_err;
struct cstd_daemon;
struct cstd_job;
struct cstd_kept_job;

/* Make kept->job, with the charges of @kept. CST_ENOTFOUND: its base job is not there. Others: as
 * when a job is opened. */
int cstd_revive_job_create(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                           struct cst_err *err);

/* Take the accelerators, which must be known, and make kept->draft. CST_ENOTFOUND: an accelerator
 * is not there. CST_EMISMATCH: the machine has changed. CST_ELOST, CST_ENOMEM. */
int cstd_revive_job_prepare(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                            struct cst_err *err);

/* Build the model of kept->draft, and the layout unless the job has a base. Any thread; nobody else
 * uses @kept meanwhile. CST_ELOST: the ledger is damaged. CST_EVERSION: this daemon would lay the
 * job out differently. CST_ENOMEM. */
int cstd_revive_job_build(struct cstd_kept_job *kept, struct cst_err *err);

/* The second half of build for a job with a base, whose model and layout @base has. */
int cstd_revive_job_build_on(struct cstd_kept_job *kept, const struct cstd_job *base,
                             struct cst_err *err);

/* Give kept->job the model and the layout of the draft, which ends, and open its memory and core.
 * Both still belong to the store: if the job is removed again, the store keeps them for a later
 * daemon. @mounted follows: memory->err says whether the engines have mapped the memory. CST_ELOST:
 * something is missing. Others: as when a job is opened. */
int cstd_revive_job_open(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                         cstd_memory_cb mounted, struct cst_err *err);

/* The job goes on: its memory and the ledger of @kept belong to it as if it had been made now.
 * There is room, see cstd_ledger_continue. */
void cstd_revive_job_own(struct cstd_job *job, struct cstd_kept_job *kept);

/* Free kept->draft, if there is one. */
void cstd_revive_job_drop_draft(struct cstd_kept_job *kept);

#endif
