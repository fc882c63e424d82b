/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/plan_rules.h"

#include <stdlib.h>
#include <string.h>

#define MIB_ELEMS (1u << 19) /* elements whose weights take 1 MiB */
#define CANDIDATES 8         /* number of capacities that the rule tries */

const uint32_t rule_in_turn[CST_LAYOUT_MAX_CLASSES] = {0, 1, 2, 3};

static uint64_t room_of(const struct cst_plan_config *config)
{
    const struct cst_plan_budget *b = config->budget;
    bool host = strcmp(config->rates->devices[config->device].name, "host") == 0;
    uint64_t activations = host ? 0 : b->activation_bytes;

    for (uint32_t i = 0; !host && b->activation_bytes == 0 && i < config->model->n_operators; i++) {
        activations += config->model->operators[i].activation_bytes;
    }
    if (b->device_bytes == CST_PLAN_NO_LIMIT) {
        return UINT64_MAX / 4;
    }
    return b->device_bytes > activations ? b->device_bytes - activations : 0;
}

static struct cst_layout_config layout_config(const struct cst_plan_config *config, uint64_t elems,
                                              uint32_t max_classes)
{
    return (struct cst_layout_config){.chunk_elems = elems,
                                      .n_nodes = config->n_nodes == 0 ? 1 : config->n_nodes,
                                      .world = config->world,
                                      .grad_bytes = config->micro_batches > 1 ? 4 : 2,
                                      .max_classes = max_classes};
}

/* Fill the pools: first the required blocks, then as many as fit of the classes in @order. */
static int fill_blocks(const struct cst_layout *layout, uint64_t room,
                       const uint32_t order[CST_LAYOUT_MAX_CLASSES], struct cst_plan_choice *out,
                       struct cst_err *err)
{
    uint64_t needed = 0;

    for (uint32_t i = 0; i < layout->n_classes; i++) {
        out->n_blocks[i] = layout->classes[i].min_blocks;
        needed += out->n_blocks[i] * 2ull * layout->classes[i].capacity;
    }
    if (needed > room) {
        return cst_err_set(err, CST_EPOOL, "a pool too small");
    }
    room -= needed;
    for (uint32_t k = 0; k < CST_LAYOUT_MAX_CLASSES; k++) {
        uint32_t i = order[k];
        uint64_t bytes, n, more;

        if (i >= layout->n_classes) {
            continue;
        }
        bytes = 2 * layout->classes[i].capacity;
        more = layout->classes[i].max_blocks - out->n_blocks[i];
        n = room / bytes < more ? room / bytes : more;
        out->n_blocks[i] += (uint32_t)n;
        room -= n * bytes;
    }
    out->pool_bytes = 0;
    for (uint32_t i = 0; i < layout->n_classes; i++) {
        out->pool_bytes += out->n_blocks[i] * 2ull * layout->classes[i].capacity;
    }
    return CST_OK;
}

static void describe(const struct cst_plan_config *config, const struct cst_layout *layout,
                     struct cst_plan_choice *out)
{
    out->layout = layout_config(config, layout->classes[0].capacity, layout->n_classes);
    for (uint32_t i = 1; i < layout->n_classes; i++) {
        out->layout.class_elems[i - 1] = layout->classes[i].capacity;
    }
    out->n_classes = layout->n_classes;
    out->n_chunks = layout->n_chunks;
}

int rule_capacity(const struct cst_plan_config *config, uint64_t elems,
                  const uint32_t order[CST_LAYOUT_MAX_CLASSES], struct cst_plan_choice *out,
                  struct cst_err *err)
{
    struct cst_layout_config lc = layout_config(config, elems, CST_LAYOUT_MAX_CLASSES);
    struct cst_plan_choice choice = {0};
    struct cst_layout layout;
    int rc = cst_layout_build(&layout, config->model, &lc, err);

    if (rc != CST_OK) {
        return rc;
    }
    describe(config, &layout, &choice);
    rc = fill_blocks(&layout, room_of(config), order, &choice, err);
    cst_layout_close(&layout);
    if (rc == CST_OK) {
        *out = choice;
    }
    return rc;
}

/* -- Elixir --------------------------------------------------------------------------------- */

/* List the chunks in the order in which a step uses them, without consecutive repetitions. */
static uint32_t list_uses(const struct cst_layout *layout, const struct cst_model *model,
                          uint32_t *uses)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < 2 * model->n_operators; i++) {
        bool back = i >= model->n_operators;
        const struct cst_layout_use *use = &layout->uses[back ? 2 * model->n_operators - 1 - i : i];

        for (uint32_t k = 0; k < use->n_chunks; k++) {
            if (n == 0 || uses[n - 1] != use->chunks[k]) {
                uses[n++] = use->chunks[k];
            }
        }
    }
    return n;
}

