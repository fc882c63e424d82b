/* SPDX-License-Identifier: Apache-2.0 */
/* The implementation of client/gpt/pass.h on the host processor: activations in host memory,
 * products by oneDNN, layers by layers.h. It is the reference for the results of other devices.
 *
 *   host_operators.c  operators of a dense model
 *   host_experts.c    operators of a mixture; host_moe.c transports the rows
 *   host_linear.c     products of an operator
 *   host_memory.c     activations
 *   host_unit.c       the arrays of a unit
 *   pass_host.c       the order of the operators */
#ifndef GPT_PASS_HOST_H
#define GPT_PASS_HOST_H

#include "client/gpt/layers.h"
#include "client/gpt/matmul.h"
#include "client/gpt/pass.h"
#include "client/gpt/stash.h"

/* What a block keeps for the backward pass. "Operands" are bf16 or fp32, see layers.h. M is the
 * number of rows, sequences x context; d is the width. */
struct gpt_block {
    float *x;             /* M x d: input of the block */
    void *ln1;            /* M x d operand: first layer norm */
    float *mean1, *rstd1; /* M each: statistics of ln1 */
    float *qkv;           /* M x 3d: queries, keys, values */
    void *att;            /* M x d operand: output of attention */
    float *lse;           /* sequences x heads x context: log of the sum of exponentials */
    float *mid;           /* M x d: residual stream after attention */
    void *ln2;            /* M x d operand: second layer norm */
    float *mean2, *rstd2; /* M each: statistics of ln2 */
    float *pre;           /* M x 4d: before GELU; NULL in a mixture */
    void *act;            /* M x 4d operand: after GELU; NULL in a mixture */
};

struct gpt_moe;

struct gpt_pass_host {
    struct gpt_pass head;
    struct gpt_matmul *mm;
    struct gpt_layers layers;
    bool bf16;                        /* operands are bf16 */
    struct gpt_attention_shape shape; /* shape of the pass under way */
    size_t rows;                      /* rows of the pass under way */
    struct gpt_moe *moe;              /* NULL: no mixture */
    struct gpt_stash stash;           /* buffers of the blocks */
    size_t memory_bytes;              /* size of `memory` */
    void *memory;                     /* allocation of all arrays below and of the blocks' arrays */
    struct gpt_block *blocks;         /* one per block; blocks can have the same buffer */
    float *x;                         /* M x d: output of the last block */
    void *lnf;                        /* M x d operand: last layer norm */
    float *meanf, *rstdf;             /* M each: statistics of lnf */
    float *logits;                    /* M x vocab */
    void *dlogits;                    /* M x vocab operand */
    float *losses;                    /* M: loss of each row */
    double loss;                      /* mean of losses */
    float *dx;                        /* M x d: gradient of the residual stream */
    float *wide;                      /* M x 4d: intermediate results of products */
    void *dy;                         /* M x 4d operand: gradient of a product's result */
    float *weight; /* size of the largest tensor: a weight as fp32, where operands are not bf16 */
    float *grad; /* twice the size of the largest tensor: fp32 gradients before rounding to bf16 */
    /* M x 4d: output of an adapter; NULL, as the next two fields, without adapters */
    float *beside;
    float *low;        /* M x lora, and GPT_SIMD_ELEMS more */
    void *low_operand; /* the values of low as an operand */
};

/* Open a pass with room for @max_seqs sequences, which holds at most @limit bytes of activations
 * (0: no limit). The thread that will use it calls this function. @bf16: operands are bf16.
 * @n_threads: compute threads. Statuses: CST_ENOMEM, and those of gpt_host_plan and
 * gpt_matmul_open. */
int gpt_pass_host_open(struct gpt_pass **out, const struct gpt_model *model, size_t max_seqs,
                       bool bf16, uint64_t limit, unsigned n_threads, struct cst_err *err);

/* Plan a pass over @n_seqs sequences that holds at most @limit bytes of activations, as
 * gpt_stash_plan_fit does. */
