/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/machines.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void machines_fail(const struct machines *sim, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "machines: seed %" PRIu64 ", %" PRIu64 " ns: ", sim->options.seed, sim->now);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\n");
    exit(EXIT_FAILURE);
}

static void *must(void *p)
{
    if (p == NULL) {
        abort();
    }
    return p;
}

uint64_t machines_random(struct machines *sim)
{
    return memory_mix(sim->rng++, 0);
}

uint32_t machines_below(struct machines *sim, uint32_t n)
{
    return (uint32_t)(machines_random(sim) % n);
}

/* Some runs are mostly without delays, so that much happens at once. */
uint64_t machines_delay(struct machines *sim, uint32_t most)
{
    return machines_below(sim, 4) < sim->quiet ? 0 : machines_below(sim, most);
}

/* -- cores ------------------------------------------------------------------------------------ */

static void log_event(const struct machines *sim, uint32_t m, const struct cst_event *event)
{
    printf("%9" PRIu64 " machine %u: event %d rank %u chunk %u ticket %" PRIu64 " status %d",
           sim->now, m, (int)event->kind, event->rank, event->chunk, event->ticket, event->status);
    if (event->kind == CST_EV_TOLD) {
        printf(" from %u kind %d attempt %" PRIu64 " step %" PRIu64 " chunk %u block %u",
               event->machine, (int)event->message->kind, event->message->attempt,
               event->message->step, event->message->chunk, event->message->block);
    }
    printf("\n");
}

/* Readers can read row @row of machine @m: it has the weights after @step. */
static void begin_version(struct machines *sim, uint32_t m, uint32_t row, uint64_t step)
{
    struct machine *at = &sim->machines[m];

    for (uint32_t c = 0; c < sim->n_chunks; c++) {
        const struct cell *weights =
            row == 1 && values_trained(sim, c) ? &at->others[c] : &at->weights[c];

        if (weights->writers > 0 || weights->value != sim->weights[step][c]) {
            machines_fail(sim,
                          "machine %u: row %u is readable as of step %" PRIu64
                          ", and chunk %u has other weights",
                          m, row, step, c);
        }
    }
    at->readable[row] = true;
    sim->totals->versions++;
}

static void carry_out(struct machines *sim, uint32_t m, const struct cst_action *a)
{
    switch (a->kind) {
    case CST_ACT_COMMAND:
        engine_submit(sim, m, &a->command);
        break;
    case CST_ACT_REPLY:
        ranks_answer(sim, m, &a->reply);
        break;
    case CST_ACT_RECALL:
        engine_recall(sim, m, a->recall);
        break;
    case CST_ACT_TELL:
        network_tell(sim, m, a->tell.to, &a->tell.message);
        break;
    case CST_ACT_LOG:
        if (sim->options.verbose) {
            printf("%9" PRIu64 " machine %u: %s\n", sim->now, m, a->log.text);
        }
        break;
    case CST_ACT_VERSION:
        begin_version(sim, m, a->version.row, a->version.step);
        break;
    case CST_ACT_REVOKE:
        sim->machines[m].readable[a->version.row] = false;
        break;
    case CST_ACT_SEAL:
        machines_fail(sim, "a seal");
    }
}

void machines_feed(struct machines *sim, uint32_t m, struct cst_event event)
{
    struct machine *at = &sim->machines[m];
    struct cst_actions actions = {0};
    const char *broken;

    event.now = sim->now;
    sim->totals->events++;
    if (sim->options.verbose) {
        log_event(sim, m, &event);
    }
    cst_core_step(at->core, &event, &at->actions);
    cst_core_record(at->core, &at->record);
    if (at->record.failed != 0 && !sim->failed) {
        machines_fail(sim, "machine %u: the job has failed", m);
    }
    if (sim->totals->events % 16 == 0 || sim->options.verbose) {
        broken = cst_core_check(at->core);
        if (broken != NULL) {
            machines_fail(sim, "machine %u: it is not true that %s", m, broken);
        }
    }
    /* A request may be made while actions are carried out. */
    actions = at->actions;
    cst_actions_init(&at->actions);
    for (size_t i = 0; i < actions.n; i++) {
        if (actions.v[i].kind == CST_ACT_COMMAND && actions.v[i].command.ticket > at->ticket) {
            at->ticket = actions.v[i].command.ticket;
        }
        carry_out(sim, m, &actions.v[i]);
    }
    if (at->actions.v == NULL) {
        at->actions = actions;
    } else {
        cst_actions_close(&actions);
    }
}

