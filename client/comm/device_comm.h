/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a communicator whose arrays are in the memory of a device. The device's functions
 * (cistern/comm_device.h) move the data. The shared memory says which ranks have died, have closed
 * their communicator, and how many calls they have done (progress.h). A rank that has closed its
 * communicator has done its part of the calls in its line. If this rank needs more of it, the
 * communicator fails. A thread notices that, too, while the program does not call libcistern
 * (watch.h).
 *
 * A rank that waits spins briefly and then sleeps on the head of the shared memory. It is woken by
 *   - its device, when the awaited call has ended (wakeup.h);
 *   - another rank, which says what it calls, or closes its communicator;
 *   - the daemon, when the attempt is over.
 * A device that has failed wakes nobody, as CUDA calls no host function after an error of the
 * context. For that reason a sleeping rank looks at the device ten times a second, too. NCCL does
 * not tell when it has put a call into the stream. It is asked at intervals that grow with the time
 * waited, until then.
 *
 * In a group that does not use NCCL the ranks exchange arrays as ranks on the host do (flow.h): in
 * slots on their GPUs (device_peers.h), or in the shared memory, to which the device copies them
 * and back. Used by one thread at a time. */
#ifndef CSTC_DEVICE_COMM_H
#define CSTC_DEVICE_COMM_H

#include "client/comm/comm.h"

/* Join the other ranks, and wait until all have joined. The statuses are those of cst_comm_wait and
 * of the device's functions. */
int cstc_comm_device_join(struct cst_comm *comm, const unsigned char *id, struct cst_err *err);

/* Use host memory instead: the arrays are copied to it and back. */
int cstc_comm_device_use_host(struct cst_comm *comm, struct cst_err *err);

/* Start a call, and wait until it is in the stream. The statuses are those of cst_comm_start. */
int cstc_comm_device_start(struct cst_comm *comm, const struct cst_comm_call *call,
                           uint64_t *ticket, struct cst_err *err);

/* Wait for call @ticket as cst_comm_wait does, or, if @blocks is false, as cst_comm_try_wait. */
int cstc_comm_device_wait(struct cst_comm *comm, uint64_t ticket, bool blocks, struct cst_err *err);

/* Before @comm is closed: tell the other ranks how many calls this one has done. Nothing if the
 * arrays are in host memory or if @forked. */
void cstc_comm_device_say(struct cst_comm *comm, bool forked);

/* Free what @comm has on a device, if anything. @forked: this is a forked child, in which no device
 * works. */
void cstc_comm_device_close(struct cst_comm *comm, bool forked);

#endif
