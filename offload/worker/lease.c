/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/worker/lease.h"

#include <stdlib.h>
#include <string.h>

/* -- the model's shape ------------------------------------------------------------------------ */

const uint32_t *cst_lease_op_chunks(const struct cst_leases *leases, uint32_t op, uint32_t *n_out)
{
    *n_out = leases->op_first[op + 1] - leases->op_first[op];
    return leases->op_chunks + leases->op_first[op];
}

static void mark_op(struct cst_leases *leases, uint32_t op)
{
    uint32_t n;
    const uint32_t *chunks = cst_lease_op_chunks(leases, op, &n);

    leases->mark++;
    for (uint32_t i = 0; i < n; i++) {
        leases->chunks[chunks[i]].mark = leases->mark;
    }
}

static bool is_marked(const struct cst_leases *leases, uint32_t chunk)
{
    return leases->chunks[chunk].mark == leases->mark;
}

static void list_op_chunks(struct cst_leases *leases)
{
    uint32_t at = 0;

    for (uint32_t op = 0; op < leases->model.n_operators; op++) {
        const struct cst_lease_operator *o = &leases->model.operators[op];

        leases->op_first[op] = at;
        leases->mark++;
        for (uint32_t i = 0; i < o->n_tensors; i++) {
            uint32_t chunk = leases->model.tensor_chunk[o->tensors[i]];

            leases->chunks[chunk].n_uses += o->runs ? 1 : 0;
            if (!is_marked(leases, chunk)) {
                leases->chunks[chunk].mark = leases->mark;
                leases->op_chunks[at++] = chunk;
            }
        }
    }
    leases->op_first[leases->model.n_operators] = at;
}

static void list_by_chunk(struct cst_leases *leases)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < leases->model.n_tensors; i++) {
        leases->chunks[leases->model.tensor_chunk[i]].n_tensors++;
    }
    for (uint32_t c = 0; c < leases->model.n_chunks; c++) {
        leases->chunks[c].first_tensor = at;
        at += leases->chunks[c].n_tensors;
        leases->chunks[c].n_tensors = 0;
    }
    for (uint32_t i = 0; i < leases->model.n_tensors; i++) {
        struct cst_lease_chunk *chunk = &leases->chunks[leases->model.tensor_chunk[i]];

        leases->by_chunk[chunk->first_tensor + chunk->n_tensors++] = i;
    }
}

static uint32_t count_uses(const struct cst_lease_model *model)
{
    uint32_t n = 0;

    for (uint32_t op = 0; op < model->n_operators; op++) {
        n += model->operators[op].n_tensors;
    }
    return n;
}

/* Call calloc so that the result is not NULL for 0 elements. */
static void *zeros(uint64_t n, size_t size)
{
    return calloc(n > 0 ? n : 1, size);
}

static int no_memory(struct cst_leases *leases, struct cst_err *err)
{
    uint32_t n_chunks = leases->model.n_chunks;

    cst_lease_close(leases);
    return cst_err_set(err, CST_ENOMEM, "no memory for %u chunks", n_chunks);
}

int cst_lease_init(struct cst_leases *leases, const struct cst_lease_model *model,
                   struct cst_err *err)
{
    uint32_t n_ops = model->n_operators;

    *leases = (struct cst_leases){.model = *model};
    leases->chunks = zeros(model->n_chunks, sizeof *leases->chunks);
    leases->by_chunk = zeros(model->n_tensors, sizeof *leases->by_chunk);
    leases->op_first = zeros((uint64_t)n_ops + 1, sizeof *leases->op_first);
    leases->op_chunks = zeros(count_uses(model), sizeof *leases->op_chunks);
    leases->written = zeros(model->n_tensors, sizeof *leases->written);
    leases->op_done = zeros(n_ops, sizeof *leases->op_done);
    leases->held = zeros(model->n_chunks, sizeof *leases->held);
    leases->open = zeros(model->n_chunks, sizeof *leases->open);
    leases->asked = zeros(model->n_chunks, sizeof *leases->asked);
    leases->items = zeros(3ull * model->n_chunks + 2, sizeof *leases->items);
    if (leases->chunks == NULL || leases->by_chunk == NULL || leases->op_first == NULL ||
        leases->op_chunks == NULL || leases->written == NULL || leases->op_done == NULL ||
        leases->held == NULL || leases->open == NULL || leases->asked == NULL ||
        leases->items == NULL) {
        return no_memory(leases, err);
    }
    list_op_chunks(leases);
    list_by_chunk(leases);
    if (cst_lease_way_open(&leases->way, model, leases->op_first, leases->op_chunks) != CST_OK) {
        return no_memory(leases, err);
    }
    cst_lease_count_most(leases);
    cst_lease_reset_step(leases);
    return CST_OK;
}

