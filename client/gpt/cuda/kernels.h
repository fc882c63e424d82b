/* SPDX-License-Identifier: Apache-2.0 */
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
        position_grad, matmul, choose, choose_backward, gather, gather_gated,
        combine; /* its kernels, named gpt_..._kernel */
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

/* -- a mixture (client/gpt/router.h). A choice is a place in rows x top_k; row c / top_k made it.
 * -- */

/* probs (fp32, rows x experts) := softmax of the logits that are there; chosen (uint32) and gates
 * (fp32), rows x top_k. */
int gpt_cuda_choose(const struct gpt_cuda_kernels *k, size_t rows, uint32_t experts, uint32_t top_k,
                    CUdeviceptr probs, CUdeviceptr chosen, CUdeviceptr gates, struct cst_err *err);

struct gpt_cuda_choose_back {
    size_t rows, width;
    uint32_t experts, top_k;
    CUdeviceptr place;                /* uint32, by choice: the row of y */
    CUdeviceptr chosen, gates, probs; /* as gpt_cuda_choose made them */
    CUdeviceptr shares;               /* fp32, experts: f_e */
    float scale;                      /* of the balance loss by p_e, before f_e */
    CUdeviceptr y;                    /* bf16, results of experts */
    CUdeviceptr dx;                   /* fp32, rows x width: gradient of the rows */
    CUdeviceptr dz;                   /* bf16, rows x experts: out, gradient of the logits */
};

int gpt_cuda_choose_backward(const struct gpt_cuda_kernels *k,
                             const struct gpt_cuda_choose_back *back, struct cst_err *err);

/* Row i of out (bf16, n x width) := the row of x (bf16) that made choice from[i], or gate x dx
 * (fp32) of it; zeros for GPT_CUDA_NO_ROW, untouched for GPT_CUDA_OTHERS_ROW. */
int gpt_cuda_gather(const struct gpt_cuda_kernels *k, size_t n, size_t width, uint32_t top_k,
                    CUdeviceptr from, CUdeviceptr x, CUdeviceptr out, struct cst_err *err);
int gpt_cuda_gather_gated(const struct gpt_cuda_kernels *k, size_t n, size_t width, uint32_t top_k,
                          CUdeviceptr from, CUdeviceptr gates, CUdeviceptr dx, CUdeviceptr out,
                          struct cst_err *err);

/* out (bf16, rows x width) := sum over a row's choices of gate x y[place]; @gates 0: of y[place].
 */
int gpt_cuda_combine(const struct gpt_cuda_kernels *k, size_t rows, size_t width, uint32_t top_k,
                     CUdeviceptr place, CUdeviceptr gates, CUdeviceptr y, CUdeviceptr out,
                     struct cst_err *err);

#endif
