/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/pass_host.h"

#include "client/gpt/host_moe.h"
#include "client/gpt/memory.h"
#include "client/gpt/parallel.h"

#include <stdlib.h>
#include <string.h>

static struct gpt_pass_host *self(struct gpt_pass *pass)
{
    return (struct gpt_pass_host *)(void *)pass;
}

static const struct {
    gpt_host_fn *forward, *backward;
} operators[] = {
    [GPT_OP_EMBED] = {gpt_host_embed, gpt_host_embed_backward},
    [GPT_OP_QKV] = {gpt_host_qkv, gpt_host_qkv_backward},
    [GPT_OP_PROJ] = {gpt_host_proj, gpt_host_proj_backward},
    [GPT_OP_FC] = {gpt_host_fc, gpt_host_fc_backward},
    [GPT_OP_FCPROJ] = {gpt_host_fcproj, gpt_host_fcproj_backward},
    [GPT_OP_HEAD] = {gpt_host_head, gpt_host_head_backward},
    [GPT_OP_ROUTER] = {gpt_host_router, gpt_host_router_backward},
    [GPT_OP_EXPERT] = {gpt_host_expert, gpt_host_expert_backward},
};

void gpt_host_begin(struct gpt_pass_host *p, size_t n_seqs)
{
    p->shape = (struct gpt_attention_shape){
        .n_seqs = n_seqs,
        .context = p->head.model->context,
        .n_heads = p->head.model->heads,
        .head_dim = p->head.model->width / p->head.model->heads,
    };
    p->rows = n_seqs * p->head.model->context;
}

static int host_run(struct gpt_pass *pass, struct gpt_store *store, uint32_t number,
                    enum cst_direction direction, struct cst_err *err)
{
    struct gpt_pass_host *p = self(pass);
    const struct gpt_operator *op = &p->head.model->operators[number];
    gpt_host_fn *const fn =
        direction == CST_FORWARD ? operators[op->kind].forward : operators[op->kind].backward;
    struct cst_io io[GPT_MAX_OP_TENSORS];
    int rc = gpt_stash_before(&p->stash, store, op, direction, err);

    rc = rc == 0 ? store->ops->op_begin(store, number, direction, io, op->n_tensors, err) : rc;
    rc = rc == 0 ? fn(p, op, io, err) : rc;
    rc = rc == 0 ? store->ops->op_end(store, number, err) : rc;
    return rc == 0 ? gpt_stash_after(&p->stash, store, op, direction, err) : rc;
}

static bool host_runs(const struct gpt_pass *pass, const struct gpt_operator *op)
{
    return gpt_moe_runs((const struct gpt_pass_host *)(const void *)pass, op);
}

static int host_send_rows(struct gpt_pass *pass, uint32_t layer, enum cst_direction direction,
                          struct cst_err *err)
{
    return direction == CST_FORWARD ? gpt_moe_send_rows(self(pass), layer, err)
                                    : gpt_moe_send_rows_backward(self(pass), layer, err);
}

static int host_combine(struct gpt_pass *pass, uint32_t layer, enum cst_direction direction,
                        struct cst_err *err)
{
    return direction == CST_FORWARD ? gpt_moe_combine(self(pass), layer, err)
                                    : gpt_moe_combine_backward(self(pass), layer, err);
}

void gpt_host_loss(struct gpt_pass_host *p)
{
    p->loss = gpt_cross_entropy(&p->layers, p->rows, p->head.model->vocab, p->logits,
                                p->head.targets, p->losses, p->dlogits);
}

static int host_forward(struct gpt_pass *pass, struct gpt_store *store, size_t n_seqs, bool train,
                        struct cst_err *err)
{
    struct gpt_pass_host *p = self(pass);
    int rc = 0;

    /* The other ranks take no part in a pass without @train. This rank then computes all
     * experts. */
    if (p->moe != NULL) {
        gpt_moe_begin(p->moe, train ? pass->comms : (struct gpt_exchange_comms){0});
    }
    gpt_host_begin(p, n_seqs);
    for (uint32_t i = 0; rc == 0 && i < pass->model->n_operators; i++) {
        rc = gpt_pass_step(pass, store, i, CST_FORWARD, err);
    }
    if (rc != 0) {
        gpt_stash_end(&p->stash, store);
    }
    if (rc == 0 && train) {
        gpt_host_loss(p);
    }
    return rc;
}

static int host_backward(struct gpt_pass *pass, struct gpt_store *store, struct cst_err *err)
{
    int rc = 0;

    for (uint32_t i = pass->model->n_operators; rc == 0 && i-- > 0;) {
        rc = gpt_pass_step(pass, store, i, CST_BACKWARD, err);
    }
    if (rc != 0) {
        gpt_stash_end(&self(pass)->stash, store);
    }
    return rc;
}

static int host_loss(struct gpt_pass *pass, double *out, struct cst_err *err)
{
    (void)err;
    *out = self(pass)->loss;
    return 0;
}

static int host_logits(struct gpt_pass *pass, size_t row, float *out, struct cst_err *err)
{
    const size_t vocab = pass->model->vocab;

    (void)err;
    memcpy(out, self(pass)->logits + row * vocab, vocab * sizeof *out);
    return 0;
}

static void host_close(struct gpt_pass *pass)
{
    struct gpt_pass_host *p = self(pass);

    gpt_matmul_close(p->mm);
    gpt_layers_close(&p->layers);
    gpt_moe_close(p->moe);
    gpt_memory_put(p->memory);
    free(p->blocks);
    free(p);
}

static const struct gpt_pass_ops host_ops = {
    .name = "host",
    .forward = host_forward,
    .backward = host_backward,
    .units = &gpt_host_units,
    .loss = host_loss,
    .logits = host_logits,
    .close = host_close,
    .run = host_run,
    .runs = host_runs,
    .send_rows = host_send_rows,
    .combine = host_combine,
};

int gpt_pass_host_open(struct gpt_pass **out, const struct gpt_model *model, size_t max_seqs,
                       bool bf16, uint64_t limit, unsigned n_threads, struct cst_err *err)
{
    const size_t widest = 4 * (size_t)model->width;
    struct gpt_pass_host *p = calloc(1, sizeof *p);
    int rc;

    if (p == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    p->head = (struct gpt_pass){.ops = &host_ops, .model = model, .max_seqs = max_seqs};
    p->bf16 = bf16;
    gpt_host_begin(p, max_seqs);
    rc = gpt_host_plan(model, max_seqs, bf16, limit, &p->stash.plan, err);
    rc = rc == 0 ? gpt_host_memory_open(p, err) : rc;
    if (rc == 0 && model->experts > 0) {
        rc = gpt_moe_open(&p->moe, model, max_seqs * model->context, bf16, err);
    }
    if (rc != 0) {
        goto err_close;
    }
    rc = gpt_layers_init(&p->layers, gpt_simd_get(NULL), bf16, n_threads,
                         widest > model->vocab ? widest : model->vocab, &p->shape);
    if (rc != 0) {
        rc = cst_err_set(err, rc, "out of memory: scratch of %u threads", n_threads);
        goto err_close;
    }
    /* The limit belongs to the calling thread, which is the one that will use the pass. */
    gpt_parallel_limit(n_threads);
    rc = gpt_matmul_open(&p->mm, bf16, n_threads, err);
    if (rc != 0) {
        goto err_close;
    }
    *out = &p->head;
    return 0;
err_close:
    host_close(&p->head);
    return rc;
}