void cst_lease_close(struct cst_leases *leases)
{
    free(leases->chunks);
    free(leases->by_chunk);
    free(leases->op_first);
    free(leases->op_chunks);
    cst_lease_way_close(&leases->way);
    free(leases->written);
    free(leases->op_done);
    free(leases->held);
    free(leases->open);
    free(leases->asked);
    free(leases->items);
    *leases = (struct cst_leases){0};
}

void cst_lease_reset_step(struct cst_leases *leases)
{
    memset(leases->written, 0, leases->model.n_tensors * sizeof *leases->written);
    memset(leases->op_done, 0, leases->model.n_operators * sizeof *leases->op_done);
    for (uint32_t c = 0; c < leases->model.n_chunks; c++) {
        leases->chunks[c].uses_left = leases->chunks[c].n_uses;
        leases->chunks[c].handed_in = false;
    }
}

void cst_lease_forget(struct cst_leases *leases)
{
    for (uint32_t c = 0; c < leases->model.n_chunks; c++) {
        leases->chunks[c].weight.state = CST_LEASE_FREE;
        leases->chunks[c].grad.state = CST_LEASE_FREE;
    }
    leases->n_held = 0;
    leases->n_open = 0;
    memset(leases->n_open_in, 0, sizeof leases->n_open_in);
    leases->n_items = 0;
    leases->n_asked = 0;
    cst_lease_reset_step(leases);
}

/* -- planning --------------------------------------------------------------------------------- */

static void push(struct cst_leases *leases, enum cst_lease_kind kind, uint32_t chunk, bool ahead,
                 struct cst_lease lease)
{
    leases->items[leases->n_items++] =
        (struct cst_lease_item){.kind = kind, .chunk = chunk, .ahead = ahead, .lease = lease};
}

static void drop_from(uint32_t *list, uint32_t *n, uint32_t chunk)
{
    for (uint32_t i = 0; i < *n; i++) {
        if (list[i] == chunk) {
            list[i] = list[--*n];
            return;
        }
    }
}

static void fetch_weight(struct cst_leases *leases, uint32_t chunk, bool ahead)
{
    leases->chunks[chunk].weight.state = CST_LEASE_ASKED;
    leases->held[leases->n_held++] = chunk;
    push(leases, CST_LEASE_FETCH_WEIGHT, chunk, ahead, (struct cst_lease){0});
}

static uint32_t class_of(const struct cst_leases *leases, uint32_t chunk)
{
    return leases->model.traits[chunk].size_class;
}

/* Return whether a backward pass needs the gradient of @chunk, which is not leased. */
static bool lacks_grad(const struct cst_leases *leases, uint32_t chunk)
{
    return leases->model.traits[chunk].trains && leases->chunks[chunk].grad.state == CST_LEASE_FREE;
}

static void fetch_grad(struct cst_leases *leases, uint32_t chunk)
{
    leases->chunks[chunk].grad.state = CST_LEASE_ASKED;
    leases->open[leases->n_open++] = chunk;
    leases->n_open_in[class_of(leases, chunk)]++;
    push(leases, CST_LEASE_FETCH_GRAD, chunk, false, (struct cst_lease){0});
}

static bool is_wanted(const struct cst_leases *leases, uint32_t chunk)
{
    return leases->chunks[chunk].wanted == leases->wanted_mark;
}

/* Plan to release the held weights, except those of the marked operator and those that are wanted
 * ahead. */
