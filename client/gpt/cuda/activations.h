/* SPDX-License-Identifier: Apache-2.0 */
/* Where a pass on a GPU keeps what it computes: one allocation, carved once. M: rows of all
 * sequences, d: width. */
#ifndef GPT_CUDA_ACTIVATIONS_H
#define GPT_CUDA_ACTIVATIONS_H

#include "client/gpt/cuda/gpu.h"
#include "client/gpt/model.h"

/* What a block keeps for the way back: 36 d + 4 heads + 16 bytes per row; with recomputation 4 d,
 * and the rest once for all blocks. */
struct gpt_block_memory {
    CUdeviceptr x;            /* M x d fp32, what came in */
    CUdeviceptr ln1;          /* M x d bf16 */
    CUdeviceptr mean1, rstd1; /* M fp32 */
    CUdeviceptr qkv;          /* M x 3d bf16 */
    CUdeviceptr att;          /* M x d bf16 */
    CUdeviceptr lse;          /* sequences x heads x context fp32 */
    CUdeviceptr mid;          /* M x d fp32, after attention */
    CUdeviceptr ln2;          /* M x d bf16 */
    CUdeviceptr mean2, rstd2; /* M fp32 */
    CUdeviceptr pre;          /* M x 4d bf16, before GELU; of a mixture: 0, as act */
    CUdeviceptr act;          /* M x 4d bf16 */
};

struct gpt_activations {
    CUdeviceptr memory;              /* all below */
    size_t bytes;                    /* of it */
    struct gpt_block_memory *blocks; /* one per layer */
    CUdeviceptr x;                   /* M x d fp32, out of the last block */
    CUdeviceptr lnf;                 /* M x d bf16 */
    CUdeviceptr meanf, rstdf;        /* M fp32 */
    CUdeviceptr logits;              /* M x GPT_VOCAB fp32 */
    CUdeviceptr dlogits;             /* M x GPT_VOCAB bf16 */
    CUdeviceptr losses;              /* M fp32 */
    CUdeviceptr branch;              /* M x d bf16, on its way into the residual stream */
    CUdeviceptr dx;                  /* M x d fp32, gradient of the residual stream */
    CUdeviceptr dxh;                 /* M x d bf16, the same */
    CUdeviceptr dh;                  /* M x d bf16, gradient of a norm's result or of att */
    CUdeviceptr wide;                /* M x 4d bf16, gradient of pre or of qkv */
    CUdeviceptr parts;               /* sums of strips of a part's rows */
    CUdeviceptr scratch;             /* of the attention of a part */
    CUdeviceptr low;             /* a part's rows x lora bf16, between an adapter's two products */
    CUdeviceptr tokens, targets; /* M */
};

/* Room for @max_seqs sequences, of which @part_seqs are computed at a time. @shared: recomputation.
 */
int gpt_activations_open(struct gpt_activations *a, const struct gpt_gpu *gpu,
                         const struct gpt_model *model, size_t max_seqs, size_t part_seqs,
                         bool shared, struct cst_err *err);
void gpt_activations_close(struct gpt_activations *a, const struct gpt_gpu *gpu);

#endif
