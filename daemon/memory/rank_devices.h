/* SPDX-License-Identifier: Apache-2.0 */
/* The accelerators that a rank uses: one for its pool, and one for its device reservation and for
 * states that stay on the accelerator. Often both are the same. Their engines keep running while
 * they are in use. */
#ifndef CSTD_RANK_DEVICES_H
#define CSTD_RANK_DEVICES_H

#include "offload/layout/layout.h"

struct cstd_job;
struct cstd_tier;
struct cstd_worker;

/* Returns "host", or the UUID of the GPU or simulated accelerator of the rank's pool. */
const char *cstd_rank_devices_name(const struct cstd_worker *worker);

/* Set *@of, a tier of a worker, to @tier. The engine of @tier is started if necessary; that of the
 * previous tier may end. */
void cstd_rank_devices_use(const struct cstd_tier **of, const struct cstd_tier *tier);

/* Set the tier of @worker's pool to @tier, and derive that of its device reservation and states. */
void cstd_rank_devices_set(struct cstd_worker *worker, const struct cstd_tier *tier);

/* Returns 1 + the engine of the node that is nearest to the accelerator of @worker's pool or, if
 * the pool is on the host, of its device updates. 0: there is none, or the daemon does not use it.
 */
uint32_t cstd_rank_devices_near_node(const struct cstd_worker *worker);

/* Returns the chunks whose gradients land, from the devices of all pools of @job. */
enum cst_layout_landings cstd_rank_devices_landings(const struct cstd_job *job);

/* Release both accelerators of @worker. */
void cstd_rank_devices_drop(struct cstd_worker *worker);

/* Start the engines again that were given up: those of the worker's accelerators, and those of all
 * NUMA nodes, because each node may hold memory of any job. */
void cstd_rank_devices_need(const struct cstd_worker *worker);

/* Check that the engines of all ranks' accelerators, and of the drives of the job's files, have
 * reported the granularity of their memory.
 * CST_EAGAIN: some have not yet, and will; CST_EENGINE: one was given up. */
int cstd_rank_devices_await(const struct cstd_job *job, struct cst_err *err);

#endif
