/* SPDX-License-Identifier: Apache-2.0 */
/* Where a pass on the processor has the arrays of a unit. */
#include "client/gpt/pass_host.h"

static struct gpt_pass_host *self(struct gpt_pass *pass)
{
    return (struct gpt_pass_host *)(void *)pass;
}

static int begin_unit(struct gpt_pass *pass, size_t n_seqs, uint32_t first, uint32_t last,
                      struct cst_err *err)
{
    (void)first;
    (void)last;
    (void)err;
    gpt_host_begin(self(pass), n_seqs);
    return 0;
}

static void *input_of(struct gpt_pass *pass, uint32_t block)
{
    return self(pass)->blocks[block].x;
}

static int output_of(struct gpt_pass *pass, uint32_t block, void **out, struct cst_err *err)
{
    (void)err;
    *out = gpt_host_block_out(self(pass), block);
    return 0;
}

static void *grad_of(struct gpt_pass *pass)
{
    return self(pass)->dx;
}

static int grad_taken(struct gpt_pass *pass, struct cst_err *err)
{
    (void)pass;
    (void)err;
    return 0;
}

static int compute_loss(struct gpt_pass *pass, struct cst_err *err)
{
    (void)err;
    gpt_host_loss(self(pass));
    return 0;
}

const struct gpt_unit_ops gpt_host_units = {
    .begin = begin_unit,
    .input = input_of,
    .output = output_of,
    .grad = grad_of,
    .grad_taken = grad_taken,
    .loss = compute_loss,
};
