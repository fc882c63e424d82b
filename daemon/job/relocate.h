/* SPDX-License-Identifier: Apache-2.0 */
/* Moving a pool: a rank whose accelerator was lost is opened again on another device. Its pool is
 * made there with as many blocks as before, and the job continues without the lost accelerator.
 *
 *   check, begin (JobOpen) --engines map the new slabs--> end --> the rank's Commit is answered
 *
 * The memory's part is in memory.h, the core's part in offload/core/core.h. */
#ifndef CSTD_RELOCATE_H
#define CSTD_RELOCATE_H

#include "daemon/job/job.h"

struct cstd_job_request;

/* Check that the device in @request is possible for @worker's rank. CST_EMISMATCH: the rank's pool
 * is on another device that works, or @request names a device that was given up and that the job
 * continues without. */
int cstd_relocate_check(const struct cstd_worker *worker, const struct cstd_job_request *request,
                        struct cst_err *err);

/* Begin to move the pool of @worker to the device in @request, if it is on another one. For a job
 * that is done, pools are made again instead. CST_EBUSY: the pool cannot move yet; CST_EMISMATCH,
 * CST_EBUDGET, CST_ENOMEM: the pool cannot be made on that device. The pool is unchanged after an
 * error. */
int cstd_relocate_begin(struct cstd_worker *worker, const struct cstd_job_request *request,
                        struct cst_err *err);

/* True if a pool of the job is being made again. Commits wait for that. */
bool cstd_relocate_is_under_way(const struct cstd_job *job);

/* The engines have answered for the new pools. @err: status 0, or why the pools could not be made;
 * waiting Commits of their ranks fail with it then. */
void cstd_relocate_end(struct cstd_job *job, const struct cst_err *err);

#endif
