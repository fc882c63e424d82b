/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/host_moe_inside.h"

#include "client/gpt/memory.h"

#include <stdlib.h>
#include <string.h>

static size_t aligned(size_t bytes)
{
    return (bytes + 127) & ~(size_t)127;
}

static struct gpt_moe_region region_at(const struct gpt_model *m, size_t rows, char *at)
{
    const size_t slots = rows * m->top_k;
    struct gpt_moe_region r;

    r.counts = (uint32_t *)(void *)at;
    at += aligned(m->experts * sizeof *r.counts);
    r.rows = (uint32_t *)(void *)at;
    at += aligned(slots * sizeof *r.rows);
    r.gates = (float *)(void *)at;
    at += aligned(slots * sizeof *r.gates);
    r.tokens = at;
    at += aligned(rows * m->width * sizeof(float));
    r.results = (float *)(void *)at;
    return r;
}

static struct gpt_moe_region region_of(const struct gpt_moe *moe, uint32_t rank)
{
    return region_at(moe->model, moe->max_rows, gpt_exchange_region(moe->exchange, rank));
}

size_t gpt_moe_region_bytes(const struct gpt_model *m, size_t rows)
{
    char base = 0; /* Only the address is used. */
    const struct gpt_moe_region r = region_at(m, rows, &base);

    return (size_t)((char *)r.results - &base) + rows * m->top_k * m->width * sizeof(float);
}

static struct gpt_moe_region mine(const struct gpt_moe *moe)
{
    return region_of(moe, gpt_exchange_rank(moe->exchange));
}

/* -- memory ----------------------------------------------------------------------------------- */

int gpt_moe_grow(struct gpt_moe_growing *g, size_t bytes, struct cst_err *err)
{
    if (bytes > g->bytes) {
        gpt_memory_put(g->p);
        /* The reserve avoids an allocation for every small increase. */
        g->bytes = bytes + bytes / 4;
        g->p = gpt_memory_get(g->bytes);
        if (g->p == NULL) {
            g->bytes = 0;
            return cst_err_set(err, CST_ENOMEM, "out of memory: %zu bytes for the rows of experts",
                               bytes);
        }
    }
    return 0;
}

static bool layer_open(struct gpt_moe_layer *l, const struct gpt_model *m, size_t rows)
{
    const size_t slots = rows * m->top_k;

    l->choice.probs = calloc(rows * m->experts, sizeof *l->choice.probs);
    l->choice.chosen = calloc(slots, sizeof *l->choice.chosen);
    l->choice.gates = calloc(slots, sizeof *l->choice.gates);
    l->choice.counts = calloc(m->experts, sizeof *l->choice.counts);
    l->choice.slots = calloc(slots, sizeof *l->choice.slots);
    l->choice.rows = calloc(slots, sizeof *l->choice.rows);
    l->results = gpt_memory_get(slots * m->width * sizeof *l->results);
    l->shares = calloc(m->experts, sizeof *l->shares);
    l->starts = calloc(m->experts + 1, sizeof *l->starts);
    return l->choice.probs != NULL && l->choice.chosen != NULL && l->choice.gates != NULL &&
           l->choice.counts != NULL && l->choice.slots != NULL && l->choice.rows != NULL &&
           l->results != NULL && l->shares != NULL && l->starts != NULL;
}

static void layer_close(struct gpt_moe_layer *l)
{
    free(l->choice.probs);
    free(l->choice.chosen);
    free(l->choice.gates);
    free(l->choice.counts);
    free(l->choice.slots);
    free(l->choice.rows);
    gpt_memory_put(l->results);
    free(l->shares);
    free(l->starts);
    gpt_memory_put(l->kept.p);
}

size_t gpt_moe_layer_bytes(const struct gpt_model *m, size_t rows)
{
    return rows * m->experts * sizeof(float) + m->experts * 3 * sizeof(uint32_t) +
           rows * m->top_k * (4 * sizeof(uint32_t) + m->width * sizeof(float));
}

size_t gpt_moe_expert_bytes(const struct gpt_model *m, size_t rows, size_t operand)
{
    return rows * m->width * (operand + 4 * sizeof(float) + 4 * operand);
}

