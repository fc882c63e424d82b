/* SPDX-License-Identifier: Apache-2.0 */
/* What moe.c (the rows' way), moe_memory.c, moe_peers.c (other ranks) and experts.c (the operators)
 * share. */
#ifndef GPT_CUDA_MOE_INSIDE_H
#define GPT_CUDA_MOE_INSIDE_H

#include "client/gpt/cuda/moe.h"

/* Device memory that is as large as it had to be so far. */
struct gpt_cuda_growing {
    CUdeviceptr p;
    size_t bytes;
};

/* What a block keeps for the way back. "Kept" rows are those of this rank's experts, by expert,
 * then by the rank that they are from, then by row; each expert's are a multiple of
 * GPT_CUDA_EXPERT_ROWS. "Away" are this rank's choices that fell on other ranks' experts, by
 * expert, then by row. */
struct gpt_cuda_moe_layer {
    CUdeviceptr probs; /* rows x experts fp32, as gpt_cuda_choose has them; so the next two */
    CUdeviceptr chosen, gates;    /* rows x top_k uint32, fp32 */
    CUdeviceptr place;            /* rows x top_k uint32: row of y, by choice */
    CUdeviceptr shares;           /* experts fp32: f_e of all ranks, see router.h */
    CUdeviceptr away;             /* rows x top_k uint32: their choices */
    struct gpt_cuda_growing kept; /* what is below */
    CUdeviceptr from;     /* kept rows, uint32: the choice, or GPT_CUDA_NO_ROW, _OTHERS_ROW */
    CUdeviceptr x;        /* kept rows x width bf16: inputs */
    CUdeviceptr pre, act; /* kept rows x 4 width bf16 */
    CUdeviceptr y;        /* kept rows, then away, x width bf16: results */
    uint32_t *counts;     /* world x experts: choices of each rank */
    uint32_t *starts;     /* experts + 1: kept rows before each of this rank's experts */
    uint32_t n_away;
};

struct gpt_cuda_moe {
    const struct gpt_gpu *gpu; /* borrowed, as the next */
    const struct gpt_model *model;
    size_t max_rows;               /* of a pass */
    struct gpt_store *store;       /* of the pass under way */
    struct gpt_exchange *exchange; /* likewise; NULL: no peers */
    struct gpt_exchange *watched;  /* the one that tells watch; NULL: none so far */
    struct gpt_exchange_watch watch;
    void *pinned;         /* its memory is registered; NULL: it is not */
    uint32_t rank, world; /* in it; 0 of 1 without peers */
    CUdeviceptr memory;   /* of fixed size: the layers' and dz */
    struct gpt_cuda_moe_layer *layers;
    CUdeviceptr dz;                /* max_rows x experts bf16: gradient of a router's logits */
    struct gpt_cuda_growing sent;  /* away rows x width bf16, on their way */
    struct gpt_cuda_growing dy;    /* kept rows x width bf16: gradients of y */
    struct gpt_cuda_growing dx;    /* kept rows, then away, x width bf16: gradients of x */
    struct gpt_cuda_growing wide;  /* rows of an expert x 4 width bf16: gradient of pre */
    struct gpt_cuda_growing parts; /* sums of strips of an expert's rows */
    uint32_t *chosen;              /* pinned, max_rows x top_k */
    uint32_t *place, *away;        /* host, max_rows x top_k: on their way up, as the next two */
    float *shares;                 /* host, experts */
    uint32_t *from;                /* host, n_from */
    size_t n_from;                 /* elements there is room for */
};

static inline bool gpt_cuda_moe_is_mine(const struct gpt_cuda_moe *moe, uint32_t expert)
{
    return gpt_model_expert_rank(expert, moe->world) == moe->rank;
}

/* Choices of @rank that fell on each expert. */
static inline uint32_t *gpt_cuda_moe_counts(const struct gpt_cuda_moe *moe,
                                            const struct gpt_cuda_moe_layer *l, uint32_t rank)
{
    return l->counts + (size_t)rank * moe->model->experts;
}

/* Row of @x of a matrix of bf16, of rows as wide as the model. */
static inline CUdeviceptr gpt_cuda_moe_row(const struct gpt_cuda_moe *moe, CUdeviceptr x,
                                           size_t row)
{
    return x + row * moe->model->width * sizeof(uint16_t);
}

/* -- moe_memory.c ------------------------------------------------------------------------------ */

/* At least @bytes; what was there is lost if it has to grow. CST_ENOMEM. */
int gpt_cuda_moe_grow(const struct gpt_gpu *gpu, struct gpt_cuda_growing *g, size_t bytes,
                      struct cst_err *err);

/* Room for what the layer keeps, of as many rows as its starts and n_away say, and for the way
 * back.
 * @most: rows of one expert. CST_ENOMEM. */
int gpt_cuda_moe_make_room(struct gpt_cuda_moe *moe, struct gpt_cuda_moe_layer *l, uint32_t most,
                           struct cst_err *err);

/* -- moe_peers.c ------------------------------------------------------------------------------- */

/* Watch moe->exchange from now on, and no other. */
void gpt_cuda_peers_watch(struct gpt_cuda_moe *moe);
void gpt_cuda_peers_forget(struct gpt_cuda_moe *moe);

/* Tell the others this rank's counts and the rows of moe->sent, and meet them; then l->counts are
 * theirs, too. Nothing without peers; so the next two. */
int gpt_cuda_peers_publish(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                           struct cst_err *err);

/* Bring what they sent for this rank's experts to its places in @to: kept rows. */
int gpt_cuda_peers_fetch(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                         CUdeviceptr to, struct cst_err *err);

/* Bring the others the rows of @results that are theirs, meet them, and bring what they have for
 * this rank behind the kept rows of @results. */
int gpt_cuda_peers_return(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                          CUdeviceptr results, struct cst_err *err);

#endif
