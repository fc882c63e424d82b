/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the job of a run: groups, patterns, sizes, operators, micro-batches, and a base job that
 * holds some of the frozen tensors. */
#include "tests/lib/declare.h"
#include "tests/sim/sim.h"
#include "tests/lib/bits.h"

#include <stdio.h>

#define CAPACITY 4096
#define BIG_CAPACITY 16384 /* elements of the second size class */

static uint64_t all_ranks(const struct sim *sim)
{
    return (1ull << sim->world) - 1;
}

static void choose_groups(struct sim *sim)
{
    uint32_t n = sim_chance(sim, 5000) ? sim_below(sim, 4) : 0;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t ranks = 1 + sim_below(sim, (uint32_t)all_ranks(sim));

        if (cst_model_group(&sim->model, bits(ranks), NULL) != CST_OK) {
            sim_fail(sim, "a group was refused");
        }
    }
}

/* True if all ranks of a group must open the same gradients in the same order. A bf16 row can keep
 * only one contribution. With three or more ranks, a rank that waits for a block could otherwise
 * wait for ranks that wait for others in turn. */
static bool is_strict(const struct sim *sim)
{
    return !sim->grad_fp32 && !sim->loose && sim->world > 2;
}

bool model_may_skip(const struct sim *sim, uint32_t op)
{
    return !is_strict(sim) ||
           __builtin_popcountll(cst_model_runners(&sim->model, &sim->model.operators[op]).words[0] &
                                all_ranks(sim)) <= 2;
}

bool model_is_sparse(const struct sim *sim, uint32_t op)
{
    const struct cst_layout_operator *o = &sim->model.operators[op];

    for (uint32_t k = 0; k < o->n_tensors; k++) {
        if (cst_pattern(sim->model.tensors[o->tensors[k]].pattern)->sparse) {
            return true;
        }
    }
    return false;
}

/* Declare a tensor. One of fp32 has half as many columns, so that it takes as much memory. */
static void add_tensor(struct sim *sim, uint32_t i, int64_t rows, int64_t columns)
{
    static const int64_t first[2];
    bool fp32 = sim_chance(sim, sim->p_fp32);
    int64_t shape[2] = {rows, fp32 ? (columns + 1) / 2 : columns};
    int64_t whole[2] = {2 * shape[0], shape[1]};
    char name[32];
    struct cst_tensor_words words = {
        .name = name, .shape = shape, .n_dims = 2, .lr_scale = 1, .decay_scale = 1};

    (void)snprintf(name, sizeof name, "tensor%u", i);
    words.dtype = fp32 ? CST_FP32 : CST_BF16;
    words.group = sim->model.n_groups > 1 ? sim_below(sim, sim->model.n_groups) : 0;
    words.pattern = sim_chance(sim, sim->p_patterns) ? sim_below(sim, CST_PATTERN_COUNT) : 0;
    if (sim->has_base && words.pattern == CST_PATTERN_FROZEN) {
        /* All of group 0, so that each chunk of the base job is one chunk here too. */
        words.group = 0;
    }
    if (cst_pattern(words.pattern)->wants_box) {
        words.whole = whole;
        words.first = first;
        words.update = CST_TENSOR_UPDATE_ADAMW; /* Muon needs whole matrices. */
    }
    if (cst_model_tensor(&sim->model, &words, NULL) != CST_OK) {
        sim_fail(sim, "a tensor was refused");
    }
}

/* Declare an operator with the first of the @n @tensors, and with those of the others that share a
 * rank with it. */
static void declare_operator(struct sim *sim, uint32_t i, const uint32_t *tensors, uint32_t n)
{
    uint64_t ranks = all_ranks(sim);
    uint32_t chosen[3];
    uint32_t n_chosen = 0;
    char name[32];

    for (uint32_t k = 0; k < n; k++) {
        uint32_t group = sim->model.tensors[tensors[k]].group;
        uint64_t both = ranks & cst_model_group_ranks(&sim->model, group).words[0];

        if (both != 0 &&
            (k == 0 || !is_strict(sim) || group == sim->model.tensors[tensors[0]].group)) {
            chosen[n_chosen++] = tensors[k];
            ranks = both;
        }
    }
    (void)snprintf(name, sizeof name, "op%u", i);
    if (cst_model_operator(&sim->model, name, chosen, n_chosen, NULL, NULL) != CST_OK) {
        sim_fail(sim, "an operator was refused");
    }
}

