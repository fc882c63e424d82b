/* SPDX-License-Identifier: Apache-2.0 */
/* One GPU as the worker uses it: its primary context, one stream for all work, kernels and
 * cuBLASLt, and functions for memory and copies that passes and stores use. */
#ifndef GPT_CUDA_GPU_H
#define GPT_CUDA_GPU_H

#include "client/gpt/cuda/attention.h"
#include "client/gpt/cuda/cublas.h"
#include "client/gpt/cuda/kernels.h"
#include "kernels/cuda/kernels.h"

struct gpt_gpu {
    struct cst_cuda_driver driver;
    CUdevice number;   /* number of the device in this process */
    CUcontext context; /* primary context, retained */
    CUstream stream;   /* stream of all work of this worker */
    struct gpt_cuda_kernels kernels;
    struct gpt_cuda_attention_kernels attention;
    struct cst_cuda_kernels states; /* the states' kernels: adamw, reduce, norm, cast */
    struct gpt_cublas *cublas;      /* NULL: the plain product is used */
    char name[64];                  /* name of the GPU */
    struct cst_err no_cublas;       /* reason why cublas is NULL */
};

/* Open the device that @name names: "cuda", "cuda:N", or (the beginning of) a UUID. @cublas: use
 * cuBLASLt if it is available. The device's context is current in this thread afterwards. The
 * caller closes @gpu. Statuses: those of cst_cuda_driver_open, cst_cuda_find and cst_cuda_check;
 * CST_ENOTFOUND: no device has this number. */
int gpt_gpu_open(struct gpt_gpu *gpu, const char *name, bool cublas, struct cst_err *err);

/* Wait for the stream and free everything. A @gpu of zeros that was never opened is allowed. */
void gpt_gpu_close(struct gpt_gpu *gpu);

int gpt_gpu_enter(const struct gpt_gpu *gpu, struct cst_err *err);

/* Allocate device memory, which is not cleared, or pinned host memory, for asynchronous copies.
 * @what names the memory in the error's text. The caller frees it. */
int gpt_gpu_alloc(const struct gpt_gpu *gpu, size_t bytes, const char *what, CUdeviceptr *out,
                  struct cst_err *err);
int gpt_gpu_alloc_host(const struct gpt_gpu *gpu, size_t bytes, void **out, struct cst_err *err);
void gpt_gpu_free(const struct gpt_gpu *gpu, CUdeviceptr p); /* 0 is allowed */
void gpt_gpu_free_host(const struct gpt_gpu *gpu, void *p);  /* NULL is allowed */

/* Enqueue a copy or a memset on the stream. Host memory must stay valid until the stream has
 * executed the copy. */
int gpt_gpu_upload(const struct gpt_gpu *gpu, CUdeviceptr to, const void *from, size_t bytes,
                   struct cst_err *err);
int gpt_gpu_download(const struct gpt_gpu *gpu, void *to, CUdeviceptr from, size_t bytes,
                     struct cst_err *err);
int gpt_gpu_copy(const struct gpt_gpu *gpu, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                 struct cst_err *err);
int gpt_gpu_clear(const struct gpt_gpu *gpu, CUdeviceptr at, size_t bytes, struct cst_err *err);

/* Wait until the stream has executed all that was enqueued. */
int gpt_gpu_wait(const struct gpt_gpu *gpu, struct cst_err *err);

/* Enqueue a product of any size. The implementation is:
 *   - cuBLASLt with the epilogue, if it has one for the shape
 *   - cuBLASLt and a GELU kernel after it, where cuBLASLt has no such epilogue or refuses it
 *   - the plain product and a GELU kernel after it, without cuBLASLt, where cuBLASLt refuses the
 *     product, or where a matrix's rows are no multiples of 8 elements
 *
 * A product with a GELU epilogue must have scale 1. */
int gpt_gpu_product(const struct gpt_gpu *gpu, const struct gpt_product *p, struct cst_err *err);

#endif
