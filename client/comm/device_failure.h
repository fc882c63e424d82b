/* SPDX-License-Identifier: Apache-2.0 */
/* Why the calls of a communicator of GPUs fail. The first failure is remembered, and all later
 * calls fail with it. What a device reports is often only the consequence of a death or of another
 * rank's end. Therefore the cause is awaited for a short time before the device is blamed. Used by
 * the job's thread only. */
#ifndef CSTC_DEVICE_FAILURE_H
#define CSTC_DEVICE_FAILURE_H

#include "client/comm/comm.h"

/* The communicator fails for good, because of @why. Calls that end all the same are left to end.
 * Those that probably do so are given up by the watch, if they do not. Does nothing if it has
 * failed already. */
void cstc_failure_set(struct cst_comm *comm, const struct cst_err *why);

/* As cstc_failure_set, because rank @rank of the group has closed its communicator. */
void cstc_failure_closed(struct cst_comm *comm, uint32_t rank);

/* Return the status of the failure, with its text in *err; CST_OK: there is none, and *err is
 * unchanged. */
int cstc_failure_status(const struct cst_comm *comm, struct cst_err *err);

/* The device has reported @why, which may be the consequence of a death or of another rank's end.
 * @blocks: as in cstc_failure_find. */
void cstc_failure_by_device(struct cst_comm *comm, const struct cst_err *why, bool blocks);

/* The device has reported a failure before. Fail because calls differ, a rank has died or closed
 * its communicator, or the connection has ended, if that is so or this rank learns it soon;
 * otherwise because of what the device has reported. @blocks: wait until that is clear. Otherwise
 * the communicator may not have failed yet, and a later call has to find the cause. */
void cstc_failure_find(struct cst_comm *comm, bool blocks);

/* If the thread of the watch has noticed that the communicator has ended, or the device has
 * reported a failure, fail with the cause. */
void cstc_failure_heed_watch(struct cst_comm *comm);

#endif
