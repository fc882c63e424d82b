/* SPDX-License-Identifier: Apache-2.0 */
/* Well-known models as declarations: tensors, operators in order, flops and activation bytes, so
 * that a plan needs no worker.
 *
 * Where the numbers come from (b sequences of s tokens per micro-batch and rank, width h, f = width
 * of the feed-forward, V = vocabulary): flops    2 x tokens x elements for every matrix, 4 b s^2 h
 * for attention; with f = 4 h a layer has 24 b s h^2 + 4 b s^2 h, as in Narayanan et al. 2021,
 * "Efficient large-scale language model training", section 5.1; the head 2 b s h V kept     34 b s
 * h bytes a layer in bf16 (Korthikanti et al. 2022, "Reducing activation recomputation", equation
 * 1, without the term of the attention scores, which a fused attention does not store); with
 * recompute 2 b s h, the layer's input; the head's logits 4 b s V where they are not made in parts
 * (they are here: none) sizes    GPT-2: Radford et al. 2019, table 2. OPT: Zhang et al. 2022, table
 * 1 (2050 positions). LLaMA: Touvron et al. 2023, table 2, with f = 11008, 13824, 17920, 22016.
 * moe-8x124m: GPT-2 124M with 8 experts for each feed-forward, of which a token takes 2, dealt out
 *            over the ranks. cistern-gpt: the reference worker with its default options
 * (client/gpt/model.c), bytes as vocabulary. */
#ifndef CST_PRESET_H
#define CST_PRESET_H

#include "offload/layout.h"

struct cst_preset {
    const char *name; /* "opt-30b" */
    uint32_t layers;
    uint32_t width;     /* h */
    uint32_t feed;      /* f */
    uint32_t vocab;     /* rows of the embedding */
    uint32_t positions; /* rows of the position embedding; 0: there is none (rotary) */
    uint32_t context;   /* tokens of a sequence, unless told otherwise */
    bool gated; /* three matrices in the feed-forward, no biases, norms without bias (LLaMA) */
    bool tied;  /* the head uses the embedding */
    uint32_t n_experts; /* of each feed-forward; 0: it is dense */
    uint32_t top_k;     /* experts that a token takes */
};

struct cst_preset_options {
    uint32_t world;   /* ranks, for the experts; 0: 1 */
    uint32_t batch;   /* sequences per micro-batch and rank; 0: 1 */
    uint32_t context; /* tokens; 0: the preset's */
    bool recompute;   /* only each layer's input is kept */
};

/* The @i-th, NULL behind the last one; the one called @name, or NULL. */
const struct cst_preset *cst_preset(uint32_t i);
const struct cst_preset *cst_preset_find(const char *name);

/* Declare it into @model, which is empty and to be closed whatever comes back. CST_EINVAL,
 * CST_ENOMEM as cst_model_tensor. */
int cst_preset_declare(struct cst_model *model, const struct cst_preset *preset,
                       const struct cst_preset_options *options, struct cst_err *err);

#endif
