/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/host_moe.h"
#include "client/gpt/memory.h"
#include "proto/size.h"
#include "client/gpt/pass_host.h"

#include <stdlib.h>

struct carver {
    char *base;   /* NULL: only count */
    size_t bytes; /* bytes that were handed out so far */
};

static void *carve(struct carver *c, size_t bytes)
{
    const size_t at = c->bytes;

    c->bytes += (bytes + 127) & ~(size_t)127;
    return c->base == NULL ? NULL : c->base + at;
}

static uint64_t largest_tensor(const struct gpt_model *model)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < model->n_tensors; i++) {
        most = model->tensors[i].n_elems > most ? model->tensors[i].n_elems : most;
    }
    return most;
}

/* -- memory that is kept for the backward pass, by operator ----------------------------------- */

static void carve_qkv(struct gpt_block *b, struct carver *c, const struct gpt_model *m, size_t rows,
                      size_t operand)
{
    b->x = carve(c, rows * m->width * sizeof(float));
    b->ln1 = carve(c, rows * m->width * operand);
    b->mean1 = carve(c, rows * sizeof(float));
    b->rstd1 = carve(c, rows * sizeof(float));
    b->qkv = carve(c, rows * 3 * m->width * sizeof(float));
    b->att = carve(c, rows * m->width * operand);
    b->lse = carve(c, rows * m->heads * sizeof(float));
}

/* The output of proj, and the layer norm that the MLP or the router applies to it. */
static void carve_ln2(struct gpt_block *b, struct carver *c, const struct gpt_model *m, size_t rows,
                      size_t operand)
{
    b->mid = carve(c, rows * m->width * sizeof(float));
    b->ln2 = carve(c, rows * m->width * operand);
    b->mean2 = carve(c, rows * sizeof(float));
    b->rstd2 = carve(c, rows * sizeof(float));
}

static void carve_mlp(struct gpt_block *b, struct carver *c, const struct gpt_model *m, size_t rows,
                      size_t operand)
{
    b->pre = carve(c, rows * 4 * m->width * sizeof(float));
    b->act = carve(c, rows * 4 * m->width * operand);
}

static void carve_block(struct gpt_block *b, struct carver *c, const struct gpt_model *m,
                        size_t rows, size_t operand)
{
    carve_qkv(b, c, m, rows, operand);
    carve_ln2(b, c, m, rows, operand);
    if (m->experts == 0) {
        carve_mlp(b, c, m, rows, operand);
    }
}

static void carve_head(struct gpt_pass_host *p, struct carver *c, const struct gpt_model *m,
                       size_t rows, size_t operand)
{
    p->x = carve(c, rows * m->width * sizeof(float));
    p->lnf = carve(c, rows * m->width * operand);
    p->meanf = carve(c, rows * sizeof(float));
    p->rstdf = carve(c, rows * sizeof(float));
    p->logits = carve(c, rows * m->vocab * sizeof(float));
    p->dlogits = carve(c, rows * m->vocab * operand);
    p->losses = carve(c, rows * sizeof(float));
}

uint64_t gpt_host_kept_bytes(const struct gpt_model *m, const struct gpt_operator *op,
                             size_t n_seqs, bool bf16)
{
    const size_t rows = n_seqs * m->context, operand = bf16 ? sizeof(uint16_t) : sizeof(float);
    struct gpt_pass_host p = {0};
    struct gpt_block b = {0};
    struct carver c = {0};

    switch (op->kind) {
    case GPT_OP_QKV:
        carve_qkv(&b, &c, m, rows, operand);
        break;
    case GPT_OP_FC:
        carve_ln2(&b, &c, m, rows, operand);
        carve_mlp(&b, &c, m, rows, operand);
        break;
    case GPT_OP_ROUTER:
        carve_ln2(&b, &c, m, rows, operand);
        c.bytes += gpt_moe_layer_bytes(m, rows);
        break;
    case GPT_OP_EXPERT:
        c.bytes = gpt_moe_expert_bytes(m, rows * m->world * m->top_k / m->experts, operand);
        break;
    case GPT_OP_HEAD:
        carve_head(&p, &c, m, rows, operand);
        break;
    case GPT_OP_EMBED: /* The operator keeps tokens only. */
        c.bytes = rows * sizeof *p.head.tokens;
        break;
    case GPT_OP_PROJ: /* The neighbours keep its input and output. */
    case GPT_OP_FCPROJ:
        break;
    }
    return c.bytes;
}

/* -- all activations -------------------------------------------------------------------------- */

static void carve_all(struct gpt_pass_host *p, struct carver *c)
{
    const struct gpt_model *m = p->head.model;
    const size_t rows = p->head.max_seqs * m->context, width = m->width;
    const size_t operand = p->bf16 ? sizeof(uint16_t) : sizeof(float);
    const size_t largest = largest_tensor(m), low = rows * m->lora + GPT_SIMD_ELEMS;

    for (uint32_t i = 0; i < p->stash.plan.n_buffers; i++) {
        carve_block(&p->blocks[i], c, m, rows, operand);
    }
    carve_head(p, c, m, rows, operand);
    p->dx = carve(c, rows * width * sizeof(float));
    p->wide = carve(c, rows * 4 * width * sizeof(float));
    p->dy = carve(c, rows * 4 * width * operand);
    p->weight = carve(c, p->bf16 ? 0 : largest * sizeof(float));
    p->grad = carve(c, 2 * largest * sizeof(float));
    if (m->lora > 0) {
        p->beside = carve(c, rows * 4 * width * sizeof(float));
        p->low = carve(c, low * sizeof(float));
        p->low_operand = carve(c, low * operand);
    }
    p->head.tokens = carve(c, rows * sizeof *p->head.tokens);
    p->head.targets = carve(c, rows * sizeof *p->head.targets);
}

int gpt_host_plan(const struct gpt_model *m, size_t n_seqs, bool bf16, uint64_t limit,
                  struct gpt_stash_plan *out, struct cst_err *err)
{
    const size_t operand = bf16 ? sizeof(uint16_t) : sizeof(float);
    struct gpt_pass_host p = {.head = {.model = m, .max_seqs = n_seqs}, .bf16 = bf16};
    struct carver block = {0}, rest = {0};
    struct gpt_block scratch;

    carve_all(&p, &rest); /* Without blocks. */
    carve_block(&scratch, &block, m, n_seqs * m->context, operand);
    return gpt_stash_plan_fit(m->layers, block.bytes, rest.bytes, limit, out, err);
}

int gpt_host_memory_open(struct gpt_pass_host *p, struct cst_err *err)
{
    struct carver c = {0};

    p->blocks = calloc(p->head.model->layers, sizeof *p->blocks);
    if (p->blocks == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    carve_all(p, &c);
    c.base = p->memory = gpt_memory_get(c.bytes);
    if (p->memory == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory: %zu bytes of activations", c.bytes);
    }
    p->memory_bytes = c.bytes;
    c.bytes = 0;
    carve_all(p, &c);
    for (uint32_t i = p->stash.plan.n_buffers; i < p->head.model->layers; i++) {
        p->blocks[i] = p->blocks[i % p->stash.plan.n_buffers];
    }
    p->stash.layers = p->head.model->layers;
    p->stash.buffers = p->memory; /* The blocks come first. */
    return 0;
}
