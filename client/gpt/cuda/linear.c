/* SPDX-License-Identifier: Apache-2.0 */
/* Products with the store's weights, their adapters, and layer norms, forward and backward. */
#include "client/gpt/cuda/pass_inside.h"

struct gpt_cuda_grad gpt_cuda_grad_of(const struct cst_io *io, bool first)
{
    return (struct gpt_cuda_grad){gpt_cuda_device(io->grad), io->accumulate || !first};
}

struct gpt_cuda_linear gpt_cuda_linear_of(const struct gpt_cuda_pass *p,
                                          const struct gpt_cuda_part *part, const struct cst_io *io,
                                          size_t at, size_t k, size_t n)
{
    return (struct gpt_cuda_linear){
        .rows = part->rows,
        .k = k,
        .n = n,
        .w = &io[at],
        .bias = &io[at + 1],
        .lora = p->head.model->lora > 0 ? &io[at + 2] : NULL,
        .first = part->first,
        .parts = p->a.parts,
    };
}

/* -- adapters ---------------------------------------------------------------------------------- */

/* a.low (rows x lora) := scale x lora_a. */
static int low_of_input(const struct gpt_cuda_pass *p, const struct gpt_cuda_linear *l,
                        CUdeviceptr x, struct cst_err *err)
{
    const struct gpt_product low = {
        .m = l->rows,
        .n = p->head.model->lora,
        .k = l->k,
        .a = x,
        .b = gpt_cuda_device(l->lora[0].weight),
        .c = p->a.low,
        .scale = p->head.model->lora_scale,
    };

    return gpt_gpu_product(p->gpu, &low, err);
}

/* y += scale (x lora_a) lora_b. */
static int adapter(const struct gpt_cuda_pass *p, const struct gpt_cuda_linear *l, CUdeviceptr x,
                   CUdeviceptr y, struct cst_err *err)
{
    const struct gpt_product up = {
        .m = l->rows,
        .n = l->n,
        .k = p->head.model->lora,
        .a = p->a.low,
        .b = gpt_cuda_device(l->lora[1].weight),
        .c = y,
        .accumulate = true,
    };
    int rc = low_of_input(p, l, x, err);

    return rc != 0 ? rc : gpt_gpu_product(p->gpu, &up, err);
}

/* Gradient of one of the adapter's two tensors: m x n = a^T b over all rows. */
static int adapter_grad(const struct gpt_cuda_pass *p, const struct gpt_cuda_linear *l,
                        const struct cst_io *io, size_t m, CUdeviceptr a, size_t n, CUdeviceptr b,
                        struct cst_err *err)
{
    const struct gpt_cuda_grad to = gpt_cuda_grad_of(io, l->first);
    const struct gpt_product product = {
        .m = m,
        .n = n,
        .k = l->rows,
        .a = a,
        .turn_a = true,
        .b = b,
        .c = to.at,
        .accumulate = to.accumulate,
    };

    return gpt_gpu_product(p->gpu, &product, err);
}

/* With t = scale x lora_a: gradient of lora_b = t^T dy. With u = scale dy lora_b^T: gradient of
 * lora_a = x^T u, and dx += u lora_a^T. */
static int adapter_backward(const struct gpt_cuda_pass *p, const struct gpt_cuda_linear *l,
                            CUdeviceptr x, CUdeviceptr dy, CUdeviceptr dx, struct cst_err *err)
{
    const size_t r = p->head.model->lora;
    const struct gpt_product low_of_output = {
        .m = l->rows,
        .n = r,
        .k = l->n,
        .a = dy,
        .b = gpt_cuda_device(l->lora[1].weight),
        .turn_b = true,
        .c = p->a.low,
        .scale = p->head.model->lora_scale,
    };
    const struct gpt_product of_input = {
        .m = l->rows,
        .n = l->k,
        .k = r,
        .a = p->a.low,
        .b = gpt_cuda_device(l->lora[0].weight),
        .turn_b = true,
        .c = dx,
        .accumulate = true,
    };
    int rc = low_of_input(p, l, x, err);

    if (rc == 0) {
        rc = adapter_grad(p, l, &l->lora[1], r, p->a.low, l->n, dy, err);
    }
    if (rc == 0) {
        rc = gpt_gpu_product(p->gpu, &low_of_output, err);
    }
    if (rc == 0) {
        rc = adapter_grad(p, l, &l->lora[0], l->k, x, r, p->a.low, err);
    }
    return rc != 0 ? rc : gpt_gpu_product(p->gpu, &of_input, err);
}

/* -- products ---------------------------------------------------------------------------------- */

