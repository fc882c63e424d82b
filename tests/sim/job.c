/* SPDX-License-Identifier: Apache-2.0 */
/* What a simulated job is like: ranks, accelerators, pools, options and the chances of mischief,
 * all drawn at random. */
#include "tests/sim/sim.h"

#include "offload/layout/buffers.h"
#include "tests/lib/bits.h"

#include <stdlib.h>

static void choose_chances(struct sim *sim)
{
    sim->p_death = sim_chance(sim, 5000) ? 1 + sim_below(sim, 60) : 0;
    sim->p_lie = sim_below(sim, 300);
    sim->p_cancel = sim_chance(sim, 5000) ? sim_below(sim, 500) : 0;
    sim->p_copy_fail = sim_chance(sim, 2000) ? sim_below(sim, 300) : 0;
    sim->p_reservation_fail = sim_chance(sim, 3000) ? sim_below(sim, 500) : 0;
    sim->p_fatal = sim_chance(sim, 1000) ? sim_below(sim, 200) : 0;
    sim->p_mismatch = sim_chance(sim, 3000) ? sim_below(sim, 2000) : 0;
    sim->p_sleep = sim_chance(sim, 3000) ? sim_below(sim, 50) : 0;
    sim->p_hold = sim_below(sim, 3000);
    sim->p_return = sim_chance(sim, 5000) ? 10000 : 10 + sim_below(sim, 1000);
    sim->p_down = sim_chance(sim, 3000) ? sim_below(sim, 20) : 0;
    sim->p_engine_death = sim_below(sim, sim_chance(sim, 2000) ? 500 : 50);
    sim->p_stop = sim_chance(sim, 5000) ? sim_below(sim, 2000) : 0;
    sim->p_io = sim_chance(sim, 5000) ? sim_below(sim, 500) : 0;
    sim->p_hint = sim_below(sim, 300);
    sim->p_lost = sim_chance(sim, 1500) ? 1 + sim_below(sim, 200) : 0;
    sim->p_nan = sim_below(sim, 2000);
    sim->p_idle = sim_below(sim, 8000);
    sim->p_skip = sim_below(sim, 1000);
    sim->timeout =
        sim_chance(sim, 3000) ? 1000000 * (1 + (uint64_t)sim_below(sim, 20)) : CST_CORE_NEVER;
    /* A rank that is ahead waits for other ranks' micro-batches. */
    if (sim->timeout != CST_CORE_NEVER) {
        sim->timeout *= sim->micro_batches;
        /* A rank that was slow will be slow again in the repeated attempt. */
        sim->timeout *= sim->steady ? 10 : 1;
    }
}

/* The devices on which the ranks' pools are. */
enum devices { ALL_HOST, ONE_GPU, TWO_GPUS, MIXED, N_DEVICES };

static uint32_t choose_engine(struct sim *sim, enum devices devices)
{
    switch (devices) {
    case ONE_GPU:
        return sim->n_nodes;
    case TWO_GPUS:
        return sim->n_nodes + sim_below(sim, 2);
    case MIXED:
        return sim_chance(sim, 4000) ? 0 : sim->n_nodes + sim_below(sim, 2);
    case ALL_HOST:
    case N_DEVICES:
        break;
    }
    return 0;
}

/* Largest number of slabs of a part; a rank has 16 segments. */
#define SLABS_PER_PART (16 / CST_LAYOUT_MAX_CLASSES)

static struct cst_core_part choose_part(struct sim *sim, uint32_t rank, uint32_t k,
                                        uint32_t first_slab)
{
    const struct cst_layout_need *need = &sim->layout.needs[rank];
    uint32_t least = sim->loose ? need->max_blocks[k] + sim->layout.classes[k].n_chunks + 2
                                : need->min_blocks[k];
    uint32_t n = least + (sim_chance(sim, 5000) ? 0 : sim_below(sim, need->max_blocks[k] + 1));

    return (struct cst_core_part){.n_blocks = n,
                                  .blocks_per_slab = (n + SLABS_PER_PART - 1) / SLABS_PER_PART + 1,
                                  .first_slab = first_slab};
}

/* In some runs one GPU, or each, cannot access the memory of the other. */
static void choose_peers(struct sim *sim)
{
    bool apart = sim_chance(sim, 3500);

    for (uint32_t i = 0; i < 2; i++) {
        sim->unreachable[i] =
            apart && sim_chance(sim, 8000) ? UINT32_C(1) << (sim->n_nodes + 1 - i) : 0;
    }
}

