/* SPDX-License-Identifier: Apache-2.0 */
/* One GPU as the worker sees it: primary context, one stream for all work, kernels, cuBLASLt. And
 * memory and copies in the words that passes and stores use. */
#ifndef GPT_CUDA_GPU_H
#define GPT_CUDA_GPU_H

#include "client/gpt/cuda/attention.h"
#include "client/gpt/cuda/cublas.h"
#include "client/gpt/cuda/kernels.h"
#include "kernels/cuda/kernels.h"

struct gpt_gpu {
    struct cst_cuda_driver driver;
    CUdevice number;   /* in this process */
    CUcontext context; /* its primary one, retained */
    CUstream stream;   /* all work of this worker */
    struct gpt_cuda_kernels kernels;
    struct gpt_cuda_attention_kernels attention;
    struct cst_cuda_kernels states; /* adamw, reduce, norm, cast */
    struct gpt_cublas *cublas;      /* NULL: the plain product */
    char name[64];                  /* of the card */
    struct cst_err no_cublas;       /* why it is NULL */
};

/* Open the device that @name says: "cuda", "cuda:N", or (the beginning of) a UUID. @cublas: use it
 * if it is there. Its context is current in this thread afterwards. Statuses of
 * cst_cuda_driver_open, cst_cuda_find, cst_cuda_check; CST_ENOTFOUND: no device of that number. */
int gpt_gpu_open(struct gpt_gpu *gpu, const char *name, bool cublas, struct cst_err *err);

/* Waits for the stream. For one that was never opened, too, if it is all zeros. */
void gpt_gpu_close(struct gpt_gpu *gpu);

/* Make the context current in this thread. */
int gpt_gpu_enter(const struct gpt_gpu *gpu, struct cst_err *err);

/* Register host memory, of whole pages, so that copies to and from it go by themselves. What is
 * refused changes nothing else: copies are staged. */
int gpt_gpu_register(const struct gpt_gpu *gpu, void *base, size_t bytes, struct cst_err *err);
void gpt_gpu_unregister(const struct gpt_gpu *gpu, void *base);

/* Device memory, not cleared; host memory that copies can go to and from by themselves. */
int gpt_gpu_alloc(const struct gpt_gpu *gpu, size_t bytes, const char *what, CUdeviceptr *out,
                  struct cst_err *err);
int gpt_gpu_alloc_host(const struct gpt_gpu *gpu, size_t bytes, void **out, struct cst_err *err);
void gpt_gpu_free(const struct gpt_gpu *gpu, CUdeviceptr p); /* 0 is allowed */
void gpt_gpu_free_host(const struct gpt_gpu *gpu, void *p);  /* NULL is allowed */

/* Enqueue. */
int gpt_gpu_upload(const struct gpt_gpu *gpu, CUdeviceptr to, const void *from, size_t bytes,
                   struct cst_err *err);
int gpt_gpu_download(const struct gpt_gpu *gpu, void *to, CUdeviceptr from, size_t bytes,
                     struct cst_err *err);
int gpt_gpu_clear(const struct gpt_gpu *gpu, CUdeviceptr at, size_t bytes, struct cst_err *err);

/* Wait until all that was enqueued is done. */
int gpt_gpu_wait(const struct gpt_gpu *gpu, struct cst_err *err);

/* Enqueue a product, by cuBLASLt with the epilogue if it has one for the shape, else followed by a
 * kernel of our own; without cuBLASLt, and where a matrix's rows are no multiples of 8 elements,
 * all by our own: any size will do. GELU's epilogues have no scale. */
int gpt_gpu_product(const struct gpt_gpu *gpu, const struct gpt_product *p, struct cst_err *err);

/* Operations per second of a bf16 product of 8192 x 8192 x 8192, the best of some; waits.
 * CST_EUNSUPPORTED: without cuBLASLt. */
int gpt_gpu_measure(const struct gpt_gpu *gpu, double *out, struct cst_err *err);

#endif
