/* SPDX-License-Identifier: Apache-2.0 */
/* The slabs of pools that lend memory to device updates, which can have the only results of an
 * update (offload/gradient/lent_memory.h). They are in the service manager's store as long as they
 * can be lent. A job that goes on takes those with results back; all other slabs of pools are made
 * again. Each slab has a name of its own in the store. Loop thread only. */
#ifndef CSTD_LENT_SLABS_H
#define CSTD_LENT_SLABS_H

#include "offload/core/revival.h"

struct cstd_job;

/* Return the number of slabs of @job, which has a core, that the store should have. */
uint32_t cstd_lent_slabs_count(const struct cstd_job *job);

/* Store the slabs of @job that exist and are not in the store yet. @sent: as for
 * cstd_keeper_store, whose errors are returned. CST_EBUDGET: the store is full. */
int cstd_lent_slabs_store(struct cstd_job *job, bool sent, struct cst_err *err);

/* Remove the slabs of @rank's pool from the store, which are about to be given back. */
void cstd_lent_slabs_forget(struct cstd_job *job, uint32_t rank);

/* @job has a core that is to go on from @record: make the slabs that have results of updates a part
 * of its memory again. CST_ELOST: one is not in the store. CST_ENOMEM. */
int cstd_lent_slabs_take(struct cstd_job *job, const struct cst_core_record *record,
                         struct cst_err *err);

/* @job goes on: remove its slabs from the store that were not taken. */
void cstd_lent_slabs_settle(struct cstd_job *job);

#endif
