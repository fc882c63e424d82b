/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a group on GPUs tell of themselves when they open a communicator, and how the
 * group exchanges data. Loop thread only. */
#ifndef CSTD_COMM_DEVICE_H
#define CSTD_COMM_DEVICE_H

#include "offload/plan/transport.h"
#include "proto/cistern.pb-c.h"
#include "cistern/status.h"

#include <stdbool.h>

#define CSTD_COMM_DEVICE_ID_BYTES 128
#define CSTD_COMM_DEVICE_MAX_GPUS 64
#define CSTD_COMM_DEVICE_WORDS 320

/* Copied from the message of one rank. */
struct cstd_comm_device {
    uint32_t nccl_version; /* 0: none that can be used. */
    bool has_id;           /* id is set. */
    bool reads_peers;      /* As in struct cst_transport_rank. */
    bool in_order;
    bool can_refuse; /* Its process says whether it can use the transport. */
    /* What the group used before, and this rank could not use; 0: nothing. */
    enum cst_transport refused;
    unsigned char id[CSTD_COMM_DEVICE_ID_BYTES];
    char nccl_error[CSTD_COMM_DEVICE_WORDS];  /* Why nccl_version is 0; empty: not known. */
    char peers_error[CSTD_COMM_DEVICE_WORDS]; /* Why reads_peers is false; empty: not known. */
    /* UUIDs of other GPUs that it sees: n_reachable whose memory its GPU can access, then those
     * whose memory it cannot. */
    size_t n_gpus, n_reachable;
    char gpus[CSTD_COMM_DEVICE_MAX_GPUS][64];
};

/* Make a copy of @message for the caller, who frees it with free(). CST_EINVAL: the message has a
 * wrong id, a transport that cannot be refused, or too many or too long UUIDs. CST_ENOMEM. */
int cstd_comm_device_copy(const Cistern__CommDevice *message, struct cstd_comm_device **out,
                          struct cst_err *err);

/* Describe @device, which may be NULL: host memory, of the rank with the number @name on the GPU
 * @gpu. *names, which the caller provides, is used by the result. */
struct cst_transport_rank cstd_comm_device_rank(const struct cstd_comm_device *device,
                                                uint32_t name, const char *gpu,
                                                const char *names[CSTD_COMM_DEVICE_MAX_GPUS]);

#endif
