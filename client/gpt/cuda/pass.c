/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/cuda/moe.h"

#include <stdlib.h>
#include <string.h>

#define EVENT_FLAGS (CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC)

static struct gpt_cuda_pass *self(struct gpt_pass *pass)
{
    return (struct gpt_cuda_pass *)(void *)pass;
}

/* -- all operators ---------------------------------------------------------------------------- */

static const struct {
    gpt_cuda_fn *forward, *backward;
} operators[] = {
    [GPT_OP_EMBED] = {gpt_cuda_op_embed, gpt_cuda_op_embed_backward},
    [GPT_OP_QKV] = {gpt_cuda_op_qkv, gpt_cuda_op_qkv_backward},
    [GPT_OP_PROJ] = {gpt_cuda_op_proj, gpt_cuda_op_proj_backward},
    [GPT_OP_FC] = {gpt_cuda_op_fc, gpt_cuda_op_fc_backward},
    [GPT_OP_FCPROJ] = {gpt_cuda_op_fcproj, gpt_cuda_op_fcproj_backward},
    [GPT_OP_HEAD] = {gpt_cuda_op_head, gpt_cuda_op_head_backward},
    [GPT_OP_ROUTER] = {gpt_cuda_op_router, gpt_cuda_op_router_backward},
    [GPT_OP_EXPERT] = {gpt_cuda_op_expert, gpt_cuda_op_expert_backward},
};

/* Run operator @number with all its parts, one after the other. */
static int run_parts(struct gpt_cuda_pass *p, struct gpt_store *store, uint32_t number,
                     enum cst_direction direction, struct cst_err *err)
{
    const struct gpt_operator *op = &p->head.model->operators[number];
    gpt_cuda_fn *const fn =
        direction == CST_FORWARD ? operators[op->kind].forward : operators[op->kind].backward;
    struct cst_io io[GPT_MAX_OP_TENSORS];
    int rc = store->ops->op_begin(store, number, direction, io, op->n_tensors, err);

    for (size_t seq = 0; rc == 0 && seq < p->n_seqs; seq += p->part_seqs) {
        const size_t left = p->n_seqs - seq;
        struct gpt_cuda_part part = {
            .row = seq * p->all.context, .shape = p->all, .first = seq == 0};

        part.shape.n_seqs = left < p->part_seqs ? left : p->part_seqs;
        part.rows = part.shape.n_seqs * p->all.context;
        rc = fn(p, op, &part, io, err);
    }
    return rc != 0 ? rc : store->ops->op_end(store, number, err);
}

/* Recompute the activations of a block from its input, by running the forward passes of its first
 * three operators again. @number: its last operator. */
static int recompute(struct gpt_cuda_pass *p, struct gpt_store *store, uint32_t number,
                     struct cst_err *err)
{
    int rc = 0;

    p->at_hand = p->head.model->operators[number].layer;
    for (uint32_t i = number - 3; rc == 0 && i < number; i++) {
        rc = run_parts(p, store, i, CST_FORWARD, err);
    }
    return rc;
}

/* The activations of the last block are still in memory when its backward pass begins. */
static bool has_to_recompute(const struct gpt_cuda_pass *p, const struct gpt_operator *op)
{
    return p->recompute && op->kind == GPT_OP_FCPROJ && op->layer < p->last;
}

static int cuda_run(struct gpt_pass *pass, struct gpt_store *store, uint32_t number,
                    enum cst_direction direction, struct cst_err *err)
{
    struct gpt_cuda_pass *p = self(pass);
    int rc = 0;

    if (direction == CST_BACKWARD && has_to_recompute(p, &pass->model->operators[number])) {
        rc = recompute(p, store, number, err);
    }
    return rc != 0 ? rc : run_parts(p, store, number, direction, err);
}

static bool cuda_runs(const struct gpt_pass *pass, const struct gpt_operator *op)
{
    return gpt_cuda_moe_runs((const struct gpt_cuda_pass *)(const void *)pass, op);
}

static int cuda_send_rows(struct gpt_pass *pass, uint32_t layer, enum cst_direction direction,
                          struct cst_err *err)
{
    return direction == CST_FORWARD ? gpt_cuda_moe_send_rows(self(pass), layer, err)
                                    : gpt_cuda_moe_send_rows_backward(self(pass), layer, err);
}

static int cuda_combine(struct gpt_pass *pass, uint32_t layer, enum cst_direction direction,
                        struct cst_err *err)
{
    return direction == CST_FORWARD ? gpt_cuda_moe_combine(self(pass), layer, err)
                                    : gpt_cuda_moe_combine_backward(self(pass), layer, err);
}

/* Upload @rows tokens as bytes. @bytes is pinned memory. */
static int upload_bytes(const struct gpt_cuda_pass *p, CUdeviceptr to, const uint32_t *tokens,
                        uint8_t *bytes, size_t rows, struct cst_err *err)
{
    for (size_t i = 0; i < rows; i++) {
        bytes[i] = (uint8_t)tokens[i];
    }
    return gpt_gpu_upload(p->gpu, to, bytes, rows, err);
}