uint32_t sim_unreachable(const struct sim *sim, uint32_t engine)
{
    return engine >= sim->n_nodes ? sim->unreachable[engine - sim->n_nodes] : 0;
}

static void open_pools(struct sim *sim, struct cst_core_pool *pools)
{
    enum devices devices = (enum devices)sim_below(sim, N_DEVICES);

    sim->p_worker_copies = sim_chance(sim, 5000) ? 0 : sim_below(sim, 10001);
    /* A worker that copies from a weight row could copy a gradient. */
    if (sim->grad_over) {
        sim->p_worker_copies = 0;
    }
    for (uint32_t rank = 0; rank < sim->world; rank++) {
        uint32_t first_slab = 0;

        pools[rank] =
            (struct cst_core_pool){.tier = choose_engine(sim, devices),
                                   .worker_copies = sim_chance(sim, sim->p_worker_copies)};
        pools[rank].unreachable = bits(sim_unreachable(sim, pools[rank].tier));
        for (uint32_t k = 0; k < sim->layout.n_classes; k++) {
            pools[rank].parts[k] = choose_part(sim, rank, k, first_slab);
            first_slab += SLABS_PER_PART;
        }
    }
}

static struct cst_core_policy choose_policy(struct sim *sim)
{
    static const uint32_t depths[] = {0, 0, 1, 2, CST_CORE_NO_PREFETCH};

    return (struct cst_core_policy){
        .overlap = sim->overlap,
        .delay_from = sim->delay_from,
        .prefetch_depth = depths[sim_below(sim, sizeof depths / sizeof depths[0])],
        .gather_bytes = sim_chance(sim, 3000) ? 0 : 1 + sim_below(sim, 20000)};
}

/* Give each engine that holds states a reservation in which to update them: its own memory, or host
 * memory if it only copies. */
static void require_reservations(struct sim *sim)
{
    for (uint32_t e = 0; e < 3; e++) {
        uint32_t engine = sim->n_nodes + e;
        bool wanted = false;

        for (uint32_t c = 0; c < sim->layout.n_chunks; c++) {
            wanted = wanted || sim->layout.chunks[c].tier == engine;
        }
        if (wanted) {
            sim->reservations[e] = (struct cst_core_device_reservation){
                .engine = engine == sim->slow ? CST_TIER_HOST : engine,
                .home = engine == sim->slow ? engine : CST_TIER_HOST,
                .segment = MEMORY_RESERVATION_SEGMENT + e,
                .bytes = sim->device_reservations[e]};
            sim->n_reservations = sim->n_reservations > e + 1 ? sim->n_reservations : e + 1;
            sim->has_devices = true;
        }
    }
}

/* Choose reservations from too small for any chunk to 1.5 times what the core could use. */
static void choose_reservations(struct sim *sim)
{
    uint64_t want = cst_buffers_want(&sim->layout, sim->layout.n_classes);

    sim->n_reservations = sim_chance(sim, 5000) ? 0 : 1 + sim_below(sim, SIM_MAX_RESERVATIONS);
    sim->p_interleave = sim_chance(sim, 5000) ? sim_below(sim, 100) : 0;
    sim->p_quiet = sim_chance(sim, 5000) ? sim_below(sim, 7000) : 0;
    for (uint32_t i = 0; i < SIM_MAX_RESERVATIONS; i++) {
        uint32_t tenths = 1 + sim_below(sim, 15);

        sim->reservations[i] =
            (struct cst_core_device_reservation){.engine = sim->n_nodes + sim_below(sim, 2),
                                                 .segment = MEMORY_RESERVATION_SEGMENT + i,
                                                 .bytes = want / 10 * tenths};
    }
    require_reservations(sim);
}

/* Enlarge the first class of a pool, if need be, so that it can lend blocks for one buffer, of 14
 * or 16 blocks, or for a few. Mostly it can lend few, so that fetches want them back. */
static void enlarge(struct sim *sim, struct cst_core_part *part, uint32_t least)
{
    uint32_t n = least + 14 + (sim_chance(sim, 2000) ? 32 : 0) + sim_below(sim, 4);

    if (part->n_blocks < n) {
        part->n_blocks = n;
        part->blocks_per_slab = (n + SLABS_PER_PART - 1) / SLABS_PER_PART + 1;
    }
}

