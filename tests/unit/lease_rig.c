/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/lease_rig.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t lease_rig_draw(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

static void say(struct lease_rig *w, const struct cst_lease_item *item)
{
    static const char *const kinds[] = {"", "W", "G", "r", "R"};
    size_t n = strlen(w->said);

    if (item->kind == CST_LEASE_ACCUMULATE) {
        (void)snprintf(w->said + n, sizeof w->said - n, "%sA", n > 0 ? " " : "");
        return;
    }
    (void)snprintf(w->said + n, sizeof w->said - n, "%s%s%u%s", n > 0 ? " " : "", kinds[item->kind],
                   item->chunk, item->ahead ? "+" : "");
}

/* Do what the daemon does for one item, and assert each rule of the protocol. */
static void serve(struct lease_rig *w, const struct cst_lease_item *item)
{
    uint64_t *slot;

    say(w, item);
    if (item->kind == CST_LEASE_ACCUMULATE) {
        return;
    }
    slot = item->kind == CST_LEASE_FETCH_WEIGHT || item->kind == CST_LEASE_RELEASE
               ? &w->weight[item->chunk]
               : &w->grad[item->chunk];
    switch (item->kind) {
    case CST_LEASE_FETCH_WEIGHT:
    case CST_LEASE_FETCH_GRAD:
        ck_assert_uint_eq(*slot, 0);
        *slot = ++w->generation;
        w->n_leased++;
        break;
    case CST_LEASE_REDUCE_SCATTER:
        w->n_handed_in[item->chunk]++;
        /* fall through */
    case CST_LEASE_RELEASE:
        ck_assert_uint_ne(*slot, 0);
        ck_assert_uint_eq(*slot, item->lease.generation);
        *slot = 0;
        w->n_leased--;
        break;
    case CST_LEASE_PREFETCH:
    case CST_LEASE_EVICT:
    case CST_LEASE_WANT:
    case CST_LEASE_ACCUMULATE:
        break;
    }
    if (w->n_leased > w->most_leased) {
        w->most_leased = w->n_leased;
    }
}

static void deliver(struct lease_rig *w, const struct cst_lease_item *item)
{
    if (item->kind == CST_LEASE_FETCH_WEIGHT || item->kind == CST_LEASE_FETCH_GRAD) {
        struct cst_lease lease = {.generation = item->kind == CST_LEASE_FETCH_WEIGHT
                                                    ? w->weight[item->chunk]
                                                    : w->grad[item->chunk]};

        cst_lease_grant(&w->leases, item, &lease, false);
    }
}

void lease_rig_deliver_ahead(struct lease_rig *w)
{
    for (uint32_t i = 0; i < w->n_ahead; i++) {
        deliver(w, &w->ahead[i]);
    }
    w->n_ahead = 0;
}

void lease_rig_send_plan(struct lease_rig *w)
{
    w->said[0] = '\0';
    for (uint32_t i = 0; i < w->leases.n_items; i++) {
        serve(w, &w->leases.items[i]);
    }
    for (uint32_t i = 0; i < w->leases.n_items; i++) {
        if (w->leases.items[i].ahead) {
            ck_assert_uint_lt(w->n_ahead, RIG_MAX_CHUNKS);
            w->ahead[w->n_ahead++] = w->leases.items[i];
        } else {
            deliver(w, &w->leases.items[i]);
        }
    }
}

int lease_rig_begin(struct lease_rig *w, uint32_t op, bool backward)
{
    uint32_t n;
    const uint32_t *chunks;
    struct cst_err err = {0};
    int rc;

    if (cst_lease_must_settle(&w->leases, op, backward)) {
        ck_assert_uint_gt(w->n_ahead, 0);
        lease_rig_deliver_ahead(w);
        ck_assert(!cst_lease_must_settle(&w->leases, op, backward));
    }
    rc = cst_lease_begin(&w->leases, op, backward, &err);
    if (rc != CST_OK) {
        ck_assert_int_eq(rc, CST_EPOOL);
        ck_assert_uint_eq(w->leases.n_items, 0);
        return rc;
    }
    w->n_demands += w->leases.n_items > 0 ? 1 : 0;
    lease_rig_send_plan(w);
    chunks = cst_lease_op_chunks(&w->leases, op, &n);
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_uint_ne(w->weight[chunks[i]], 0);
        ck_assert((backward && w->traits[chunks[i]].trains) == (w->grad[chunks[i]] != 0) ||
                  !backward);
    }
    return CST_OK;
}

void lease_rig_ahead(struct lease_rig *w, uint32_t op, bool backward)
{
    cst_lease_ahead(&w->leases, op, backward);
    lease_rig_send_plan(w);
}

