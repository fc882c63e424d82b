/* SPDX-License-Identifier: Apache-2.0 */
/* What a simulated job on several machines is like: drawn at random. */
#include "tests/sim/machines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *must(void *p)
{
    if (p == NULL) {
        abort();
    }
    return p;
}

/* An operator that uses tensor @t. In a model with stages another stage may begin with it: so many
 * operators follow that each of the other stages has one. */
static void declare_operator(struct machines *sim, uint32_t t, uint32_t n_left)
{
    uint32_t stages_left = sim->n_stages - sim->model.n_stages, stage;
    struct cst_err err;
    char name[32];

    (void)snprintf(name, sizeof name, "o%u", sim->n_operators);
    if (stages_left > 0 &&
        (sim->model.n_stages == 0 || machines_below(sim, n_left) < stages_left) &&
        cst_model_stage(&sim->model, &err) != CST_OK) {
        machines_fail(sim, "a stage was refused: %s", err.text);
    }
    if (cst_model_operator(&sim->model, name, &t, 1, NULL, &err) != CST_OK) {
        machines_fail(sim, "an operator was refused: %s", err.text);
    }
    stage = sim->model.operators[sim->n_operators].stage;
    sim->stages[t] |= UINT64_C(1) << stage;
    sim->tensors[sim->n_operators++] = t;
}

/* Operator number i uses tensor i. With several stages the last one may use the first tensor, too.
 */
static void declare_operators(struct machines *sim)
{
    for (uint32_t i = 0; i < sim->n_chunks; i++) {
        declare_operator(sim, i, sim->n_chunks - i);
    }
    if (sim->n_stages > 1 && machines_below(sim, 2) == 0) {
        declare_operator(sim, 0, 1);
    }
}

/* A tensor for each chunk, which takes more than half of the capacity. Some are frozen, some are
 * fp32, and some are held by one rank of each machine alone. */
void job_declare(struct machines *sim)
{
    char name[32];
    struct cst_err err;

    cst_model_init(&sim->model);
    if (cst_model_group(&sim->model, cst_set_range(0, 1), &err) != CST_OK) {
        machines_fail(sim, "a group was refused: %s", err.text);
    }
    for (uint32_t i = 0; i < sim->n_chunks; i++) {
        bool wide = machines_below(sim, 6) == 0;
        int64_t shape =
            (wide ? 2 : 3) * CST_TILE_ELEMS + 64 * (int64_t)(1 + machines_below(sim, 50));
        struct cst_tensor_words words = {.name = name,
                                         .shape = &shape,
                                         .n_dims = 1,
                                         .lr_scale = 1,
                                         .decay_scale = 1,
                                         .dtype = wide ? CST_FP32 : CST_BF16};

        (void)snprintf(name, sizeof name, "t%u", i);
        words.pattern =
            machines_below(sim, 8) == 0 && i > 0 ? CST_PATTERN_FROZEN : CST_PATTERN_SHARD;
        sim->single[i] = machines_below(sim, 8) == 0 && !sim->loses && sim->n_stages == 0;
        words.group = sim->single[i];
        sim->totals->tensors += wide && words.pattern != CST_PATTERN_FROZEN;
        sim->totals->single += sim->single[i];
        if (cst_model_tensor(&sim->model, &words, &err) != CST_OK) {
            machines_fail(sim, "a tensor was refused: %s", err.text);
        }
    }
    declare_operators(sim);
}

static void lay_out(struct machines *sim, uint32_t m)
{
    struct machine *at = &sim->machines[m];
    uint32_t n_here = (uint32_t)__builtin_popcountll(at->rank_blocks);
    bool sums = sim->n > 1 || sim->block_ranks > 1 || sim->micro_batches > 1;
    struct cst_layout_config config = {
        .chunk_elems = 6 * CST_TILE_ELEMS,
        .n_nodes = at->n_nodes,
        .world = n_here * sim->block_ranks,
        .grad_bytes = sim->grad_fp32 ? 4 : 2,
        .states.skips_unused = sim->skips,
        .states.two_weights = sim->two_weights,
        .states.masters = sim->split ? CST_MASTERS_SPLIT : CST_MASTERS_FP32,
        .machines = {.n = sim->n, .self = m, .copies = sim->copies},
        .partials = {.n_here = sums ? n_here : 1, .n_come = sim->n_blocks - n_here}};
    struct cst_err err;

    if (cst_layout_build(&at->layout, &sim->model, &config, &err) != CST_OK) {
        machines_fail(sim, "layout: %s", err.text);
    }
    for (uint32_t i = 0; i < sim->n_chunks; i++) {
        if (sim->model.tensors[i].chunk != i) {
            machines_fail(sim, "tensor %u is in chunk %u", i, sim->model.tensors[i].chunk);
        }
    }
    at->segments = must(calloc(at->layout.n_segments + 1, sizeof *at->segments));
    at->landings = must(calloc(at->layout.n_segments + 1, sizeof *at->landings));
    at->partials = must(calloc((size_t)sim->n_chunks * n_here + 1, sizeof *at->partials));
    for (uint32_t i = 0; i < at->layout.n_segments; i++) {
        at->segments[i] = MACHINES_SEGMENTS * (m + 1) + i;
    }
}

