/* SPDX-License-Identifier: Apache-2.0 */
/* Decides the size of each rank's pool: what the rank asked for, or its share of what the budget of
 * its device has left. Loop thread only. */
#ifndef CSTD_POOL_SHARE_H
#define CSTD_POOL_SHARE_H

#include "daemon/job.h"

/* Return the smallest pool that a rank asked for, in bytes; 0: no rank asked for one. */
uint64_t cstd_pool_share_smallest(const struct cstd_job *job);

/* Fill in the pools of all ranks of @job, which has its layout. The ranks that asked for no size
 * share what the budget of their device has left in equal parts, limited to what they can use.
 * CST_EPOOL: a pool that a rank asked for is too small. CST_EBUDGET: a share is too small. */
int cstd_pool_share_divide(const struct cstd_job *job, struct cstd_memory_pool *pools,
                           struct cst_err *err);

/* Check @worker, which attaches to a committed job: CST_EMISMATCH if the pool size it asks for is
 * not the size of its rank's pool. */
int cstd_pool_share_check(const struct cstd_worker *worker, struct cst_err *err);

#endif