void lease_rig_end(struct lease_rig *w, uint32_t op, bool backward)
{
    cst_lease_end(&w->leases, op, backward);
    lease_rig_send_plan(w);
}

void lease_rig_run(struct lease_rig *w, uint32_t op, bool backward)
{
    ck_assert_int_eq(lease_rig_begin(w, op, backward), CST_OK);
    lease_rig_ahead(w, op, backward);
    lease_rig_end(w, op, backward);
}

void lease_rig_step(struct lease_rig *w)
{
    lease_rig_deliver_ahead(w);
    cst_lease_flush(&w->leases);
    lease_rig_send_plan(w);
    ck_assert_uint_eq(w->n_leased, 0);
    ck_assert_uint_eq(w->leases.n_held, 0);
    ck_assert_uint_eq(w->leases.n_open, 0);
    cst_lease_reset_step(&w->leases);
    memset(w->n_handed_in, 0, sizeof w->n_handed_in);
}

void lease_rig_open(struct lease_rig *w, uint64_t chunk_elems, uint32_t n_blocks)
{
    struct cst_layout_config config = {.chunk_elems = chunk_elems, .n_nodes = 1, .world = 2};
    struct cst_lease_model model = {.n_operators = w->model.n_operators,
                                    .n_tensors = w->model.n_tensors};
    struct cst_err err = {0};

    ck_assert_msg(cst_layout_build(&w->layout, &w->model, &config, &err) == CST_OK, "%s", err.text);
    ck_assert_uint_le(w->layout.n_chunks, RIG_MAX_CHUNKS);
    w->operators = calloc(w->model.n_operators, sizeof *w->operators);
    w->tensor_chunk = calloc(w->model.n_tensors, sizeof *w->tensor_chunk);
    for (uint32_t i = 0; i < w->model.n_operators; i++) {
        w->operators[i].tensors = w->model.operators[i].tensors;
        w->operators[i].n_tensors = w->model.operators[i].n_tensors;
        w->operators[i].runs = cst_model_runs(&w->model, &w->model.operators[i], w->rank);
    }
    for (uint32_t i = 0; i < w->model.n_tensors; i++) {
        w->tensor_chunk[i] = w->model.tensors[i].chunk;
    }
    model.operators = w->operators;
    model.tensor_chunk = w->tensor_chunk;
    model.n_chunks = w->layout.n_chunks;
    w->traits = calloc(w->layout.n_chunks, sizeof *w->traits);
    for (uint32_t i = 0; i < w->model.n_tensors; i++) {
        const struct cst_layout_tensor *t = &w->model.tensors[i];

        w->traits[t->chunk].size_class = (uint8_t)w->layout.chunks[t->chunk].size_class;
        w->traits[t->chunk].trains = cst_pattern(t->pattern)->has_states;
    }
    for (uint32_t c = 0; c < w->layout.n_classes; c++) {
        model.blocks[c] =
            c == 0 && n_blocks > 0 ? n_blocks : w->layout.classes[c].min_blocks + w->n_spare;
    }
    model.traits = w->traits;
    ck_assert_int_eq(cst_lease_init(&w->leases, &model, &err), CST_OK);
}

void lease_rig_close(struct lease_rig *w)
{
    cst_lease_close(&w->leases);
    free(w->operators);
    free(w->tensor_chunk);
    free(w->traits);
    cst_layout_close(&w->layout);
    cst_model_close(&w->model);
    free(w);
}

struct lease_rig *lease_rig_new(void)
{
    struct lease_rig *w = calloc(1, sizeof *w);

    ck_assert_ptr_nonnull(w);
    cst_model_init(&w->model);
    return w;
}

uint32_t lease_rig_add_tensor_as(struct lease_rig *w, int64_t n_elems, uint32_t group,
                                 enum cst_pattern_kind pattern)
{
    char name[16];
    const struct cst_tensor_words words = {.name = name,
                                           .shape = &n_elems,
                                           .n_dims = 1,
                                           .lr_scale = 1.0f,
                                           .decay_scale = 1.0f,
                                           .group = group,
                                           .pattern = pattern};

    (void)snprintf(name, sizeof name, "t%u", w->model.n_tensors);
    ck_assert_int_eq(cst_model_tensor(&w->model, &words, NULL), CST_OK);
    return w->model.n_tensors - 1;
}

uint32_t lease_rig_add_tensor(struct lease_rig *w, int64_t n_elems)
{
    return lease_rig_add_tensor_as(w, n_elems, 0, CST_PATTERN_SHARD);
}

void lease_rig_add_operator(struct lease_rig *w, const uint32_t *tensors, uint32_t n)
{
    char name[16];

    (void)snprintf(name, sizeof name, "o%u", w->model.n_operators);
    ck_assert_int_eq(cst_model_operator(&w->model, name, tensors, n, NULL, NULL), CST_OK);
}