static void close_layout(struct machine *at)
{
    cst_layout_close(&at->layout);
    free(at->segments);
    free(at->landings);
    free(at->partials);
}

static void open_pools(struct machines *sim, uint32_t m)
{
    struct machine *at = &sim->machines[m];

    for (; at->world < at->n_blocks * sim->block_ranks; at->world++) {
        uint32_t n = at->layout.needs[at->world].min_blocks[0] + machines_below(sim, sim->n_chunks);

        at->pool_segments[at->world] = MACHINES_SEGMENTS * (m + 1) + MACHINES_POOLS + at->world;
        at->pools[at->world].parts[0] = (struct cst_core_part){.n_blocks = n, .blocks_per_slab = n};
        at->pools[at->world].segments = &at->pool_segments[at->world];
        at->blocks[at->world] = must(calloc(n, sizeof *at->blocks[at->world]));
    }
}

/* Make rows for rank blocks that have come to machine @m. All other rows stay where they are. */
void job_adopt(struct machines *sim, uint32_t m)
{
    struct machine *at = &sim->machines[m];
    struct cst_layout before = at->layout;

    if (at->n_blocks == (uint32_t)__builtin_popcountll(at->rank_blocks)) {
        return;
    }
    free(at->segments);
    free(at->landings);
    free(at->partials);
    lay_out(sim, m);
    for (uint32_t c = 0; c < sim->n_chunks; c++) {
        if (memcmp(before.chunks[c].rows, at->layout.chunks[c].rows,
                   sizeof before.chunks[c].rows) != 0) {
            machines_fail(sim, "the rows of chunk %u move when ranks come", c);
        }
    }
    cst_layout_close(&before);
    at->adopted = true;
    at->n_blocks = (uint32_t)__builtin_popcountll(at->rank_blocks);
    open_pools(sim, m);
}

static void open_table(struct machines *sim, uint32_t m)
{
    struct machine *at = &sim->machines[m];
    struct cst_table_header header;
    struct cst_core_config config = {
        .model = &sim->model, .layout = &at->layout, .arena_segments = at->segments};

    cst_layout_size_table(&at->layout, &header);
    at->table = must(calloc(1, header.total_bytes));
    *at->table = header;
    cst_core_write_table(&config, at->table);
}

void job_open_core(struct machines *sim, uint32_t m)
{
    struct machine *at = &sim->machines[m];
    struct cst_core_machines machines = {.n = sim->n,
                                         .self = m,
                                         .copies = sim->copies,
                                         .n_rank_blocks = sim->n_blocks,
                                         .rank_blocks = at->rank_blocks,
                                         .engine = sim->n + 10};
    struct cst_core_config config = {.model = &sim->model,
                                     .layout = &at->layout,
                                     .world = at->world,
                                     .arena_segments = at->segments,
                                     .table_segment = MACHINES_SEGMENTS * (m + 1) + MACHINES_TABLE,
                                     .table = at->table,
                                     .pools = at->pools,
                                     .first_ticket = at->ticket + 1,
                                     .peer_timeout_ns = CST_CORE_NEVER,
                                     .micro_batches = sim->micro_batches,
                                     .block_ranks = sim->block_ranks,
                                     .machines = sim->n > 1 ? &machines : NULL};
    struct cst_err err;

    if (cst_core_open(&at->core, &config, &err) != CST_OK) {
        machines_fail(sim, "open: %s", err.text);
    }
    cst_actions_init(&at->actions);
    at->life++;
    at->epoch = 0;
    at->readable[0] = at->readable[1] = false;
    for (uint32_t rank = 0; rank < at->world; rank++) {
        ranks_return(sim, m, rank, machines_delay(sim, 1000000));
    }
}

