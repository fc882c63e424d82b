/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of a mixture of experts on a GPU. */
#include "client/gpt/cuda/moe_inside.h"

_Static_assert(GPT_CUDA_MAX_EXPERTS == GPT_MAX_EXPERTS, "args.h and model.h");

/* -- router ----------------------------------------------------------------------------------- */

static CUdeviceptr choices(const struct gpt_cuda_pass *p, CUdeviceptr base,
                           const struct gpt_cuda_part *part)
{
    return gpt_cuda_rows32(base, part, p->head.model->top_k);
}

int gpt_cuda_op_router(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                       const struct gpt_cuda_part *part, const struct cst_io *io,
                       struct cst_err *err)
{
    const struct gpt_block_memory *b = &p->a.blocks[op->layer];
    const struct gpt_cuda_moe_layer *l = &p->moe->layers[op->layer];
    const struct gpt_model *m = p->head.model;
    const CUdeviceptr logits = gpt_cuda_rows32(l->probs, part, m->experts);
    const struct gpt_product product = {
        .m = part->rows,
        .n = m->experts,
        .k = m->width,
        .a = gpt_cuda_rows16(b->ln2, part, m->width),
        .b = gpt_cuda_device(io[2].weight),
        .c = logits,
        .fp32 = true,
    };
    int rc =
        gpt_cuda_norm_rows(p, part, b->x, p->a.branch, io, b->mid, b->ln2, b->mean2, b->rstd2, err);

    if (rc == 0) {
        rc = gpt_gpu_product(p->gpu, &product, err);
    }
    return rc != 0 ? rc
                   : gpt_cuda_choose(&p->gpu->kernels, part->rows, m->experts, m->top_k, logits,
                                     choices(p, l->chosen, part), choices(p, l->gates, part), err);
}

/* Compute moe->dz from the gradients of the gates and of the balance loss. */
static int logits_backward(const struct gpt_cuda_pass *p, const struct gpt_cuda_moe_layer *l,
                           const struct gpt_cuda_part *part, struct cst_err *err)
{
    const struct gpt_model *m = p->head.model;
    const struct gpt_cuda_choose_back back = {
        .rows = part->rows,
        .width = m->width,
        .experts = m->experts,
        .top_k = m->top_k,
        .place = choices(p, l->place, part),
        .chosen = choices(p, l->chosen, part),
        .gates = choices(p, l->gates, part),
        .probs = gpt_cuda_rows32(l->probs, part, m->experts),
        .shares = l->shares,
        .scale = m->balance * (float)m->experts / (float)(p->n_seqs * p->all.context),
        .y = l->y,
        .dx = gpt_cuda_rows32(p->a.dx, part, m->width),
        .dz = gpt_cuda_rows16(p->moe->dz, part, m->experts),
    };

    return gpt_cuda_choose_backward(&p->gpu->kernels, &back, err);
}

/* a.dh receives the gradient of ln2, by way of the experts and by way of the router. */
int gpt_cuda_op_router_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                                const struct gpt_cuda_part *part, const struct cst_io *io,
                                struct cst_err *err)
{
    const struct gpt_block_memory *b = &p->a.blocks[op->layer];
    const struct gpt_cuda_moe_layer *l = &p->moe->layers[op->layer];
    const struct gpt_model *m = p->head.model;
    const CUdeviceptr dz = gpt_cuda_rows16(p->moe->dz, part, m->experts);
    const CUdeviceptr dh = gpt_cuda_rows16(p->a.dh, part, m->width);
    const struct gpt_cuda_grad dw = gpt_cuda_grad_of(&io[2], part->first);
    const struct gpt_product of_weights = {
        .m = m->width,
        .n = m->experts,
        .k = part->rows,
        .a = gpt_cuda_rows16(b->ln2, part, m->width),
        .turn_a = true,
        .b = dz,
        .c = dw.at,
        .accumulate = dw.accumulate,
    };
    const struct gpt_product of_input = {
        .m = part->rows,
        .n = m->width,
        .k = m->experts,
        .a = dz,
        .b = gpt_cuda_device(io[2].weight),
        .turn_b = true,
        .c = dh,
        .accumulate = true,
    };
    int rc = logits_backward(p, l, part, err);

