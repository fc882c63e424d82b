/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/attention_reference.h"

#include "client/gpt/rng.h"
#include "kernels/math/cast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Number of random numbers after which they repeat. It is no multiple of a row's length, so a
 * repetition is at another place of its row. */
static const size_t PERIOD = 1000003;

static void *need(size_t n, size_t size)
{
    void *p = calloc(n, size);

    if (p == NULL) {
        perror("memory of a test");
        exit(EXIT_FAILURE);
    }
    return p;
}

/* Allocate memory that holds NaN, so that results that are not written are detected. */
static void *need_nans(size_t n, size_t size)
{
    return memset(need(n, size), 0xff, n * size);
}

/* Random numbers of standard deviation 1: @n, or PERIOD if that is less. */
static float *numbers(uint64_t seed, uint64_t stream, size_t n)
{
    const size_t there = n < PERIOD ? n : PERIOD;
    float *unit = need(there, sizeof *unit);

    for (size_t i = 0; i < there; i++) {
        unit[i] = gpt_rng_normal(seed, stream, i);
    }
    return unit;
}

void attention_field_init(struct attention_field *f, struct gpt_attention_shape shape,
                          uint64_t seed, float deviation)
{
    const size_t width = shape.n_heads * shape.head_dim;
    float *unit;

    f->shape = shape;
    f->n_lse = shape.n_seqs * shape.n_heads * shape.context;
    f->n_out = f->n_lse * shape.head_dim;
    f->qkv = need(3 * f->n_out, sizeof *f->qkv);
    f->dout = need(f->n_out, sizeof *f->dout);
    f->out = need_nans(f->n_out, sizeof *f->out);
    f->dqkv = need_nans(3 * f->n_out, sizeof *f->dqkv);
    f->lse = need_nans(f->n_lse, sizeof *f->lse);
    f->OUT = need(f->n_out, sizeof *f->OUT);
    f->DQKV = need(3 * f->n_out, sizeof *f->DQKV);
    f->LSE = need(f->n_lse, sizeof *f->LSE);
    unit = numbers(seed, 0, 3 * f->n_out);
    for (size_t i = 0; i < 3 * f->n_out; i++) {
        f->qkv[i] = cst_fp32_to_bf16(unit[i % PERIOD] * (i / width % 3 == 2 ? 1.0f : deviation));
    }
    free(unit);
    unit = numbers(seed, 1, f->n_out);
    for (size_t i = 0; i < f->n_out; i++) {
        f->dout[i] = cst_fp32_to_bf16(unit[i % PERIOD]);
    }
    free(unit);
}

void attention_field_close(struct attention_field *f)
{
    free(f->qkv);
    free(f->dout);
    free(f->out);
    free(f->dqkv);
    free(f->lse);
    free(f->OUT);
    free(f->DQKV);
    free(f->LSE);
}

/* One head: the address of its first row in each array, and the sizes of a row. */
struct head {
    const uint16_t *q, *k, *v, *g;
    double *out, *dq, *dk, *dv, *lse;
    size_t dim, row, width;
};

static double dot(const struct head *h, const uint16_t *a, const uint16_t *b)
{
    double sum = 0;

    for (size_t c = 0; c < h->dim; c++) {
        sum += (double)cst_bf16_to_fp32(a[c]) * (double)cst_bf16_to_fp32(b[c]);
    }
    return sum;
}

static void add(const struct head *h, double factor, const uint16_t *from, double *to)
{
    for (size_t c = 0; c < h->dim; c++) {
        to[c] += factor * (double)cst_bf16_to_fp32(from[c]);
    }
}

/* Compute query @i: its row of out, and its contribution to the gradients. @p: scratch memory for i
 * + 1 doubles. */