/* -- epochs ----------------------------------------------------------------------------------- */

void machines_new_epoch(struct machines *sim)
{
    if (sim->n == 1) {
        return;
    }
    sim->epoch++;
    for (uint32_t m = 0; m < sim->n; m++) {
        if ((sim->members >> m & 1) != 0) {
            moments_push(&sim->moments,
                         (struct moment){.at = sim->now + machines_delay(sim, 300000),
                                         .kind = MOMENT_EPOCH,
                                         .node = m,
                                         .what = sim->epoch});
        }
    }
}

static void tell_epoch(struct machines *sim, uint32_t m, uint64_t epoch)
{
    struct machine *at = &sim->machines[m];

    if (at->core == NULL || epoch != sim->epoch) {
        return; /* A later one follows. */
    }
    at->epoch = epoch;
    machines_feed(
        sim, m,
        (struct cst_event){.kind = CST_EV_MACHINES, .epoch = epoch, .members = sim->members});
    network_deliver_held(sim, m);
}

/* -- failures --------------------------------------------------------------------------------- */

static void stop(struct machines *sim, uint32_t m)
{
    struct machine *at = &sim->machines[m];

    engine_kill(sim, m);
    cst_core_close(at->core);
    cst_actions_close(&at->actions);
    at->core = NULL;
    at->reads = false;
    at->n_writes = 0;
    sim->unheard = sim->unheard || at->record.failed != 0;
    for (uint32_t other = 0; other < sim->n; other++) {
        sim->links[m][other]++;
        sim->links[other][m]++;
    }
}

/* The memory of machine @m is gone. Another machine takes its place; or one of the others gets its
 * ranks: it is started anew, with rows for their rank blocks. */
static void lose_machine(struct machines *sim, uint32_t m)
{
    struct machine *at = &sim->machines[m];
    uint32_t heir = (m + 1 + machines_below(sim, sim->n - 1)) % sim->n;
    struct machine *to = &sim->machines[heir];

    sim->totals->losses++;
    sim->loses = false;
    at->lost = true;
    sim->members &= ~(UINT64_C(1) << m);
    machines_new_epoch(sim);
    if (machines_below(sim, 2) == 0) {
        replace_soon(sim, m);
        return;
    }
    to->rank_blocks |= at->rank_blocks;
    at->rank_blocks = 0;
    if (to->core != NULL) {
        stop(sim, heir);
        moments_push(&sim->moments, (struct moment){.at = sim->now + machines_delay(sim, 1000000),
                                                    .kind = MOMENT_RESTART,
                                                    .node = heir});
    }
}

static void kill_machine(struct machines *sim, uint32_t m)
{
    if (sim->machines[m].core == NULL || sim->machines[m].lost) {
        return;
    }
    sim->totals->kills++;
    stop(sim, m);
    if (sim->machines[m].restores) {
        sim->machines[m].restores = false;
        sim->machines[m].lost = true;
        replace_soon(sim, m);
        return;
    }
    if (sim->loses && machines_below(sim, 3) == 0) {
        lose_machine(sim, m);
        return;
    }
    if (machines_below(sim, 3) == 0 && sim->members != UINT64_C(1) << m) {
        sim->totals->without++;
        sim->members &= ~(UINT64_C(1) << m);
        machines_new_epoch(sim);
    }
    moments_push(&sim->moments, (struct moment){.at = sim->now + machines_delay(sim, 2000000),
                                                .kind = MOMENT_RESTART,
                                                .node = m});
}

