/* SPDX-License-Identifier: Apache-2.0 */
/* What the model is made of: its tensors and operators, in the order in which they are declared to
 * the store. No memory for weights and no arithmetic here.
 *
 * Operators, in the order of the forward pass; backwards they come in the opposite order:
 *   embed: wte wpe | per block: qkv: ln1.w ln1.b w b | proj: w b | fc: ln2.w ln2.b w b | fcproj: w
 *   b | head: lnf.w lnf.b wte
 * In a mixture of experts a block has, for fc and fcproj:
 *   router: ln2.w ln2.b w | expert 0: fc.w fc.b fcproj.w fcproj.b | expert 1: ...
 * With adapters qkv, proj, fc and fcproj have two more tensors at the end, lora_a and lora_b; these
 * are declared behind all others, so that the base is the one that a model without them has. */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include "client/gpt/options.h"
#include "cistern/pattern.h"

#include <stddef.h>
#include <stdint.h>

#define GPT_VOCAB 256        /* bytes */
#define GPT_MAX_OP_TENSORS 6 /* of an operator */
#define GPT_MAX_EXPERTS 1024 /* of a block */

enum gpt_op_kind {
    GPT_OP_EMBED,
    GPT_OP_QKV,
    GPT_OP_PROJ,
    GPT_OP_FC,
    GPT_OP_FCPROJ,
    GPT_OP_HEAD,
    GPT_OP_ROUTER,
    GPT_OP_EXPERT,
};

struct gpt_tensor {
    char name[64];                 /* "h3.fc.w" */
    int64_t shape[2];              /* rows (in), columns (out); a vector: its length */
    uint32_t n_dims;               /* 1 or 2 */
    uint64_t n_elems;              /* product of shape */
    float decay_scale;             /* 1 for matrices, 0 for biases, norms and embeddings */
    float mean;                    /* of the initial weights */
    float deviation;               /* of the initial weights */
    uint32_t group;                /* 0: all ranks hold it; g: rank g - 1 alone does */
    enum cst_pattern_kind pattern; /* shard, expert or frozen */
};

struct gpt_operator {
    char name[32];                   /* "h3.fc" */
    enum gpt_op_kind kind;           /* what it computes */
    uint32_t layer;                  /* of a block's operator, from 0 */
    uint32_t expert;                 /* of an expert, from 0 */
    int tensors[GPT_MAX_OP_TENSORS]; /* numbers, in the order above */
    uint32_t n_tensors;              /* of them */
};

struct gpt_model {
    uint32_t layers, heads, width, context; /* as in gpt_options */
    uint32_t experts, top_k, world;         /* likewise; experts 0: dense */
    float balance;                          /* likewise */
    uint32_t lora;                          /* rank of the adapters; 0: none */
    float lora_scale;                       /* what they are multiplied with: alpha / rank */
    struct gpt_tensor *tensors;             /* in order of declaration */
    uint32_t n_tensors;                     /* of them */
    struct gpt_operator *operators;         /* in order of the forward pass */
    uint32_t n_operators;                   /* of them */
    uint32_t n_groups;                      /* ranks that hold tensors alone: groups 1..n_groups */
    uint64_t n_params;                      /* elements of all tensors */
};

/* CST_ENOMEM. gpt_model_close frees. */
int gpt_model_init(struct gpt_model *model, const struct gpt_options *options, struct cst_err *err);
void gpt_model_close(struct gpt_model *model);

/* The rank of a world of @world that runs expert @expert. */
static inline uint32_t gpt_model_expert_rank(uint32_t expert, uint32_t world)
{
    return expert % world;
}

/* Operations of a training step for each token: 6 per parameter that it meets (2 forwards, 4
 * backwards: Kaplan et al. 2020), 4 where the parameter is frozen; of a mixture, those of top_k
 * experts alone. Attention is not counted. */
double gpt_model_token_flops(const struct gpt_model *model);

/* Initial values of elements [first, first + n) of @tensor: GPT-2's deviations (0.02, projections
 * into the residual stream divided by sqrt(2 layers)), each element a function of (seed, tensor,
 * element) alone, whatever @n_threads make them. */
void gpt_model_initial(const struct gpt_model *model, uint64_t seed, uint32_t tensor,
                       uint64_t first, uint64_t n, unsigned n_threads, float *out);

#endif
