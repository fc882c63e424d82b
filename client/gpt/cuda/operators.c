/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of a dense model on a GPU. */
#include "client/gpt/cuda/pass_inside.h"

static CUdeviceptr lse_of(const struct gpt_cuda_pass *p, const struct gpt_block_memory *b,
                          const struct gpt_cuda_part *part)
{
    return b->lse + part->row * p->head.model->heads * sizeof(float);
}

/* -- forward ---------------------------------------------------------------------------------- */

int gpt_cuda_op_embed(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                      const struct gpt_cuda_part *part, const struct cst_io *io,
                      struct cst_err *err)
{
    const size_t d = p->head.model->width;

    return gpt_cuda_embed(&p->gpu->kernels, part->rows, d, p->all.context, p->a.tokens + part->row,
                          gpt_cuda_device(io[0].weight), gpt_cuda_device(io[1].weight),
                          gpt_cuda_rows32(p->a.blocks[op->layer].x, part, d), err);
}

/* The input of a block is computed here, from mid and branch of the block before. It exists already
 * in the first block of the pass, and when activations are recomputed. */
int gpt_cuda_op_qkv(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                    const struct gpt_cuda_part *part, const struct cst_io *io, struct cst_err *err)
{
    const struct gpt_block_memory *b = &p->a.blocks[op->layer];
    const size_t d = p->head.model->width;
    const bool made = op->layer == p->first || p->at_hand == op->layer;
    const struct gpt_cuda_linear l = gpt_cuda_linear_of(p, part, io, 2, d, 3 * d);
    int rc = gpt_cuda_norm_rows(p, part, made ? b->x : p->a.blocks[op->layer - 1].mid,
                                made ? 0 : p->a.branch, io, b->x, b->ln1, b->mean1, b->rstd1, err);

    if (rc == 0) {
        rc = gpt_cuda_linear(p, &l, gpt_cuda_rows16(b->ln1, part, d), 0,
                             gpt_cuda_rows16(b->qkv, part, 3 * d), err);
    }
    if (rc == 0) {
        rc = gpt_cuda_attention(&p->gpu->attention, p->gpu->stream, &part->shape,
                                gpt_cuda_rows16(b->qkv, part, 3 * d),
                                gpt_cuda_rows16(b->att, part, d), lse_of(p, b, part), err);
    }
    return rc;
}

int gpt_cuda_op_proj(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                     const struct gpt_cuda_part *part, const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_cuda_linear l = gpt_cuda_linear_of(p, part, io, 0, d, d);

    return gpt_cuda_linear(p, &l, gpt_cuda_rows16(p->a.blocks[op->layer].att, part, d), 0,
                           gpt_cuda_rows16(p->a.branch, part, d), err);
}

int gpt_cuda_op_fc(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                   const struct gpt_cuda_part *part, const struct cst_io *io, struct cst_err *err)
{
    const struct gpt_block_memory *b = &p->a.blocks[op->layer];
    const size_t d = p->head.model->width;
    const struct gpt_cuda_linear l = gpt_cuda_linear_of(p, part, io, 2, d, 4 * d);
    int rc =
        gpt_cuda_norm_rows(p, part, b->x, p->a.branch, io, b->mid, b->ln2, b->mean2, b->rstd2, err);

    return rc != 0 ? rc
                   : gpt_cuda_linear(p, &l, gpt_cuda_rows16(b->ln2, part, d),
                                     gpt_cuda_rows16(b->pre, part, 4 * d),
                                     gpt_cuda_rows16(b->act, part, 4 * d), err);
}

int gpt_cuda_op_fcproj(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                       const struct gpt_cuda_part *part, const struct cst_io *io,
                       struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_cuda_linear l = gpt_cuda_linear_of(p, part, io, 0, 4 * d, d);

    return gpt_cuda_linear(p, &l, gpt_cuda_rows16(p->a.blocks[op->layer].act, part, 4 * d), 0,
                           gpt_cuda_rows16(p->a.branch, part, d), err);
}

int gpt_cuda_op_head(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                     const struct gpt_cuda_part *part, const struct cst_io *io, struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_product product = {
        .m = part->rows,
        .n = GPT_VOCAB,
        .k = d,
        .a = gpt_cuda_rows16(p->a.lnf, part, d),
        .b = gpt_cuda_device(io[2].weight),
        .turn_b = true,
        .c = gpt_cuda_rows32(p->a.logits, part, GPT_VOCAB),
        .fp32 = true,
    };
    int rc = gpt_cuda_norm_rows(p, part, p->a.blocks[p->head.model->layers - 1].mid, p->a.branch,
                                io, p->a.x, p->a.lnf, p->a.meanf, p->a.rstdf, err);

    (void)op;
    return rc != 0 ? rc : gpt_gpu_product(p->gpu, &product, err);
}

/* -- backward --------------------------------------------------------------------------------- */