int gpt_cuda_begin(struct gpt_cuda_pass *p, size_t n_seqs, uint32_t first, uint32_t last,
                   bool train, struct cst_err *err)
{
    const struct gpt_model *m = p->head.model;
    const size_t rows = n_seqs * m->context;
    /* Nothing else need have waited for the stream since the pass before. */
    int rc = cst_cuda_check(&p->gpu->driver, p->gpu->driver.cuEventSynchronize(p->uploaded), err,
                            "the pass before");

    rc = rc == 0 ? upload_bytes(p, p->a.tokens, p->head.tokens, p->token_bytes, rows, err) : rc;
    p->n_seqs = n_seqs;
    p->all = (struct gpt_attention_shape){
        .n_seqs = n_seqs,
        .context = m->context,
        .n_heads = m->heads,
        .head_dim = m->width / m->heads,
    };
    p->first = first;
    p->last = last;
    /* Nothing has been recomputed in this pass. */
    p->at_hand = UINT32_MAX;
    if (rc == 0 && train) {
        rc = upload_bytes(p, p->a.targets, p->head.targets, p->target_bytes, rows, err);
    }
    return rc == 0 ? cst_cuda_check(&p->gpu->driver,
                                    p->gpu->driver.cuEventRecord(p->uploaded, p->gpu->stream), err,
                                    "the tokens' event")
                   : rc;
}

int gpt_cuda_enqueue_loss(struct gpt_cuda_pass *p, struct cst_err *err)
{
    const struct gpt_gpu *gpu = p->gpu;
    const size_t rows = p->n_seqs * p->all.context;
    int rc = gpt_cuda_loss(&gpu->kernels, rows, p->a.logits, p->a.targets, 1.0f / (float)rows,
                           p->a.losses, p->a.dlogits, err);

    if (rc == 0) {
        rc = gpt_gpu_download(gpu, p->losses, p->a.losses, rows * sizeof(float), err);
    }
    if (rc == 0) {
        /* loss() waits for this event only, so the backward pass can run on. */
        rc = cst_cuda_check(&gpu->driver, gpu->driver.cuEventRecord(p->known, gpu->stream), err,
                            "the loss's event");
    }
    return rc;
}

static int cuda_forward(struct gpt_pass *pass, struct gpt_store *store, size_t n_seqs, bool train,
                        struct cst_err *err)
{
    struct gpt_cuda_pass *p = self(pass);
    int rc = gpt_cuda_begin(p, n_seqs, 0, pass->model->layers - 1, train, err);

    /* The other ranks take no part in a pass without @train. This rank then computes all
     * experts. */
    if (p->moe != NULL) {
        gpt_cuda_moe_begin(p->moe, train ? pass->comms : (struct gpt_exchange_comms){0});
    }
    for (uint32_t i = 0; rc == 0 && i < pass->model->n_operators; i++) {
        const struct gpt_operator *op = &pass->model->operators[i];

        rc = gpt_stash_before(&p->a.stash, store, op, CST_FORWARD, err);
        rc = rc == 0 ? gpt_pass_step(pass, store, i, CST_FORWARD, err) : rc;
        rc = rc == 0 ? gpt_stash_after(&p->a.stash, store, op, CST_FORWARD, err) : rc;
    }
    if (rc != 0) {
        gpt_stash_end(&p->a.stash, store);
    }
    return rc == 0 && train ? gpt_cuda_enqueue_loss(p, err) : rc;
}

static int cuda_backward(struct gpt_pass *pass, struct gpt_store *store, struct cst_err *err)
{
    struct gpt_cuda_pass *p = self(pass);
    const struct gpt_model *m = pass->model;
    int rc = 0;

    for (uint32_t i = m->n_operators; rc == 0 && i-- > 0;) {
        const struct gpt_operator *op = &m->operators[i];

        rc = gpt_stash_before(&p->a.stash, store, op, CST_BACKWARD, err);
        if (rc == 0) {
            rc = gpt_pass_step(pass, store, i, CST_BACKWARD, err);
        }
        rc = rc == 0 ? gpt_stash_after(&p->a.stash, store, op, CST_BACKWARD, err) : rc;
    }
    if (rc != 0) {
        gpt_stash_end(&p->a.stash, store);
    }
    return rc;
}

static int cuda_loss(struct gpt_pass *pass, double *out, struct cst_err *err)
{
    const struct gpt_cuda_pass *p = self(pass);
    const size_t rows = p->n_seqs * p->all.context;
    double sum = 0.0;
    int rc = cst_cuda_check(&p->gpu->driver, p->gpu->driver.cuEventSynchronize(p->known), err,
                            "the forward pass");

    if (rc != 0) {
        return rc;
    }
    for (size_t i = 0; i < rows; i++) {
        sum += (double)p->losses[i];
    }
    *out = sum / (double)rows;
    return p->moe != NULL ? gpt_cuda_moe_end(p->moe, err) : 0;
}

