/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and sums for collectives in slots on the ranks' GPUs: the sums read the other GPUs' memory
 * directly. The arrays and slots are mapped in this process. Everything is enqueued on the stream
 * of the communicator. The GPU's context is current. */
#ifndef CSTC_CUDA_PEERS_H
#define CSTC_CUDA_PEERS_H

#include "cistern/comm.h"
#include "kernels/cuda/kernels.h"

struct cstc_cuda_peers {
    struct cst_cuda_kernels kernels; /* Driver NULL: not loaded. */
};

/* Load the kernels. */
int cstc_cuda_peers_open(struct cstc_cuda_peers *peers, const struct cst_cuda_driver *driver,
                         struct cst_err *err);

/* Unload them, if they are loaded. */
void cstc_cuda_peers_close(struct cstc_cuda_peers *peers);

/* As add_up of cistern/comm_device.h. */
int cstc_cuda_peers_add_up(const struct cstc_cuda_peers *peers, CUstream stream,
                           enum cst_comm_type type, size_t n_elems, uint32_t n_src,
                           const void *const *src, void *dst, struct cst_err *err);

#endif
