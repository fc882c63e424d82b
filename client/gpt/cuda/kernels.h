/* The worker's own kernels on a GPU and how they are launched: everything between the matrix
 * products, and a plain product. Device code: kernels.cu and what it includes, in one fatbinary.
 * All launches are asynchronous; results depend on shapes and inputs alone. Rows and columns as in
 * client/gpt/layers.h; widths are multiples of 16, arrays 16-byte aligned. Statuses of
 * cst_cuda_check. */
#ifndef GPT_CUDA_KERNELS_H
#define GPT_CUDA_KERNELS_H

#include "client/gpt/cuda/args.h"
#include "kernels/cuda/driver.h"

#include <stdbool.h>
#include <stddef.h>

struct gpt_cuda_kernels {
    const struct cst_cuda_driver *driver; /* borrowed */
    CUstream stream;                      /* of all launches; borrowed */
    CUmodule module;                      /* the fatbinary, in the context of _open */
    CUfunction norm, norm_backward, columns, sums, gelu, gelu_backward, loss, embed, token_grad,
        position_grad, matmul; /* its kernels, named gpt_..._kernel */
};

/* Where a gradient goes, in the store's block. */
struct gpt_cuda_grad {
    CUdeviceptr at;  /* bf16 */
    bool accumulate; /* add to what is there */
};

/* Load them into the current context. On success: gpt_cuda_kernels_close, in the same context. */
int gpt_cuda_kernels_open(struct gpt_cuda_kernels *kernels, const struct cst_cuda_driver *driver,
                          CUstream stream, struct cst_err *err);
void gpt_cuda_kernels_close(struct gpt_cuda_kernels *kernels);

/* Bytes of scratch that the backward norm and the bias's gradient want for @rows x @width. */
size_t gpt_cuda_parts_bytes(size_t rows, size_t width);

/* sum := x + branch (bf16; 0: no branch, and sum is not written); y (bf16) := layer norm of it;
 * mean and rstd per row. */
int gpt_cuda_norm(const struct gpt_cuda_kernels *k, size_t rows, size_t width, CUdeviceptr x,
                  CUdeviceptr branch, CUdeviceptr w, CUdeviceptr b, CUdeviceptr sum, CUdeviceptr y,
                  CUdeviceptr mean, CUdeviceptr rstd, struct cst_err *err);

/* What came in and out of a norm, for the way back. */
struct gpt_cuda_norm_back {
    size_t rows, width;
    CUdeviceptr dy;              /* bf16 */
    CUdeviceptr x;               /* fp32, what the norm took */
    CUdeviceptr w;               /* bf16 */
    CUdeviceptr mean, rstd;      /* fp32 */
    bool first;                  /* dx holds nothing yet; else it is added to */
    CUdeviceptr dx;              /* fp32 */
    CUdeviceptr operand;         /* bf16 of dx */
    CUdeviceptr parts;           /* scratch */
    struct gpt_cuda_grad dw, db; /* 0: nowhere, both */
};

int gpt_cuda_norm_backward(const struct gpt_cuda_kernels *k, const struct gpt_cuda_norm_back *norm,
                           struct cst_err *err);

/* db := sums of dy (bf16) over the rows. */
int gpt_cuda_bias_grad(const struct gpt_cuda_kernels *k, size_t rows, size_t width, CUdeviceptr dy,
                       CUdeviceptr parts, struct gpt_cuda_grad db, struct cst_err *err);

/* act := gelu(pre); grad := grad gelu'(pre). @n elements of bf16. */
int gpt_cuda_gelu(const struct gpt_cuda_kernels *k, size_t n, CUdeviceptr pre, CUdeviceptr act,
                  struct cst_err *err);
int gpt_cuda_gelu_backward(const struct gpt_cuda_kernels *k, size_t n, CUdeviceptr pre,
                           CUdeviceptr grad, struct cst_err *err);

/* losses (fp32) and dlogits (bf16, x scale) of logits (fp32, rows x GPT_CUDA_VOCAB). */
int gpt_cuda_loss(const struct gpt_cuda_kernels *k, size_t rows, CUdeviceptr logits,
                  CUdeviceptr targets, float scale, CUdeviceptr losses, CUdeviceptr dlogits,
                  struct cst_err *err);

/* y (fp32) := wte[token] + wpe[position], and the way back over all @rows, whole sequences. */
int gpt_cuda_embed(const struct gpt_cuda_kernels *k, size_t rows, size_t width, size_t context,
                   CUdeviceptr tokens, CUdeviceptr wte, CUdeviceptr wpe, CUdeviceptr y,
                   struct cst_err *err);
int gpt_cuda_embed_backward(const struct gpt_cuda_kernels *k, size_t rows, size_t width,
                            size_t context, CUdeviceptr tokens, CUdeviceptr dx,
                            struct gpt_cuda_grad dwte, struct gpt_cuda_grad dwpe,
                            struct cst_err *err);

/* The plain product. */
int gpt_cuda_matmul(const struct gpt_cuda_kernels *k, const struct gpt_cuda_product *product,
                    struct cst_err *err);

#endif
