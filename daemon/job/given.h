/* SPDX-License-Identifier: Apache-2.0 */
/* Given plans: plans that were made before the job (by `cistern plan`) and that the workers send
 * when they open the job (JobOpen.plan). The daemon then lays out the job as the plan says, without
 * a search. If the job is not the one that the plan was made for, the job is refused with the first
 * difference.
 *
 *   JobOpen --settle--> pool, device reservation and states as planned
 *   all ranks have committed --take--> job->plan --layout--> check */
#ifndef CST_GIVEN_H
#define CST_GIVEN_H

#include "proto/saved_plan.h"

#include <stdbool.h>

struct cstd_job;
struct cstd_job_request;

/* Set the fields of @request that were left open and that the plan of @job decides; @job NULL: the
 * plan that @request brings to a new job. CST_EINVAL: the plan is combined with a base job.
 * CST_EMISMATCH: the job was opened without a plan or with another one, or @request does not fit
 * the plan; @err has the field and both values. */
int cstd_given_settle(const struct cstd_job *job, struct cstd_job_request *request,
                      struct cst_err *err);

/* Make the given plan of @job, whose model is complete, its plan (job->plan). CST_EMISMATCH: the
 * plan was made for another model. */
int cstd_given_take(struct cstd_job *job, struct cst_err *err);

/* Compare the layout of @job with its given plan. CST_OK: the layout is as planned, or there is no
 * given plan. CST_EMISMATCH: chunks or size classes differ. CST_EPOOL, CST_EINVAL: the planned pool
 * has too few blocks, or more than can be used. */
int cstd_given_check(const struct cstd_job *job, struct cst_err *err);

#endif
