/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/router.h"

#include "client/gpt/model.h"
#include "client/gpt/parallel.h"
#include "kernels/math/cast.h"

#include <math.h>
#include <string.h>

struct work {
    const struct gpt_layers *layers;
    const struct gpt_router_shape *shape;
    const void *x;     /* operand */
    const uint16_t *w; /* bf16 */
    const struct gpt_choice *choice;
    const float *dgates, *shares; /* inputs of the backward pass */
    float balance;                /* input of the backward pass */
    float *dlogits, *dw, *dx;     /* outputs of the backward pass */
};

static float operand(const struct work *k, size_t at)
{
    return k->layers->bf16 ? cst_bf16_to_fp32(((const uint16_t *)k->x)[at])
                           : ((const float *)k->x)[at];
}

/* Compute z of one row, in the place of its p. */
static void logits(const struct work *k, size_t row, float *z)
{
    const uint32_t n = k->shape->experts;

    memset(z, 0, n * sizeof *z);
    for (size_t i = 0; i < k->shape->width; i++) {
        const float x = operand(k, row * k->shape->width + i);
        const uint16_t *w = k->w + i * n;

        for (uint32_t e = 0; e < n; e++) {
            z[e] += x * cst_bf16_to_fp32(w[e]);
        }
    }
}

/* Select the top_k largest of @z, one after the other. A NaN is never larger. */
static void choose(const struct gpt_router_shape *s, const float *z, uint32_t *chosen)
{
    for (uint32_t j = 0; j < s->top_k; j++) {
        /* The value experts means that there is no candidate yet. */
        uint32_t best = s->experts;

        for (uint32_t e = 0; e < s->experts; e++) {
            bool taken = false;

            for (uint32_t i = 0; i < j; i++) {
                taken = taken || chosen[i] == e;
            }
            if (!taken && (best == s->experts || z[e] > z[best])) {
                best = e;
            }
        }
        chosen[j] = best;
    }
}

static void softmax(uint32_t n, float *z)
{
    float most = z[0], sum = 0;

    for (uint32_t e = 1; e < n; e++) {
        most = z[e] > most ? z[e] : most;
    }
    for (uint32_t e = 0; e < n; e++) {
        z[e] = expf(z[e] - most);
        sum += z[e];
    }
    for (uint32_t e = 0; e < n; e++) {
        z[e] /= sum;
    }
}

static void forward_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;
    const struct gpt_router_shape *s = k->shape;

    (void)thread;
    for (size_t row = first; row < last; row++) {
        float *p = k->choice->probs + row * s->experts, *gates = k->choice->gates + row * s->top_k;
        uint32_t *chosen = k->choice->chosen + row * s->top_k;

        logits(k, row, p);
        choose(s, p, chosen);
        /* softmax will overwrite z, so keep the chosen z. */
        for (uint32_t j = 0; j < s->top_k; j++) {
            gates[j] = p[chosen[j]];
        }
        softmax(s->experts, p);
        if (s->top_k > 1) {
            softmax(s->top_k, gates);
        } else {
            gates[0] = p[chosen[0]];
        }
    }
}

/* Sort all choices by expert, then by row. */
static void sort(const struct gpt_router_shape *s, const struct gpt_choice *c)
{
    uint32_t at[GPT_MAX_EXPERTS], sum = 0;

    memset(c->counts, 0, s->experts * sizeof *c->counts);
    for (size_t i = 0; i < s->rows * s->top_k; i++) {
        c->counts[c->chosen[i]]++;
    }
    for (uint32_t e = 0; e < s->experts; e++) {
        at[e] = sum;
        sum += c->counts[e];
    }
    for (size_t i = 0; i < s->rows * s->top_k; i++) {
        c->slots[i] = at[c->chosen[i]]++;
        c->rows[c->slots[i]] = (uint32_t)(i / s->top_k);
    }
}

