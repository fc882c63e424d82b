/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory for the activations of a pass on a GPU: one allocation that is divided once. M is
 * the number of rows of all sequences, d the width. */
#ifndef GPT_CUDA_ACTIVATIONS_H
#define GPT_CUDA_ACTIVATIONS_H

#include "client/gpt/cuda/gpu.h"
#include "client/gpt/stash.h"

/* What a block keeps for the backward pass: 36 d + 4 heads + 16 bytes per row. With recomputation
 * every block keeps its input (4 d bytes per row), and all blocks share one copy of the rest. */
struct gpt_block_memory {
    CUdeviceptr x;            /* M x d fp32: input of the block */
    CUdeviceptr ln1;          /* M x d bf16: first layer norm */
    CUdeviceptr mean1, rstd1; /* M fp32 each: statistics of ln1 */
    CUdeviceptr qkv;          /* M x 3d bf16: queries, keys, values */
    CUdeviceptr att;          /* M x d bf16: output of attention */
    CUdeviceptr lse;          /* sequences x heads x context fp32: log of the sum of exponentials */
    CUdeviceptr mid;          /* M x d fp32: residual stream after attention */
    CUdeviceptr ln2;          /* M x d bf16: second layer norm */
    CUdeviceptr mean2, rstd2; /* M fp32 each: statistics of ln2 */
    CUdeviceptr pre;          /* M x 4d bf16: before GELU; 0 in a mixture */
    CUdeviceptr act;          /* M x 4d bf16: after GELU; 0 in a mixture */
};

struct gpt_activations {
    CUdeviceptr memory;              /* allocation of all arrays */
    size_t bytes;                    /* bytes of memory */
    struct gpt_stash stash;          /* buffers of the blocks, which come first in memory */
    struct gpt_block_memory *blocks; /* one per layer; blocks can have the same buffer */
    struct gpt_block_memory shared;  /* with recomputation: the arrays that all blocks share */
    CUdeviceptr x;                   /* M x d fp32: output of the last block */
    CUdeviceptr lnf;                 /* M x d bf16: last layer norm */
    CUdeviceptr meanf, rstdf;        /* M fp32 each: statistics of lnf */
    CUdeviceptr logits;              /* M x GPT_VOCAB fp32 */
    CUdeviceptr dlogits;             /* M x GPT_VOCAB bf16 */
    CUdeviceptr losses;              /* M fp32: loss of each row */
    /* M x d bf16: output of a branch, before it is added to the residual stream */
    CUdeviceptr branch;
    CUdeviceptr dx;      /* M x d fp32: gradient of the residual stream */
    CUdeviceptr dxh;     /* M x d bf16: dx rounded */
    CUdeviceptr dh;      /* M x d bf16: gradient of a norm's result or of att */
    CUdeviceptr wide;    /* M x 4d bf16: gradient of pre or of qkv */
    CUdeviceptr parts;   /* scratch: sums of strips of a part's rows */
    CUdeviceptr scratch; /* scratch of the attention of a part */
    CUdeviceptr low;     /* rows of a part x lora bf16: result between an adapter's two products */
    CUdeviceptr tokens, targets; /* M bytes each */
};

/* What determines the memory of a pass. */
struct gpt_activation_size {
    const struct gpt_model *model;
    size_t max_seqs;  /* sequences of a pass */
    size_t part_seqs; /* most sequences that are computed at a time */
    bool shared;      /* recomputation, see gpt_block_memory */
    uint64_t limit;   /* most bytes; blocks beyond it are stashed (stash.h). 0: no limit */
};

/* As gpt_stash_plan_fit, for the blocks that a pass computes: in a model that is cut into stages,
 * those of one stage. With recomputation, only the input of a block is stashed. */
int gpt_activations_plan(const struct gpt_activation_size *size, struct gpt_stash_plan *out,
                         struct cst_err *err);

/* Returns the bytes of gpt_activations_open's memory that are counted for operator @number: the
 * arrays of a block for its first operator, and all others for the last operator of the model. */
uint64_t gpt_activations_bytes(const struct gpt_activation_size *size, uint32_t number);

/* Allocate the activations of a pass. The caller frees them with gpt_activations_close. CST_ENOMEM,
 * and the statuses of gpt_activations_plan. */
int gpt_activations_open(struct gpt_activations *a, const struct gpt_gpu *gpu,
                         const struct gpt_activation_size *size, struct cst_err *err);
void gpt_activations_close(struct gpt_activations *a, const struct gpt_gpu *gpu);

#endif
