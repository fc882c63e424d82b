/* SPDX-License-Identifier: Apache-2.0 */
/* Segments on a GPU. Host memory is registered with the driver piece by piece. GPU memory is
 * created, exported, imported and mapped. Copies and fills move bytes between both. The functions
 * implement the device table and have the contracts of kernels/device.h. */
#ifndef CST_CUDA_MEMORY_H
#define CST_CUDA_MEMORY_H

#include "kernels/cuda/gpu.h"

/* Size of the pieces, counted from the start of a segment, in which host memory is registered. The
 * driver holds a machine-wide lock while it registers a piece. A copy must not extend over two
 * pieces. */
#define CSTE_GPU_REGISTRATION (256u << 20)

/* Map host memory, which the engines of nodes bind and populate. */
int cste_gpu_map(struct cste_gpu *gpu, int fd, struct cste_mem *mem, struct cst_err *err);

/* Register all of @mem, in pieces. On failure no piece stays registered. */
int cste_gpu_register(struct cste_gpu *gpu, const struct cste_mem *mem, struct cst_err *err);

/* Map GPU memory of this or another GPU, or create it. */
int cste_gpu_import(struct cste_gpu *gpu, unsigned thread, int *fd, struct cste_mem *mem,
                    struct cst_err *err);

/* Unmap host memory or GPU memory. */
void cste_gpu_unmap(struct cste_gpu *gpu, struct cste_mem *mem);

/* Enqueue a copy of @bytes from @src to @dst on the stream of @thread. At least one of the two is
 * GPU memory. */
int cste_gpu_enqueue_copy(struct cste_gpu *gpu, unsigned thread, struct cste_addr dst,
                          struct cste_addr src, uint64_t bytes, struct cst_err *err);

/* cste_gpu_copy and cste_gpu_fill copy or clear @bytes of host or GPU memory and wait for the end.
 */
int cste_gpu_copy(struct cste_gpu *gpu, unsigned thread, struct cste_addr dst, struct cste_addr src,
                  uint64_t bytes, struct cst_err *err);
int cste_gpu_fill(struct cste_gpu *gpu, unsigned thread, struct cste_addr dst, uint64_t bytes,
                  struct cst_err *err);

/* Convert @n fp32 values at @src (host memory) to bf16 at @dst (host or GPU memory). Each thread
 * that calls this function for GPU memory allocates 1 MiB of GPU memory once. CST_ENOMEM. */
int cste_gpu_cast(struct cste_gpu *gpu, unsigned thread, struct cste_addr dst, struct cste_addr src,
                  uint64_t n, struct cst_err *err);

#endif
