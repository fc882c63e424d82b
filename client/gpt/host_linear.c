/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/pass_host.h"

#include "client/gpt/parallel.h"

const void *gpt_host_operand(struct gpt_pass_host *p, const struct cst_io *io)
{
    if (p->bf16) {
        return io->weight;
    }
    gpt_upcast(&p->layers, io->n_elems, io->weight, p->weight);
    return p->weight;
}

void gpt_host_put(struct gpt_pass_host *p, size_t n, const float *src, const struct cst_io *io)
{
    if (io->grad != NULL) {
        gpt_put(&p->layers, n, src, io->grad, io->accumulate);
    }
}

void gpt_host_norm_backward(struct gpt_pass_host *p, const float *dy, const float *x,
                            const float *mean, const float *rstd, const struct cst_io *w,
                            const struct cst_io *b)
{
    const size_t width = p->head.model->width;
    float *dw = p->grad, *db = p->grad + width;

    gpt_layernorm_backward(&p->layers, p->rows, width, dy, x, w->weight, mean, rstd, p->dx, dw, db);
    gpt_host_put(p, width, dw, w);
    gpt_host_put(p, width, db, b);
}

float *gpt_host_block_out(const struct gpt_pass_host *p, uint32_t layer)
{
    return layer + 1 < p->head.model->layers ? p->blocks[layer + 1].x : p->x;
}

struct gpt_linear gpt_host_linear_of(const struct gpt_pass_host *p, const struct cst_io *io,
                                     size_t at, size_t in, size_t out)
{
    return (struct gpt_linear){
        .rows = p->rows,
        .in = in,
        .out = out,
        .w = &io[at],
        .b = &io[at + 1],
        .lora = p->head.model->lora > 0 ? &io[at + 2] : NULL,
    };
}

struct pair {
    float *x;       /* input and output */
    const float *y; /* added; NULL: nothing is added */
    float scale;    /* factor on x */
};

static void combine_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct pair *k = arg;

    (void)thread;
    for (size_t i = first; i < last; i++) {
        k->x[i] = k->scale * k->x[i] + (k->y == NULL ? 0.0f : k->y[i]);
    }
}

static void combine(struct gpt_pass_host *p, size_t n, float scale, float *x, const float *y)
{
    struct pair k = {.x = x, .y = y, .scale = scale};

    gpt_parallel(p->layers.n_threads, n, combine_body, &k);
}

/* Multiply p->low (rows x lora) by the adapters' scale and return it as an operand. */
static const void *low_operand(struct gpt_pass_host *p, size_t rows)
{
    const size_t n = rows * p->head.model->lora;

    combine(p, n, p->head.model->lora_scale, p->low, NULL);
    if (!p->bf16) {
        return p->low;
    }
    /* gpt_put takes whole vectors, and low has room for the last one. */
    gpt_put(&p->layers, (n + GPT_SIMD_ELEMS - 1) / GPT_SIMD_ELEMS * GPT_SIMD_ELEMS, p->low,
            p->low_operand, false);
    return p->low_operand;
}

/* y += scale (x a) b. */
static int adapter(struct gpt_pass_host *p, const struct gpt_linear *l, const void *x, float *y,
                   struct cst_err *err)
{
    const size_t r = p->head.model->lora;
    int rc = gpt_matmul(p->mm, l->rows, r, l->in, x, false, gpt_host_operand(p, &l->lora[0]), false,
                        p->low, err);

    if (rc == 0) {
        const void *low = low_operand(p, l->rows);

        rc = gpt_matmul(p->mm, l->rows, l->out, r, low, false, gpt_host_operand(p, &l->lora[1]),
                        false, p->beside, err);
    }
    if (rc == 0) {
        combine(p, l->rows * l->out, 1.0f, y, p->beside);
    }
    return rc;
}

int gpt_host_linear(struct gpt_pass_host *p, const struct gpt_linear *l, const void *x, float *y,
                    struct cst_err *err)
{
    int rc = gpt_matmul(p->mm, l->rows, l->out, l->in, x, false, gpt_host_operand(p, l->w), false,
                        y, err);

    return rc == 0 && l->lora != NULL ? adapter(p, l, x, y, err) : rc;
}

/* db = (scale x a)^T dy. With dt = scale dy b^T: da = x^T dt, and dx += dt a^T. */
static int adapter_backward(struct gpt_pass_host *p, const struct gpt_linear *l, const void *x,
                            const void *dy, float *dx, struct cst_err *err)
{
    const struct cst_io *a = &l->lora[0], *b = &l->lora[1];
    const size_t r = p->head.model->lora;
    const void *low;
    int rc =
        gpt_matmul(p->mm, l->rows, r, l->in, x, false, gpt_host_operand(p, a), false, p->low, err);

    if (rc == 0) {
        low = low_operand(p, l->rows);
        rc = gpt_matmul(p->mm, r, l->out, l->rows, low, true, dy, false, p->grad, err);
    }
    if (rc == 0) {
        gpt_host_put(p, r * l->out, p->grad, b);
        rc = gpt_matmul(p->mm, l->rows, r, l->out, dy, false, gpt_host_operand(p, b), true, p->low,
                        err);
    }
    if (rc == 0) {
        low = low_operand(p, l->rows);
        rc = gpt_matmul(p->mm, l->in, r, l->rows, x, true, low, false, p->grad, err);
    }
    if (rc == 0) {
        gpt_host_put(p, l->in * r, p->grad, a);
        rc = gpt_matmul(p->mm, l->rows, l->in, r, low, false, gpt_host_operand(p, a), true,
                        p->beside, err);
    }
    if (rc == 0) {
        combine(p, l->rows * l->in, 1.0f, dx, p->beside);
    }
    return rc;
}

int gpt_host_linear_backward(struct gpt_pass_host *p, const struct gpt_linear *l, const void *x,
                             const void *dy, const float *sums, float *dx, struct cst_err *err)
{
    int rc = 0;

    /* A frozen weight has no gradient. */
    if (l->w->grad != NULL) {
        rc = gpt_matmul(p->mm, l->in, l->out, l->rows, x, true, dy, false, p->grad, err);
    }
    if (rc == 0) {
        gpt_host_put(p, l->in * l->out, p->grad, l->w);
        gpt_host_put(p, l->out, sums, l->b);
        rc = gpt_matmul(p->mm, l->rows, l->in, l->out, dy, false, gpt_host_operand(p, l->w), true,
                        dx, err);
    }
    return rc == 0 && l->lora != NULL ? adapter_backward(p, l, x, dy, dx, err) : rc;
}
