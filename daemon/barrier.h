/* SPDX-License-Identifier: Apache-2.0 */
/* The barrier at which the ranks of a job wait for each other's Commit. What happens when all have
 * come is decided in commit.c. Loop thread only. */
#ifndef CSTD_BARRIER_H
#define CSTD_BARRIER_H

#include "daemon/job.h"

/* True if all ranks wait in the barrier. */
bool cstd_barrier_is_complete(const struct cstd_job *job);

/* Limit the time for which the ranks in the barrier wait for the others, unless it is limited
 * already. After the job's time limit the barrier breaks with CST_ETIMEDOUT. */
void cstd_barrier_wait(struct cstd_job *job);

/* The time of waiting is no longer limited. */
void cstd_barrier_stop(struct cstd_job *job);

/* Fail all waiting Commits with @why and cancel the search for a plan. The ranks may commit
 * again. */
void cstd_barrier_break(struct cstd_job *job, const struct cst_err *why);

/* Write the ranks that others wait for in the barrier to @text, such as "0, 3 (absent)". The text
 * is empty if no rank has committed. */
void cstd_barrier_missing(const struct cstd_job *job, char *text, size_t size);

/* Withdraw the waiting Commit of rank @rank; the caller answers the request. A search for a plan of
 * the job is cancelled. Other ranks that have committed wait for this rank again, at most for the
 * job's time limit. */
void cstd_barrier_withdraw(struct cstd_job *job, uint32_t rank);

#endif
