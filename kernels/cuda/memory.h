/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's view of segments: host memory, registered with the driver piece by piece, and memory of a
 * GPU, which is made, exported, imported and mapped; and what moves bytes between them. The
 * functions are those of the device table (kernels/device.h), where their contracts are. */
#ifndef CST_CUDA_MEMORY_H
#define CST_CUDA_MEMORY_H

#include "kernels/cuda/gpu.h"

/* A segment's host memory is registered in pieces of so many bytes, counted from its start: the
 * driver holds a lock of the whole machine while it registers one. No copy may straddle two. */
#define CST_GPU_REGISTRATION (256u << 20)

int cst_gpu_map(struct cst_gpu *gpu, int fd, struct cst_mem *mem, struct cst_err *err);

/* Register all of @mem, in pieces; on failure none of it is. */
int cst_gpu_register(struct cst_gpu *gpu, const struct cst_mem *mem, struct cst_err *err);

int cst_gpu_import(struct cst_gpu *gpu, unsigned thread, int *fd, struct cst_mem *mem,
                   struct cst_err *err);

/* Either kind. */
void cst_gpu_unmap(struct cst_gpu *gpu, struct cst_mem *mem);

/* Enqueue @dst := @src on @thread's stream; at least one of the two is memory of a GPU. */
int cst_gpu_enqueue_copy(struct cst_gpu *gpu, unsigned thread, struct cst_addr dst,
                         struct cst_addr src, uint64_t bytes, struct cst_err *err);

int cst_gpu_copy(struct cst_gpu *gpu, unsigned thread, struct cst_addr dst, struct cst_addr src,
                 uint64_t bytes, struct cst_err *err);
int cst_gpu_fill(struct cst_gpu *gpu, unsigned thread, struct cst_addr dst, uint64_t bytes,
                 struct cst_err *err);

/* @dst := bf16 of the @n fp32 values at @src, which is host memory; either kind of @dst. Of the
 * GPU's memory it takes 1 MiB for each thread that ever does. CST_ENOMEM. */
int cst_gpu_cast(struct cst_gpu *gpu, unsigned thread, struct cst_addr dst, struct cst_addr src,
                 uint64_t n, struct cst_err *err);

#endif
