/* SPDX-License-Identifier: Apache-2.0 */
/* Which pool each rank of a job gets: what it asked for, or its share of what its device's budget
 * has left. */
#ifndef CST_SHARE_H
#define CST_SHARE_H

#include "daemon/job.h"

/* The smallest pool that a rank has asked for, in bytes; 0: none has. */
uint64_t cst_share_smallest(const struct cst_job *job);

/* The pools of all ranks of @job, whose layout is there. Who asked for nothing gets what can be of
 * use, as far as the budget of its device goes, in equal parts. CST_EPOOL: a pool that was asked
 * for is too small; CST_EBUDGET: a share is. */
int cst_share_divide(const struct cst_job *job, struct cst_memory_pool *pools, struct cst_err *err);

/* The job is committed, and @worker comes (back): CST_EMISMATCH unless what it asks for is the pool
 * that its rank has. */
int cst_share_check(const struct cst_worker *worker, struct cst_err *err);

#endif
