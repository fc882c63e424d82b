/* SPDX-License-Identifier: Apache-2.0 */
/* Check of a job's memory against the budgets: host memory, host pools, and the memory of each
 * accelerator. The module only checks; segments charge the budgets (arena.h). */
#ifndef CSTD_POOL_BUDGET_H
#define CSTD_POOL_BUDGET_H

#include "daemon/memory.h"

/* Bytes that @pool is charged, including rounding to the device's granularity. */
uint64_t cstd_pool_budget_charge(const struct cstd_daemon *daemon, const struct cst_layout *layout,
                                 const struct cstd_memory_pool *pool);

/* Check whether all memory of @request is available now. @arena_bytes is the size of the arenas and
 * the job table, and @name the name of the job. Nothing is charged. CST_EBUDGET: a budget or a
 * limit of the user is exceeded; @err has all numbers. CST_ENOMEM: the limit of the daemon's
 * control group is exceeded, for example because it was lowered after the daemon started; @err
 * names the file of the limit. */
int cstd_pool_budget_check(struct cstd_daemon *daemon, const struct cstd_memory_request *request,
                           uint64_t arena_bytes, const char *name, struct cst_err *err);

#endif