/* Declare one chunk and one operator per tensor, so that every order of operators needs the same
 * blocks. */
static void declare_plain(struct sim *sim)
{
    uint32_t n = 3 + sim_below(sim, 8);

    for (uint32_t i = 0; i < n; i++) {
        bool big = i > 0 && sim_chance(sim, sim->p_big);

        add_tensor(sim, i, 1, big ? 8300 + sim_below(sim, 8000) : 2100 + sim_below(sim, 1900));
        declare_operator(sim, i, &i, 1);
    }
}

static void declare(struct sim *sim)
{
    uint32_t n_tensors = 3 + sim_below(sim, 10);
    uint32_t n_ops = 2 + sim_below(sim, SIM_MAX_OPS - 2);

    for (uint32_t i = 0; i < n_tensors; i++) {
        uint32_t most = i > 0 && sim_chance(sim, sim->p_big) ? 128 : 64;

        add_tensor(sim, i, 1 + sim_below(sim, most), 1 + sim_below(sim, most));
    }
    for (uint32_t i = 0; i < n_ops; i++) {
        uint32_t first = i * n_tensors / n_ops;
        uint32_t tensors[3] = {first, first + 1, sim_chance(sim, 2000) ? 0 : first + 2};
        uint32_t n = 1 + sim_below(sim, 3);

        if (n == 3 && tensors[2] == 0 && first == 0) {
            n = 2; /* tied tensors, but no tensor twice */
        }
        while (n > 1 && tensors[n - 1] >= n_tensors) {
            n--;
        }
        declare_operator(sim, i, tensors, n > 2 && tensors[1] >= n_tensors ? 1 : n);
    }
}

/* The base job declares some of the frozen tensors, and one tensor of its own. */
static void declare_base(struct sim *sim)
{
    int64_t shape = 64;

    if (declare_tensor(&sim->base_model, "its own", &shape, 1, 1, 1, NULL) != CST_OK) {
        sim_fail(sim, "a base's tensor was refused");
    }
    for (uint32_t t = 0; t < sim->model.n_tensors; t++) {
        struct cst_tensor_words words = cst_model_words(&sim->model, t);

        words.group = 0;
        if (words.pattern == CST_PATTERN_FROZEN && sim_chance(sim, 7000) &&
            cst_model_tensor(&sim->base_model, &words, NULL) != CST_OK) {
            sim_fail(sim, "a base's tensor was refused");
        }
    }
}

/* Layouts without landings occur as well if no GPU needs them. */
static enum cst_layout_landings choose_landings(struct sim *sim)
{
    if (sim->unreachable[0] != 0 || sim->unreachable[1] != 0 || sim_chance(sim, 1000)) {
        return CST_LANDINGS_SHARED;
    }
    return sim_chance(sim, 7500) ? CST_LANDINGS_SINGLE : CST_LANDINGS_NONE;
}

