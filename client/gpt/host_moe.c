/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/host_moe_inside.h"

#include "client/gpt/memory.h"

#include <stdlib.h>
#include <string.h>

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
    l->counts = calloc((size_t)m->world * m->experts, sizeof *l->counts);
    l->places = calloc(slots, sizeof *l->places);
    l->results = gpt_memory_get(slots * m->width * sizeof *l->results);
    l->shares = calloc(m->experts, sizeof *l->shares);
    l->starts = calloc(m->experts + 1, sizeof *l->starts);
    return l->choice.probs != NULL && l->choice.chosen != NULL && l->choice.gates != NULL &&
           l->choice.counts != NULL && l->choice.slots != NULL && l->choice.rows != NULL &&
           l->counts != NULL && l->places != NULL && l->results != NULL && l->shares != NULL &&
           l->starts != NULL;
}

static void layer_close(struct gpt_moe_layer *l)
{
    free(l->choice.probs);
    free(l->choice.chosen);
    free(l->choice.gates);
    free(l->choice.counts);
    free(l->choice.slots);
    free(l->choice.rows);
    free(l->counts);
    free(l->places);
    gpt_memory_put(l->results);
    free(l->shares);
    free(l->starts);
    gpt_memory_put(l->kept.p);
}

size_t gpt_moe_layer_bytes(const struct gpt_model *m, size_t rows)
{
    return rows * m->experts * sizeof(float) + m->experts * (3 + m->world) * sizeof(uint32_t) +
           rows * m->top_k * (5 * sizeof(uint32_t) + m->width * sizeof(float));
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
    free(moe->layers);
    free(moe->dgates);
    free(moe->dlogits);
    gpt_memory_put(moe->sent.p);
    gpt_memory_put(moe->received.p);
    gpt_memory_put(moe->results.p);
    gpt_memory_put(moe->wide.p);
    gpt_memory_put(moe->narrow.p);
    gpt_memory_put(moe->dy.p);
    free(moe);
}

void gpt_moe_begin(struct gpt_moe *moe, struct gpt_exchange_comms comms)
{
    gpt_exchange_begin(&moe->exchange, comms, moe->model->experts, false);
}

/* -- transport of rows ------------------------------------------------------------------------ */

static bool is_mine(const struct gpt_moe *moe, uint32_t expert)
{
    return gpt_model_expert_rank(expert, moe->exchange.world) == moe->exchange.rank;
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

        for (uint32_t r = 0; r < moe->exchange.world; r++) {
            n += l->counts[r * m->experts + e];
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
    char *received; /* these rows in an array of received rows */
    char *rows;     /* these rows in an array of the expert */
    size_t bytes;   /* bytes of a row */
};

static void fetch_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct stretch *s = arg;

    (void)thread;
    memcpy(s->rows + first * s->bytes, s->received + first * s->bytes, (last - first) * s->bytes);
}

static void send_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct stretch *s = arg;

    (void)thread;
    memcpy(s->received + first * s->bytes, s->rows + first * s->bytes, (last - first) * s->bytes);
}

/* Run @fn on the rows of every rank for expert @op, in order of the ranks. @received: an array of
 * received rows; @rows: an array of the expert. Returns the number of rows. */
static size_t for_ranks(const struct gpt_pass_host *p, const struct gpt_operator *op,
                        gpt_parallel_fn fn, char *received, char *rows, size_t row_bytes)
{
    const struct gpt_exchange *x = &p->moe->exchange;
    const uint32_t *counts = p->moe->layers[op->layer].counts;
    size_t at = 0;

    for (uint32_t r = 0; r < x->world; r++) {
        const size_t there = gpt_exchange_received_at(x, counts, r, op->expert);
        const size_t n = counts[r * x->experts + op->expert];
        struct stretch s = {.received = received + there * row_bytes,
                            .rows = rows + at * row_bytes,
                            .bytes = row_bytes};

        gpt_parallel(p->layers.n_threads, n, fn, &s);
        at += n;
    }
    return at;
}

void gpt_moe_fetch(const struct gpt_pass_host *p, const struct gpt_operator *op, char *rows,
                   size_t elem)
{
    const size_t bytes = p->head.model->width * elem;
    const size_t n = for_ranks(p, op, fetch_body, p->moe->received.p, rows, bytes);

    memset(rows + n * bytes, 0, (padded((uint32_t)n) - n) * bytes);
}

void gpt_moe_send(const struct gpt_pass_host *p, const struct gpt_operator *op, float *values)
{
    (void)for_ranks(p, op, send_body, p->moe->results.p, (char *)values,
                    p->head.model->width * sizeof *values);
}

struct rows {
    const struct gpt_pass_host *p;
    const struct gpt_moe_layer *layer;
    const float *x; /* forward: residual stream; backward: gradients from the experts */
    float *out;     /* rows x width */
};