static void release_others(struct cst_leases *leases)
{
    for (uint32_t i = 0; i < leases->n_held;) {
        uint32_t c = leases->held[i];
        struct cst_lease *lease = &leases->chunks[c].weight;

        /* A lease that is ASKED cannot be given back before it is granted. */
        if (is_marked(leases, c) || is_wanted(leases, c) || lease->state != CST_LEASE_HELD) {
            i++;
            continue;
        }
        push(leases, CST_LEASE_RELEASE, c, false, *lease);
        lease->state = CST_LEASE_FREE;
        leases->held[i] = leases->held[--leases->n_held];
    }
}

/* Remove the gradient of @chunk from the open gradients. */
static void close_grad(struct cst_leases *leases, uint32_t chunk)
{
    leases->chunks[chunk].grad.state = CST_LEASE_FREE;
    drop_from(leases->open, &leases->n_open, chunk);
    leases->n_open_in[class_of(leases, chunk)]--;
}

static void hand_in(struct cst_leases *leases, uint32_t chunk)
{
    struct cst_lease_chunk *c = &leases->chunks[chunk];

    push(leases, CST_LEASE_REDUCE_SCATTER, chunk, false, c->grad);
    c->handed_in = true;
    close_grad(leases, chunk);
}

/* Blocks that an operator needs, per size class. */
struct need {
    uint32_t n_weights[CST_LEASE_MAX_CLASSES]; /* For its weights. */
    uint32_t n[CST_LEASE_MAX_CLASSES];         /* Also for gradients that it opens or are open. */
};

static struct need need_of(const struct cst_leases *leases, uint32_t op, bool backward)
{
    struct need need = {0};
    uint32_t n;
    const uint32_t *chunks = cst_lease_op_chunks(leases, op, &n);

    memcpy(need.n, leases->n_open_in, sizeof need.n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t class = class_of(leases, chunks[i]);

        need.n_weights[class]++;
        need.n[class] += backward && lacks_grad(leases, chunks[i]) ? 2 : 1;
    }
    return need;
}

/* Return whether a forward pass of @op, at this time, is a part of its backward pass. After its own
 * backward pass it is not: it belongs to the next micro-batch, whose predecessor ends late. */
static bool is_repeated(const struct cst_leases *leases, uint32_t op)
{
    uint32_t before = cst_lease_way_before_backward(&leases->way, op);

    return before != CST_LEASE_NONE && leases->op_done[before] && !leases->op_done[op];
}

/* Return the chunks of the next operator on the way that uses others than @op; *n_out is 0 if there
 * is none. */
static const uint32_t *next_chunks(const struct cst_leases *leases, uint32_t op, bool backward,
                                   uint32_t *n_out)
{
    uint32_t next = cst_lease_way_next(&leases->way, op, backward);

    *n_out = 0;
    return next != CST_LEASE_NONE ? cst_lease_op_chunks(leases, next, n_out) : NULL;
}

/* Mark the chunks of @op, and those of later operators whose weights are wanted ahead. */
static void mark_wanted(struct cst_leases *leases, uint32_t op, bool backward)
{
    bool counts_as_backward = backward || is_repeated(leases, op);
    struct need need = need_of(leases, op, counts_as_backward);
    uint32_t n;
    const uint32_t *chunks = next_chunks(leases, op, counts_as_backward, &n);

    mark_op(leases, op);
    leases->wanted_mark++;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t class = class_of(leases, chunks[i]);

        if (!is_marked(leases, chunks[i]) && need.n[class] < leases->model.blocks[class]) {
            need.n[class]++;
            leases->chunks[chunks[i]].wanted = leases->wanted_mark;
        }
    }
}

/* Return whether a FETCH ahead is in flight that is not wanted any more. */
static bool has_unwanted(const struct cst_leases *leases)
{
    for (uint32_t i = 0; i < leases->n_asked; i++) {
        if (!is_wanted(leases, leases->asked[i])) {
            return true;
        }
    }
    return false;
}

static bool lacks_something(const struct cst_leases *leases, uint32_t op, bool backward)
{
    uint32_t n;
    const uint32_t *chunks = cst_lease_op_chunks(leases, op, &n);

    for (uint32_t i = 0; i < n; i++) {
        const struct cst_lease_chunk *c = &leases->chunks[chunks[i]];

        if (c->weight.state != CST_LEASE_HELD ||
            (backward && leases->model.traits[chunks[i]].trains &&
             c->grad.state != CST_LEASE_HELD)) {
            return true;
        }
    }
    return false;
}

