/* What the model is made of: its tensors and operators, in the order in which they are declared to
 * the store. No memory for weights and no arithmetic here.
 *
 * Operators, in the order of the forward pass; backwards they come in the opposite order:
 *   embed: wte wpe | per block: qkv: ln1.w ln1.b w b | proj: w b | fc: ln2.w ln2.b w b | fcproj: w
 * b | head: lnf.w lnf.b wte */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include "client/gpt/options.h"

#include <stddef.h>
#include <stdint.h>

#define GPT_VOCAB 256        /* bytes */
#define GPT_MAX_OP_TENSORS 4 /* of an operator */

enum gpt_op_kind { GPT_OP_EMBED, GPT_OP_QKV, GPT_OP_PROJ, GPT_OP_FC, GPT_OP_FCPROJ, GPT_OP_HEAD };

struct gpt_tensor {
    char name[32];     /* "h3.fc.w" */
    int64_t shape[2];  /* rows (in), columns (out); a vector: its length */
    uint32_t n_dims;   /* 1 or 2 */
    uint64_t n_elems;  /* product of shape */
    float decay_scale; /* 1 for matrices, 0 for biases, norms and embeddings */
    float mean;        /* of the initial weights */
    float deviation;   /* of the initial weights */
};

struct gpt_operator {
    char name[32];                   /* "h3.fc" */
    enum gpt_op_kind kind;           /* what it computes */
    uint32_t layer;                  /* of a block's operator, from 0 */
    int tensors[GPT_MAX_OP_TENSORS]; /* numbers, in the order above */
    uint32_t n_tensors;              /* of them */
};

struct gpt_model {
    uint32_t layers, heads, width, context; /* as in gpt_options */
    struct gpt_tensor *tensors;             /* in order of declaration */
    uint32_t n_tensors;                     /* of them */
    struct gpt_operator *operators;         /* in order of the forward pass */
    uint32_t n_operators;                   /* of them */
    uint64_t n_params;                      /* elements of all tensors */
};

/* CST_ENOMEM. gpt_model_close frees. */
int gpt_model_init(struct gpt_model *model, const struct gpt_options *options, struct cst_err *err);
void gpt_model_close(struct gpt_model *model);

/* Initial values of elements [first, first + n) of @tensor: GPT-2's deviations (0.02, projections
 * into the residual stream divided by sqrt(2 layers)), each element a function of (seed, tensor,
 * element) alone, whatever @n_threads make them. */
void gpt_model_initial(const struct gpt_model *model, uint64_t seed, uint32_t tensor,
                       uint64_t first, uint64_t n, unsigned n_threads, float *out);

#endif
