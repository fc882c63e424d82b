/* SPDX-License-Identifier: Apache-2.0 */
/* Base jobs: a job may name another job of the same user and use the frozen tensors of that job.
 * The frozen tensors are mapped into the new job instead of being stored again. A base job lives as
 * long as jobs use it, and its frozen tensors cannot be written meanwhile. */
#ifndef CSTD_BASE_JOB_H
#define CSTD_BASE_JOB_H

#include "daemon/job/job.h"

/* Find the job @base that user @uid may name as the base of a new job @name, and store it in *out.
 * CST_ENOTFOUND: the user has no such job. CST_EINVAL: the base has no weights yet (no sync has
 * completed), has failed, has a base itself, or is the new job itself. CST_EBUSY: the base is being
 * reshaped. */
int cstd_base_job_find(struct cstd_daemon *daemon, uid_t uid, const char *name, const char *base,
                       struct cstd_job **out, struct cst_err *err);

/* Check the base of @job after its model is complete. CST_OK: @job has no base, or the base has all
 * frozen tensors of @job, frozen and with equal shapes. CST_ENOTFOUND, CST_EINVAL, CST_EMISMATCH: a
 * tensor differs, and @err names it. */
int cstd_base_job_check(const struct cstd_job *job, struct cst_err *err);

/* Iterate over the jobs that use @job as their base, including those that are closing. @last is the
 * previous result, or NULL for the first one. Returns NULL at the end. */
struct cstd_job *cstd_base_job_user(const struct cstd_job *job, const struct cstd_job *last);

/* CST_EBUSY: @job is the base of other jobs; the message begins with @what and names some of these
 * jobs. */
int cstd_base_job_check_unused(const struct cstd_job *job, const char *what, struct cst_err *err);

#endif
