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

/* Block @i. With recomputation (@shared) all blocks share the arrays of @first, block 0. */
static void carve_layer(struct gpt_block_memory *b, const struct gpt_block_memory *first,
                        struct gpt_carver *c, const struct gpt_model *m, uint32_t i, size_t rows,
                        bool shared)
{
    if (i == 0 || !shared) {
        carve_block(b, c, m, rows);
    } else {
        *b = *first;
    }
    b->x = gpt_carve(c, rows * m->width * sizeof(float));
}

/* What the operators share, and the arrays of the head. */
static void carve_rest(struct gpt_activations *a, struct gpt_carver *c, const struct gpt_model *m,
                       size_t max_seqs, size_t part_seqs)
{
    const size_t rows = max_seqs * m->context, d = m->width;
    const struct gpt_attention_shape part = {part_seqs, m->context, m->heads, d / m->heads};

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

static void carve_all(struct gpt_activations *a, struct gpt_carver *c, const struct gpt_model *m,
                      size_t max_seqs, size_t part_seqs, bool shared)
{
    for (uint32_t i = 0; i < m->layers; i++) {
        carve_layer(&a->blocks[i], &a->blocks[0], c, m, i, max_seqs * m->context, shared);
    }
    carve_rest(a, c, m, max_seqs, part_seqs);
}

uint64_t gpt_activations_bytes(const struct gpt_model *m, uint32_t number, size_t max_seqs,
                               size_t part_seqs, bool shared)
{
    const struct gpt_operator *op = &m->operators[number];
    struct gpt_activations a = {0};
    struct gpt_block_memory b = {0};
    struct gpt_carver c = {0};

    if (op->kind == GPT_OP_QKV) {
        carve_layer(&b, &b, &c, m, op->layer, max_seqs * m->context, shared);
    }
    if (number + 1 == m->n_operators) {
        carve_rest(&a, &c, m, max_seqs, part_seqs);
    }
    return c.bytes;
}

int gpt_activations_open(struct gpt_activations *a, const struct gpt_gpu *gpu,
                         const struct gpt_model *model, size_t max_seqs, size_t part_seqs,
                         bool shared, struct cst_err *err)
{
    struct gpt_activations made = {.blocks = calloc(model->layers, sizeof *made.blocks)};
    struct gpt_carver c = {0};
    int rc;

    if (made.blocks == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    /* The first call counts the bytes, and the second one assigns the arrays. */
    carve_all(&made, &c, model, max_seqs, part_seqs, shared);
    made.bytes = c.bytes;
    rc = gpt_gpu_alloc(gpu, made.bytes, "activations", &made.memory, err);
    if (rc != 0) {
        free(made.blocks);
        return rc;
    }
    c = (struct gpt_carver){.base = made.memory};
    carve_all(&made, &c, model, max_seqs, part_seqs, shared);
    *a = made;
    return 0;
}

void gpt_activations_close(struct gpt_activations *a, const struct gpt_gpu *gpu)
{
    gpt_gpu_free(gpu, a->memory);
    free(a->blocks);
    *a = (struct gpt_activations){0};
}