int gpt_cuda_op_head_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                              const struct gpt_cuda_part *part, const struct cst_io *io,
                              struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_cuda_grad dw = gpt_cuda_grad_of(&io[2], part->first);
    const struct gpt_product of_weights = {
        .m = GPT_VOCAB,
        .n = d,
        .k = part->rows,
        .a = gpt_cuda_rows16(p->a.dlogits, part, GPT_VOCAB),
        .turn_a = true,
        .b = gpt_cuda_rows16(p->a.lnf, part, d),
        .c = dw.at,
        .accumulate = dw.accumulate,
    };
    const struct gpt_product of_input = {
        .m = part->rows,
        .n = d,
        .k = GPT_VOCAB,
        .a = gpt_cuda_rows16(p->a.dlogits, part, GPT_VOCAB),
        .b = gpt_cuda_device(io[2].weight),
        .c = gpt_cuda_rows16(p->a.dh, part, d),
    };
    int rc = dw.at == 0 ? 0 : gpt_gpu_product(p->gpu, &of_weights, err);

    (void)op;
    if (rc == 0) {
        rc = gpt_gpu_product(p->gpu, &of_input, err);
    }
    return rc != 0 ? rc
                   : gpt_cuda_norm_rows_backward(p, part, p->a.x, p->a.meanf, p->a.rstdf, io, true,
                                                 err);
}

/* a.wide receives the gradient of pre. */
int gpt_cuda_op_fcproj_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                                const struct gpt_cuda_part *part, const struct cst_io *io,
                                struct cst_err *err)
{
    const struct gpt_block_memory *b = &p->a.blocks[op->layer];
    const size_t d = p->head.model->width;
    const struct gpt_cuda_linear l = gpt_cuda_linear_of(p, part, io, 0, 4 * d, d);

    return gpt_cuda_linear_backward(
        p, &l, gpt_cuda_rows16(b->act, part, 4 * d), gpt_cuda_rows16(p->a.dxh, part, d),
        gpt_cuda_rows16(b->pre, part, 4 * d), gpt_cuda_rows16(p->a.wide, part, 4 * d), err);
}

int gpt_cuda_op_fc_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                            const struct gpt_cuda_part *part, const struct cst_io *io,
                            struct cst_err *err)
{
    const struct gpt_block_memory *b = &p->a.blocks[op->layer];
    const size_t d = p->head.model->width;
    const struct gpt_cuda_linear l = gpt_cuda_linear_of(p, part, io, 2, d, 4 * d);
    int rc = gpt_cuda_linear_backward(p, &l, gpt_cuda_rows16(b->ln2, part, d),
                                      gpt_cuda_rows16(p->a.wide, part, 4 * d), 0,
                                      gpt_cuda_rows16(p->a.dh, part, d), err);

    return rc != 0
               ? rc
               : gpt_cuda_norm_rows_backward(p, part, b->mid, b->mean2, b->rstd2, io, false, err);
}

/* a.dh receives the gradient of att. */
int gpt_cuda_op_proj_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                              const struct gpt_cuda_part *part, const struct cst_io *io,
                              struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_cuda_linear l = gpt_cuda_linear_of(p, part, io, 0, d, d);

    return gpt_cuda_linear_backward(p, &l, gpt_cuda_rows16(p->a.blocks[op->layer].att, part, d),
                                    gpt_cuda_rows16(p->a.dxh, part, d), 0,
                                    gpt_cuda_rows16(p->a.dh, part, d), err);
}

/* a.wide holds the gradient of qkv. */
int gpt_cuda_op_qkv_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                             const struct gpt_cuda_part *part, const struct cst_io *io,
                             struct cst_err *err)
{
    const struct gpt_block_memory *b = &p->a.blocks[op->layer];
    const size_t d = p->head.model->width;
    const struct gpt_cuda_linear l = gpt_cuda_linear_of(p, part, io, 2, d, 3 * d);
    int rc = gpt_cuda_attention_backward(
        &p->gpu->attention, p->gpu->stream, &part->shape, gpt_cuda_rows16(b->qkv, part, 3 * d),
        gpt_cuda_rows16(b->att, part, d), lse_of(p, b, part), gpt_cuda_rows16(p->a.dh, part, d),
        gpt_cuda_rows16(p->a.wide, part, 3 * d), p->a.scratch, err);

    if (rc == 0) {
        rc = gpt_cuda_linear_backward(p, &l, gpt_cuda_rows16(b->ln1, part, d),
                                      gpt_cuda_rows16(p->a.wide, part, 3 * d), 0,
                                      gpt_cuda_rows16(p->a.dh, part, d), err);
    }
    return rc != 0 ? rc
                   : gpt_cuda_norm_rows_backward(p, part, b->x, b->mean1, b->rstd1, io, false, err);
}

/* The first part computes the rows of all parts. The later parts do nothing. */
int gpt_cuda_op_embed_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                               const struct gpt_cuda_part *part, const struct cst_io *io,
                               struct cst_err *err)
{
    const size_t rows = p->n_seqs * p->all.context;

    (void)op;
    return !part->first ? 0
                        : gpt_cuda_embed_backward(&p->gpu->kernels, rows, p->head.model->width,
                                                  p->all.context, p->a.tokens, p->a.dx,
                                                  gpt_cuda_grad_of(&io[0], part->first),
                                                  gpt_cuda_grad_of(&io[1], part->first), err);
}
