/* SPDX-License-Identifier: Apache-2.0 */
/* Base jobs: a job may name another one of its user whose frozen tensors it uses. They are mapped
 * for it, not stored again; while it is there the base stays, and they are not written. */
#ifndef CST_BASE_H
#define CST_BASE_H

#include "daemon/job.h"

/* The job that uid @uid may name as the base of a new job @name. CST_ENOTFOUND: it has none of that
 * name; CST_EINVAL: its weights are not there yet (no sync has completed), or it has a base itself,
 * or is the job itself. */
int cst_base_find(struct cst_daemon *daemon, uid_t uid, const char *name, const char *base,
                  struct cst_job **out, struct cst_err *err);

/* @job's model is complete. CST_OK if it has no base; or if the base has all of its frozen tensors,
 * frozen and of the same shape: else CST_ENOTFOUND, CST_EINVAL or CST_EMISMATCH, naming the tensor.
 */
int cst_base_check(const struct cst_job *job, struct cst_err *err);

/* A job whose base @job is, or NULL; the one after @last, if that is given. */
struct cst_job *cst_base_user(const struct cst_job *job, const struct cst_job *last);

/* CST_EBUSY with "@what: job 'x', 'y' and 2 more use ..." if @job is the base of another one. */
int cst_base_check_unused(const struct cst_job *job, const char *what, struct cst_err *err);

#endif
