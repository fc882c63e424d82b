/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of a dense model on the processor. */
#include "client/gpt/pass_host.h"

#include <string.h>

/* -- forward ----------------------------------------------------------------------------------- */

int gpt_host_embed(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                   struct cst_err *err)
{
    (void)op;
    (void)err;
    gpt_embed(&p->layers, p->rows, p->head.model->width, p->head.model->context, p->head.tokens,
              io[0].weight, io[1].weight, p->blocks[0].x);
    return 0;
}

int gpt_host_qkv(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                 struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_linear l = gpt_host_linear_of(p, io, 2, d, 3 * d);
    const struct gpt_block *b = &p->blocks[op->layer];
    int rc;

    gpt_layernorm(&p->layers, p->rows, d, b->x, io[0].weight, io[1].weight, b->ln1, b->mean1,
                  b->rstd1);
    rc = gpt_host_linear(p, &l, b->ln1, b->qkv, err);
    if (rc == 0) {
        gpt_bias(&p->layers, p->rows, 3 * d, b->qkv, io[3].weight);
        gpt_attention(&p->layers, &p->shape, b->qkv, b->att, b->lse);
    }
    return rc;
}

int gpt_host_proj(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                  struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_linear l = gpt_host_linear_of(p, io, 0, d, d);
    const struct gpt_block *b = &p->blocks[op->layer];
    int rc = gpt_host_linear(p, &l, b->att, p->wide, err);

    if (rc == 0) {
        gpt_residual(&p->layers, p->rows, d, b->x, p->wide, io[1].weight, b->mid);
    }
    return rc;
}

int gpt_host_fc(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_linear l = gpt_host_linear_of(p, io, 2, d, 4 * d);
    const struct gpt_block *b = &p->blocks[op->layer];
    int rc;

    gpt_layernorm(&p->layers, p->rows, d, b->mid, io[0].weight, io[1].weight, b->ln2, b->mean2,
                  b->rstd2);
    rc = gpt_host_linear(p, &l, b->ln2, b->pre, err);
    if (rc == 0) {
        gpt_gelu(&p->layers, p->rows, 4 * d, b->pre, io[3].weight, b->act);
    }
    return rc;
}

int gpt_host_fcproj(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                    struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_linear l = gpt_host_linear_of(p, io, 0, 4 * d, d);
    const struct gpt_block *b = &p->blocks[op->layer];
    int rc = gpt_host_linear(p, &l, b->act, p->wide, err);

    if (rc == 0) {
        gpt_residual(&p->layers, p->rows, d, b->mid, p->wide, io[1].weight,
                     gpt_host_block_out(p, op->layer));
    }
    return rc;
}

/* logits = lnf(x) wte^T. */
int gpt_host_head(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                  struct cst_err *err)
{
    const size_t d = p->head.model->width, vocab = p->head.model->vocab;

    (void)op;
    gpt_layernorm(&p->layers, p->rows, d, p->x, io[0].weight, io[1].weight, p->lnf, p->meanf,
                  p->rstdf);
    return gpt_matmul(p->mm, p->rows, vocab, d, p->lnf, false, gpt_host_operand(p, &io[2]), true,
                      p->logits, err);
}

/* -- backward ---------------------------------------------------------------------------------- */

int gpt_host_head_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                           const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width, vocab = p->head.model->vocab;
    int rc = 0;

    (void)op;
    if (io[2].grad != NULL) {
        rc = gpt_matmul(p->mm, vocab, d, p->rows, p->dlogits, true, p->lnf, false, p->grad, err);
    }
    if (rc == 0) {
        gpt_host_put(p, vocab * d, p->grad, &io[2]);
        rc = gpt_matmul(p->mm, p->rows, d, vocab, p->dlogits, false, gpt_host_operand(p, &io[2]),
                        false, p->wide, err);
    }
    if (rc == 0) {
        /* The gradient of the residual stream begins here. */
        memset(p->dx, 0, p->rows * d * sizeof *p->dx);
        gpt_host_norm_backward(p, p->wide, p->x, p->meanf, p->rstdf, &io[0], &io[1]);
    }
    return rc;
}

/* Place for the column sums of dy while p->grad holds the gradient of the weight. */
static float *sums_of(const struct gpt_pass_host *p)
{
    return p->grad + 4 * (size_t)p->head.model->width * p->head.model->width;
}

int gpt_host_fcproj_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                             const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_linear l = gpt_host_linear_of(p, io, 0, 4 * d, d);

    gpt_operand(&p->layers, p->rows, d, p->dx, p->dy, sums_of(p));
    return gpt_host_linear_backward(p, &l, p->blocks[op->layer].act, p->dy, sums_of(p), p->wide,
                                    err);
}

/* p->wide holds the gradient of act at first, and the gradient of ln2 at the end. */
int gpt_host_fc_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                         const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_linear l = gpt_host_linear_of(p, io, 2, d, 4 * d);
    const struct gpt_block *b = &p->blocks[op->layer];
    int rc;

    gpt_gelu_backward(&p->layers, p->rows, 4 * d, b->pre, p->wide, p->dy, sums_of(p));
    rc = gpt_host_linear_backward(p, &l, b->ln2, p->dy, sums_of(p), p->wide, err);
    if (rc == 0) {
        gpt_host_norm_backward(p, p->wide, b->mid, b->mean2, b->rstd2, &io[0], &io[1]);
    }
    return rc;
}

int gpt_host_proj_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                           const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_linear l = gpt_host_linear_of(p, io, 0, d, d);

    gpt_operand(&p->layers, p->rows, d, p->dx, p->dy, sums_of(p));
    return gpt_host_linear_backward(p, &l, p->blocks[op->layer].att, p->dy, sums_of(p), p->wide,
                                    err);
}

/* The first M x d elements of p->wide hold the gradient of att, and the next M x 3d the gradient of
 * qkv. */
int gpt_host_qkv_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                          const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_linear l = gpt_host_linear_of(p, io, 2, d, 3 * d);
    const struct gpt_block *b = &p->blocks[op->layer];
    float *dqkv = p->wide + p->rows * d;
    int rc;

    gpt_attention_backward(&p->layers, &p->shape, b->qkv, b->att, b->lse, p->wide, dqkv);
    gpt_operand(&p->layers, p->rows, 3 * d, dqkv, p->dy, sums_of(p));
    rc = gpt_host_linear_backward(p, &l, b->ln1, p->dy, sums_of(p), p->wide, err);
    if (rc == 0) {
        gpt_host_norm_backward(p, p->wide, b->x, b->mean1, b->rstd1, &io[0], &io[1]);
    }
    return rc;
}

int gpt_host_embed_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                            const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width, vocab = p->head.model->vocab;
    float *dwte = p->grad, *dwpe = p->grad + vocab * d;

    (void)op;
    (void)err;
    gpt_embed_backward(&p->layers, p->rows, d, p->head.model->context, vocab, p->head.tokens, p->dx,
                       dwte, dwpe);
    gpt_host_put(p, io[0].n_elems, dwte, &io[0]);
    gpt_host_put(p, io[1].n_elems, dwpe, &io[1]);
    return 0;
}
