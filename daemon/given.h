/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that were made before a job, and that its workers bring when they open it (JobOpen.plan):
 * the job is laid out as such a plan says, without a search, or refused with the first thing in
 * which it is not what the plan was made for.
 *
 *   JobOpen --prepare--> pool, room and states as planned
 *   all ranks have committed --take--> the plan is the job's --layout--> check */
#ifndef CST_GIVEN_H
#define CST_GIVEN_H

#include "proto/cistern.pb-c.h"
#include "proto/saved_plan.h"

#include <stdbool.h>

struct cst_job;
struct cst_job_wish;
struct cst_session;

/* Read the plan of @message, or take that of the job that @wish names, into @out, and fill in what
 * it decides in @wish where that is left open; out->n_chunks is 0 where there is no plan.
 * CST_EINVAL: a plan with numbers that none has, or with a base job; CST_EMISMATCH: the job was
 * made without a plan or with another one, or @wish is not what the plan was made for: the field
 * and both values. */
int cst_given_prepare(struct cst_session *session, const Cistern__JobOpen *message,
                      struct cst_job_wish *wish, struct cst_saved_plan *out, struct cst_err *err);

/* True: @job has a plan that was given. */
bool cst_given_has(const struct cst_job *job);

/* The plan that @job, whose model is complete, was given is job->plan now. CST_EMISMATCH: its model
 * is another one. */
int cst_given_take(struct cst_job *job, struct cst_err *err);

/* CST_EMISMATCH: @job's layout is not what the plan that it was given says. CST_OK also where it
 * was given none. */
int cst_given_check(const struct cst_job *job, struct cst_err *err);

#endif
