/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions shared by host_moe.c (memory, transport of rows) and host_experts.c (operators). */
#ifndef GPT_HOST_MOE_INSIDE_H
#define GPT_HOST_MOE_INSIDE_H

#include "client/gpt/host_moe.h"
#include "client/gpt/parallel.h"
#include "client/gpt/router.h"

/* The number of rows of an expert is rounded up to a multiple of this number, with rows of zeros.
 * This limits the number of different shapes of products. The rounding is part of the numerics. */
#define GPT_MOE_ROWS 32

/* Memory that grows on demand and never shrinks. */
struct gpt_moe_growing {
    void *p;
    size_t bytes;
};

/* What a block keeps for the backward pass. */
struct gpt_moe_layer {
    struct gpt_choice choice; /* choices of this rank's rows */
    uint32_t *counts;         /* world x experts: choices of all ranks' rows, see exchange.h */
    uint32_t *places;         /* rows x top_k: the place of each choice among the sent rows */
    float *results;           /* sent rows x width: outputs of the experts */
    float *shares;            /* one per expert: f_e of all ranks, see router.h */
    /* Experts + 1 entries: number of rows in kept before each of this rank's experts. */
    uint32_t *starts;
    /* For the rows of this rank's experts: input, pre and act, defined as in gpt_block. */
    struct gpt_moe_growing kept;
};

struct gpt_moe {
    const struct gpt_model *model;
    size_t max_rows;              /* most rows of a pass */
    size_t operand;               /* bytes of an operand's element */
    struct gpt_exchange exchange; /* exchange of the pass under way */
    struct gpt_moe_layer *layers;
    float *dgates;  /* max_rows x top_k: gradients of the gates */
    float *dlogits; /* max_rows x experts: gradients of the router's logits */
    /* Sent rows x width. Forward: operands of the experts. Backward: gradients of their outputs,
     * fp32; then gradients of the operands, fp32. */
    struct gpt_moe_growing sent;
    struct gpt_moe_growing received; /* received rows x width: what the ranks sent */
    struct gpt_moe_growing results;  /* received rows x width, fp32: what is returned to them */
    struct gpt_moe_growing wide;     /* scratch: rows of an expert x 4 width floats */
    struct gpt_moe_growing narrow;   /* scratch: rows of an expert x width floats */
    struct gpt_moe_growing dy;       /* scratch: rows of an expert x 4 width operands */
};

/* What an expert keeps for the backward pass: the parts of the layer's arrays for its rows. */
struct gpt_moe_kept {
    size_t rows; /* a multiple of GPT_MOE_ROWS */
    char *x;     /* rows x width operands: inputs */
    float *pre;  /* rows x 4 width: before GELU */
    char *act;   /* rows x 4 width operands: after GELU */
};

struct gpt_moe_kept gpt_moe_kept_of(const struct gpt_moe *moe, const struct gpt_operator *op);

/* Make @g hold at least @bytes. Its contents are lost if it has to grow. CST_ENOMEM. */
int gpt_moe_grow(struct gpt_moe_growing *g, size_t bytes, struct cst_err *err);

/* Copy the received rows of expert @op to @rows, in order of the ranks that sent them, followed by
 * zeros up to kept.rows rows. @elem: bytes of an element. */
void gpt_moe_fetch(const struct gpt_pass_host *p, const struct gpt_operator *op, char *rows,
                   size_t elem);

/* Copy one result for each row of expert @op to the results that are returned. */
void gpt_moe_send(const struct gpt_pass_host *p, const struct gpt_operator *op, float *values);

#endif