void model_open(struct sim *sim)
{
    struct cst_layout_config config = {.chunk_elems = CAPACITY,
                                       .n_nodes = sim->n_nodes,
                                       .world = sim->world,
                                       .grad_bytes = sim->grad_fp32 ? 4 : 2,
                                       .landings = choose_landings(sim)};
    struct cst_err err;

    config.states.optimizer = sim_chance(sim, 3000) ? CST_OPTIMIZER_MUON : CST_OPTIMIZER_ADAMW;
    config.states.grad_over_weight = sim->grad_over;
    config.states.two_weights = sim->two_rows;
    config.states.skips_unused = sim->skips;
    cst_model_init(&sim->model);
    cst_model_init(&sim->base_model);
    choose_groups(sim);
    sim->has_base = sim_chance(sim, 3000);
    sim->p_patterns = sim_chance(sim, 5000) ? sim_below(sim, 8000) : 0;
    sim->p_big = sim_chance(sim, 4000) ? sim_below(sim, 5000) : 0;
    sim->p_fp32 = sim_chance(sim, 4000) ? sim_below(sim, 8000) : 0;
    if (sim->plain) {
        declare_plain(sim);
    } else {
        declare(sim);
    }
    for (uint32_t t = 0; t < sim->model.n_tensors; t++) {
        const struct cst_layout_tensor *tensor = &sim->model.tensors[t];

        if (cst_dtype_bytes(tensor->dtype) * tensor->n_elems > 2 * CAPACITY) {
            config.class_elems[0] = BIG_CAPACITY;
        }
    }
    if (sim->has_base) {
        declare_base(sim);
        if (cst_layout_build(&sim->base_layout, &sim->base_model, &config, &err) != CST_OK) {
            sim_fail(sim, "base's layout: %s", err.text);
        }
        config.base = &sim->base_layout;
        config.base_model = &sim->base_model;
    }
    if (!sim->grad_over && sim_chance(sim, 2500)) {
        uint32_t first = sim_below(sim, 3), end = first + 1 + sim_below(sim, 3 - first);

        for (uint32_t i = first; i < end; i++) {
            config.devices[config.n_devices] =
                (struct cst_layout_device){.engine = sim->n_nodes + i,
                                           .bytes = sim_below(sim, 400000),
                                           .grain = 8192,
                                           .reservation_bytes = 100000 + sim_below(sim, 1000000)};
            sim->device_reservations[i] = config.devices[config.n_devices++].reservation_bytes;
        }
    }
    if (cst_layout_build(&sim->layout, &sim->model, &config, &err) != CST_OK) {
        sim_fail(sim, "layout: %s", err.text);
    }
    if (sim->layout.n_segments > SIM_MAX_SEGMENTS || sim->layout.n_chunks > SIM_MAX_CHUNKS) {
        sim_fail(sim, "a model that is too large for the simulation");
    }
}

void model_close(struct sim *sim)
{
    cst_layout_close(&sim->layout);
    cst_layout_close(&sim->base_layout);
    cst_model_close(&sim->model);
    cst_model_close(&sim->base_model);
}

bool model_is_trained(const struct sim *sim, uint32_t chunk)
{
    return sim->layout.chunks[chunk].pattern != CST_PATTERN_FROZEN;
}

uint32_t model_device(const struct sim *sim, const struct spot *spot)
{
    bool state = spot->row == CST_ROW_MASTER || spot->row == CST_ROW_MOMENT ||
                 spot->row == CST_ROW_MOMENT + 1;

    return state ? sim->layout.chunks[spot->chunk].tier : 0;
}

bool model_is_fp32(const struct sim *sim, uint32_t chunk)
{
    return sim->layout.chunks[chunk].dtype == CST_FP32;
}

bool model_lacks(const struct sim *sim, uint32_t chunk, enum cst_row row)
{
    return model_is_trained(sim, chunk) &&
           sim->layout.chunks[chunk].rows[row].segment == CST_LAYOUT_NO_ROW;
}

bool model_is_base(const struct sim *sim, uint32_t chunk)
{
    uint32_t segment = sim->layout.chunks[chunk].rows[CST_ROW_WEIGHT].segment;

    return sim->layout.segments[segment].is_base;
}

bool model_holds(const struct sim *sim, uint32_t chunk, uint32_t rank)
{
    uint32_t t = sim->layout.order[sim->layout.chunks[chunk].first_tensor];

    const struct cst_set ranks = cst_model_group_ranks(&sim->model, sim->model.tensors[t].group);

    return cst_set_has(&ranks, rank);
}

uint64_t model_sum(const struct sim *sim, uint32_t chunk)
{
    uint64_t sum = MEMORY_ZERO_SUM;

    for (uint32_t m = 0; m < sim->micro_batches; m++) {
        for (uint32_t rank = 0; rank < sim->world; rank++) {
            if (sim->handed[chunk][rank][m] != 0) {
                sum = memory_mix(sum, sim->handed[chunk][rank][m]);
            }
        }
    }
    return sum;
}
