/* SPDX-License-Identifier: Apache-2.0 */
/* Decides the size of each rank's pool: what the rank asked for, or its share of what the budget of
 * its device has left. Checks that the memory of the whole job fits the budgets. Loop thread only.
 */
#ifndef CSTD_POOL_SHARE_H
#define CSTD_POOL_SHARE_H

#include "daemon/job/job.h"

/* Return the smallest pool that a rank asked for, in bytes; 0: no rank asked for one. */
uint64_t cstd_pool_share_smallest(const struct cstd_job *job);

/* Fill in the field pool of all workers of @job, which has its layout. The ranks that asked for no
 * size share what the budget of their device has left in equal parts, limited to what they can use.
 * Then check the job's memory against the budgets of host memory, pools and accelerators, the
 * quotas of its owner and the limit of the control group; nothing is charged. CST_EPOOL: a pool
 * that a rank asked for is too small. CST_EBUDGET: a share is too small, or a budget or quota is
 * exceeded. CST_ENOMEM: the limit of the control group is exceeded. Refusals for host memory name
 * jobs whose removal would free memory. */
int cstd_pool_share_divide(struct cstd_job *job, struct cst_err *err);

/* Check @worker, which attaches to a committed job: CST_EMISMATCH if it asks neither for the size
 * that was asked for when the job was committed, nor for that of the pool that its rank has. The
 * pool is not divided again, since this may need what only the daemon of the commit knew. */
int cstd_pool_share_check(const struct cstd_worker *worker, struct cst_err *err);

#endif