static void restart(struct machines *sim, uint32_t m)
{
    struct machine *at = &sim->machines[m];
    struct cst_core_record record = at->record;
    struct cst_err err;

    if (record.failed != 0) {
        at->lost = true; /* A job that has failed is not revived. */
        sim->members &= ~cst_machine_bit(m);
        machines_new_epoch(sim);
        return;
    }
    job_adopt(sim, m);
    job_open_core(sim, m);
    sim->members |= UINT64_C(1) << m;
    /* A job that had not begun cannot be revived: it begins anew. */
    if (record.initialised) {
        if (cst_core_may_revive(at->core, &record, at->table, &err) != CST_OK) {
            machines_fail(sim, "machine %u: %s", m, err.text);
        }
        machines_feed(
            sim, m,
            (struct cst_event){.kind = CST_EV_REVIVE, .record = &record, .table = at->table});
    } else {
        job_write(sim, m);
    }
    machines_new_epoch(sim);
}

static void cut(struct machines *sim, uint32_t a, bool on)
{
    uint32_t b = (a + 1) % sim->n;

    if (on) {
        sim->totals->cuts++;
        sim->cut[a] |= UINT64_C(1) << b;
        sim->cut[b] |= UINT64_C(1) << a;
        moments_push(&sim->moments, (struct moment){.at = sim->now + machines_delay(sim, 2000000),
                                                    .kind = MOMENT_MEND,
                                                    .node = a});
    } else {
        sim->cut[a] &= ~(UINT64_C(1) << b);
        sim->cut[b] &= ~(UINT64_C(1) << a);
        sim->links[a][b]++; /* What was on its way is lost. */
        sim->links[b][a]++;
        machines_new_epoch(sim);
    }
}

static void plan_failures(struct machines *sim)
{
    uint64_t step_ns = 400000ull * sim->n_chunks * sim->micro_batches;
    uint32_t span = (uint32_t)(step_ns * sim->options.n_steps), n_kills, n_cuts;

    sim->harmless = machines_below(sim, 4) == 0;
    if (sim->harmless) {
        return;
    }
    n_kills = machines_below(sim, 2) == 0 || sim->n == 1 ? 0 : machines_below(sim, 5);
    n_cuts = machines_below(sim, 2) == 0 || sim->n == 1 ? 0 : machines_below(sim, 3);
    sim->fatal = machines_below(sim, 16) == 0 ? 1 + machines_below(sim, 20) : 0;
    sim->n_faults = machines_below(sim, 2) == 0 ? 0 : machines_below(sim, 6);
    for (uint32_t i = machines_below(sim, 4); i > 0; i--) {
        uint32_t m = machines_below(sim, sim->n);

        moments_push(&sim->moments,
                     (struct moment){.at = machines_below(sim, span),
                                     .kind = MOMENT_DEATH,
                                     .node = m,
                                     .rank = machines_below(sim, sim->machines[m].world)});
    }
    for (uint32_t i = 0; i < n_kills + n_cuts; i++) {
        moments_push(&sim->moments, (struct moment){.at = machines_below(sim, span),
                                                    .kind = i < n_kills ? MOMENT_KILL : MOMENT_CUT,
                                                    .node = machines_below(sim, sim->n)});
    }
    for (uint32_t i = machines_below(sim, 8); i > 0; i--) {
        moments_push(&sim->moments, (struct moment){.at = machines_below(sim, span),
                                                    .kind = MOMENT_READ,
                                                    .node = machines_below(sim, sim->n)});
    }
}

/* -- reads of weights ------------------------------------------------------------------------- */

static void read_weights(struct machines *sim, uint32_t m)
{
    struct machine *at = &sim->machines[m];
    uint32_t t = machines_below(sim, sim->n_chunks);

    if (at->core == NULL || at->reads) {
        return;
    }
    at->reads = true;
    at->read_chunk = sim->model.tensors[t].chunk;
    machines_feed(
        sim, m,
        (struct cst_event){.kind = CST_EV_READ,
                           .tag = ++sim->tag << MACHINES_TAG_SHIFT | MACHINES_TAG_READ,
                           .tensor = t,
                           .row = CST_ROW_WEIGHT,
                           .n_elems = sim->model.tensors[t].n_elems,
                           .place = {.segment = MACHINES_SEGMENTS * (m + 1) + MACHINES_STAGING}});
}

