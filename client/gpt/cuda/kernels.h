/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's own kernels on a GPU and their launches: everything between the matrix products, and
 * a plain product. The device code is kernels.cu with the files that it includes, in one fatbinary.
 * All launches are asynchronous. Results depend on shapes and inputs alone. Rows and columns are as
 * in client/gpt/layers.h. Widths are multiples of 16, and arrays are 16-byte aligned. The statuses
 * are those of cst_cuda_check. */
#ifndef GPT_CUDA_KERNELS_H
#define GPT_CUDA_KERNELS_H

#include "client/gpt/cuda/args.h"
#include "kernels/cuda/driver.h"

#include <stdbool.h>
#include <stddef.h>

struct gpt_cuda_kernels {
    const struct cst_cuda_driver *driver; /* borrowed */
    CUstream stream;                      /* stream of all launches; borrowed */
    CUmodule module;                      /* the fatbinary, loaded in the context of _open */
    /* Kernels of the module, named gpt_..._kernel. */
    CUfunction norm, norm_backward, residual, round, columns, sums, gelu, gelu_backward, loss,
        embed, token_grad, position_grad, matmul, choose, choose_backward, gather, gather_gated,
        combine;
};

/* Destination of a gradient in the store's block. */
struct gpt_cuda_grad {
    CUdeviceptr at;  /* bf16 */
    bool accumulate; /* add to the values at the destination */
};

/* Load the kernels into the current context. The caller calls gpt_cuda_kernels_close in the same
 * context. */
int gpt_cuda_kernels_open(struct gpt_cuda_kernels *kernels, const struct cst_cuda_driver *driver,
                          CUstream stream, struct cst_err *err);
void gpt_cuda_kernels_close(struct gpt_cuda_kernels *kernels);

/* Bytes of scratch that gpt_cuda_norm_backward and gpt_cuda_bias_grad need for @rows x @width. The
 * bias may be 4 x @width wide. */
size_t gpt_cuda_parts_bytes(size_t rows, size_t width);

/* sum := x + branch (bf16). y (bf16) := layer norm of sum. mean and rstd are per row. @branch 0: y
 * is the layer norm of x, and sum is not written. */
int gpt_cuda_norm(const struct gpt_cuda_kernels *k, size_t rows, size_t width, CUdeviceptr x,
                  CUdeviceptr branch, CUdeviceptr w, CUdeviceptr b, CUdeviceptr sum, CUdeviceptr y,
                  CUdeviceptr mean, CUdeviceptr rstd, struct cst_err *err);

/* Arguments of a norm's backward pass. */
struct gpt_cuda_norm_back {
    size_t rows, width;
    CUdeviceptr dy;              /* bf16 */
    CUdeviceptr x;               /* fp32, input of the norm */
    CUdeviceptr w;               /* bf16 */
    CUdeviceptr mean, rstd;      /* fp32 */
    bool first;                  /* overwrite dx; else add to dx */
    CUdeviceptr dx;              /* fp32 */
    CUdeviceptr operand;         /* bf16, dx rounded */
    CUdeviceptr parts;           /* scratch, see gpt_cuda_parts_bytes */
    struct gpt_cuda_grad dw, db; /* address 0 in dw: neither gradient is computed */
};

int gpt_cuda_norm_backward(const struct gpt_cuda_kernels *k, const struct gpt_cuda_norm_back *norm,
                           struct cst_err *err);

/* sum (fp32) := x (fp32) + branch (bf16), and y (bf16) := x (fp32) rounded, for @n elements: as
 * gpt_cuda_norm and gpt_cuda_norm_backward do. */
int gpt_cuda_residual(const struct gpt_cuda_kernels *k, size_t n, CUdeviceptr x, CUdeviceptr branch,
                      CUdeviceptr sum, struct cst_err *err);
int gpt_cuda_round(const struct gpt_cuda_kernels *k, size_t n, CUdeviceptr x, CUdeviceptr y,
                   struct cst_err *err);

/* db := sums of dy (bf16) over the rows. @parts: scratch, see gpt_cuda_parts_bytes. */
int gpt_cuda_bias_grad(const struct gpt_cuda_kernels *k, size_t rows, size_t width, CUdeviceptr dy,
                       CUdeviceptr parts, struct gpt_cuda_grad db, struct cst_err *err);

