/* SPDX-License-Identifier: Apache-2.0 */
/* The accelerators of a rank: that of its pool, and that whose memory its room for updates and
 * states that stay there are in. Their engines are kept up while they are in use. */
#ifndef CST_DEVICES_H
#define CST_DEVICES_H

#include "daemon/job.h"

/* "host", or the UUID of the GPU or paced accelerator of the rank's pool. */
const char *cst_devices_name(const struct cst_worker *worker);

/* *@of, of @worker's, is @gpu from now on: its engine starts, and that of the one before may end.
 */
void cst_devices_use(struct cst_worker *worker, struct cst_gpu **of, struct cst_gpu *gpu);

/* The rank's pool is on @gpu (NULL: the host), and what else it asked for where that is then. */
void cst_devices_set(struct cst_worker *worker, struct cst_gpu *gpu);

/* None is in use any more. */
void cst_devices_drop(struct cst_worker *worker);

/* Engines that were given up are tried again: those of the worker's accelerators, and those of all
 * nodes, since each of these may have memory of any job. */
void cst_devices_need(const struct cst_worker *worker);

/* The engines of all ranks' must have said what their memory is like. CST_EAGAIN: they will;
 * CST_EENGINE: one was given up. */
int cst_devices_await(const struct cst_job *job, struct cst_err *err);

#endif
