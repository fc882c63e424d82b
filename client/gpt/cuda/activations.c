/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/cuda/activations.h"
#include "client/gpt/cuda/carver.h"

#include <stdlib.h>

/* All arrays of a block except x. */
static void carve_block(struct gpt_block_memory *b, struct gpt_carver *c, const struct gpt_model *m,
                        size_t rows)
{
    const size_t d = m->width, heads = m->heads;

    b->ln1 = gpt_carve(c, rows * d * sizeof(uint16_t));
    b->mean1 = gpt_carve(c, rows * sizeof(float));
    b->rstd1 = gpt_carve(c, rows * sizeof(float));
    b->qkv = gpt_carve(c, rows * 3 * d * sizeof(uint16_t));
    b->att = gpt_carve(c, rows * d * sizeof(uint16_t));
    b->lse = gpt_carve(c, rows * heads * sizeof(float));
    b->mid = gpt_carve(c, rows * d * sizeof(float));
    b->ln2 = gpt_carve(c, rows * d * sizeof(uint16_t));
    b->mean2 = gpt_carve(c, rows * sizeof(float));
    b->rstd2 = gpt_carve(c, rows * sizeof(float));
    if (m->experts == 0) {
        b->pre = gpt_carve(c, rows * 4 * d * sizeof(uint16_t));
        b->act = gpt_carve(c, rows * 4 * d * sizeof(uint16_t));
    }
}

/* What block @i keeps in a buffer of its own. */
static void carve_buffer(struct gpt_block_memory *b, struct gpt_carver *c,
                         const struct gpt_activation_size *size)
{
    const size_t rows = size->max_seqs * size->model->context;

    b->x = gpt_carve(c, rows * size->model->width * sizeof(float));
    if (!size->shared) {
        carve_block(b, c, size->model, rows);
    }
}

/* What the operators share, and the arrays of the head. */
static void carve_rest(struct gpt_activations *a, struct gpt_carver *c,
                       const struct gpt_activation_size *size)
{
    const struct gpt_model *m = size->model;
    const size_t rows = size->max_seqs * m->context, d = m->width, part_seqs = size->part_seqs;
    const struct gpt_attention_shape part = {part_seqs, m->context, m->heads, d / m->heads};

    if (size->shared) { /* Of all blocks. */
        carve_block(&a->shared, c, m, rows);
    }
    a->x = gpt_carve(c, rows * d * sizeof(float));
    a->lnf = gpt_carve(c, rows * d * sizeof(uint16_t));
    a->meanf = gpt_carve(c, rows * sizeof(float));
    a->rstdf = gpt_carve(c, rows * sizeof(float));
    a->logits = gpt_carve(c, rows * GPT_VOCAB * sizeof(float));
    a->dlogits = gpt_carve(c, rows * GPT_VOCAB * sizeof(uint16_t));
    a->losses = gpt_carve(c, rows * sizeof(float));
    a->branch = gpt_carve(c, rows * d * sizeof(uint16_t));
    a->dx = gpt_carve(c, rows * d * sizeof(float));
    a->dxh = gpt_carve(c, rows * d * sizeof(uint16_t));
    a->dh = gpt_carve(c, rows * d * sizeof(uint16_t));
    a->wide = gpt_carve(c, rows * 4 * d * sizeof(uint16_t));
    a->parts = gpt_carve(c, gpt_cuda_parts_bytes(part_seqs * m->context, d));
    a->scratch = gpt_carve(c, gpt_cuda_attention_scratch(&part));
    a->low = gpt_carve(c, part_seqs * m->context * m->lora * sizeof(uint16_t));
    a->tokens = gpt_carve(c, rows);
    a->targets = gpt_carve(c, rows);
}

static void carve_all(struct gpt_activations *a, struct gpt_carver *c,
                      const struct gpt_activation_size *size)
{
    for (uint32_t i = 0; i < a->stash.plan.n_buffers; i++) {
        carve_buffer(&a->blocks[i], c, size);
    }
    carve_rest(a, c, size);
}

/* With recomputation all blocks share one copy of what is recomputed. Blocks for which there is no
 * buffer use those of other blocks. */
static void share_arrays(struct gpt_activations *a, const struct gpt_activation_size *size)
{
    for (uint32_t i = 0; i < size->model->layers; i++) {
        CUdeviceptr x = a->blocks[i % a->stash.plan.n_buffers].x;

        a->blocks[i] = size->shared ? a->shared : a->blocks[i % a->stash.plan.n_buffers];
        a->blocks[i].x = x;
    }
}

int gpt_activations_plan(const struct gpt_activation_size *size, struct gpt_stash_plan *out,
                         struct cst_err *err)
{
    struct gpt_activations a = {0};
    struct gpt_block_memory b;
    struct gpt_carver block = {0}, rest = {0};

    carve_buffer(&b, &block, size);
    carve_rest(&a, &rest, size);
    return gpt_stash_plan_fit(gpt_model_stage_blocks(size->model), block.bytes, rest.bytes,
                              size->limit, out, err);
}

uint64_t gpt_activations_bytes(const struct gpt_activation_size *size, uint32_t number)
{
    const struct gpt_model *m = size->model;
    const struct gpt_operator *op = &m->operators[number];
    struct gpt_stash_plan plan;
    struct cst_err ignored;
    uint64_t bytes = 0;

    if (gpt_activations_plan(size, &plan, &ignored) != 0) {
        return 0; /* No pass can be opened. */
    }
    if (op->kind == GPT_OP_QKV && op->layer < plan.n_buffers) {
        bytes += plan.block_bytes;
    }
    if (number + 1 == m->n_operators) {
        bytes += plan.held_bytes - plan.n_buffers * plan.block_bytes;
    }
    return bytes;
}

int gpt_activations_open(struct gpt_activations *a, const struct gpt_gpu *gpu,
                         const struct gpt_activation_size *size, struct cst_err *err)
{
    struct gpt_activations made = {.stash = {.layers = size->model->layers}};
    struct gpt_carver c = {0};
    int rc = gpt_activations_plan(size, &made.stash.plan, err);

    if (rc != 0) {
        return rc;
    }
    made.blocks = calloc(size->model->layers, sizeof *made.blocks);
    if (made.blocks == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    made.bytes = made.stash.plan.held_bytes;
    rc = gpt_gpu_alloc(gpu, made.bytes, "activations", &made.memory, err);
    if (rc != 0) {
        free(made.blocks);
        return rc;
    }
    c.base = made.memory;
    carve_all(&made, &c, size);
    share_arrays(&made, size);
    made.stash.buffers = (char *)(uintptr_t)made.memory; /* They come first. */
    *a = made;
    return 0;
}

void gpt_activations_close(struct gpt_activations *a, const struct gpt_gpu *gpu)
{
    gpt_gpu_free(gpu, a->memory);
    free(a->blocks);
    *a = (struct gpt_activations){0};
}