bool cst_lease_must_settle(struct cst_leases *leases, uint32_t op, bool backward)
{
    /* Chunks that it needs and that were asked for ahead are lacking, too. */
    if (leases->n_asked == 0 || !lacks_something(leases, op, backward)) {
        return false;
    }
    mark_wanted(leases, op, backward);
    for (uint32_t i = 0; i < leases->n_asked; i++) {
        if (is_marked(leases, leases->asked[i])) {
            return true;
        }
    }
    return has_unwanted(leases);
}

void cst_lease_want(struct cst_leases *leases)
{
    leases->n_items = 0;
    for (uint32_t i = 0; i < leases->n_asked; i++) {
        push(leases, CST_LEASE_WANT, leases->asked[i], false, (struct cst_lease){0});
    }
}

void cst_lease_clear(struct cst_leases *leases)
{
    leases->n_items = 0;
}

void cst_lease_prefetch(struct cst_leases *leases, uint32_t chunk)
{
    if (leases->chunks[chunk].weight.state == CST_LEASE_FREE) {
        push(leases, CST_LEASE_PREFETCH, chunk, false, (struct cst_lease){0});
    }
}

void cst_lease_evict(struct cst_leases *leases, uint32_t chunk)
{
    struct cst_lease *lease = &leases->chunks[chunk].weight;

    /* Its generation is not known yet, so it cannot be released. */
    if (lease->state == CST_LEASE_ASKED) {
        return;
    }
    if (lease->state == CST_LEASE_HELD) {
        push(leases, CST_LEASE_RELEASE, chunk, false, *lease);
        lease->state = CST_LEASE_FREE;
        drop_from(leases->held, &leases->n_held, chunk);
    }
    push(leases, CST_LEASE_EVICT, chunk, false, (struct cst_lease){0});
}

uint32_t cst_lease_handed_in(const struct cst_leases *leases, uint32_t op)
{
    const struct cst_lease_operator *o = &leases->model.operators[op];

    for (uint32_t i = 0; i < o->n_tensors; i++) {
        if (leases->chunks[leases->model.tensor_chunk[o->tensors[i]]].handed_in) {
            return o->tensors[i];
        }
    }
    return CST_LEASE_NONE;
}

static int check_blocks(const struct cst_leases *leases, uint32_t op, bool backward,
                        struct cst_err *err)
{
    struct need need = need_of(leases, op, backward);

    for (uint32_t class = 0; class < CST_LEASE_MAX_CLASSES; class ++) {
        uint32_t n = need.n_weights[class], blocks = need.n[class];

        if (n > 0 && blocks > leases->model.blocks[class]) {
            return cst_err_set(
                err, CST_EPOOL,
                "%u chunks of weights and %u chunks of gradients of size class %u are needed at "
                "once, but the pool has %u blocks: operators run in another order than declared",
                n, blocks - n, class, leases->model.blocks[class]);
        }
    }
    return CST_OK;
}

int cst_lease_begin(struct cst_leases *leases, uint32_t op, bool backward, struct cst_err *err)
{
    uint32_t n;
    const uint32_t *chunks = cst_lease_op_chunks(leases, op, &n);
    int rc;

    leases->n_items = 0;
    /* Then nothing needs a block, and releases can wait for the next batch. */
    if (!lacks_something(leases, op, backward)) {
        return CST_OK;
    }
    rc = check_blocks(leases, op, backward, err);
    if (rc != CST_OK) {
        return rc;
    }
    mark_wanted(leases, op, backward);
    release_others(leases);
    for (uint32_t i = 0; i < n; i++) {
        if (leases->chunks[chunks[i]].weight.state == CST_LEASE_FREE) {
            fetch_weight(leases, chunks[i], false);
        }
    }
    for (uint32_t i = 0; backward && i < n; i++) {
        if (lacks_grad(leases, chunks[i])) {
            fetch_grad(leases, chunks[i]);
        }
    }
    return CST_OK;
}