static uint32_t next_use(const uint32_t *uses, uint32_t n, uint32_t from, uint32_t chunk)
{
    while (from < n && uses[from] != chunk) {
        from++;
    }
    return from;
}

/* Number of loads by Belady's rule with @blocks blocks. */
static uint64_t count_moves(const uint32_t *uses, uint32_t n, uint32_t n_chunks, uint32_t blocks)
{
    bool *held = calloc(n_chunks, sizeof *held);
    uint32_t *next = calloc(n_chunks, sizeof *next);
    uint64_t moves = 0;
    uint32_t n_held = 0;

    for (uint32_t i = 0; held != NULL && next != NULL && i < n; i++) {
        if (!held[uses[i]]) {
            moves++;
            if (n_held == blocks) {
                uint32_t victim = 0, farthest = 0;

                for (uint32_t c = 0; c < n_chunks; c++) {
                    if (held[c] && next[c] >= farthest) {
                        farthest = next[c];
                        victim = c;
                    }
                }
                held[victim] = false;
                n_held--;
            }
            held[uses[i]] = true;
            n_held++;
        }
        next[uses[i]] = next_use(uses, n, i + 1, uses[i]);
    }
    free(held);
    free(next);
    return moves;
}

struct capacity {
    uint64_t elems;
    uint32_t blocks;
    double traffic;
};

static uint64_t largest(const struct cst_model *model)
{
    uint64_t most = 0;

    for (uint32_t t = 0; t < model->n_tensors; t++) {
        most = model->tensors[t].n_elems > most ? model->tensors[t].n_elems : most;
    }
    return most;
}

static int weigh(const struct cst_plan_config *config, uint64_t room, struct capacity *c)
{
    struct cst_layout_config lc = layout_config(config, c->elems, 1);
    struct cst_layout layout;
    struct cst_err err;
    uint32_t *uses;
    uint64_t fit;
    int rc = cst_layout_build(&layout, config->model, &lc, &err);

    if (rc != CST_OK) {
        return rc;
    }
    c->elems = layout.capacity;
    fit = room / (2 * layout.capacity);
    if (fit < layout.classes[0].min_blocks + 2) {
        cst_layout_close(&layout);
        return CST_EPOOL;
    }
    c->blocks = fit - 2 < layout.n_chunks ? (uint32_t)fit - 2 : layout.n_chunks;
    uses = calloc(2ul * config->model->n_uses + 1, sizeof *uses);
    if (uses != NULL) {
        uint32_t n = list_uses(&layout, config->model, uses);

        c->traffic = (double)c->elems * (double)count_moves(uses, n, layout.n_chunks, c->blocks);
    }
    free(uses);
    cst_layout_close(&layout);
    return CST_OK;
}

static int choose_capacity(const struct cst_plan_config *config, uint64_t room,
                           struct capacity *out)
{
    uint64_t start = 32ull * MIB_ELEMS; /* elements of 32 MiB of weights */
    int rc = CST_EPOOL;

    while (start < largest(config->model) + 64) {
        start *= 2;
    }
    for (uint32_t i = 0; i < CANDIDATES; i++) {
        struct capacity c = {.elems = start + start * 2 * i / (CANDIDATES - 1)};

        if (weigh(config, room, &c) == CST_OK && (rc != CST_OK || c.traffic < out->traffic)) {
            *out = c;
            rc = CST_OK;
        }
    }
    return rc;
}

int rule_elixir(const struct cst_plan_config *config, struct cst_plan_choice *out,
                struct cst_err *err)
{
    uint64_t room = room_of(config);
    struct cst_plan_choice choice = {0};
    struct cst_layout_config lc;
    struct cst_layout layout;
    struct capacity c = {0};
    int rc = choose_capacity(config, room, &c);

    if (rc != CST_OK) {
        return cst_err_set(err, rc, "the rule finds no capacity");
    }
    lc = layout_config(config, c.elems, 1);
    rc = cst_layout_build(&layout, config->model, &lc, err);
    if (rc != CST_OK) {
        return rc;
    }
    describe(config, &layout, &choice);
    rc = fill_blocks(&layout, room, rule_in_turn, &choice, err);
    cst_layout_close(&layout);
    if (rc == CST_OK) {
        *out = choice;
    }
    return rc;
}