/* GELU is an epilogue of the product only without an adapter, whose output is added before GELU. */
int gpt_cuda_linear(const struct gpt_cuda_pass *p, const struct gpt_cuda_linear *l, CUdeviceptr x,
                    CUdeviceptr pre, CUdeviceptr y, struct cst_err *err)
{
    const bool adapted = l->lora != NULL;
    const CUdeviceptr sum = adapted && pre != 0 ? pre : y;
    const struct gpt_product product = {
        .m = l->rows,
        .n = l->n,
        .k = l->k,
        .a = x,
        .b = gpt_cuda_device(l->w->weight),
        .c = sum,
        .epilogue = pre != 0 && !adapted ? GPT_EPILOGUE_BIAS_GELU : GPT_EPILOGUE_BIAS,
        .bias = gpt_cuda_device(l->bias->weight),
        .pre = pre,
    };
    int rc = gpt_gpu_product(p->gpu, &product, err);

    if (rc != 0 || !adapted) {
        return rc;
    }
    rc = adapter(p, l, x, sum, err);
    return rc != 0 || pre == 0 ? rc : gpt_cuda_gelu(&p->gpu->kernels, l->rows * l->n, pre, y, err);
}

/* Write dw = x^T dy and db = sums of dy into the store. */
static int base_grads(const struct gpt_cuda_pass *p, const struct gpt_cuda_linear *l, CUdeviceptr x,
                      CUdeviceptr dy, struct cst_err *err)
{
    const struct gpt_cuda_grad dw = gpt_cuda_grad_of(l->w, l->first);
    const struct gpt_cuda_grad db = gpt_cuda_grad_of(l->bias, l->first);
    const struct gpt_product of_weights = {
        .m = l->k,
        .n = l->n,
        .k = l->rows,
        .a = x,
        .turn_a = true,
        .b = dy,
        .c = dw.at,
        .accumulate = dw.accumulate,
    };
    int rc = dw.at == 0 ? 0 : gpt_gpu_product(p->gpu, &of_weights, err);

    return rc != 0 || db.at == 0
               ? rc
               : gpt_cuda_bias_grad(&p->gpu->kernels, l->rows, l->n, dy, l->parts, db, err);
}

int gpt_cuda_linear_backward(const struct gpt_cuda_pass *p, const struct gpt_cuda_linear *l,
                             CUdeviceptr x, CUdeviceptr dy, CUdeviceptr pre, CUdeviceptr dx,
                             struct cst_err *err)
{
    const bool adapted = l->lora != NULL;
    const struct gpt_product of_input = {
        .m = l->rows,
        .n = l->k,
        .k = l->n,
        .a = dy,
        .b = gpt_cuda_device(l->w->weight),
        .turn_b = true,
        .c = dx,
        .epilogue = pre != 0 && !adapted ? GPT_EPILOGUE_GELU_BACKWARD : GPT_EPILOGUE_NONE,
        .pre = pre,
    };
    int rc = base_grads(p, l, x, dy, err);

    if (rc == 0) {
        rc = gpt_gpu_product(p->gpu, &of_input, err);
    }
    if (rc != 0 || !adapted) {
        return rc;
    }
    rc = adapter_backward(p, l, x, dy, dx, err);
    return rc != 0 || pre == 0
               ? rc
               : gpt_cuda_gelu_backward(&p->gpu->kernels, l->rows * l->k, pre, dx, err);
}

/* -- norms ------------------------------------------------------------------------------------- */

int gpt_cuda_norm_rows(const struct gpt_cuda_pass *p, const struct gpt_cuda_part *part,
                       CUdeviceptr x, CUdeviceptr branch, const struct cst_io *io, CUdeviceptr sum,
                       CUdeviceptr y, CUdeviceptr mean, CUdeviceptr rstd, struct cst_err *err)
{
    const size_t d = p->head.model->width;

    return gpt_cuda_norm(&p->gpu->kernels, part->rows, d, gpt_cuda_rows32(x, part, d),
                         branch != 0 ? gpt_cuda_rows16(branch, part, d) : 0,
                         gpt_cuda_device(io[0].weight), gpt_cuda_device(io[1].weight),
                         gpt_cuda_rows32(sum, part, d), gpt_cuda_rows16(y, part, d),
                         gpt_cuda_rows32(mean, part, 1), gpt_cuda_rows32(rstd, part, 1), err);
}

int gpt_cuda_norm_rows_backward(const struct gpt_cuda_pass *p, const struct gpt_cuda_part *part,
                                CUdeviceptr x, CUdeviceptr mean, CUdeviceptr rstd,
                                const struct cst_io *io, bool first, struct cst_err *err)
{
    const size_t d = p->head.model->width;
    const struct gpt_cuda_norm_back back = {
        .rows = part->rows,
        .width = d,
        .dy = gpt_cuda_rows16(p->a.dh, part, d),
        .x = gpt_cuda_rows32(x, part, d),
        .w = gpt_cuda_device(io[0].weight),
        .mean = gpt_cuda_rows32(mean, part, 1),
        .rstd = gpt_cuda_rows32(rstd, part, 1),
        .first = first,
        .dx = gpt_cuda_rows32(p->a.dx, part, d),
        .operand = gpt_cuda_rows16(p->a.dxh, part, d),
        .parts = p->a.parts,
        .dw = gpt_cuda_grad_of(&io[0], part->first),
        .db = gpt_cuda_grad_of(&io[1], part->first),
    };

    return gpt_cuda_norm_backward(&p->gpu->kernels, &back, err);
}