void cst_lease_ahead(struct cst_leases *leases, uint32_t op, bool backward)
{
    uint32_t n;
    const uint32_t *chunks = next_chunks(leases, op, backward || is_repeated(leases, op), &n);

    leases->n_items = 0;
    mark_wanted(leases, op, backward);
    /* Fetches in flight that nobody wants use the blocks that there are for weights ahead. */
    if (has_unwanted(leases)) {
        leases->wanted_mark++; /* Now no chunk is wanted ahead. */
    }
    release_others(leases);
    for (uint32_t i = 0; i < n; i++) {
        if (is_wanted(leases, chunks[i]) &&
            leases->chunks[chunks[i]].weight.state == CST_LEASE_FREE) {
            fetch_weight(leases, chunks[i], true);
            leases->asked[leases->n_asked++] = chunks[i];
        }
    }
}

/* If the backward pass of an operator is repeated in a micro-batch, it adds to its gradients, and
 * its uses are not counted again. */
void cst_lease_end(struct cst_leases *leases, uint32_t op, bool backward)
{
    const struct cst_lease_operator *o = &leases->model.operators[op];

    leases->n_items = 0;
    if (!backward) {
        return;
    }
    for (uint32_t i = 0; i < o->n_tensors; i++) {
        leases->written[o->tensors[i]] = true;
    }
    for (uint32_t i = 0; !leases->op_done[op] && i < o->n_tensors; i++) {
        uint32_t c = leases->model.tensor_chunk[o->tensors[i]];

        if (--leases->chunks[c].uses_left == 0 && leases->model.traits[c].trains) {
            hand_in(leases, c);
        }
    }
    leases->op_done[op] = true;
}

static void hand_in_all(struct cst_leases *leases)
{
    leases->n_items = 0;
    while (leases->n_open > 0) {
        hand_in(leases, leases->open[leases->n_open - 1]);
    }
}

void cst_lease_turn(struct cst_leases *leases)
{
    hand_in_all(leases);
    push(leases, CST_LEASE_ACCUMULATE, CST_LEASE_NONE, false, (struct cst_lease){0});
}

void cst_lease_flush(struct cst_leases *leases)
{
    hand_in_all(leases);
    leases->mark++; /* Now no chunk is marked as used, nor as wanted ahead. */
    leases->wanted_mark++;
    release_others(leases);
}

/* -- results ---------------------------------------------------------------------------------- */

void cst_lease_grant(struct cst_leases *leases, const struct cst_lease_item *item,
                     const struct cst_lease *lease, bool hit)
{
    struct cst_lease_chunk *c = &leases->chunks[item->chunk];
    struct cst_lease *slot = item->kind == CST_LEASE_FETCH_GRAD ? &c->grad : &c->weight;

    *slot = *lease;
    slot->state = CST_LEASE_HELD;
    if (item->ahead) {
        drop_from(leases->asked, &leases->n_asked, item->chunk);
    }
    /* The block is a new one: what an earlier use of these tensors wrote is not in it. */
    if (item->kind == CST_LEASE_FETCH_GRAD && !hit) {
        for (uint32_t i = 0; i < c->n_tensors; i++) {
            leases->written[leases->by_chunk[c->first_tensor + i]] = false;
        }
    }
}

void cst_lease_refuse(struct cst_leases *leases, const struct cst_lease_item *item)
{
    struct cst_lease_chunk *c = &leases->chunks[item->chunk];

    if (item->kind == CST_LEASE_FETCH_GRAD) {
        close_grad(leases, item->chunk);
    } else {
        c->weight.state = CST_LEASE_FREE;
        drop_from(leases->held, &leases->n_held, item->chunk);
    }
    if (item->ahead) {
        drop_from(leases->asked, &leases->n_asked, item->chunk);
    }
}

void cst_lease_give_up(struct cst_leases *leases)
{
    for (uint32_t i = 0; i < leases->n_items; i++) {
        const struct cst_lease_item *item = &leases->items[i];

        if (item->kind == CST_LEASE_FETCH_WEIGHT || item->kind == CST_LEASE_FETCH_GRAD) {
            cst_lease_refuse(leases, item);
        }
    }
    leases->n_items = 0;
}
