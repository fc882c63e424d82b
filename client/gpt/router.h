/* SPDX-License-Identifier: Apache-2.0 */
/* The router of a mixture of experts: which experts each row goes to, with which weights, and the
 * way back. Each row by itself in a fixed order, so that neither the number of threads nor how the
 * rows are spread over the ranks shows.
 *
 *   z = x w                     (experts values per row)
 *   p = softmax(z)
 *   chosen = the top_k largest z, of equals the first
 *   gate_j = softmax of the chosen z (GShard, Mixtral);  top_k = 1: p of the chosen (Switch)
 *   balance loss = c x experts x sum_e f_e P_e           (Fedus et al. 2021)
 * with f_e the part of all choices that fell on e, a constant, and P_e the mean of p_e. There is no
 * capacity: no row is dropped. */
#ifndef GPT_ROUTER_H
#define GPT_ROUTER_H

#include "client/gpt/layers.h"

struct gpt_router_shape {
    size_t rows, width;      /* of x */
    uint32_t experts, top_k; /* as in gpt_options */
};

/* What the way back needs, of one block. Arrays are the caller's. */
struct gpt_choice {
    float *probs;     /* rows x experts: p */
    uint32_t *chosen; /* rows x top_k: experts, the largest z first */
    float *gates;     /* rows x top_k */
    uint32_t *counts; /* experts: rows that go to each */
    uint32_t *slots;  /* rows x top_k: the place of each choice when all are sorted by expert, then
                         by row */
    uint32_t *rows;   /* rows x top_k, by slot: the row of it */
};

/* Choose for all rows. x is an operand, w (width x experts) bf16. */
void gpt_router_forward(const struct gpt_layers *layers, const struct gpt_router_shape *shape,
                        const void *x, const uint16_t *w, const struct gpt_choice *out);

/* @dgates: rows x top_k. @shares (experts): f_e of all ranks; @balance: c. The loss whose gradient
 * it is: sum of dgates x gates + balance loss over these rows. Written: dw (width x experts), dx
 * (rows x width), fp32. @dlogits: scratch of rows x experts. */
void gpt_router_backward(const struct gpt_layers *layers, const struct gpt_router_shape *shape,
                         const void *x, const uint16_t *w, const struct gpt_choice *choice,
                         const float *dgates, const float *shares, float balance, float *dlogits,
                         float *dw, float *dx);

#endif