/* act := gelu(pre), and grad := grad gelu'(pre), for @n elements of bf16. */
int gpt_cuda_gelu(const struct gpt_cuda_kernels *k, size_t n, CUdeviceptr pre, CUdeviceptr act,
                  struct cst_err *err);
int gpt_cuda_gelu_backward(const struct gpt_cuda_kernels *k, size_t n, CUdeviceptr pre,
                           CUdeviceptr grad, struct cst_err *err);

/* Compute losses (fp32) and dlogits (bf16, x scale) from logits (fp32, rows x GPT_CUDA_VOCAB). */
int gpt_cuda_loss(const struct gpt_cuda_kernels *k, size_t rows, CUdeviceptr logits,
                  CUdeviceptr targets, float scale, CUdeviceptr losses, CUdeviceptr dlogits,
                  struct cst_err *err);

/* y (fp32) := wte[token] + wpe[position]. The backward pass takes all @rows, which are whole
 * sequences. */
int gpt_cuda_embed(const struct gpt_cuda_kernels *k, size_t rows, size_t width, size_t context,
                   CUdeviceptr tokens, CUdeviceptr wte, CUdeviceptr wpe, CUdeviceptr y,
                   struct cst_err *err);
int gpt_cuda_embed_backward(const struct gpt_cuda_kernels *k, size_t rows, size_t width,
                            size_t context, CUdeviceptr tokens, CUdeviceptr dx,
                            struct gpt_cuda_grad dwte, struct gpt_cuda_grad dwpe,
                            struct cst_err *err);

/* The plain product, without cuBLASLt and tensor cores. */
int gpt_cuda_matmul(const struct gpt_cuda_kernels *k, const struct gpt_cuda_product *product,
                    struct cst_err *err);

/* -- a mixture (client/gpt/router.h) ---------------------------------------------------------- */

/* A choice is an index in the rows x top_k arrays: row c / top_k made choice c.
 *
 * probs holds the logits (fp32, rows x experts) and is overwritten with their softmax. chosen
 * (uint32) and gates (fp32) are rows x top_k. */
int gpt_cuda_choose(const struct gpt_cuda_kernels *k, size_t rows, uint32_t experts, uint32_t top_k,
                    CUdeviceptr probs, CUdeviceptr chosen, CUdeviceptr gates, struct cst_err *err);

struct gpt_cuda_choose_back {
    size_t rows, width;
    uint32_t experts, top_k;
    CUdeviceptr place;                /* uint32, by choice: the row of the choice in y */
    CUdeviceptr chosen, gates, probs; /* results of gpt_cuda_choose */
    CUdeviceptr shares;               /* fp32, one per expert: f_e */
    float scale;    /* factor that with f_e gives the gradient of the balance loss by p_e */
    CUdeviceptr y;  /* bf16: outputs of the experts */
    CUdeviceptr dx; /* fp32, rows x width: gradient of the rows */
    CUdeviceptr dz; /* bf16, rows x experts, overwritten: gradient of the logits */
};

int gpt_cuda_choose_backward(const struct gpt_cuda_kernels *k,
                             const struct gpt_cuda_choose_back *back, struct cst_err *err);

/* Row i of out (bf16, n x width) := the row of x (bf16) that made choice from[i], or gate x dx
 * (fp32) of this row. Where from[i] is GPT_CUDA_NO_ROW the row is zeros. Where from[i] is
 * GPT_CUDA_OTHERS_ROW the row is unchanged. */
int gpt_cuda_gather(const struct gpt_cuda_kernels *k, size_t n, size_t width, uint32_t top_k,
                    CUdeviceptr from, CUdeviceptr x, CUdeviceptr out, struct cst_err *err);
int gpt_cuda_gather_gated(const struct gpt_cuda_kernels *k, size_t n, size_t width, uint32_t top_k,
                          CUdeviceptr from, CUdeviceptr gates, CUdeviceptr dx, CUdeviceptr out,
                          struct cst_err *err);

/* out (bf16, rows x width) := sum over a row's choices of gate x y[place]. @gates 0: all gates are
 * 1. */
int gpt_cuda_combine(const struct gpt_cuda_kernels *k, size_t rows, size_t width, uint32_t top_k,
                     CUdeviceptr place, CUdeviceptr gates, CUdeviceptr y, CUdeviceptr out,
                     struct cst_err *err);

#endif
