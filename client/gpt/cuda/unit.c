/* SPDX-License-Identifier: Apache-2.0 */
/* Where a pass on a GPU has the arrays of a unit. Between two blocks the residual stream is in two
 * parts, which the norm of the next block adds up. Between two stages it is one array. */
#include "client/gpt/cuda/pass_inside.h"

static struct gpt_cuda_pass *self(struct gpt_pass *pass)
{
    return (struct gpt_cuda_pass *)(void *)pass;
}

static size_t elements(const struct gpt_cuda_pass *p)
{
    return p->n_seqs * p->all.context * p->head.model->width;
}

static void *address(CUdeviceptr p)
{
    return (void *)(uintptr_t)p; // NOLINT(performance-no-int-to-ptr)
}

static int begin_unit(struct gpt_pass *pass, size_t n_seqs, uint32_t first, uint32_t last,
                      struct cst_err *err)
{
    return gpt_cuda_begin(self(pass), n_seqs, first, last, true, err);
}

static void *input_of(struct gpt_pass *pass, uint32_t block)
{
    return address(self(pass)->a.blocks[block].x);
}

static int output_of(struct gpt_pass *pass, uint32_t block, void **out, struct cst_err *err)
{
    const struct gpt_cuda_pass *p = self(pass);

    *out = address(p->a.x);
    return gpt_cuda_residual(&p->gpu->kernels, elements(p), p->a.blocks[block].mid, p->a.branch,
                             p->a.x, err);
}

static void *grad_of(struct gpt_pass *pass)
{
    return address(self(pass)->a.dx);
}

/* The operators read the gradient rounded, too. */
static int grad_taken(struct gpt_pass *pass, struct cst_err *err)
{
    const struct gpt_cuda_pass *p = self(pass);

    return gpt_cuda_round(&p->gpu->kernels, elements(p), p->a.dx, p->a.dxh, err);
}

static int compute_loss(struct gpt_pass *pass, struct cst_err *err)
{
    return gpt_cuda_enqueue_loss(self(pass), err);
}

const struct gpt_unit_ops gpt_cuda_units = {
    .begin = begin_unit,
    .input = input_of,
    .output = output_of,
    .grad = grad_of,
    .grad_taken = grad_taken,
    .loss = compute_loss,
};
