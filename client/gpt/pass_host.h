/* The processor's row of client/gpt/pass.h: activations in host memory, products by oneDNN, layers
 * by layers.h. The reference for what a device computes. */
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
    float *pre;           /* M x 4d, before GELU */
    void *act;            /* M x 4d operand */
};

struct gpt_pass_host {
    struct gpt_pass head;
    struct gpt_matmul *mm;
    struct gpt_layers layers;
    bool bf16;                        /* operands are bf16 */
    struct gpt_attention_shape shape; /* of the pass under way */
    size_t rows;                      /* of the pass under way */
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
};

/* Make room for @max_seqs sequences. @bf16: operands; @n_threads: compute threads. CST_ENOMEM, and
 * those of gpt_matmul_open. To be called by the thread that will use it. */
int gpt_pass_host_open(struct gpt_pass **out, const struct gpt_model *model, size_t max_seqs,
                       bool bf16, unsigned n_threads, struct cst_err *err);

#endif
