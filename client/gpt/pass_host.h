/* SPDX-License-Identifier: Apache-2.0 */
/* The processor's row of client/gpt/pass.h: activations in host memory, products by oneDNN, layers
 * by layers.h. The reference for what a device computes. host_operators.c has the operators of a
 * dense model, host_moe.c those of a mixture, host_linear.c their products, host_memory.c the
 * activations, pass_host.c the way through them. */
#ifndef GPT_PASS_HOST_H
#define GPT_PASS_HOST_H

#include "client/gpt/layers.h"
#include "client/gpt/matmul.h"
#include "client/gpt/pass.h"

/* What a block keeps for the way back. "Operands" are bf16 or fp32, see layers.h. M: rows =
 * sequences x context, d: width. */
struct gpt_block {
    float *x;             /* M x d, what came in */
    void *ln1;            /* M x d operand */
    float *mean1, *rstd1; /* M */
    float *qkv;           /* M x 3d */
    void *att;            /* M x d operand */
    float *lse;           /* sequences x heads x context */
    float *mid;           /* M x d, after attention */
    void *ln2;            /* M x d operand */
    float *mean2, *rstd2; /* M */
    float *pre;           /* M x 4d, before GELU; of a mixture: NULL, as act */
    void *act;            /* M x 4d operand */
};

struct gpt_moe;

struct gpt_pass_host {
    struct gpt_pass head;
    struct gpt_matmul *mm;
    struct gpt_layers layers;
    bool bf16;                        /* operands are bf16 */
    struct gpt_attention_shape shape; /* of the pass under way */
    size_t rows;                      /* of the pass under way */
    struct gpt_moe *moe;              /* NULL: no mixture */
    void *memory;                     /* all below and the blocks' */
    struct gpt_block *blocks;
    float *x;             /* M x d, out of the last block */
    void *lnf;            /* M x d operand */
    float *meanf, *rstdf; /* M */
    float *logits;        /* M x GPT_VOCAB */
    void *dlogits;        /* M x GPT_VOCAB operand */
    float *losses;        /* M */
    double loss;          /* their mean */
    float *dx;            /* M x d, gradient of the residual stream */
    float *wide;          /* M x 4d, products on their way */
    void *dy;             /* M x 4d operand */
    float *weight;        /* largest tensor, weights as fp32 (without bf16 operands) */
    float *grad;          /* largest tensor or two, gradients on their way to bf16 */
    float *beside;        /* M x 4d, what an adapter adds; NULL: no adapters, as the next two */
    float *low;           /* M x lora, and a vector more */
    void *low_operand;    /* the same as an operand */
};

/* Make room for @max_seqs sequences. @bf16: operands; @n_threads: compute threads. CST_ENOMEM, and
 * those of gpt_matmul_open. To be called by the thread that will use it. */
int gpt_pass_host_open(struct gpt_pass **out, const struct gpt_model *model, size_t max_seqs,
                       bool bf16, unsigned n_threads, struct cst_err *err);

/* The blocks' memory and all arrays of @p, whose head and bf16 are set. CST_ENOMEM: what was made
 * is the caller's to free, in blocks and memory. */
int gpt_host_memory_open(struct gpt_pass_host *p, struct cst_err *err);

/* Bytes that operator @op keeps from its forward to its backward pass over @n_seqs sequences. Of an
 * expert: of its even share of the tokens of @world ranks. */
uint64_t gpt_host_kept_bytes(const struct gpt_model *model, const struct gpt_operator *op,
                             size_t n_seqs, bool bf16);

/* An operator's way, forwards or backwards, between op_begin and op_end. */
typedef int (*gpt_host_fn)(struct gpt_pass_host *p, const struct gpt_operator *op,
                           const struct cst_io *io, struct cst_err *err);

int gpt_host_embed(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                   struct cst_err *err);
int gpt_host_qkv(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                 struct cst_err *err);
int gpt_host_proj(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                  struct cst_err *err);
int gpt_host_fc(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                struct cst_err *err);
int gpt_host_fcproj(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                    struct cst_err *err);
int gpt_host_head(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                  struct cst_err *err);
int gpt_host_embed_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                            const struct cst_io *io, struct cst_err *err);
int gpt_host_qkv_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                          const struct cst_io *io, struct cst_err *err);
int gpt_host_proj_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                           const struct cst_io *io, struct cst_err *err);
int gpt_host_fc_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                         const struct cst_io *io, struct cst_err *err);
int gpt_host_fcproj_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                             const struct cst_io *io, struct cst_err *err);
int gpt_host_head_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                           const struct cst_io *io, struct cst_err *err);

/* -- products ---------------------------------------------------------------------------------- */

/* A product with a weight of the store. */
struct gpt_linear {
    size_t rows, in, out;      /* x: rows x in operand, y: rows x out */
    const struct cst_io *w;    /* in x out */
    const struct cst_io *b;    /* out; backward alone */
    const struct cst_io *lora; /* lora_a and lora_b; NULL: no adapter */
};

/* The linear of an operator of @p whose tensors w, b are io[at], io[at + 1], and the adapter's the
 * two behind where the model has adapters. Rows: the pass's. */
struct gpt_linear gpt_host_linear_of(const struct gpt_pass_host *p, const struct cst_io *io,
                                     size_t at, size_t in, size_t out);

/* y = x w + scale (x lora_a) lora_b; the bias is the caller's. */
int gpt_host_linear(struct gpt_pass_host *p, const struct gpt_linear *l, const void *x, float *y,
                    struct cst_err *err);

/* @dy: rows x out operand, @sums: its column sums. Gradients of w, b and the adapter go to the
 * store, frozen ones nowhere; dx (rows x in) is written. Uses p->grad, where @sums may lie behind 4
 * d d elements. */
int gpt_host_linear_backward(struct gpt_pass_host *p, const struct gpt_linear *l, const void *x,
                             const void *dy, const float *sums, float *dx, struct cst_err *err);

/* A weight matrix as an operand, until the next call. */
const void *gpt_host_operand(struct gpt_pass_host *p, const struct cst_io *io);

/* A gradient into the store, unless it is frozen. */
void gpt_host_put(struct gpt_pass_host *p, size_t n, const float *src, const struct cst_io *io);

/* Layer norm's way back: p->dx += gradient; the norm's own gradients into the store. */
void gpt_host_norm_backward(struct gpt_pass_host *p, const float *dy, const float *x,
                            const float *mean, const float *rstd, const struct cst_io *w,
                            const struct cst_io *b);

/* Where block @layer's output goes. */
float *gpt_host_block_out(const struct gpt_pass_host *p, uint32_t layer);

#endif
