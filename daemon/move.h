/* SPDX-License-Identifier: Apache-2.0 */
/* A rank whose accelerator is lost comes back on another device: its pool is made there, as large
 * as it was, and the job goes on without the accelerator.
 *
 *   check, begin (JobOpen) --engines map the new slabs--> end --> its Commit is answered
 *
 * What the memory does is told in memory.h, what the core does in offload/core.h. */
#ifndef CST_MOVE_H
#define CST_MOVE_H

#include "daemon/job.h"

struct cst_job_wish;

/* The device that @wish names may be that of @worker's rank. CST_EMISMATCH: its pool is on another
 * one, which works; or on one without which the job goes on. */
int cst_move_check(const struct cst_worker *worker, const struct cst_job_wish *wish,
                   struct cst_err *err);

/* Nothing if @worker's pool is there, as far as @wish says. Else it is made there. CST_EBUSY: not
 * yet; CST_EMISMATCH, CST_EBUDGET, CST_ENOMEM: it stays where it was. */
int cst_move_begin(struct cst_worker *worker, const struct cst_job_wish *wish, struct cst_err *err);

/* A pool of the job is being made in another place: Commits wait. */
bool cst_move_is_under_way(const struct cst_job *job);

/* The engines are done with it. @err: status 0, or why the pool could not be made: then its rank's
 * Commits fail with it. */
void cst_move_end(struct cst_job *job, const struct cst_err *err);

#endif
