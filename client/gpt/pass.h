/* One rank's way through the model, forwards and backwards: activations, matrix products and
 * layers, operator by operator between op_begin and op_end of the store. Holds activations, never
 * weights: those are the store's, and are seen only while an operator is begun. */
#ifndef GPT_PASS_H
#define GPT_PASS_H

#include "client/gpt/layers.h"
#include "client/gpt/matmul.h"
#include "client/gpt/model.h"
#include "client/gpt/store.h"

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

struct gpt_pass {
    const struct gpt_model *model; /* borrowed */
    struct gpt_matmul *mm;
    struct gpt_layers layers;
    bool bf16;                        /* operands are bf16 */
    size_t max_seqs;                  /* sequences that fit */
    struct gpt_attention_shape shape; /* of the pass under way */
    size_t rows;                      /* of the pass under way */
    void *memory;                     /* all below and the blocks' */
    struct gpt_block *blocks;
    float *x;                  /* M x d, out of the last block */
    void *lnf;                 /* M x d operand */
    float *meanf, *rstdf;      /* M */
    float *logits;             /* M x GPT_VOCAB */
    void *dlogits;             /* M x GPT_VOCAB operand */
    float *losses;             /* M */
    float *dx;                 /* M x d, gradient of the residual stream */
    float *wide;               /* M x 4d, products on their way */
    void *dy;                  /* M x 4d operand */
    float *weight;             /* largest tensor, weights as fp32 (without bf16 operands) */
    float *grad;               /* largest tensor or two, gradients on their way to bf16 */
    uint8_t *tokens, *targets; /* M; the caller fills them */
};

/* Make room for @max_seqs sequences. @bf16: operands; @n_threads: compute threads. CST_ENOMEM, and
 * those of gpt_matmul_open. To be called by the thread that will use it. gpt_pass_close frees. */
int gpt_pass_open(struct gpt_pass *pass, const struct gpt_model *model, size_t max_seqs, bool bf16,
                  unsigned n_threads, struct cst_err *err);
void gpt_pass_close(struct gpt_pass *pass);

/* All operators forwards over the first @n_seqs sequences of tokens. @loss_out, where not NULL: the
 * mean cross entropy against targets, and dlogits is made ready for the way back. logits hold the
 * result. Statuses of the store and gpt_matmul. */
int gpt_pass_forward(struct gpt_pass *pass, struct gpt_store *store, size_t n_seqs,
                     double *loss_out, struct cst_err *err);

/* All operators backwards, after a forward with a loss: every gradient is written into the store's
 * blocks. */
int gpt_pass_backward(struct gpt_pass *pass, struct gpt_store *store, struct cst_err *err);

#endif