/* Let some pools on accelerators lend blocks, in addition to the reservations. */
static void choose_lenders(struct sim *sim, struct cst_core_pool *pools)
{
    for (uint32_t rank = 0; rank < sim->world && sim->n_reservations < SIM_MAX_RESERVATIONS;
         rank++) {
        if (pools[rank].tier != 0 && sim_chance(sim, 8000)) {
            sim->reservations[sim->n_reservations++] = (struct cst_core_device_reservation){
                .engine = pools[rank].tier, .lent = true, .rank = rank};
            enlarge(sim, &pools[rank].parts[0], sim->layout.needs[rank].min_blocks[0]);
        }
    }
}

static void choose_overlap(struct sim *sim)
{
    uint32_t which = sim_below(sim, 10);

    sim->overlap = which < 4   ? CST_OVERLAP_COMMIT
                   : which < 8 ? CST_OVERLAP_EARLY
                               : CST_OVERLAP_DELAYED;
    sim->delay_from = sim->overlap == CST_OVERLAP_DELAYED ? sim_below(sim, 6) : 0;
    sim->steady = sim->overlap == CST_OVERLAP_EARLY || sim_chance(sim, 2000);
    /* Steps that clip have no early updates, so they are rare in runs with early updates. */
    sim->clip_norm = sim_chance(sim, sim->overlap == CST_OVERLAP_EARLY ? 1500 : 8000) ? 1.0f : 0.0f;
    sim->p_prepare = sim_chance(sim, 5000) ? 10000 : sim_below(sim, 10001);
}

void sim_open(struct sim *sim)
{
    struct cst_core_pool pools[CST_CORE_MAX_WORLD];
    struct cst_core_config config;
    struct cst_err err;

    sim->n_nodes = 1 + sim_below(sim, 2);
    sim->slow = sim->n_nodes + 2;
    sim->n_engines = sim->n_nodes + 3;
    sim->world = 1 + sim_below(sim, SIM_MAX_RANKS);
    sim->plain = sim_chance(sim, 3000);
    sim->loose = sim_chance(sim, 3000);
    sim->micro_batches = sim_chance(sim, 5000) ? 1 : 1 + sim_below(sim, SIM_MAX_MICRO);
    sim->grad_fp32 = sim->micro_batches > 1 || sim_chance(sim, 1500);
    choose_overlap(sim);
    sim->two_rows = sim->overlap != CST_OVERLAP_COMMIT || sim_chance(sim, 3000);
    sim->skips = !sim->two_rows && sim_chance(sim, 5000);
    sim->grad_over = !sim->grad_fp32 && !sim->two_rows && sim_chance(sim, 5000);
    choose_chances(sim);
    choose_peers(sim);
    model_open(sim);
    open_pools(sim, pools);
    choose_reservations(sim);
    choose_lenders(sim, pools);
    memory_open(&sim->memory, &sim->model, &sim->layout, sim->world, pools);
    for (uint32_t i = 0; i < SIM_MAX_SEGMENTS; i++) {
        sim->arena_segments[i] = MEMORY_ARENA_SEGMENT + i;
    }
    for (uint32_t r = 0; r < CST_ROW_COUNT; r++) {
        sim->expected[r] = calloc(sim->model.n_tensors, sizeof *sim->expected[r]);
    }
    sim->reads = calloc(sim->model.n_tensors, sizeof *sim->reads);
    for (uint32_t c = 0; c < sim->layout.n_chunks; c++) {
        sim->tiles[c] = MEMORY_ZERO_SUM;
    }
    sim->jobs = calloc(SIM_MAX_JOBS, sizeof *sim->jobs);
    cst_actions_init(&sim->actions);
    config = (struct cst_core_config){.model = &sim->model,
                                      .layout = &sim->layout,
                                      .world = sim->world,
                                      .arena_segments = sim->arena_segments,
                                      .table_segment = MEMORY_TABLE_SEGMENT,
                                      .pools = sim->memory.pools,
                                      .first_ticket = (sim_chance(sim, 2000) ? 1ull << 32 : 1001) -
                                                      sim_below(sim, 1000),
                                      .peer_timeout_ns = sim->timeout,
                                      .micro_batches = sim->micro_batches,
                                      .policy = choose_policy(sim),
                                      .reservations = sim->reservations,
                                      .n_reservations = sim->n_reservations,
                                      .interleave = sim_below(sim, 5)};
    if (cst_core_open(&sim->core, &config, &err) != CST_OK) {
        sim_fail(sim, "open: %s", err.text);
    }
}

void sim_close(struct sim *sim)
{
    cst_core_close(sim->core);
    cst_actions_close(&sim->actions);
    memory_close(&sim->memory);
    for (uint32_t r = 0; r < CST_ROW_COUNT; r++) {
        free(sim->expected[r]);
    }
    free(sim->reads);
    free(sim->jobs);
    model_close(sim);
}
