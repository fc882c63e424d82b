/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim.h"

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

/* True if no rank has handed in a gradient of chunk @c in this attempt. */
static bool is_idle(const struct sim *sim, uint32_t c)
{
    bool idle = true;

    for (uint32_t rank = 0; rank < sim->world; rank++) {
        for (uint32_t m = 0; m < sim->micro_batches; m++) {
            idle = idle && sim->handed[c][rank][m] == 0;
        }
    }
    return idle;
}

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
        sim->idle[c] = sim->skips && !skipped && model_is_trained(sim, c) && is_idle(sim, c);
        sim->n_idle += sim->idle[c];
    }
    for (uint32_t t = 0; t < sim->model.n_tensors; t++) {
        uint64_t before = sim->expected[CST_ROW_WEIGHT][t].value;

        for (uint32_t r = 0; !skipped && r < CST_ROW_COUNT; r++) {
            uint32_t c = sim->model.tensors[t].chunk;

            sim->expected[r][t].value += model_is_trained(sim, c) && !sim->idle[c];
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

struct pending *sim_find_pending(struct sim *sim, uint64_t tag)
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
    struct pending *p = reply->tag == 0 ? NULL : sim_find_pending(sim, reply->tag);
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
    struct cst_core_stats before;
    const char *broken;
    /* A driver may ignore the recalls of an event, and does so now and then. */
    bool heeds = !sim_chance(sim, 1000);

    event.now = sim->now;
    verbose_event(sim, &event);
    sim->writes = event.kind == CST_EV_WRITE || event.kind == CST_EV_RESTORE;
    cst_core_stats(sim->core, &before);
    cst_core_step(sim->core, &event, &sim->actions);
    broken = cst_core_check(sim->core);
    if (broken != NULL) {
        sim_fail(sim, "after event %d: not true that %s", (int)event.kind, broken);
    }
    follow(sim);
    pauses_follow(sim, &before);
    for (size_t i = 0; i < sim->actions.n; i++) {
        const struct cst_action *a = &sim->actions.v[i];

        if (a->kind == CST_ACT_COMMAND) {
            driver_submit(sim, &a->command);
        } else if (a->kind == CST_ACT_REPLY) {
            deliver(sim, &a->reply);
        } else if (a->kind == CST_ACT_RECALL && heeds) {
            driver_recall(sim, a->recall);
        } else if (a->kind == CST_ACT_VERSION || a->kind == CST_ACT_REVOKE) {
            readers_act(sim, a);
        } else if (a->kind == CST_ACT_LOG && sim->options.verbose) {
            printf("%8" PRIu64 "   log: %s\n", sim->n_turns, a->log.text);
        }
    }
}

void sim_ask(struct sim *sim, struct cst_event event, struct pending pending)
{
    struct pending *p = sim_find_pending(sim, 0);

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
    readers_turn(sim);
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
    } else {
        (void)readers_leave(sim);
    }
    readers_look(sim);
    pauses_turn(sim);
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
    } else if (readers_leave(sim) || pauses_end(sim)) {
        return;
    } else if (!sim->ending && sim->n_jobs == 0 && everybody_is_there(sim)) {
        sim_fail(sim, "deadlock: nobody can do anything");
    }
}

/* After the last step: all workers leave, all commands end, all blocks must be free, and all states
 * must be the committed ones. */
static void wind_up(struct sim *sim)
{
    sim->ending = true;
    (void)pauses_end(sim);
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
    sim_open(&sim);
    pauses_open(&sim);
    totals_add_kinds(totals, &sim);
    while (sim.step < options->n_steps && !sim.failed) {
        turn(&sim);
        if (sim.n_turns - sim.last_progress > STALL_TURNS) {
            sim_fail(&sim, "no step was committed in %d turns", STALL_TURNS);
        }
    }
    wind_up(&sim);
    cst_core_stats(sim.core, &stats);
    sim_close(&sim);
    totals_add(totals, &sim, &stats);
}