int gpt_moe_open(struct gpt_moe **out, const struct gpt_model *model, size_t max_rows, bool bf16,
                 struct cst_err *err)
{
    struct gpt_moe *moe = calloc(1, sizeof *moe);
    bool ok = moe != NULL;

    if (ok) {
        moe->model = model;
        moe->max_rows = max_rows;
        moe->operand = bf16 ? sizeof(uint16_t) : sizeof(float);
        moe->layers = calloc(model->layers, sizeof *moe->layers);
        moe->dgates = calloc(max_rows * model->top_k, sizeof *moe->dgates);
        moe->dlogits = calloc(max_rows * model->experts, sizeof *moe->dlogits);
        ok = moe->layers != NULL && moe->dgates != NULL && moe->dlogits != NULL;
    }
    for (uint32_t i = 0; ok && i < model->layers; i++) {
        ok = layer_open(&moe->layers[i], model, max_rows);
    }
    if (!ok) {
        gpt_moe_close(moe);
        return cst_err_set(err, CST_ENOMEM, "out of memory: choices of %u experts", model->experts);
    }
    *out = moe;
    return 0;
}

void gpt_moe_close(struct gpt_moe *moe)
{
    if (moe == NULL) {
        return;
    }
    for (uint32_t i = 0; moe->layers != NULL && i < moe->model->layers; i++) {
        layer_close(&moe->layers[i]);
    }
    gpt_exchange_close(moe->alone);
    free(moe->layers);
    free(moe->dgates);
    free(moe->dlogits);
    gpt_memory_put(moe->wide.p);
    gpt_memory_put(moe->narrow.p);
    gpt_memory_put(moe->dy.p);
    free(moe);
}

int gpt_moe_begin(struct gpt_moe *moe, struct gpt_exchange *exchange, struct cst_err *err)
{
    int rc = 0;

    if (exchange == NULL && moe->alone == NULL) {
        rc = gpt_exchange_open_alone(&moe->alone, gpt_moe_region_bytes(moe->model, moe->max_rows),
                                     err);
    }
    moe->exchange = exchange != NULL ? exchange : moe->alone;
    return rc;
}

/* -- transport of rows ------------------------------------------------------------------------ */

static bool is_mine(const struct gpt_moe *moe, uint32_t expert)
{
    return gpt_model_expert_rank(expert, gpt_exchange_world(moe->exchange)) ==
           gpt_exchange_rank(moe->exchange);
}

static uint32_t padded(uint32_t rows)
{
    return (rows + GPT_MOE_ROWS - 1) / GPT_MOE_ROWS * GPT_MOE_ROWS;
}

/* Compute the number of rows of each own expert, their starts, and f_e; allocate the kept rows. */
static int count(struct gpt_moe *moe, struct gpt_moe_layer *l, struct cst_err *err)
{
    const struct gpt_model *m = moe->model;
    uint64_t all = 0;

    l->starts[0] = 0;
    for (uint32_t e = 0; e < m->experts; e++) {
        uint32_t n = 0;

        for (uint32_t r = 0; r < gpt_exchange_world(moe->exchange); r++) {
            n += region_of(moe, r).counts[e];
        }
        all += n;
        l->shares[e] = (float)n;
        l->starts[e + 1] = l->starts[e] + (is_mine(moe, e) ? padded(n) : 0);
    }
    for (uint32_t e = 0; e < m->experts; e++) {
        l->shares[e] /= (float)all;
    }
    return gpt_moe_grow(&l->kept, gpt_moe_expert_bytes(m, l->starts[m->experts], moe->operand),
                        err);
}

bool gpt_moe_runs(const struct gpt_pass_host *p, const struct gpt_operator *op)
{
    const struct gpt_moe_layer *l = &p->moe->layers[op->layer];

    return l->starts[op->expert + 1] > l->starts[op->expert];
}

struct gpt_moe_kept gpt_moe_kept_of(const struct gpt_moe *moe, const struct gpt_operator *op)
{
    const struct gpt_moe_layer *l = &moe->layers[op->layer];
    const size_t all = l->starts[moe->model->experts], at = l->starts[op->expert];
    const size_t d = moe->model->width;
    char *pre = l->kept.p, *x = pre + all * 4 * d * sizeof(float);

