/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of a communicator's ranks on their GPUs. The ranks exchange arrays in them as ranks on
 * the host do in the shared memory (flow.h): the headers and the numbers of rounds are in the
 * shared memory, and the data in these slots. The device copies and sums. A rank says that a round
 * is written or read when its stream has done that. Used by the job's thread only. */
#ifndef CSTC_DEVICE_PEERS_H
#define CSTC_DEVICE_PEERS_H

#include "client/lib/call.h"
#include "cistern/status.h"

#include <stdint.h>

/* Most ranks: the descriptors of their slots are in one message. */
#define CSTC_PEERS_MAX (CST_FRAME_MAX_FDS - 1)

struct cst_comm;

/* Zeros: there are no slots. */
struct cstc_peers {
    char *slots[CSTC_PEERS_MAX]; /* The mapped memory of each rank. */
    uint32_t n;                  /* Number of entries of slots. */
    uint64_t bytes;              /* Of each. */
    struct cst_err err;          /* The first failure of the device; status CST_OK: none. */
};

/* Return whether @comm can use slots on GPUs. */
bool cstc_peers_can(const struct cst_comm *comm);

/* Map the memory that came with the answer to the request @call, after the first descriptor, and
 * let the flow of @comm use it. CST_EPROTO: the answer cannot be right. Other statuses are those of
 * the device. */
int cstc_peers_open(struct cst_comm *comm, const struct cstc_call *call, struct cst_err *err);

/* Unmap the slots, if there are any. The device does nothing with them any more. */
void cstc_peers_close(struct cst_comm *comm);

#endif
