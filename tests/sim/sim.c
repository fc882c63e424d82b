/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim.h"

#include "offload/update/buffers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Turns without a commit after which the job is left alone and must recover. */
#define CALM_TURNS 20000
#define STALL_TURNS 60000 /* turns without a commit after which the run fails */

/* splitmix64 */
uint64_t sim_random(struct sim *sim)
{
    uint64_t x = sim->rng += 0x9e3779b97f4a7c15ull;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

uint32_t sim_below(struct sim *sim, uint32_t n)
{
    return (uint32_t)(sim_random(sim) % n);
}

bool sim_chance(struct sim *sim, unsigned per_10000)
{
    return sim_below(sim, 10000) < per_10000;
}

void sim_fail(const struct sim *sim, const char *fmt, ...)
{
    char lines[24][192];
    va_list ap;

    fprintf(stderr, "sim: seed %" PRIu64 ", turn %" PRIu64 ", step %" PRIu64 ": ",
            sim->options.seed, sim->n_turns, sim->step);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\n");
    for (uint32_t c = 0; sim->options.verbose && c < sim->layout.n_chunks; c++) {
        unsigned n = cst_core_explain(sim->core, c, lines, 24);

        for (unsigned i = 0; i < n; i++) {
            fprintf(stderr, "    %s\n", lines[i]);
        }
    }
    exit(EXIT_FAILURE);
}

/* -- events and actions ------------------------------------------------------------------------ */

/* Compute the expected state after a commit. Fetches read either the new weights or, with delayed
 * updates, the weights before this update. */
static void follow_commit(struct sim *sim, bool skipped)
{
    bool delayed = sim->overlap == CST_OVERLAP_DELAYED && sim->step > sim->delay_from && !skipped;

    for (uint32_t c = 0; c < sim->layout.n_chunks; c++) {
        sim->sums[c] = model_sum(sim, c);
        if (sim->ahead[c] && (skipped || sim->sums[c] != sim->ahead_sum[c])) {
            sim_fail(sim, "chunk %u was updated early with another gradient, or for nothing", c);
        }
        sim->ahead[c] = false;
    }
    for (uint32_t t = 0; t < sim->model.n_tensors; t++) {
        uint64_t before = sim->expected[CST_ROW_WEIGHT][t].value;

        for (uint32_t r = 0; !skipped && r < CST_ROW_COUNT; r++) {
            sim->expected[r][t].value += model_is_trained(sim, sim->model.tensors[t].chunk);
        }
        sim->reads[t].value = delayed ? before : sim->expected[CST_ROW_WEIGHT][t].value;
    }
}

/* The core's statistics show a commit or an interruption before its actions are processed. */
static void follow(struct sim *sim)
{
    struct cst_core_stats stats;

    cst_core_stats(sim->core, &stats);
    if (stats.step != sim->step) {
        if (stats.step != sim->step + 1) {
            sim_fail(sim, "steps were lost");
        }
        sim->step = stats.step;
        sim->last_progress = sim->n_turns;
        follow_commit(sim, stats.n_skipped != sim->n_skipped);
        sim->n_skipped = stats.n_skipped;
        memset(sim->handed, 0, sizeof sim->handed);
    }
    if (stats.phase != CST_PHASE_RUNNING || stats.attempt != sim->attempt) {
        memset(sim->handed, 0, sizeof sim->handed);
        sim->attempt = stats.attempt;
    }
    sim->failed = stats.phase == CST_PHASE_FAILED;
    if (sim->failed && sim->p_fatal == 0 && !sim->excused) {
        sim_fail(sim, "the job failed, though nothing did");
    }
}

static struct pending *find_pending(struct sim *sim, uint64_t tag)
{
    for (unsigned i = 0; i < SIM_MAX_TAGS; i++) {
        if (sim->pending[i].tag == tag) {
            return &sim->pending[i];
        }
    }
    return NULL;
}

static void deliver(struct sim *sim, const struct cst_reply *reply)
{
    struct pending *p = reply->tag == 0 ? NULL : find_pending(sim, reply->tag);
    struct pending asked;

    if (p == NULL) {
        sim_fail(sim, "a reply to tag %" PRIu64 ", which waits for none", reply->tag);
    }
    asked = *p;
    p->tag = 0;
    if (sim->options.verbose) {
        printf("%8" PRIu64 "   reply tag %" PRIu64 " kind %d rank %u chunk %u: %s %s\n",
               sim->n_turns, asked.tag, (int)asked.kind, asked.rank, asked.chunk,
               cst_status_name(reply->status), reply->err.text);
    }
    if (reply->status != CST_OK &&
        (reply->err.text[0] == '\0' || reply->err.status != reply->status)) {
        sim_fail(sim, "a refusal without words");
    }
    if (asked.rank == sim->world) {
        tool_reply(sim, &asked, reply);
    } else {
        worker_reply(sim, &asked, reply);
    }
}

static void verbose_event(const struct sim *sim, const struct cst_event *event)
{
    if (sim->options.verbose) {
        printf("%8" PRIu64 " event %d rank %u tag %" PRIu64 " chunk %u gen %" PRIu64
               " ticket %" PRIu64 "\n",
               sim->n_turns, (int)event->kind, event->rank, event->tag, event->chunk,
               event->generation, event->ticket);
    }
}

void sim_event(struct sim *sim, struct cst_event event)
{
    const char *broken;
    /* A driver may ignore the recalls of an event, and does so now and then. */
    bool heeds = !sim_chance(sim, 1000);

    event.now = sim->now;
    verbose_event(sim, &event);
    cst_core_step(sim->core, &event, &sim->actions);
    broken = cst_core_check(sim->core);
    if (broken != NULL) {
        sim_fail(sim, "after event %d: not true that %s", (int)event.kind, broken);
    }
    follow(sim);
    for (size_t i = 0; i < sim->actions.n; i++) {
        const struct cst_action *a = &sim->actions.v[i];

        if (a->kind == CST_ACT_COMMAND) {
            driver_submit(sim, &a->command);
        } else if (a->kind == CST_ACT_REPLY) {
            deliver(sim, &a->reply);
        } else if (a->kind == CST_ACT_RECALL && heeds) {
            driver_recall(sim, a->recall);
        } else if (a->kind == CST_ACT_LOG && sim->options.verbose) {
            printf("%8" PRIu64 "   log: %s\n", sim->n_turns, a->log.text);
        }
    }
}

void sim_ask(struct sim *sim, struct cst_event event, struct pending pending)
{
    struct pending *p = find_pending(sim, 0);

    if (p == NULL) {
        sim_fail(sim, "more than %d requests wait", SIM_MAX_TAGS);
    }
    event.tag = ++sim->tag;
    pending.tag = event.tag;
    pending.kind = event.kind;
    pending.process = pending.rank < sim->world ? sim->process[pending.rank] : 0;
    *p = pending;
    sim_event(sim, event);
}

/* -- a job ------------------------------------------------------------------------------------- */

static void choose_chances(struct sim *sim)
{
    sim->p_death = sim_chance(sim, 5000) ? 1 + sim_below(sim, 60) : 0;
    sim->p_lie = sim_below(sim, 300);
    sim->p_cancel = sim_chance(sim, 5000) ? sim_below(sim, 500) : 0;
    sim->p_copy_fail = sim_chance(sim, 2000) ? sim_below(sim, 300) : 0;
    sim->p_room_fail = sim_chance(sim, 3000) ? sim_below(sim, 500) : 0;
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
            (struct cst_core_pool){.engine = choose_engine(sim, devices),
                                   .worker_copies = sim_chance(sim, sim->p_worker_copies)};
        pools[rank].unreachable = sim_unreachable(sim, pools[rank].engine);
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
        .gather_bytes = sim_chance(sim, 3000) ? 0 : 1 + sim_below(sim, 20000),
        .eviction = sim_chance(sim, 1000) ? CST_EVICT_LRU : CST_EVICT_NEXT_USE};
}

