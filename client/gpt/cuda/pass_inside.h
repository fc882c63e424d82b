/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions shared by the files of a pass on a GPU: pass.c (order of the operators), operators.c
 * (operators of a dense model), linear.c (products and norms), unit.c (one stage of a model) and
 * moe.h (mixture). */
#ifndef GPT_CUDA_PASS_INSIDE_H
#define GPT_CUDA_PASS_INSIDE_H

#include "client/gpt/cuda/activations.h"
#include "client/gpt/cuda/pass.h"

struct gpt_cuda_moe;

struct gpt_cuda_pass {
    struct gpt_pass head;
    const struct gpt_gpu *gpu;      /* borrowed */
    struct gpt_activations a;       /* activations in device memory */
    struct gpt_cuda_moe *moe;       /* NULL: no mixture */
    bool recompute;                 /* blocks share all activations except their input */
    size_t part_seqs;               /* most sequences of a part */
    size_t n_seqs;                  /* sequences of the pass under way */
    struct gpt_attention_shape all; /* shape of the pass under way */
    uint32_t first, last;           /* blocks of the pass under way: the first and the last one */
    uint32_t at_hand;               /* with recompute: the layer whose activations are in memory */
    CUevent uploaded;      /* recorded when token_bytes and target_bytes may be overwritten */
    CUevent known;         /* recorded when losses has the results */
    float *losses;         /* pinned, one per row: copy of the device's losses */
    uint8_t *token_bytes;  /* pinned, one per row: copy of head.tokens */
    uint8_t *target_bytes; /* pinned, one per row: copy of head.targets */
    float *logits;         /* pinned: logits of one row */
};

/* Begin a pass through the blocks @first to @last over @n_seqs sequences: upload the tokens, and
 * with @train the targets. */
int gpt_cuda_begin(struct gpt_cuda_pass *p, size_t n_seqs, uint32_t first, uint32_t last,
                   bool train, struct cst_err *err);

/* Enqueue losses and dlogits of all rows, and the copy of the losses to the host. */
int gpt_cuda_enqueue_loss(struct gpt_cuda_pass *p, struct cst_err *err);

extern const struct gpt_unit_ops gpt_cuda_units;

/* Rows of the pass that are computed together. */
struct gpt_cuda_part {
    size_t row, rows;                 /* first row, and number of rows */
    struct gpt_attention_shape shape; /* shape of the part's sequences */
    bool first; /* first part of the operator: gradients are written or added as the store says */
};

static inline CUdeviceptr gpt_cuda_device(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

/* Address of the rows of @part in an array of bf16, or of fp32. */
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

/* An operator's forward or backward pass over one part, between op_begin and op_end. @io has the
 * operator's tensors in order of declaration. */
typedef int gpt_cuda_fn(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                        const struct gpt_cuda_part *part, const struct cst_io *io,
                        struct cst_err *err);

gpt_cuda_fn gpt_cuda_op_embed, gpt_cuda_op_qkv, gpt_cuda_op_proj, gpt_cuda_op_fc,
    gpt_cuda_op_fcproj, gpt_cuda_op_head, gpt_cuda_op_embed_backward, gpt_cuda_op_qkv_backward,
    gpt_cuda_op_proj_backward, gpt_cuda_op_fc_backward, gpt_cuda_op_fcproj_backward,
    gpt_cuda_op_head_backward;

/* -- pieces of operators ----------------------------------------------------------------------- */

/* Destination of a tensor's gradient; address 0: the tensor is frozen. Later parts of an operator
 * add to the gradient of the first part. */
struct gpt_cuda_grad gpt_cuda_grad_of(const struct cst_io *io, bool first);

/* A product with a weight of the store. */
struct gpt_cuda_linear {
    size_t rows, k, n;         /* x: rows x k bf16; y: rows x n */
    const struct cst_io *w;    /* k x n */
    const struct cst_io *bias; /* n elements */
    const struct cst_io *lora; /* lora_a and lora_b; NULL: no adapter */
    bool first;                /* as in gpt_cuda_part */
    CUdeviceptr parts;         /* scratch for the bias's gradient */
};

/* The product of an operator over @part whose weight is io[at] and whose bias is io[at + 1]. Where
 * the model has adapters, their tensors are io[at + 2] and io[at + 3]. */
struct gpt_cuda_linear gpt_cuda_linear_of(const struct gpt_cuda_pass *p,
                                          const struct gpt_cuda_part *part, const struct cst_io *io,
                                          size_t at, size_t k, size_t n);

/* y = x w + bias + scale (x lora_a) lora_b. With a @pre, this sum is written to pre, and y is its
 * GELU. */
int gpt_cuda_linear(const struct gpt_cuda_pass *p, const struct gpt_cuda_linear *l, CUdeviceptr x,
                    CUdeviceptr pre, CUdeviceptr y, struct cst_err *err);

/* Backward pass of a product. The gradients of w, bias and the adapter are written into the store,
 * except those of frozen tensors. dx (rows x k) is overwritten. With a @pre, dx is the gradient of
 * pre, through GELU. */
int gpt_cuda_linear_backward(const struct gpt_cuda_pass *p, const struct gpt_cuda_linear *l,
                             CUdeviceptr x, CUdeviceptr dy, CUdeviceptr pre, CUdeviceptr dx,
                             struct cst_err *err);

/* For the rows of @part: sum := x + branch; y := layer norm of sum. @branch 0: y is the layer norm
 * of x. */
int gpt_cuda_norm_rows(const struct gpt_cuda_pass *p, const struct gpt_cuda_part *part,
                       CUdeviceptr x, CUdeviceptr branch, const struct cst_io *io, CUdeviceptr sum,
                       CUdeviceptr y, CUdeviceptr mean, CUdeviceptr rstd, struct cst_err *err);

/* Add the norm's gradient, from a.dh, to the gradient of the residual stream. @first: overwrite the
 * latter. */
int gpt_cuda_norm_rows_backward(const struct gpt_cuda_pass *p, const struct gpt_cuda_part *part,
                                CUdeviceptr x, CUdeviceptr mean, CUdeviceptr rstd,
                                const struct cst_io *io, bool first, struct cst_err *err);

#endif
