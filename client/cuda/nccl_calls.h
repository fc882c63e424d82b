/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of cistern/comm.h as calls of NCCL. The context of the GPU is current. */
#ifndef CSTC_NCCL_CALLS_H
#define CSTC_NCCL_CALLS_H

#include "cistern/comm.h"
#include "client/cuda/nccl.h"

/* A communicator of NCCL, and where its calls are enqueued. All is borrowed. */
struct cstc_nccl_comm {
    const struct cstc_nccl *nccl;
    ncclComm_t handle;
    CUstream stream;
    uint32_t rank, size; /* This rank in the group, and the number of ranks. */
    CUdeviceptr word;    /* 4 bytes of zeros, which a barrier sums. */
};

/* Begin to enqueue @call, which has been checked. The result is that of NCCL. */
ncclResult_t cstc_nccl_enqueue(const struct cstc_nccl_comm *comm, const struct cst_comm_call *call);

#endif