/* Write the master weights of all tensors, before the first step. */
void job_write(struct machines *sim, uint32_t m)
{
    sim->machines[m].n_writes = sim->n_chunks;
    for (uint32_t t = 0; t < sim->n_chunks; t++) {
        machines_feed(sim, m,
                      (struct cst_event){
                          .kind = CST_EV_WRITE,
                          .tag = ++sim->tag << MACHINES_TAG_SHIFT | MACHINES_TAG_WRITE,
                          .tensor = t,
                          .row = CST_ROW_MASTER,
                          .n_elems = sim->model.tensors[t].n_elems,
                          .place = {.segment = MACHINES_SEGMENTS * (m + 1) + MACHINES_STAGING}});
    }
}

static void forget(struct cell *cells, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        cells[i] = (struct cell){.value = MEMORY_GARBAGE};
    }
}

void job_renew(struct machines *sim, uint32_t m)
{
    struct machine *at = &sim->machines[m];

    forget(at->others, MACHINES_CHUNKS);
    forget(at->weights, MACHINES_CHUNKS);
    forget(at->grads, MACHINES_CHUNKS);
    forget(at->states, MACHINES_CHUNKS);
    forget(at->partials, sim->n_chunks * (uint32_t)__builtin_popcountll(at->rank_blocks));
    forget(at->landings, at->layout.n_segments);
    free(at->table);
    open_table(sim, m);
    memset(&at->record, 0, sizeof at->record);
    job_open_core(sim, m);
}

void job_open_machine(struct machines *sim, uint32_t m)
{
    struct machine *at = &sim->machines[m];

    at->n_nodes = 1 + machines_below(sim, 2);
    lay_out(sim, m);
    open_table(sim, m);
    open_pools(sim, m);
    job_open_core(sim, m);
}

static unsigned draw_chance(struct machines *sim, uint32_t most)
{
    return machines_below(sim, 2) == 0 ? 0 : machines_below(sim, most);
}

/* In half of the runs tensors without a gradient are skipped, unless the model has stages. */
static void draw_unused(struct machines *sim)
{
    sim->skips = machines_below(sim, 2) == 0 && sim->n_stages == 0;
    sim->two_weights = !sim->skips && machines_below(sim, 2) == 0;
    if (sim->skips) {
        sim->p_lone = draw_chance(sim, 5000);
        sim->p_discard = draw_chance(sim, 3000);
        sim->p_zeros = draw_chance(sim, 8000);
    }
}

void job_draw(struct machines *sim)
{
    sim->n = sim->options.n_machines != 0 ? sim->options.n_machines
                                          : 1 + machines_below(sim, MACHINES_MOST);
    sim->n_chunks = 2 + machines_below(sim, MACHINES_CHUNKS - 1);
    sim->copies = machines_below(sim, 2) == 0 ? 1 : 1 + machines_below(sim, sim->n);
    sim->block_ranks = 1 + machines_below(sim, 3);
    sim->n_stages = machines_below(sim, 3) == 0 ? 1 + machines_below(sim, sim->n_chunks) : 0;
    sim->micro_batches = sim->n_stages > 0             ? 2 + machines_below(sim, 3)
                         : machines_below(sim, 2) == 0 ? 1
                                                       : 1 + machines_below(sim, 3);
    sim->grad_fp32 = sim->block_ranks > 1 || sim->micro_batches > 1 || machines_below(sim, 4) == 0;
    sim->p_leave_out = machines_below(sim, 2) == 0 ? 0 : machines_below(sim, 6000);
    sim->p_skip = machines_below(sim, 2) == 0 ? 0 : machines_below(sim, 4000);
    draw_unused(sim);
    sim->split = machines_below(sim, 3) == 0;
    sim->quiet = machines_below(sim, 4);
    sim->slow = machines_below(sim, 3) == 0 ? 40 : 1;
    for (uint32_t m = 0; m < sim->n; m++) {
        struct machine *at = &sim->machines[m];

        at->n_blocks = 1 + machines_below(sim, 3);
        for (uint32_t b = 0; b < at->n_blocks; b++) {
            at->rank_blocks |= UINT64_C(1) << sim->n_blocks++;
        }
    }
    sim->n_ranks = sim->n_blocks * sim->block_ranks;
    sim->loses = sim->copies > 1 && machines_below(sim, 2) == 0;
    sim->members = (UINT64_C(1) << sim->n) - 1;
}

void job_close(struct machines *sim)
{
    for (uint32_t m = 0; m < sim->n; m++) {
        struct machine *at = &sim->machines[m];

        cst_core_close(at->core);
        cst_actions_close(&at->actions);
        close_layout(at);
        free(at->table);
        for (uint32_t rank = 0; rank < at->world; rank++) {
            free(at->blocks[rank]);
        }
    }
    cst_model_close(&sim->model);
    moments_close(&sim->moments);
}