static int cuda_logits(struct gpt_pass *pass, size_t row, float *out, struct cst_err *err)
{
    const struct gpt_cuda_pass *p = self(pass);
    const size_t bytes = GPT_VOCAB * sizeof(float);
    int rc = gpt_gpu_download(p->gpu, p->logits, p->a.logits + row * bytes, bytes, err);

    if (rc == 0) {
        rc = gpt_gpu_wait(p->gpu, err);
    }
    if (rc == 0) {
        memcpy(out, p->logits, bytes);
    }
    return rc;
}

/* -- opening ---------------------------------------------------------------------------------- */

static void cuda_close(struct gpt_pass *pass)
{
    struct gpt_cuda_pass *p = self(pass);

    (void)gpt_gpu_wait(p->gpu, NULL);
    if (p->uploaded != NULL) {
        (void)p->gpu->driver.cuEventDestroy(p->uploaded);
    }
    if (p->known != NULL) {
        (void)p->gpu->driver.cuEventDestroy(p->known);
    }
    gpt_cuda_moe_close(p->moe);
    gpt_activations_close(&p->a, p->gpu);
    gpt_gpu_free_host(p->gpu, p->losses);
    gpt_gpu_free_host(p->gpu, p->logits);
    gpt_gpu_free_host(p->gpu, p->token_bytes);
    gpt_gpu_free_host(p->gpu, p->target_bytes);
    free(p->head.tokens);
    free(p->head.targets);
    free(p);
}

static const struct gpt_pass_ops cuda_ops = {
    .name = "cuda",
    .forward = cuda_forward,
    .backward = cuda_backward,
    .units = &gpt_cuda_units,
    .loss = cuda_loss,
    .logits = cuda_logits,
    .close = cuda_close,
    .run = cuda_run,
    .runs = cuda_runs,
    .send_rows = cuda_send_rows,
    .combine = cuda_combine,
};

static int alloc_pinned(struct gpt_cuda_pass *p, size_t rows, struct cst_err *err)
{
    const struct {
        void **at;
        size_t bytes;
    } arrays[] = {
        {(void **)&p->losses, rows * sizeof(float)},
        {(void **)&p->logits, GPT_VOCAB * sizeof(float)},
        {(void **)&p->token_bytes, rows},
        {(void **)&p->target_bytes, rows},
    };
    int rc = 0;

    p->head.tokens = calloc(rows, sizeof *p->head.tokens);
    p->head.targets = calloc(rows, sizeof *p->head.targets);
    if (p->head.tokens == NULL || p->head.targets == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory: %zu tokens", rows);
    }

    for (size_t i = 0; rc == 0 && i < sizeof arrays / sizeof arrays[0]; i++) {
        rc = gpt_gpu_alloc_host(p->gpu, arrays[i].bytes, arrays[i].at, err);
    }
    return rc;
}

uint32_t gpt_cuda_passes(const struct gpt_options *options)
{
    return options->parallel == GPT_PARALLEL_DATA ? 1 : options->job.updates.micro_batches;
}

struct gpt_activation_size gpt_cuda_pass_size(const struct gpt_options *options,
                                              const struct gpt_model *model)
{
    return (struct gpt_activation_size){.model = model,
                                        .max_seqs = options->batch / gpt_cuda_passes(options),
                                        .part_seqs =
                                            options->batch / options->job.updates.micro_batches,
                                        .shared = options->job.planning.recompute,
                                        .limit = options->activation_memory};
}

int gpt_cuda_pass_open(struct gpt_pass **out, const struct gpt_gpu *gpu,
                       const struct gpt_options *options, const struct gpt_model *model,
                       struct cst_err *err)
{
    const struct gpt_activation_size size = gpt_cuda_pass_size(options, model);
    const size_t rows = size.max_seqs * model->context;
    struct gpt_cuda_pass *p;
    int rc;

    if (model->width > GPT_CUDA_MAX_WIDTH) {
        return cst_err_set(err, CST_EUNSUPPORTED, "--width %u: at most %d on a GPU", model->width,
                           GPT_CUDA_MAX_WIDTH);
    }
    p = calloc(1, sizeof *p);
    if (p == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    p->head = (struct gpt_pass){.ops = &cuda_ops, .model = model, .max_seqs = size.max_seqs};
    p->gpu = gpu;
    p->recompute = size.shared;
    p->part_seqs = size.part_seqs;
    rc = gpt_gpu_enter(gpu, err);
    if (rc == 0) {
        rc = gpt_activations_open(&p->a, gpu, &size, err);
    }
    if (rc == 0 && model->experts > 0) {
        rc = gpt_cuda_moe_open(&p->moe, gpu, model, rows, err);
    }
    if (rc == 0) {
        rc = alloc_pinned(p, rows, err);
    }
    if (rc == 0) {
        rc = cst_cuda_check(&gpu->driver, gpu->driver.cuEventCreate(&p->known, EVENT_FLAGS), err,
                            "an event");
    }
    if (rc == 0) {
        rc = cst_cuda_check(&gpu->driver, gpu->driver.cuEventCreate(&p->uploaded, EVENT_FLAGS), err,
                            "an event");
    }
    if (rc != 0) {
        cuda_close(&p->head);
        return rc;
    }
    *out = &p->head;
    return 0;
}