void gpt_router_forward(const struct gpt_layers *layers, const struct gpt_router_shape *shape,
                        const void *x, const uint16_t *w, const struct gpt_choice *out)
{
    struct work k = {.layers = layers, .shape = shape, .x = x, .w = w, .choice = out};

    gpt_parallel(layers->n_threads, shape->rows, forward_body, &k);
    sort(shape, out);
}

/* dz of a row: the gradient by way of the gates, and the gradient of the balance loss, which by p_e
 * is c x experts x f_e / rows. */
static void row_dlogits(const struct work *k, size_t row)
{
    const struct gpt_router_shape *s = k->shape;
    const float *p = k->choice->probs + row * s->experts;
    const float *gates = k->choice->gates + row * s->top_k, *dgates = k->dgates + row * s->top_k;
    const uint32_t *chosen = k->choice->chosen + row * s->top_k;
    const float scale = k->balance * (float)s->experts / (float)s->rows;
    float *dz = k->dlogits + row * s->experts, mean = 0;

    for (uint32_t e = 0; e < s->experts; e++) {
        dz[e] = scale * k->shares[e];
    }
    /* With top_k 1 the gate is p of the chosen expert, so its gradient passes through the
     * softmax. */
    if (s->top_k == 1) {
        dz[chosen[0]] += dgates[0];
    }
    for (uint32_t e = 0; e < s->experts; e++) {
        mean += p[e] * dz[e];
    }
    for (uint32_t e = 0; e < s->experts; e++) {
        dz[e] = p[e] * (dz[e] - mean);
    }
    /* With a larger top_k the gates are a softmax of their own, over the chosen experts. */
    if (s->top_k > 1) {
        mean = 0;
        for (uint32_t j = 0; j < s->top_k; j++) {
            mean += gates[j] * dgates[j];
        }
        for (uint32_t j = 0; j < s->top_k; j++) {
            dz[chosen[j]] += gates[j] * (dgates[j] - mean);
        }
    }
}

static void dx_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;
    const uint32_t n = k->shape->experts;

    (void)thread;
    for (size_t row = first; row < last; row++) {
        const float *dz = k->dlogits + row * n;
        float *dx = k->dx + row * k->shape->width;

        row_dlogits(k, row);
        for (size_t i = 0; i < k->shape->width; i++) {
            const uint16_t *w = k->w + i * n;
            float sum = 0;

            for (uint32_t e = 0; e < n; e++) {
                sum += dz[e] * cst_bf16_to_fp32(w[e]);
            }
            dx[i] = sum;
        }
    }
}

/* Compute rows [first, last) of dw: sums over the rows of x, in their order. */
static void dw_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;
    const uint32_t n = k->shape->experts;

    (void)thread;
    memset(k->dw + first * n, 0, (last - first) * n * sizeof *k->dw);
    for (size_t row = 0; row < k->shape->rows; row++) {
        const float *dz = k->dlogits + row * n;

        for (size_t i = first; i < last; i++) {
            const float x = operand(k, row * k->shape->width + i);
            float *dw = k->dw + i * n;

            for (uint32_t e = 0; e < n; e++) {
                dw[e] += x * dz[e];
            }
        }
    }
}

void gpt_router_backward(const struct gpt_layers *layers, const struct gpt_router_shape *shape,
                         const void *x, const uint16_t *w, const struct gpt_choice *choice,
                         const float *dgates, const float *shares, float balance, float *dlogits,
                         float *dw, float *dx)
{
    struct work k = {.layers = layers, .shape = shape, .x = x, .w = w, .choice = choice};

    k.dgates = dgates;
    k.shares = shares;
    k.balance = balance;
    k.dlogits = dlogits;
    k.dw = dw;
    k.dx = dx;
    gpt_parallel(layers->n_threads, shape->rows, dx_body, &k);
    gpt_parallel(layers->n_threads, shape->width, dw_body, &k);
}
