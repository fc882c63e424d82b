/* SPDX-License-Identifier: Apache-2.0 */
/* Segments on a GPU. Host memory is registered with the driver piece by piece. GPU memory is
 * created, exported, imported and mapped. Copies and fills move bytes between both. The functions
 * implement the device table and have the contracts of kernels/engine/device.h. */
#ifndef CST_CUDA_MEMORY_H
#define CST_CUDA_MEMORY_H

#include "kernels/cuda/gpu.h"

/* Size of the pieces, counted from the start of a segment, in which host memory is registered. The
 * driver holds a machine-wide lock while it registers a piece. A copy must not extend over two
 * pieces. */
#define CSTE_GPU_REGISTRATION (256u << 20)

/* Enqueue a copy of @bytes from @src to @dst on the stream of @thread. At least one of the two is
 * GPU memory. */
int cste_gpu_enqueue_copy(struct cste_gpu *gpu, unsigned thread, struct cste_addr dst,
                          struct cste_addr src, uint64_t bytes, struct cst_err *err);

/* Functions of the device table; @state is the GPU. Memory is locked by registering it, in pieces.
 * Copies from and to memory that the driver has not registered go through the pinned buffers of
 * flights, and sums as well.
 * Each thread that converts values to weights in GPU memory allocates 1 MiB of GPU memory once. */
int cste_gpu_map(void *state, int fd, int node, struct cste_mem *mem, struct cst_err *note,
                 struct cst_err *err);
int cste_gpu_import(void *state, unsigned thread, int *fd, struct cste_mem *mem,
                    struct cst_err *err);
void cste_gpu_unmap(void *state, struct cste_mem *mem);
int cste_gpu_lock(void *state, const struct cste_mem *mem, struct cst_err *err);
int cste_gpu_copy(void *state, unsigned thread, struct cste_addr dst, struct cste_addr src,
                  uint64_t bytes, struct cst_err *err);
int cste_gpu_fill(void *state, unsigned thread, struct cste_addr dst, uint64_t bytes,
                  struct cst_err *err);
int cste_gpu_convert(void *state, unsigned thread, const struct cste_device_convert *convert,
                     struct cst_err *err);

/* What a machine lacks that cannot share a GPU's memory between processes, and what to do. */
#define CSTE_GPU_NO_SHARING                                                                        \
    "pools on a GPU are memory that processes share by file descriptor, which WSL and some "       \
    "containers do not allow: use device 'host' (see GPUS in cisternd(8))"

/* Check that the driver can share memory of the GPU with other processes, as pools need it. Makes a
 * little memory for a moment. CST_EUNSUPPORTED: it cannot; the message says what to do. CST_OK also
 * if there is no memory for the check. CST_EGPU. */
int cste_gpu_check_sharing(struct cste_gpu *gpu, struct cst_err *err);

#endif