void machines_read(struct machines *sim, uint32_t m, const struct cst_reply *reply)
{
    struct machine *at = &sim->machines[m];
    struct cst_core_stats stats;

    at->reads = false;
    cst_core_stats(at->core, &stats);
    if (reply->status == CST_OK && !sim->failed &&
        memory_read(&at->staging) != sim->weights[stats.step][at->read_chunk]) {
        machines_fail(
            sim, "machine %u: weights of chunk %u were read, which are not those of step %" PRIu64,
            m, at->read_chunk, stats.step);
    }
    if (reply->status != CST_OK && !sim->failed &&
        (!at->layout.chunks[at->read_chunk].away || sim->copies > 1)) {
        machines_fail(sim, "machine %u: weights of chunk %u: %s", m, at->read_chunk,
                      reply->err.text);
    }
    sim->totals->reads += reply->status == CST_OK;
}

/* -- the end ---------------------------------------------------------------------------------- */

/* The states and the steps that machine @m has must have the bits of those of one machine. */
static void check_rows(const struct machines *sim, uint32_t m)
{
    const struct machine *at = &sim->machines[m];
    uint64_t last = sim->options.n_steps, states[MACHINES_CHUNKS];
    uint64_t missed[MACHINES_CHUNKS], want[MACHINES_CHUNKS];

    cst_core_missed_steps(at->core, missed);
    for (uint32_t c = 0; c < sim->n_chunks; c++) {
        bool keeps = values_trained(sim, c) && !at->layout.chunks[c].away;

        if (!values_has_weights(sim, m, c, last)) {
            machines_fail(sim, "machine %u: weights of chunk %u are not as after step %" PRIu64, m,
                          c, last);
        }
        states[c] = keeps ? memory_read(&at->states[c]) : sim->states[last][c];
        want[c] = sim->skips ? sim->steps[last][c].missed : 0;
    }
    if (memcmp(states, sim->states[last], sim->n_chunks * sizeof states[0]) != 0) {
        machines_fail(sim, "machine %u: states are not as after step %" PRIu64, m, last);
    }
    if (memcmp(missed, want, sim->n_chunks * sizeof missed[0]) != 0) {
        machines_fail(sim, "machine %u: other steps are missed than up to step %" PRIu64, m, last);
    }
}

/* The bytes that all machines together copy in all steps, without failures. */
static uint64_t formula(const struct machines *sim)
{
    uint64_t sum = 0;

    for (uint64_t s = 0; s < sim->options.n_steps; s++) {
        for (uint32_t c = 0; c < sim->n_chunks; c++) {
            uint64_t elems = sim->machines[0].layout.chunks[c].n_elems;
            uint64_t row = values_bytes(sim, c, false), weight = values_bytes(sim, c, true);
            uint32_t home = c % sim->n;

            if (!values_trained(sim, c)) {
                continue;
            }
            sum += elems * row *
                   (sim->single[c] ? sim->n - 1 : sim->n_blocks - sim->machines[home].n_blocks);
            sum += elems * row * (sim->copies - 1); /* sums */
            if (sim->adam[s + 1] > sim->adam[s] && !values_is_idle(sim, s, c)) {
                sum += elems * weight * (sim->n - sim->copies);
            }
        }
    }
    return sum;
}

static void check_end(struct machines *sim, uint64_t bytes)
{
    for (uint32_t m = 0; m < sim->n; m++) {
        struct cst_core_stats stats;

        if (sim->machines[m].lost) {
            continue;
        }
        if (sim->machines[m].core == NULL) {
            machines_fail(sim, "machine %u is down at the end", m);
        }
        cst_core_stats(sim->machines[m].core, &stats);
        if (sim->failed) {
            if ((stats.phase != CST_PHASE_FAILED && !sim->unheard) ||
                stats.commands_in_flight > 0) {
                machines_fail(sim, "machine %u: the job has failed, but not here", m);
            }
            continue;
        }
        if (stats.step != sim->options.n_steps || stats.commands_in_flight > 0) {
            machines_fail(sim,
                          "machine %u: nobody can do anything, at step %" PRIu64 " of %" PRIu64
                          ", attempt %" PRIu64 ", phase %d, %" PRIu64 " commands",
                          m, stats.step, sim->options.n_steps, stats.attempt, (int)stats.phase,
                          stats.commands_in_flight);
        }
        check_rows(sim, m);
    }
    if (sim->harmless && sim->p_leave_out == 0 && sim->p_skip == 0 && sim->p_lone == 0) {
        if (bytes != formula(sim)) {
            machines_fail(sim, "%" PRIu64 " bytes were copied, not %" PRIu64, bytes, formula(sim));
        }
        sim->totals->exact++;
    }
}

