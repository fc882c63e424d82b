/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions shared by moe.c (placement of rows), moe_memory.c, moe_peers.c (transport to other
 * ranks) and experts.c (operators). */
#ifndef GPT_CUDA_MOE_INSIDE_H
#define GPT_CUDA_MOE_INSIDE_H

#include "client/gpt/cuda/moe.h"
#include "client/gpt/exchange.h"

/* Device memory that grows on demand and never shrinks. */
struct gpt_cuda_growing {
    CUdeviceptr p;
    size_t bytes;
};

/* What a block keeps for the backward pass.
 *   - Kept rows are the rows of this rank's experts, by expert, then by the rank that sent them,
 *     then by row. The kept rows of each expert are padded to a multiple of GPT_CUDA_EXPERT_ROWS.
 *   - Away rows are this rank's choices of other ranks' experts, in the order of sent rows. */
struct gpt_cuda_moe_layer {
    CUdeviceptr probs;            /* rows x experts fp32, as in gpt_cuda_choose */
    CUdeviceptr chosen, gates;    /* rows x top_k uint32, and fp32, as in gpt_cuda_choose */
    CUdeviceptr place;            /* rows x top_k uint32: the row of each choice in y */
    CUdeviceptr shares;           /* one fp32 per expert: f_e of all ranks, see router.h */
    CUdeviceptr away;             /* rows x top_k uint32: the choices of the away rows */
    struct gpt_cuda_growing kept; /* allocation of from, x, pre, act and y */
    /* Kept rows, uint32: the choice, or GPT_CUDA_NO_ROW, or GPT_CUDA_OTHERS_ROW. */
    CUdeviceptr from;
    CUdeviceptr x;        /* kept rows x width bf16: inputs of the experts */
    CUdeviceptr pre, act; /* kept rows x 4 width bf16: before and after GELU */
    CUdeviceptr y;        /* (kept rows, then away rows) x width bf16: outputs of the experts */
    uint32_t *counts;     /* world x experts, in host memory: choices of each rank */
    /* Experts + 1 entries, in host memory: kept rows before each of this rank's experts. */
    uint32_t *starts;
    uint32_t n_away;
};

struct gpt_cuda_moe {
    const struct gpt_gpu *gpu;     /* borrowed */
    const struct gpt_model *model; /* borrowed */
    size_t max_rows;               /* most rows of a pass */
    struct gpt_exchange exchange;  /* exchange of the pass under way */
    CUdeviceptr memory;            /* allocation of the layers' arrays of fixed size, and of dz */
    struct gpt_cuda_moe_layer *layers;
    CUdeviceptr dz;                    /* max_rows x experts bf16: gradient of a router's logits */
    struct gpt_cuda_growing away_rows; /* away rows x width bf16: rows to be sent */
    struct gpt_cuda_growing received;  /* received rows x width bf16, then their results */
    struct gpt_cuda_growing dy;        /* kept rows x width bf16: gradients of y */
    struct gpt_cuda_growing dx;    /* (kept rows, then away rows) x width bf16: gradients of x */
    struct gpt_cuda_growing wide;  /* rows of an expert x 4 width bf16: gradient of pre */
    struct gpt_cuda_growing parts; /* scratch: sums of strips of an expert's rows */
    uint32_t *chosen;              /* pinned, max_rows x top_k: the router's choices on the host */
    uint32_t *place, *away; /* host, max_rows x top_k: copies of the layer's place and away */
    float *shares;          /* host: copy of the layer's shares */
    uint32_t *from;         /* host, n_from elements: copy of the layer's from */
    size_t n_from;          /* elements allocated for from */
};

static inline bool gpt_cuda_moe_is_mine(const struct gpt_cuda_moe *moe, uint32_t expert)
{
    return gpt_model_expert_rank(expert, moe->exchange.world) == moe->exchange.rank;
}

/* Number of choices of @rank that fell on each expert. */
static inline uint32_t *gpt_cuda_moe_counts(const struct gpt_cuda_moe *moe,
                                            const struct gpt_cuda_moe_layer *l, uint32_t rank)
{
    return l->counts + (size_t)rank * moe->model->experts;
}

/* Address of row @row in a bf16 matrix @x of the model's width. */
static inline CUdeviceptr gpt_cuda_moe_row(const struct gpt_cuda_moe *moe, CUdeviceptr x,
                                           size_t row)
{
    return x + row * moe->model->width * sizeof(uint16_t);
}

/* -- moe_memory.c ------------------------------------------------------------------------------ */

/* Make @g hold at least @bytes. Its contents are lost if it has to grow; then the function waits
 * for the GPU first. CST_ENOMEM. */
int gpt_cuda_moe_grow(const struct gpt_gpu *gpu, struct gpt_cuda_growing *g, size_t bytes,
                      struct cst_err *err);

/* Allocate the arrays of @l for the rows that its starts and n_away count, and the arrays of the
 * backward pass. @most: most rows of one expert. CST_ENOMEM. */
int gpt_cuda_moe_make_room(struct gpt_cuda_moe *moe, struct gpt_cuda_moe_layer *l, uint32_t most,
                           struct cst_err *err);

/* -- moe_peers.c ------------------------------------------------------------------------------- */

/* Gather the counts of all ranks in l->counts, which has those of this rank. Without peers it does
 * nothing. */
int gpt_cuda_peers_count(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                         struct cst_err *err);

/* Send the away rows in moe->away_rows to the ranks of their experts, and receive theirs. Without
 * peers it does nothing. */
int gpt_cuda_peers_send(struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                        struct cst_err *err);

/* Copy the received rows to their places in @to, an array of kept rows. Without peers it does
 * nothing. */
int gpt_cuda_peers_fetch(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                         CUdeviceptr to, struct cst_err *err);

/* Return the rows of @results that belong to other ranks. The results of this rank's away rows come
 * to the places after the kept rows of @results. Without peers it does nothing. */
int gpt_cuda_peers_return(struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                          CUdeviceptr results, struct cst_err *err);

#endif
