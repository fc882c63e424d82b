/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a pass on a GPU share: pass.c (the way through the operators), operators.c
 * (those of a dense model), linear.c (their products and norms), moe.h (a mixture's). */
#ifndef GPT_CUDA_PASS_INSIDE_H
#define GPT_CUDA_PASS_INSIDE_H

#include "client/gpt/cuda/activations.h"
#include "client/gpt/cuda/pass.h"

struct gpt_cuda_moe;

struct gpt_cuda_pass {
    struct gpt_pass head;
    const struct gpt_gpu *gpu;      /* borrowed */
    struct gpt_activations a;       /* device memory */
    struct gpt_cuda_moe *moe;       /* NULL: no mixture */
    bool recompute;                 /* blocks share all but their input */
    size_t part_seqs;               /* sequences of a part, at most */
    size_t n_seqs;                  /* of the pass under way */
    struct gpt_attention_shape all; /* of the pass under way */
    uint32_t at_hand;               /* with recompute: the layer whose activations there are */
    CUevent known;                  /* the losses have come */
    float *losses;                  /* pinned, max rows */
    float *logits;                  /* pinned, a row */
};

/* Rows of the pass that are computed together. */
struct gpt_cuda_part {
    size_t row, rows;                 /* first and how many */
    struct gpt_attention_shape shape; /* of its sequences */
    bool first;                       /* of the operator: gradients go as the store says */
};

static inline CUdeviceptr gpt_cuda_device(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

/* The rows of @part of an array of bf16 or fp32. */
static inline CUdeviceptr gpt_cuda_rows16(CUdeviceptr base, const struct gpt_cuda_part *part,
                                          size_t width)
{
    return base + part->row * width * sizeof(uint16_t);
}

static inline CUdeviceptr gpt_cuda_rows32(CUdeviceptr base, const struct gpt_cuda_part *part,
                                          size_t width)
{
    return base + part->row * width * sizeof(float);
}

/* An operator's way, forwards or backwards, between op_begin and op_end, over one part. */
typedef int (*gpt_cuda_fn)(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                           const struct gpt_cuda_part *part, const struct cst_io *io,
                           struct cst_err *err);

int gpt_cuda_op_embed(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                      const struct gpt_cuda_part *part, const struct cst_io *io,
                      struct cst_err *err);
int gpt_cuda_op_qkv(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                    const struct gpt_cuda_part *part, const struct cst_io *io, struct cst_err *err);
int gpt_cuda_op_proj(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                     const struct gpt_cuda_part *part, const struct cst_io *io,
                     struct cst_err *err);
int gpt_cuda_op_fc(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                   const struct gpt_cuda_part *part, const struct cst_io *io, struct cst_err *err);
int gpt_cuda_op_fcproj(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                       const struct gpt_cuda_part *part, const struct cst_io *io,
                       struct cst_err *err);
int gpt_cuda_op_head(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                     const struct gpt_cuda_part *part, const struct cst_io *io,
                     struct cst_err *err);
int gpt_cuda_op_embed_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                               const struct gpt_cuda_part *part, const struct cst_io *io,
                               struct cst_err *err);
int gpt_cuda_op_qkv_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                             const struct gpt_cuda_part *part, const struct cst_io *io,
                             struct cst_err *err);
int gpt_cuda_op_proj_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                              const struct gpt_cuda_part *part, const struct cst_io *io,
                              struct cst_err *err);
int gpt_cuda_op_fc_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                            const struct gpt_cuda_part *part, const struct cst_io *io,
                            struct cst_err *err);
int gpt_cuda_op_fcproj_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                                const struct gpt_cuda_part *part, const struct cst_io *io,
                                struct cst_err *err);
int gpt_cuda_op_head_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                              const struct gpt_cuda_part *part, const struct cst_io *io,
                              struct cst_err *err);

/* -- pieces of operators ----------------------------------------------------------------------- */

/* Where the gradient of a tensor goes; 0: it is frozen. Later parts of an operator add to what the
 * first one wrote. */
struct gpt_cuda_grad gpt_cuda_grad_of(const struct cst_io *io, bool first);

/* A product with a weight of the store. */
struct gpt_cuda_linear {
    size_t rows, k, n;         /* x: rows x k bf16, y: rows x n */
    const struct cst_io *w;    /* k x n */
    const struct cst_io *bias; /* n */
    const struct cst_io *lora; /* lora_a and lora_b; NULL: no adapter */
    bool first;                /* as in gpt_cuda_part */
    CUdeviceptr parts;         /* scratch for the bias's gradient */
};

/* The linear of an operator over @part whose tensors w, b are io[at], io[at + 1], and the adapter's
 * the two behind where the model has adapters. */
struct gpt_cuda_linear gpt_cuda_linear_of(const struct gpt_cuda_pass *p,
                                          const struct gpt_cuda_part *part, const struct cst_io *io,
                                          size_t at, size_t k, size_t n);

/* y = x w + bias + scale (x lora_a) lora_b; with a @pre that is pre, and y its GELU. */
int gpt_cuda_linear(const struct gpt_cuda_pass *p, const struct gpt_cuda_linear *l, CUdeviceptr x,
                    CUdeviceptr pre, CUdeviceptr y, struct cst_err *err);

/* Gradients of w, bias and the adapter into the store, of what is frozen nowhere; dx (rows x k),
 * through GELU where there is a @pre. */
int gpt_cuda_linear_backward(const struct gpt_cuda_pass *p, const struct gpt_cuda_linear *l,
                             CUdeviceptr x, CUdeviceptr dy, CUdeviceptr pre, CUdeviceptr dx,
                             struct cst_err *err);

/* The rows of @part: y := layer norm of sum := x + branch; @branch 0: of x. */
int gpt_cuda_norm_rows(const struct gpt_cuda_pass *p, const struct gpt_cuda_part *part,
                       CUdeviceptr x, CUdeviceptr branch, const struct cst_io *io, CUdeviceptr sum,
                       CUdeviceptr y, CUdeviceptr mean, CUdeviceptr rstd, struct cst_err *err);

/* The gradient of the residual stream, from a.dh; @first: it begins here. */
int gpt_cuda_norm_rows_backward(const struct gpt_cuda_pass *p, const struct gpt_cuda_part *part,
                                CUdeviceptr x, CUdeviceptr mean, CUdeviceptr rstd,
                                const struct cst_io *io, bool first, struct cst_err *err);

#endif