    if (rc == 0) {
        rc = gpt_gpu_product(p->gpu, &of_weights, err);
    }
    if (rc == 0) {
        rc = gpt_cuda_combine(&p->gpu->kernels, part->rows, m->width, m->top_k,
                              choices(p, l->place, part), 0, p->moe->dx.p, dh, err);
    }
    if (rc == 0) {
        rc = gpt_gpu_product(p->gpu, &of_input, err);
    }
    return rc != 0
               ? rc
               : gpt_cuda_norm_rows_backward(p, part, b->mid, b->mean2, b->rstd2, io, false, err);
}

/* -- experts ---------------------------------------------------------------------------------- */

/* One of the expert's two products, over all its rows. */
static struct gpt_cuda_linear linear_of(const struct gpt_cuda_pass *p,
                                        const struct gpt_operator *op, const struct cst_io *io,
                                        size_t k, size_t n)
{
    const uint32_t *starts = p->moe->layers[op->layer].starts;

    return (struct gpt_cuda_linear){
        .rows = starts[op->expert + 1] - starts[op->expert],
        .k = k,
        .n = n,
        .w = &io[0],
        .bias = &io[1],
        .first = true,
        .parts = p->moe->parts.p,
    };
}

/* The first part computes all rows of the expert. The later parts do nothing. */
int gpt_cuda_op_expert(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                       const struct gpt_cuda_part *part, const struct cst_io *io,
                       struct cst_err *err)
{
    const struct gpt_cuda_moe_layer *l = &p->moe->layers[op->layer];
    const size_t d = p->head.model->width, at = l->starts[op->expert];
    const struct gpt_cuda_linear fc = linear_of(p, op, io, d, 4 * d);
    const struct gpt_cuda_linear fcproj = linear_of(p, op, io + 2, 4 * d, d);
    const CUdeviceptr act = gpt_cuda_moe_row(p->moe, l->act, 4 * at);
    int rc = 0;

    if (!part->first) {
        return 0;
    }
    rc = gpt_cuda_linear(p, &fc, gpt_cuda_moe_row(p->moe, l->x, at),
                         gpt_cuda_moe_row(p->moe, l->pre, 4 * at), act, err);
    return rc != 0 ? rc
                   : gpt_cuda_linear(p, &fcproj, act, 0, gpt_cuda_moe_row(p->moe, l->y, at), err);
}

int gpt_cuda_op_expert_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                                const struct gpt_cuda_part *part, const struct cst_io *io,
                                struct cst_err *err)
{
    const struct gpt_cuda_moe_layer *l = &p->moe->layers[op->layer];
    const size_t d = p->head.model->width, at = l->starts[op->expert];
    const struct gpt_cuda_linear fc = linear_of(p, op, io, d, 4 * d);
    const struct gpt_cuda_linear fcproj = linear_of(p, op, io + 2, 4 * d, d);
    int rc;

    if (!part->first) {
        return 0;
    }
    rc = gpt_cuda_linear_backward(p, &fcproj, gpt_cuda_moe_row(p->moe, l->act, 4 * at),
                                  gpt_cuda_moe_row(p->moe, p->moe->dy.p, at),
                                  gpt_cuda_moe_row(p->moe, l->pre, 4 * at), p->moe->wide.p, err);
    return rc != 0 ? rc
                   : gpt_cuda_linear_backward(p, &fc, gpt_cuda_moe_row(p->moe, l->x, at),
                                              p->moe->wide.p, 0,
                                              gpt_cuda_moe_row(p->moe, p->moe->dx.p, at), err);
}