/* Give each accelerator that holds states a room in which to update them. */
static void require_rooms(struct sim *sim)
{
    for (uint32_t e = 0; e < 2; e++) {
        uint32_t engine = sim->n_nodes + e;
        bool wanted = false;

        for (uint32_t c = 0; c < sim->layout.n_chunks; c++) {
            wanted = wanted || sim->layout.chunks[c].device == engine;
        }
        if (wanted) {
            sim->rooms[e] = (struct cst_core_device_reservation){.engine = engine,
                                                                 .segment = MEMORY_ROOM_SEGMENT + e,
                                                                 .bytes = sim->device_rooms[e]};
            sim->n_rooms = sim->n_rooms > e + 1 ? sim->n_rooms : e + 1;
            sim->has_devices = true;
        }
    }
}

/* Choose rooms from too small for any chunk to 1.5 times what the core could use. */
static void choose_rooms(struct sim *sim)
{
    uint64_t want = cst_buffers_want(&sim->layout, sim->layout.n_classes);

    sim->n_rooms = sim_chance(sim, 5000) ? 0 : 1 + sim_below(sim, SIM_MAX_ROOMS);
    sim->p_interleave = sim_chance(sim, 5000) ? sim_below(sim, 100) : 0;
    sim->p_quiet = sim_chance(sim, 5000) ? sim_below(sim, 7000) : 0;
    for (uint32_t i = 0; i < SIM_MAX_ROOMS; i++) {
        uint32_t tenths = 1 + sim_below(sim, 15);

        sim->rooms[i] =
            (struct cst_core_device_reservation){.engine = sim->n_nodes + sim_below(sim, 2),
                                                 .segment = MEMORY_ROOM_SEGMENT + i,
                                                 .bytes = want / 10 * tenths};
    }
    require_rooms(sim);
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

/* Let some pools on accelerators lend blocks, in addition to the rooms. */
static void choose_lenders(struct sim *sim, struct cst_core_pool *pools)
{
    for (uint32_t rank = 0; rank < sim->world && sim->n_rooms < SIM_MAX_ROOMS; rank++) {
        if (pools[rank].engine != 0 && sim_chance(sim, 8000)) {
            sim->rooms[sim->n_rooms++] = (struct cst_core_device_reservation){
                .engine = pools[rank].engine, .lent = true, .rank = rank};
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

static void open_sim(struct sim *sim)
{
    struct cst_core_pool pools[CST_CORE_MAX_WORLD];
    struct cst_core_config config;
    struct cst_err err;

    sim->n_nodes = 1 + sim_below(sim, 2);
    sim->n_engines = sim->n_nodes + 2;
    sim->world = 1 + sim_below(sim, SIM_MAX_RANKS);
    sim->plain = sim_chance(sim, 3000);
    sim->loose = sim_chance(sim, 3000);
    sim->micro_batches = sim_chance(sim, 5000) ? 1 : 1 + sim_below(sim, SIM_MAX_MICRO);
    sim->grad_fp32 = sim->micro_batches > 1 || sim_chance(sim, 1500);
    choose_overlap(sim);
    sim->grad_over = !sim->grad_fp32 && sim->overlap == CST_OVERLAP_COMMIT && sim_chance(sim, 5000);
    choose_chances(sim);
    choose_peers(sim);
    model_open(sim);
    open_pools(sim, pools);
    choose_rooms(sim);
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
                                      .reservations = sim->rooms,
                                      .n_reservations = sim->n_rooms,
                                      .interleave = sim_below(sim, 5)};
    if (cst_core_open(&sim->core, &config, &err) != CST_OK) {
        sim_fail(sim, "open: %s", err.text);
    }
}

static void close_sim(struct sim *sim)
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

/* -- turns ------------------------------------------------------------------------------------- */

static void mischief(struct sim *sim)
{
    uint32_t rank = sim_below(sim, sim->world);

    if (sim_chance(sim, sim->p_death)) {
        worker_die(sim, rank);
    }
    if (sim_chance(sim, sim->p_sleep)) {
        sim->asleep_until[rank] = sim->n_turns + sim_below(sim, 1000);
    }
    if (sim_chance(sim, sim->p_lie)) {
        worker_lie(sim, rank);
    }
    if (sim_chance(sim, sim->p_hint)) {
        worker_hint(sim, rank);
    }
    /* Most of the entries of `pending` are unused, so several are tried. */
    for (int i = 0; i < 20 && sim_chance(sim, sim->p_cancel); i++) {
        worker_cancel(sim, rank);
    }
    if (sim_chance(sim, sim->p_io)) {
        tool_turn(sim);
    }
    if (sim_chance(sim, sim->p_engine_death)) {
        engines_restart(sim);
    }
    if (sim_chance(sim, sim->p_lost)) {
        lost_begin(sim);
    }
    if (sim_chance(sim, sim->p_down)) {
        lost_node(sim);
    }
    if (sim_chance(sim, sim->p_interleave)) {
        cst_core_set_interleave(sim->core, sim_below(sim, 6));
    }
}

static bool workers_turn(struct sim *sim)
{
    uint32_t first = sim_below(sim, sim->world);

    for (uint32_t k = 0; k < sim->world; k++) {
        if (worker_turn(sim, (first + k) % sim->world)) {
            return true;
        }
    }
    return false;
}

static bool everybody_is_there(const struct sim *sim)
{
    for (uint32_t rank = 0; rank < sim->world; rank++) {
        if (sim->workers[rank].state == WORKER_GONE || sim->workers[rank].state == WORKER_HUNG ||
            sim->asleep_until[rank] > sim->n_turns) {
            return false;
        }
    }
    return true;
}

bool sim_is_calm(const struct sim *sim)
{
    return sim->n_turns - sim->last_progress >= CALM_TURNS;
}

static void turn(struct sim *sim)
{
    bool engines_first = sim_chance(sim, 6000);

    sim->n_turns++;
    sim->now += sim_below(sim, 10000);
    if (!sim->ending && !sim_is_calm(sim)) {
        mischief(sim);
    }
    if (sim->lost != 0 && (sim_is_calm(sim) || sim_chance(sim, 100))) {
        lost_end(sim);
    }
    if (cst_core_deadline(sim->core) <= sim->now) {
        sim_event(sim, (struct cst_event){.kind = CST_EV_TICK});
    }
    if (engines_first ? engines_turn(sim) || workers_turn(sim)
                      : workers_turn(sim) || engines_turn(sim)) {
        return;
    }
    if (cst_core_deadline(sim->core) != CST_CORE_NEVER) {
        sim->now = cst_core_deadline(sim->core);
        sim_event(sim, (struct cst_event){.kind = CST_EV_TICK});
    } else if (!sim->ending && sim->n_jobs == 0 && everybody_is_there(sim)) {
        sim_fail(sim, "deadlock: nobody can do anything");
    }
}

/* After the last step: all workers leave, all commands end, all blocks must be free, and all states
 * must be the committed ones. */
static void wind_up(struct sim *sim)
{
    sim->ending = true;
    for (uint32_t rank = 0; rank < sim->world; rank++) {
        worker_die(sim, rank);
        if (sim->workers[rank].state == WORKER_HUNG) {
            sim_event(sim, (struct cst_event){.kind = CST_EV_DEAD, .rank = rank});
        }
    }
    while (sim->n_jobs > 0) {
        turn(sim);
    }
    for (unsigned i = 0; i < SIM_MAX_TAGS; i++) {
        if (sim->pending[i].tag != 0) {
            sim_fail(sim, "tag %" PRIu64 " (event %d) was never answered", sim->pending[i].tag,
                     (int)sim->pending[i].kind);
        }
    }
    for (uint32_t rank = 0; rank < sim->world; rank++) {
        struct cst_rank_stats stats;

        cst_core_rank_stats(sim->core, rank, &stats);
        if (stats.books.free != stats.books.capacity) {
            sim_fail(sim, "rank %u: %u of %u blocks are free at the end", rank, stats.books.free,
                     stats.books.capacity);
        }
    }
    for (uint32_t r = 0; !sim->failed && r < CST_ROW_COUNT; r++) {
        for (uint32_t t = 0; r != CST_ROW_GRAD && t < sim->model.n_tensors; t++) {
            uint64_t value = r == CST_ROW_WEIGHT ? memory_newest(&sim->memory, t)
                                                 : memory_read(&sim->memory.states[r][t]);
            bool absent = model_lacks(sim, sim->model.tensors[t].chunk, (enum cst_row)r);
            bool lost = r == CST_ROW_WEIGHT && value == MEMORY_GARBAGE &&
                        over_shares(sim, sim->model.tensors[t].chunk);

            /* The states of a chunk with an early update are one update ahead of the commit. */
            if (r != CST_ROW_WEIGHT && sim->ahead[sim->model.tensors[t].chunk]) {
                value--; /* The update belongs to a step that was not committed. */
            } else if (sim->ahead[sim->model.tensors[t].chunk]) {
                continue;
            }
            if (value != sim->expected[r][t].value && !lost && !absent) {
                sim_fail(sim, "row %u of tensor %u is not what was committed", r, t);
            }
        }
    }
}

void sim_run(const struct sim_options *options, struct sim_totals *totals)
{
    static struct sim sim;
    struct cst_core_stats stats;

    memset(&sim, 0, sizeof sim);
    sim.options = *options;
    sim.rng = options->seed;
    open_sim(&sim);
    totals_add_kinds(totals, &sim);
    while (sim.step < options->n_steps && !sim.failed) {
        turn(&sim);
        if (sim.n_turns - sim.last_progress > STALL_TURNS) {
            sim_fail(&sim, "no step was committed in %d turns", STALL_TURNS);
        }
    }
    wind_up(&sim);
    cst_core_stats(sim.core, &stats);
    close_sim(&sim);
    totals_add(totals, &sim, &stats);
}
