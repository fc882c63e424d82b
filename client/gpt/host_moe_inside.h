/* SPDX-License-Identifier: Apache-2.0 */
/* What host_moe.c (memory, the rows' way) and host_experts.c (the operators) share. */
#ifndef GPT_HOST_MOE_INSIDE_H
#define GPT_HOST_MOE_INSIDE_H

#include "client/gpt/host_moe.h"
#include "client/gpt/parallel.h"
#include "client/gpt/router.h"

/* Rows of an expert are made up to a multiple of it with zeros, so that there are not too many
 * shapes of products. Part of the numerics. */
#define GPT_MOE_ROWS 32

/* Memory that is as large as it had to be so far. */
struct gpt_moe_growing {
    void *p;
    size_t bytes;
};

/* What a block keeps for the way back. */
struct gpt_moe_layer {
    struct gpt_choice choice; /* of this rank's rows */
    float *results;           /* rows x top_k by slot, x width: what the experts made of them */
    float *shares;            /* experts: f_e of all ranks, see router.h */
    uint32_t *starts;         /* experts + 1: rows in kept before each of this rank's experts */
    struct gpt_moe_growing
        kept; /* per row of these experts: input, pre, act, as gpt_block has them */
};

struct gpt_moe {
    const struct gpt_model *model;
    size_t max_rows;               /* of a pass */
    size_t operand;                /* bytes of an element */
    struct gpt_exchange *exchange; /* of the pass under way */
    struct gpt_exchange *alone;    /* NULL: not needed so far */
    struct gpt_moe_layer *layers;
    float *dgates;                 /* max_rows x top_k */
    float *dlogits;                /* max_rows x experts */
    struct gpt_moe_growing wide;   /* rows of an expert x 4 width floats */
    struct gpt_moe_growing narrow; /* rows of an expert x width floats */
    struct gpt_moe_growing dy;     /* rows of an expert x 4 width operands */
};

/* A rank's region of the exchange: what it tells the others, and what they tell it. */
struct gpt_moe_region {
    uint32_t *counts; /* experts, as in gpt_choice */
    uint32_t *rows;   /* by slot, as in gpt_choice */
    float *gates;     /* by slot; backward */
    void *tokens;     /* rows x width: operands of the experts; backward: gradients, fp32 */
    float *results;   /* by slot x width: by the experts' ranks; backward: gradients of tokens */
};

/* What an expert keeps: its rows' part of each of the layer's arrays. */
struct gpt_moe_kept {
    size_t rows; /* a multiple of GPT_MOE_ROWS */
    char *x;     /* rows x width operand */
    float *pre;  /* rows x 4 width */
    char *act;   /* rows x 4 width operand */
};

struct gpt_moe_kept gpt_moe_kept_of(const struct gpt_moe *moe, const struct gpt_operator *op);

/* At least @bytes; what was there is lost if it has to grow. CST_ENOMEM. */
int gpt_moe_grow(struct gpt_moe_growing *g, size_t bytes, struct cst_err *err);

/* The rows of expert @op, in order of the ranks that they are from, behind them zeros up to
 * kept.rows: operands of the inputs; backwards gate x gradient of the row's output. */
void gpt_moe_fetch(const struct gpt_pass_host *p, const struct gpt_operator *op, char *operands);
void gpt_moe_fetch_backward(const struct gpt_pass_host *p, const struct gpt_operator *op,
                            float *values);

/* Send a result for each of these rows to the rank that it is from. */
void gpt_moe_send(const struct gpt_pass_host *p, const struct gpt_operator *op, float *values);

#endif
