/* SPDX-License-Identifier: Apache-2.0 */
/* Structure of the model: its tensors and operators, in the order in which they are declared to the
 * store. This module has no memory for weights and no arithmetic.
 *
 * Operators with their tensors, in the order of the forward pass. The backward pass is in the
 * opposite order.
 *   embed: wte wpe | per block: qkv: ln1.w ln1.b w b | proj: w b | fc: ln2.w ln2.b w b | fcproj: w
 *   b | head: lnf.w lnf.b wte
 * In a mixture of experts a block has the following operators in place of fc and fcproj:
 *   router: ln2.w ln2.b w | expert 0: fc.w fc.b fcproj.w fcproj.b | expert 1: ...
 * With adapters, qkv, proj, fc and fcproj have two more tensors at the end, lora_a and lora_b. The
 * adapters' tensors are declared after all other tensors, so that the base has the same
 * declarations as a model without adapters. */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include "client/gpt/options.h"
#include "cistern/pattern.h"

#include <stddef.h>
#include <stdint.h>

#define GPT_VOCAB 256        /* default vocabulary: one token per byte value */
#define GPT_MAX_OP_TENSORS 6 /* most tensors of an operator */
#define GPT_MAX_EXPERTS 1024 /* most experts of a block */
#define GPT_MAX_STAGES 64    /* most stages of a model */

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
    char name[64];    /* for example "h3.fc.w" */
    int64_t shape[2]; /* rows (inputs) and columns (outputs); of a vector, the length alone */
    uint32_t n_dims;  /* 1 or 2 */
    uint64_t n_elems;
    float decay_scale; /* factor on weight decay: 1 for matrices; 0 for biases, norms, embeddings */
    float mean;        /* mean of the initial weights */
    float deviation;   /* standard deviation of the initial weights */
    uint32_t group;    /* 0: all ranks hold the tensor; else see gpt_model_group */
    enum cst_pattern_kind pattern; /* shard, expert or frozen */
};

struct gpt_operator {
    char name[32]; /* for example "h3.fc" */
    enum gpt_op_kind kind;
    uint32_t layer;                  /* number of the block, from 0; 0 outside of blocks */
    uint32_t expert;                 /* number of the expert in its block, from 0 */
    int tensors[GPT_MAX_OP_TENSORS]; /* numbers in gpt_model, in the order above */
    uint32_t n_tensors;              /* entries in tensors */
};

struct gpt_model {
    uint32_t layers, heads, width, context; /* as in gpt_options */
    uint32_t vocab;                         /* tokens of the vocabulary */
    uint32_t experts, top_k, world;         /* as in gpt_options; experts 0: dense */
    float balance;                          /* as in gpt_options */
    uint32_t lora;                          /* rank of the adapters; 0: no adapters */
    uint32_t stages;                        /* as in gpt_options, or those of the pipeline */
    struct cst_value_list borders;          /* as in gpt_options */
    struct gpt_pipeline *pipeline;          /* of --parallel pipeline, owned; NULL: there is none */
    uint64_t ends;                  /* ranks of the pipeline's first and last stage, one bit each */
    float lora_scale;               /* factor on an adapter's output: alpha / rank */
    struct gpt_tensor *tensors;     /* in order of declaration */
    uint32_t n_tensors;             /* entries in tensors */
    struct gpt_operator *operators; /* in order of the forward pass */
    uint32_t n_operators;           /* entries in operators */
    uint32_t n_groups;              /* groups 1..n_groups */
    uint64_t n_params;              /* elements of all tensors */
};

/* Build the model of @options. The caller frees it with gpt_model_close. CST_ENOMEM, and the
 * statuses of gpt_pipeline_open. */
int gpt_model_init(struct gpt_model *model, const struct gpt_options *options, struct cst_err *err);
void gpt_model_close(struct gpt_model *model);

/* Ranks of group @group from 1 on, one bit each: rank @group - 1 alone or, after the groups of all
 * ranks, those of the pipeline's first and last stage, which share the token embedding. */
static inline uint64_t gpt_model_group(const struct gpt_model *model, uint32_t group)
{
    return group <= model->world ? UINT64_C(1) << (group - 1) : model->ends;
}

/* Stage of block @layer of @model, which has stages. Without borders, their numbers of blocks
 * differ by at most one. */
static inline uint32_t gpt_model_layer_stage(const struct gpt_model *model, uint32_t layer)
{
    uint32_t stage = 0;

    if (model->borders.n == 0) {
        return (uint32_t)((uint64_t)layer * model->stages / model->layers);
    }
    while (stage < model->borders.n && model->borders.v[stage] <= layer) {
        stage++;
    }
    return stage;
}

/* Stage of operator @op of @model, which has stages. The embedding is in the first one, and the
 * head in the last one. */
static inline uint32_t gpt_model_stage(const struct gpt_model *model, const struct gpt_operator *op)
{
    return op->kind == GPT_OP_HEAD ? model->stages - 1 : gpt_model_layer_stage(model, op->layer);
}

/* The largest number of blocks of a stage; all blocks in a model without stages. */
uint32_t gpt_model_stage_blocks(const struct gpt_model *model);

/* Rank of @world ranks that runs expert @expert. */
static inline uint32_t gpt_model_expert_rank(uint32_t expert, uint32_t world)
{
    return expert % world;
}

/* Operations of a training step per token: 6 per parameter that the token meets (2 forward, 4
 * backward: Kaplan et al. 2020), and 4 per frozen parameter. A mixture counts the parameters of
 * top_k experts only. Attention is not counted. */
double gpt_model_token_flops(const struct gpt_model *model);

/* Compute the initial values of elements [first, first + n) of @tensor into @out. Matrices are
 * random with GPT-2's standard deviations: 0.02, 0.01 for positions, and 0.02 / sqrt(2 layers) for
 * projections into the residual stream. lora_a has 1 / sqrt(rows), and lora_b is 0. Vectors are
 * constant. Each element is a function of (seed, tensor, element) and does not depend on
 * @n_threads. */
void gpt_model_initial(const struct gpt_model *model, uint64_t seed, uint32_t tensor,
                       uint64_t first, uint64_t n, unsigned n_threads, float *out);

#endif
