/* SPDX-License-Identifier: Apache-2.0 */
/* The router of a mixture of experts: it chooses the experts of each row and their weights, and
 * computes the gradients in the backward pass. Each row is computed by itself in a fixed order.
 * Therefore results depend neither on the number of threads nor on the distribution of the rows to
 * ranks.
 *
 *   z = x w                     (experts values per row)
 *   p = softmax(z)
 *   chosen = the top_k largest z; of equal values the first
 *   gate_j = softmax of the chosen z (GShard, Mixtral);  top_k = 1: p of the chosen (Switch)
 *   balance loss = c x experts x sum_e f_e P_e           (Fedus et al. 2021)
 *
 * f_e is the share of all choices that fell on expert e, a constant for the gradient. P_e is the
 * mean of p_e over the rows. Experts have no capacity limit, so that no row is dropped. */
#ifndef GPT_ROUTER_H
#define GPT_ROUTER_H

#include "client/gpt/layers.h"

struct gpt_router_shape {
    size_t rows, width;      /* shape of x */
    uint32_t experts, top_k; /* as in gpt_options */
};

/* Data of one block that the backward pass needs. The caller owns the arrays. */
struct gpt_choice {
    float *probs;     /* rows x experts: p */
    uint32_t *chosen; /* rows x top_k: the chosen experts, the one with the largest z first */
    float *gates;     /* rows x top_k: weights of the chosen experts */
    uint32_t *counts; /* one per expert: number of rows that chose it */
    /* Rows x top_k: the slot of each choice, its place when all choices are sorted by expert, then
     * by row. */
    uint32_t *slots;
    uint32_t *rows; /* rows x top_k, by slot: the row of the choice */
};

/* Choose the experts of all rows and fill @out. x is an operand; w (width x experts) is bf16. */
void gpt_router_forward(const struct gpt_layers *layers, const struct gpt_router_shape *shape,
                        const void *x, const uint16_t *w, const struct gpt_choice *out);

/* Gradients of the router for the loss: sum of dgates x gates + balance loss over these rows.
 * @dgates: rows x top_k. @shares: f_e of all ranks, one per expert. @balance: c. @dlogits: scratch
 * of rows x experts. Overwritten: dw (width x experts) and dx (rows x width), fp32. */
void gpt_router_backward(const struct gpt_layers *layers, const struct gpt_router_shape *shape,
                         const void *x, const uint16_t *w, const struct gpt_choice *choice,
                         const float *dgates, const float *shares, float balance, float *dlogits,
                         float *dw, float *dx);

#endif