    return (struct gpt_moe_kept){
        .rows = l->starts[op->expert + 1] - at,
        .pre = (float *)(void *)pre + at * 4 * d,
        .x = x + at * d * moe->operand,
        .act = x + all * d * moe->operand + at * 4 * d * moe->operand,
    };
}

/* The rows of an expert that came from one rank. */
struct stretch {
    const struct gpt_moe *moe;
    struct gpt_moe_region region; /* region of the rank that sent the rows */
    size_t first, count;          /* first slot, and number of slots */
    size_t at;                    /* rows of the expert from earlier ranks */
    char *operands;               /* array of the expert, filled from tokens */
    /* Array of the expert. The backward fetch fills it with dy; a send reads the results in it. */
    float *values;
};

static struct stretch stretch_of(const struct gpt_moe *moe, uint32_t expert, uint32_t rank,
                                 size_t at)
{
    struct stretch s = {.moe = moe, .region = region_of(moe, rank), .at = at};

    for (uint32_t e = 0; e < expert; e++) {
        s.first += s.region.counts[e];
    }
    s.count = s.region.counts[expert];
    return s;
}

static void fetch_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct stretch *s = arg;
    const size_t bytes = s->moe->model->width * s->moe->operand;

    (void)thread;
    for (size_t i = first; i < last; i++) {
        memcpy(s->operands + (s->at + i) * bytes,
               (const char *)s->region.tokens + s->region.rows[s->first + i] * bytes, bytes);
    }
}

/* The gradient of the expert's output is gate x gradient of the row. */
static void fetch_backward_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct stretch *s = arg;
    const size_t d = s->moe->model->width;

    (void)thread;
    for (size_t i = first; i < last; i++) {
        const float *dx = (const float *)s->region.tokens + s->region.rows[s->first + i] * d;
        const float gate = s->region.gates[s->first + i];
        float *dy = s->values + (s->at + i) * d;

        for (size_t k = 0; k < d; k++) {
            dy[k] = gate * dx[k];
        }
    }
}

static void send_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct stretch *s = arg;
    const size_t d = s->moe->model->width;

    (void)thread;
    memcpy(s->region.results + (s->first + first) * d, s->values + (s->at + first) * d,
           (last - first) * d * sizeof(float));
}

/* Run @fn on the rows of every rank for @expert, in order of the ranks. Returns the number of
 * rows. */
static size_t for_ranks(const struct gpt_pass_host *p, uint32_t expert, gpt_parallel_fn fn,
                        char *operands, float *values)
{
    size_t at = 0;

    for (uint32_t r = 0; r < gpt_exchange_world(p->moe->exchange); r++) {
        struct stretch s = stretch_of(p->moe, expert, r, at);

        s.operands = operands;
        s.values = values;
        gpt_parallel(p->layers.n_threads, s.count, fn, &s);
        at += s.count;
    }
    return at;
}

void gpt_moe_fetch(const struct gpt_pass_host *p, const struct gpt_operator *op, char *operands)
{
    const size_t bytes = p->head.model->width * p->moe->operand;
    const size_t n = for_ranks(p, op->expert, fetch_body, operands, NULL);

    memset(operands + n * bytes, 0, (padded((uint32_t)n) - n) * bytes);
}

void gpt_moe_fetch_backward(const struct gpt_pass_host *p, const struct gpt_operator *op,
                            float *values)
{
    const size_t d = p->head.model->width;
    const size_t n = for_ranks(p, op->expert, fetch_backward_body, NULL, values);

    memset(values + n * d, 0, (padded((uint32_t)n) - n) * d * sizeof *values);
}

void gpt_moe_send(const struct gpt_pass_host *p, const struct gpt_operator *op, float *values)
{
    (void)for_ranks(p, op->expert, send_body, NULL, values);
}

