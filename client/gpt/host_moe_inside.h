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
    float *results;           /* rows x top_k, by slot, x width: outputs of the experts */
    float *shares;            /* one per expert: f_e of all ranks, see router.h */
    /* Experts + 1 entries: number of rows in kept before each of this rank's experts. */
    uint32_t *starts;
    /* For the rows of this rank's experts: input, pre and act, defined as in gpt_block. */
    struct gpt_moe_growing kept;
};

struct gpt_moe {
    const struct gpt_model *model;
    size_t max_rows;               /* most rows of a pass */
    size_t operand;                /* bytes of an operand's element */
    struct gpt_exchange *exchange; /* exchange of the pass under way */
    struct gpt_exchange *alone;    /* exchange without peers; NULL: not needed so far */
    struct gpt_moe_layer *layers;
    float *dgates;                 /* max_rows x top_k: gradients of the gates */
    float *dlogits;                /* max_rows x experts: gradients of the router's logits */
    struct gpt_moe_growing wide;   /* scratch: rows of an expert x 4 width floats */
    struct gpt_moe_growing narrow; /* scratch: rows of an expert x width floats */
    struct gpt_moe_growing dy;     /* scratch: rows of an expert x 4 width operands */
};

/* A rank's region of the exchange: data that the rank publishes, and the results that other ranks
 * write. */
struct gpt_moe_region {
    uint32_t *counts; /* one per expert, as in gpt_choice */
    uint32_t *rows;   /* by slot, as in gpt_choice */
    float *gates;     /* by slot; read in the backward pass */
    /* Rows x width. Forward: operands of the experts. Backward: gradients of the residual stream,
     * fp32. */
    void *tokens;
    /* By slot x width, written by the experts' ranks. Forward: outputs. Backward: gradients of the
     * tokens. */
    float *results;
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

/* Copy the rows of expert @op out of the ranks' regions, in order of the ranks, followed by zeros
 * up to kept.rows rows. The forward function copies operands of the inputs. The backward function
 * computes gate x gradient of the row's output. */
void gpt_moe_fetch(const struct gpt_pass_host *p, const struct gpt_operator *op, char *operands);
void gpt_moe_fetch_backward(const struct gpt_pass_host *p, const struct gpt_operator *op,
                            float *values);

/* Write one result for each row of expert @op to the region of the rank that sent the row. */
void gpt_moe_send(const struct gpt_pass_host *p, const struct gpt_operator *op, float *values);

#endif