static void play(struct machines *sim, const struct moment *moment)
{
    struct machine *at = &sim->machines[moment->node];
    uint32_t number = (uint32_t)moment->what & 0xffff;
    bool lives = at->core != NULL && moment->what >> 16 == at->life;

    sim->now = moment->at;
    switch (moment->kind) {
    case MOMENT_BEGIN:
    case MOMENT_END:
    case MOMENT_DONE:
        if (lives) {
            (moment->kind == MOMENT_BEGIN ? engine_begin
             : moment->kind == MOMENT_END ? engine_end
                                          : engine_tell)(sim, moment->node, number);
        }
        break;
    case MOMENT_GO:
    case MOMENT_COMPUTED:
    case MOMENT_RETURN:
        ranks_turn(sim, moment);
        break;
    case MOMENT_DEATH:
        ranks_die(sim, moment->node, moment->rank);
        break;
    case MOMENT_MESSAGE:
        network_deliver(sim, (uint32_t)moment->what);
        break;
    case MOMENT_KILL:
        kill_machine(sim, moment->node);
        break;
    case MOMENT_RESTART:
        restart(sim, moment->node);
        break;
    case MOMENT_REPLACE:
        replace_machine(sim, moment->node);
        break;
    case MOMENT_AGAIN:
        machines_new_epoch(sim);
        break;
    case MOMENT_CUT:
    case MOMENT_MEND:
        cut(sim, moment->node, moment->kind == MOMENT_CUT);
        break;
    case MOMENT_EPOCH:
        tell_epoch(sim, moment->node, moment->what);
        break;
    case MOMENT_READ:
        read_weights(sim, moment->node);
        break;
    }
}

/* Count the chunks of step @s without a gradient, on several machines. */
static void count_unused(const struct machines *sim, uint64_t s)
{
    for (uint32_t c = 0; sim->skips && sim->n > 1 && c < sim->n_chunks; c++) {
        uint32_t with = 0, discarding = 0;

        for (uint32_t rank = 0; values_trained(sim, c) && rank < sim->n_ranks; rank++) {
            with += !values_is_without(sim, s, rank, c);
            discarding += values_discards(sim, s, rank, c);
        }
        sim->totals->idle += values_trained(sim, c) && values_is_idle(sim, s, c);
        sim->totals->lone += with == 1;
        sim->totals->discards += discarding > 0;
    }
}

/* Count a run with stages on several machines. */
static void count_staged(const struct machines *sim)
{
    bool several = false;

    for (uint32_t m = 0; m < sim->n; m++) {
        several = several || sim->machines[m].n_blocks > 1;
    }
    if (sim->n_stages > 0 && sim->n > 1) {
        sim->totals->staged++;
        sim->totals->several += several;
        sim->totals->tied += sim->n_operators > sim->n_chunks;
    }
}

void machines_run(const struct machines_options *options, struct machines_totals *totals)
{
    struct machines *sim = must(calloc(1, sizeof *sim));
    uint64_t bytes = totals->bytes;

    *sim = (struct machines){.options = *options, .totals = totals, .rng = options->seed << 24};
    job_draw(sim);
    job_declare(sim);
    for (uint32_t m = 0; m < sim->n; m++) {
        job_open_machine(sim, m);
    }
    values_open(sim);
    for (uint32_t m = 0; m < sim->n; m++) {
        job_write(sim, m);
    }
    plan_failures(sim);
    machines_new_epoch(sim);
    while (sim->moments.n > 0) {
        struct moment moment = moments_pop(&sim->moments);

        play(sim, &moment);
    }
    check_end(sim, totals->bytes - bytes);
    totals->fatal += sim->failed;
    totals->runs++;
    totals->copies += sim->copies > 1;
    totals->fp32 += sim->grad_fp32 && sim->n > 1;
    totals->alone += sim->n == 1;
    for (uint64_t s = 0; s < options->n_steps; s++) {
        totals->skipped += sim->adam[s + 1] == sim->adam[s];
        count_unused(sim, s);
    }
    totals->skips += sim->skips;
    count_staged(sim);
    job_close(sim);
    free(sim);
}
