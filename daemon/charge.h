/* SPDX-License-Identifier: Apache-2.0 */
/* What the memory that a job wishes for is charged to: the host's budgets, and each accelerator's.
 */
#ifndef CST_CHARGE_H
#define CST_CHARGE_H

#include "daemon/memory.h"

/* Bytes of @pool, as they are charged. */
uint64_t cst_charge_pool(const struct cst_daemon *daemon, const struct cst_layout *layout,
                         const struct cst_memory_pool *pool);

/* Would all of @wish fit now, with @arena_bytes of arenas and table? CST_EBUDGET: with all numbers.
 * CST_ENOMEM: the daemon's control group allows less than the budgets do, as when its limit has
 * been lowered since the daemon started; with the file that says so. Nothing is taken. @name: of
 * the job.
 */
int cst_charge_check(struct cst_daemon *daemon, const struct cst_memory_wish *wish,
                     uint64_t arena_bytes, const char *name, struct cst_err *err);

#endif