int gpt_host_plan(const struct gpt_model *model, size_t n_seqs, bool bf16, uint64_t limit,
                  struct gpt_stash_plan *out, struct cst_err *err);

/* Allocate all arrays of @p, whose head, bf16 and plan of the stash are set. CST_ENOMEM: the caller
 * frees p->blocks and p->memory. */
int gpt_host_memory_open(struct gpt_pass_host *p, struct cst_err *err);

/* Begin a pass over @n_seqs sequences. */
void gpt_host_begin(struct gpt_pass_host *p, size_t n_seqs);

/* Compute the loss from the logits, and its gradient. */
void gpt_host_loss(struct gpt_pass_host *p);

extern const struct gpt_unit_ops gpt_host_units;

/* Bytes that operator @op keeps from its forward pass over @n_seqs sequences to its backward pass.
 * An expert is assumed to receive an even share of the tokens of all ranks. */
uint64_t gpt_host_kept_bytes(const struct gpt_model *model, const struct gpt_operator *op,
                             size_t n_seqs, bool bf16);

/* An operator's forward or backward pass, between op_begin and op_end. @io has the operator's
 * tensors in order of declaration. */
typedef int gpt_host_fn(struct gpt_pass_host *p, const struct gpt_operator *op,
                        const struct cst_io *io, struct cst_err *err);

gpt_host_fn gpt_host_embed, gpt_host_qkv, gpt_host_proj, gpt_host_fc, gpt_host_fcproj,
    gpt_host_head, gpt_host_embed_backward, gpt_host_qkv_backward, gpt_host_proj_backward,
    gpt_host_fc_backward, gpt_host_fcproj_backward, gpt_host_head_backward;

/* -- products ---------------------------------------------------------------------------------- */

/* A product with a weight of the store. */
struct gpt_linear {
    size_t rows, in, out;      /* x: rows x in operand; y: rows x out */
    const struct cst_io *w;    /* in x out */
    const struct cst_io *b;    /* bias of out elements; used by the backward pass alone */
    const struct cst_io *lora; /* lora_a and lora_b; NULL: no adapter */
};

/* The product of an operator of @p whose weight is io[at] and whose bias is io[at + 1]. Where the
 * model has adapters, their tensors are io[at + 2] and io[at + 3]. The rows are those of the
 * pass. */
struct gpt_linear gpt_host_linear_of(const struct gpt_pass_host *p, const struct cst_io *io,
                                     size_t at, size_t in, size_t out);

/* y = x w + scale (x lora_a) lora_b. The caller adds the bias. */
int gpt_host_linear(struct gpt_pass_host *p, const struct gpt_linear *l, const void *x, float *y,
                    struct cst_err *err);

/* Backward pass of a product. @dy: rows x out operand; @sums: its column sums. The gradients of w,
 * b and the adapter are put into the store, except those of frozen tensors. dx (rows x in) is
 * overwritten. p->grad is scratch, except the part after 4 d d elements, where @sums may lie. */
int gpt_host_linear_backward(struct gpt_pass_host *p, const struct gpt_linear *l, const void *x,
                             const void *dy, const float *sums, float *dx, struct cst_err *err);

/* The weight of @io as an operand. The result is valid until the next call. */
const void *gpt_host_operand(struct gpt_pass_host *p, const struct cst_io *io);

/* Put a gradient of @n fp32 elements into the store's block, unless the tensor is frozen. */
void gpt_host_put(struct gpt_pass_host *p, size_t n, const float *src, const struct cst_io *io);

/* Backward pass of a layer norm: p->dx += gradient. The gradients of w and b are put into the
 * store. */
void gpt_host_norm_backward(struct gpt_pass_host *p, const float *dy, const float *x,
                            const float *mean, const float *rstd, const struct cst_io *w,
                            const struct cst_io *b);

/* Array for the output of block @layer. */
float *gpt_host_block_out(const struct gpt_pass_host *p, uint32_t layer);

#endif