/* Find the places of this rank's choices among the sent rows. */
static void find_places(const struct gpt_moe *moe, const struct gpt_moe_layer *l, size_t rows)
{
    uint32_t at[GPT_MAX_EXPERTS], first = 0;

    for (uint32_t e = 0; e < moe->model->experts; e++) {
        /* Slots are sorted by expert: at[e] is what turns a slot of e into a place. */
        at[e] = (uint32_t)gpt_exchange_sent_at(&moe->exchange, l->counts, e) - first;
        first += l->choice.counts[e];
    }
    for (size_t j = 0; j < rows * moe->model->top_k; j++) {
        l->places[j] = l->choice.slots[j] + at[l->choice.chosen[j]];
    }
}

/* Copy the operands of each row to the places of its choices. */
static void pack_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct rows *k = arg;
    const struct gpt_pass_host *p = k->p;
    const size_t bytes = p->head.model->width * p->moe->operand, top_k = p->head.model->top_k;
    const char *operands = p->blocks[k->layer - p->moe->layers].ln2;

    (void)thread;
    for (size_t j = first * top_k; j < last * top_k; j++) {
        memcpy((char *)p->moe->sent.p + k->layer->places[j] * bytes, operands + j / top_k * bytes,
               bytes);
    }
}

/* The gradient of an expert's output is gate x gradient of the row. */
static void pack_backward_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct rows *k = arg;
    const size_t d = k->p->head.model->width, top_k = k->p->head.model->top_k;

    (void)thread;
    for (size_t j = first * top_k; j < last * top_k; j++) {
        const float *dx = k->p->dx + j / top_k * d;
        const float gate = k->layer->choice.gates[j];
        float *dy = (float *)k->p->moe->sent.p + k->layer->places[j] * d;

        for (size_t i = 0; i < d; i++) {
            dy[i] = gate * dx[i];
        }
    }
}

/* Send the rows that @pack puts in their places. @elem: bytes of an element. */
static int send_rows(const struct gpt_pass_host *p, const struct gpt_moe_layer *l,
                     gpt_parallel_fn pack, size_t elem, struct cst_err *err)
{
    struct gpt_moe *moe = p->moe;
    const size_t d = p->head.model->width, row = d * sizeof(float); /* of the results */
    const size_t n_received = gpt_exchange_n_received(&moe->exchange, l->counts);
    struct rows k = {.p = p, .layer = l};
    int rc = gpt_moe_grow(&moe->sent, p->rows * p->head.model->top_k * row, err);

    rc = rc == 0 ? gpt_moe_grow(&moe->received, n_received * row, err) : rc;
    rc = rc == 0 ? gpt_moe_grow(&moe->results, n_received * row, err) : rc;
    if (rc == 0) {
        gpt_parallel(p->layers.n_threads, p->rows, pack, &k);
        rc = gpt_exchange_send(&moe->exchange, l->counts, moe->sent.p, moe->received.p, d * elem,
                               err);
        rc = rc == 0 ? gpt_exchange_wait(&moe->exchange, err) : rc;
    }
    return rc;
}

int gpt_moe_send_rows(struct gpt_pass_host *p, uint32_t layer, struct cst_err *err)
{
    struct gpt_moe_layer *l = &p->moe->layers[layer];
    int rc = gpt_exchange_counts(&p->moe->exchange, l->choice.counts, l->counts, err);

    rc = rc == 0 ? count(p->moe, l, err) : rc;
    if (rc == 0) {
        find_places(p->moe, l, p->rows);
        rc = send_rows(p, l, pack_body, p->moe->operand, err);
    }
    return rc;
}

int gpt_moe_send_rows_backward(struct gpt_pass_host *p, uint32_t layer, struct cst_err *err)
{
    return send_rows(p, &p->moe->layers[layer], pack_backward_body, sizeof(float), err);
}

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
            const float *y = k->layer->results + k->layer->places[j] * d;
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
    int rc = gpt_exchange_return(&p->moe->exchange, l->counts, p->moe->results.p, l->results,
                                 p->head.model->width * sizeof(float), err);

    rc = rc == 0 ? gpt_exchange_wait(&p->moe->exchange, err) : rc;
    if (rc == 0) {
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
            const float *back = k->x + k->layer->places[j] * d;
            const float *y = k->layer->results + k->layer->places[j] * d;
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
    struct gpt_moe *moe = p->moe;
    struct rows k = {.p = p, .layer = &moe->layers[layer], .x = moe->sent.p, .out = p->wide};
    int rc = gpt_exchange_return(&moe->exchange, k.layer->counts, moe->results.p, moe->sent.p,
                                 p->head.model->width * sizeof(float), err);

    rc = rc == 0 ? gpt_exchange_wait(&moe->exchange, err) : rc;
    if (rc == 0) {
        gpt_parallel(p->layers.n_threads, p->rows, combine_backward_body, &k);
    }
    return rc;
}