static void query(const struct head *h, size_t i, double *p)
{
    const double scale = 1 / sqrt((double)h->dim);
    const uint16_t *q = h->q + i * h->row, *g = h->g + i * h->width;
    double most = -HUGE_VAL, sum = 0, delta = 0;

    for (size_t j = 0; j <= i; j++) {
        p[j] = dot(h, q, h->k + j * h->row) * scale;
        most = fmax(most, p[j]);
    }
    for (size_t j = 0; j <= i; j++) {
        p[j] = exp(p[j] - most);
        sum += p[j];
    }
    h->lse[i] = most + log(sum);
    for (size_t j = 0; j <= i; j++) {
        p[j] /= sum;
        add(h, p[j], h->v + j * h->row, h->out + i * h->width);
        delta += p[j] * dot(h, g, h->v + j * h->row);
    }
    for (size_t j = 0; j <= i; j++) {
        const double ds = p[j] * (dot(h, g, h->v + j * h->row) - delta) * scale;

        add(h, ds, h->k + j * h->row, h->dq + i * h->row);
        add(h, ds, q, h->dk + j * h->row);
        add(h, p[j], g, h->dv + j * h->row);
    }
}

void attention_reference(struct attention_field *f)
{
    const struct gpt_attention_shape *s = &f->shape;
    const size_t width = s->n_heads * s->head_dim, row = 3 * width;
    double *p = need(s->context, sizeof *p);

    for (size_t pair = 0; pair < s->n_seqs * s->n_heads; pair++) {
        const size_t first = pair / s->n_heads * s->context;
        const size_t at = first * row + pair % s->n_heads * s->head_dim;
        const size_t at_out = first * width + pair % s->n_heads * s->head_dim;
        const struct head h = {
            .q = f->qkv + at,
            .k = f->qkv + at + width,
            .v = f->qkv + at + 2 * width,
            .g = f->dout + at_out,
            .out = f->OUT + at_out,
            .dq = f->DQKV + at,
            .dk = f->DQKV + at + width,
            .dv = f->DQKV + at + 2 * width,
            .lse = f->LSE + pair * s->context,
            .dim = s->head_dim,
            .row = row,
            .width = width,
        };

        for (size_t i = 0; i < s->context; i++) {
            query(&h, i, p);
        }
    }
    free(p);
}

/* The larger number, or NaN if one is NaN. */
static double worse(double a, double b)
{
    return b <= a ? a : b;
}

/* Relative distance of part @part of the @parts of each row. *@off: the largest difference. *@most:
 * the largest expected number. */
static double distance(const uint16_t *a, const double *b, size_t n, size_t width, size_t part,
                       size_t parts, double *off, double *most)
{
    double sum = 0, all = 1e-60;

    for (size_t i = 0; i < n; i++) {
        const double d = (double)cst_bf16_to_fp32(a[i]) - b[i];

        if (i / width % parts == part) {
            sum += d * d;
            all += b[i] * b[i];
            *off = worse(*off, fabs(d));
            *most = worse(*most, fabs(b[i]));
        }
    }
    return sqrt(sum / all);
}

struct attention_error attention_compare(const struct attention_field *f)
{
    const size_t width = f->shape.n_heads * f->shape.head_dim;
    double off = 0, most = 1e-30, ignored = 0;
    struct attention_error e = {0};

    e.out = distance(f->out, f->OUT, f->n_out, width, 0, 1, &e.out_worst, &ignored);
    e.dq = distance(f->dqkv, f->DQKV, 3 * f->n_out, width, 0, 3, &off, &most);
    e.dk = distance(f->dqkv, f->DQKV, 3 * f->n_out, width, 1, 3, &off, &most);
    e.dv = distance(f->dqkv, f->DQKV, 3 * f->n_out, width, 2, 3, &off, &most);
    e.dqkv_worst = off / most;
    for (size_t i = 0; i < f->n_lse; i++) {
        e.lse = worse(e.lse, fabs((double)f->lse[i] - f->LSE[i]) / (1 + fabs(f->LSE[i])));
    }
    return e;
}
