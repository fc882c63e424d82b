/* SPDX-License-Identifier: Apache-2.0 */
/* What is set aside on each GPU with `pool = auto` in [gpu]: the ranks on it, counted with
 * offload/plan/card.h. Loop thread only. */
#ifndef CSTD_SET_ASIDE_H
#define CSTD_SET_ASIDE_H

#include "offload/plan/card.h"

struct cstd_daemon;
struct cstd_gpu;

/* Count the ranks of all jobs on @gpu. A rank counts without a worker, too, because its pool
 * remains and a new worker may come; but not if its job is done, whose pools are freed, or is about
 * to be replaced by another one. A job that is done and about to have its pools again counts. */
void cstd_set_aside_count(const struct cstd_daemon *daemon, const struct cstd_gpu *gpu,
                          struct cst_card *out);

/* Count again, and set the part of @gpu's budget that is not for pools. Quotas in percent are of
 * what is left. Called before the budget is used. Without `pool = auto` the budget is as it was
 * configured. */
void cstd_set_aside_update(struct cstd_daemon *daemon, struct cstd_gpu *gpu);

#endif
