/* SPDX-License-Identifier: Apache-2.0 */
/* Well-known models as declarations: tensors, operators in order, flops and activation bytes, so
 * that a plan needs no worker.
 *
 * Sources (b sequences of s tokens per micro-batch and rank, h = width, f = width of the
 * feed-forward network, V = size of the vocabulary):
 *
 *   - Flops: 2 x tokens x elements for each matrix, and 4 b s^2 h for attention. With f = 4 h a
 *     layer has 24 b s h^2 + 4 b s^2 h, as in Narayanan et al. 2021, "Efficient large-scale
 *     language model training", section 5.1. The head has 2 b s h V.
 *   - Kept activations: 34 b s h bytes per layer in bf16 (Korthikanti et al. 2022, "Reducing
 *     activation recomputation", equation 1, without the term of the attention scores, which a
 *     fused attention does not store). With recompute 2 b s h, the layer's input. The head's logits
 *     would be 4 b s V; here they are computed in parts and not kept.
 *   - Sizes: GPT-2: Radford et al. 2019, table 2. OPT: Zhang et al. 2022, table 1 (2050 positions).
 *     LLaMA: Touvron et al. 2023, table 2, with f = 11008, 13824, 17920, 22016. Megatron: Shoeybi
 *     et al. 2019, table 1. GPT-NeoX: Black et al. 2022, section 2.1. moe-8x124m: GPT-2
 *     124M with 8 experts for each feed-forward network, of which a token uses 2, distributed over
 *     the ranks. cistern-gpt: the reference worker with its default options (client/gpt/model.c),
 *     with bytes as vocabulary. */
#ifndef CST_PRESET_H
#define CST_PRESET_H

#include "offload/layout/layout.h"

struct cst_preset {
    const char *name; /* "opt-30b" for example. */
    uint32_t layers;
    uint32_t width;     /* The h of the formulas above. */
    uint32_t feed;      /* The f of the formulas above. */
    uint32_t heads;     /* Attention heads. */
    uint32_t vocab;     /* Rows of the embedding. */
    uint32_t positions; /* Rows of the position embedding; 0: there is none (rotary). */
    uint32_t context;   /* Default number of tokens of a sequence. */
    /* Three matrices in the feed-forward network, no biases, norms without bias (LLaMA). */
    bool gated;
    bool tied;          /* The head uses the embedding. */
    uint32_t n_experts; /* Experts of each feed-forward network; 0: it is dense. */
    uint32_t top_k;     /* Experts that a token uses. */
};

struct cst_preset_options {
    uint32_t world;   /* Number of ranks, for the experts; 0: 1. */
    uint32_t batch;   /* Sequences per micro-batch and rank; 0: 1. */
    uint32_t context; /* Tokens of a sequence; 0: the preset's default. */
    bool recompute;   /* Keep only each layer's input. */
};

/* Preset number @i, or NULL after the last one; the preset with the name @name, or NULL. */
const struct cst_preset *cst_preset(uint32_t i);
const struct cst_preset *cst_preset_find(const char *name);

/* Declare the preset into @model, which must be empty, and which the caller closes in any case.
 * CST_EINVAL, CST_ENOMEM as cst_model_tensor. */
int cst_preset_declare(struct cst_model *model, const struct cst_preset *preset,
                       const struct cst_preset_options *options, struct cst_err *err);

#endif
