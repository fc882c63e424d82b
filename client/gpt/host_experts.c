/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of a mixture of experts on the processor. */
#include "client/gpt/host_moe_inside.h"

static struct gpt_router_shape router_shape(const struct gpt_pass_host *p)
{
    const struct gpt_model *m = p->head.model;

    return (struct gpt_router_shape){
        .rows = p->rows, .width = m->width, .experts = m->experts, .top_k = m->top_k};
}

int gpt_host_router(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                    struct cst_err *err)
{
    const struct gpt_router_shape shape = router_shape(p);
    const struct gpt_block *b = &p->blocks[op->layer];

    (void)err;
    gpt_layernorm(&p->layers, p->rows, shape.width, b->mid, io[0].weight, io[1].weight, b->ln2,
                  b->mean2, b->rstd2);
    gpt_router_forward(&p->layers, &shape, b->ln2, io[2].weight, &p->moe->layers[op->layer].choice);
    return 0;
}

struct sum {
    const float *x;
    float *y;
};

static void add_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct sum *k = arg;

    (void)thread;
    for (size_t i = first; i < last; i++) {
        k->y[i] += k->x[i];
    }
}

int gpt_host_router_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                             const struct cst_io *io, struct cst_err *err)
{
    const struct gpt_router_shape shape = router_shape(p);
    const struct gpt_block *b = &p->blocks[op->layer];
    const struct gpt_moe_layer *l = &p->moe->layers[op->layer];
    struct sum k = {.x = p->wide + p->rows * shape.width, .y = p->wide};

    (void)err;
    /* p->wide has the gradient by way of the experts in its first half, and the gradient by way of
     * the router in its second. The two are added into the first. */
    gpt_router_backward(&p->layers, &shape, b->ln2, io[2].weight, &l->choice, p->moe->dgates,
                        l->shares, p->head.model->balance, p->moe->dlogits, p->grad,
                        p->wide + p->rows * shape.width);
    gpt_host_put(p, shape.width * shape.experts, p->grad, &io[2]);
    gpt_parallel(p->layers.n_threads, p->rows * shape.width, add_body, &k);
    gpt_host_norm_backward(p, p->wide, b->mid, b->mean2, b->rstd2, &io[0], &io[1]);
    return 0;
}

int gpt_host_expert(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                    struct cst_err *err)
{
    struct gpt_moe *moe = p->moe;
    const struct gpt_moe_kept kept = gpt_moe_kept_of(moe, op);
    const size_t d = p->head.model->width;
    const struct gpt_linear fc = {.rows = kept.rows, .in = d, .out = 4 * d, .w = &io[0]};
    const struct gpt_linear fcproj = {.rows = kept.rows, .in = 4 * d, .out = d, .w = &io[2]};
    int rc = gpt_moe_grow(&moe->narrow, kept.rows * d * sizeof(float), err);

    if (rc == 0) {
        gpt_moe_fetch(p, op, kept.x, moe->operand);
        rc = gpt_host_linear(p, &fc, kept.x, kept.pre, err);
    }
    if (rc == 0) {
        gpt_gelu(&p->layers, kept.rows, 4 * d, kept.pre, io[1].weight, kept.act);
        rc = gpt_host_linear(p, &fcproj, kept.act, moe->narrow.p, err);
    }
    if (rc == 0) {
        gpt_bias(&p->layers, kept.rows, d, moe->narrow.p, io[3].weight);
        gpt_moe_send(p, op, moe->narrow.p);
    }
    return rc;
}

int gpt_host_expert_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                             const struct cst_io *io, struct cst_err *err)
{
    struct gpt_moe *moe = p->moe;
    const struct gpt_moe_kept kept = gpt_moe_kept_of(moe, op);
    const size_t d = p->head.model->width;
    const struct gpt_linear fc = {
        .rows = kept.rows, .in = d, .out = 4 * d, .w = &io[0], .b = &io[1]};
    const struct gpt_linear fcproj = {
        .rows = kept.rows, .in = 4 * d, .out = d, .w = &io[2], .b = &io[3]};
    /* The weight's gradient takes at most 4 d d elements of p->grad. */
    float *sums = p->grad + 4 * d * d;
    int rc = gpt_moe_grow(&moe->narrow, kept.rows * d * sizeof(float), err);

    if (rc == 0) {
        rc = gpt_moe_grow(&moe->wide, kept.rows * 4 * d * sizeof(float), err);
    }
    if (rc == 0) {
        rc = gpt_moe_grow(&moe->dy, kept.rows * 4 * d * moe->operand, err);
    }
    if (rc == 0) {
        gpt_moe_fetch(p, op, moe->narrow.p, sizeof(float));
        gpt_operand(&p->layers, kept.rows, d, moe->narrow.p, moe->dy.p, sums);
        rc = gpt_host_linear_backward(p, &fcproj, kept.act, moe->dy.p, sums, moe->wide.p, err);
    }
    if (rc == 0) {
        gpt_gelu_backward(&p->layers, kept.rows, 4 * d, kept.pre, moe->wide.p, moe->dy.p, sums);
        rc = gpt_host_linear_backward(p, &fc, kept.x, moe->dy.p, sums, moe->narrow.p, err);
    }
    if (rc == 0) {
        gpt_moe_send(p, op, moe->narrow.p);
    }
    return rc;
}