/* Publish choices and rows of this rank, and wait for all ranks. */
static int publish(struct gpt_pass_host *p, const struct gpt_moe_layer *l, const void *tokens,
                   size_t elem, struct cst_err *err)
{
    const struct gpt_model *m = p->head.model;
    const size_t slots = p->rows * m->top_k;
    const struct gpt_moe_region r = mine(p->moe);

    memcpy(r.counts, l->choice.counts, m->experts * sizeof *r.counts);
    memcpy(r.rows, l->choice.rows, slots * sizeof *r.rows);
    for (size_t i = 0; i < slots; i++) {
        r.gates[l->choice.slots[i]] = l->choice.gates[i];
    }
    memcpy(r.tokens, tokens, p->rows * m->width * elem);
    return gpt_exchange_meet(p->moe->exchange, err);
}

int gpt_moe_dispatch(struct gpt_pass_host *p, uint32_t layer, struct cst_err *err)
{
    struct gpt_moe_layer *l = &p->moe->layers[layer];
    int rc = publish(p, l, p->blocks[layer].ln2, p->moe->operand, err);

    return rc == 0 ? count(p->moe, l, err) : rc;
}

int gpt_moe_dispatch_backward(struct gpt_pass_host *p, uint32_t layer, struct cst_err *err)
{
    return publish(p, &p->moe->layers[layer], p->dx, sizeof *p->dx, err);
}

struct rows {
    const struct gpt_pass_host *p;
    const struct gpt_moe_layer *layer;
    const float *x; /* forward: residual stream; backward: gradients from the experts */
    float *out;     /* rows x width */
};

/* out = x + sum of gate x result. */
static void combine_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct rows *k = arg;
    const size_t d = k->p->head.model->width, top_k = k->p->head.model->top_k;

    (void)thread;
    for (size_t row = first; row < last; row++) {
        float *out = k->out + row * d;

        memcpy(out, k->x + row * d, d * sizeof *out);
        for (size_t j = row * top_k; j < (row + 1) * top_k; j++) {
            const float *y = k->layer->results + k->layer->choice.slots[j] * d;
            const float gate = k->layer->choice.gates[j];

            for (size_t i = 0; i < d; i++) {
                out[i] += gate * y[i];
            }
        }
    }
}

int gpt_moe_combine(struct gpt_pass_host *p, uint32_t layer, struct cst_err *err)
{
    struct gpt_moe_layer *l = &p->moe->layers[layer];
    struct rows k = {.p = p, .layer = l, .x = p->blocks[layer].mid};
    int rc = gpt_exchange_meet(p->moe->exchange, err);

    if (rc == 0) {
        memcpy(l->results, mine(p->moe).results,
               p->rows * p->head.model->top_k * p->head.model->width * sizeof(float));
        k.out = gpt_host_block_out(p, layer);
        gpt_parallel(p->layers.n_threads, p->rows, combine_body, &k);
    }
    return rc;
}

/* dgates = result . gradient. out = sum of the gradients that the experts returned. */
static void combine_backward_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct rows *k = arg;
    const size_t d = k->p->head.model->width, top_k = k->p->head.model->top_k;

    (void)thread;
    for (size_t row = first; row < last; row++) {
        const float *dx = k->p->dx + row * d;
        float *out = k->out + row * d;

        memset(out, 0, d * sizeof *out);
        for (size_t j = row * top_k; j < (row + 1) * top_k; j++) {
            const float *back = k->x + k->layer->choice.slots[j] * d;
            const float *y = k->layer->results + k->layer->choice.slots[j] * d;
            float sum = 0;

            for (size_t i = 0; i < d; i++) {
                sum += y[i] * dx[i];
                out[i] += back[i];
            }
            k->p->moe->dgates[j] = sum;
        }
    }
}

/* p->wide receives the gradient of ln2 by way of the experts. */
int gpt_moe_combine_backward(struct gpt_pass_host *p, uint32_t layer, struct cst_err *err)
{
    struct rows k = {.p = p, .layer = &p->moe->layers[layer], .out = p->wide};
    int rc = gpt_exchange_meet(p->moe->exchange, err);

    if (rc == 0) {
        k.x = mine(p->moe).results;
        gpt_parallel(p->layers.n_threads, p->rows, combine_backward_body, &k);
    }
    return rc;
}
