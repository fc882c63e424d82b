/* SPDX-License-Identifier: Apache-2.0 */
/* The engines of the machines. A command may begin when the core was told the ends of all that it
 * waits for; it ends some time after, and its end is told later. */
#include "tests/sim/machines.h"

#include <inttypes.h>
#include <string.h>

enum what { NOTHING, WEIGHT, GRAD, STATE, MOMENT, PARTIAL, LANDING, BLOCK, STAGED };

/* A place of a command. */
struct found {
    enum what what;
    uint32_t machine;
    uint32_t chunk; /* of a row */
    struct cell *cell;
};

static bool is_row(const struct cst_layout_row *row, struct cst_place place, uint32_t segment)
{
    return row->segment == segment && row->offset == place.offset;
}

static struct found find_row(struct machine *at, struct cst_place place, uint32_t segment)
{
    const struct cst_layout *layout = &at->layout;
    uint32_t more = layout->partials.n_here > 1 ? layout->partials.n_here - 1 : 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        if (is_row(&chunk->rows[CST_ROW_WEIGHT], place, segment)) {
            return (struct found){.what = WEIGHT, .chunk = c, .cell = &at->weights[c]};
        }
        if (is_row(&chunk->other_weight, place, segment)) {
            return (struct found){.what = WEIGHT, .chunk = c, .cell = &at->others[c]};
        }
        if (is_row(&chunk->rows[CST_ROW_GRAD], place, segment)) {
            return (struct found){.what = GRAD, .chunk = c, .cell = &at->grads[c]};
        }
        for (int row = CST_ROW_MASTER; row < CST_ROW_COUNT; row++) {
            if (is_row(&chunk->rows[row], place, segment)) {
                return (struct found){.what = row == CST_ROW_MASTER ? STATE : MOMENT,
                                      .chunk = c,
                                      .cell = row == CST_ROW_MASTER ? &at->states[c] : NULL};
            }
        }
        for (uint32_t b = 0; b < more; b++) {
            if (is_row(&layout->partial_rows[c * more + b], place, segment)) {
                return (struct found){
                    .what = PARTIAL, .chunk = c, .cell = &at->partials[c * more + b]};
            }
        }
    }
    return place.offset == 0 && segment < layout->n_segments
               ? (struct found){.what = LANDING, .cell = &at->landings[segment]}
               : (struct found){.what = NOTHING};
}

static struct found find_block(struct machine *at, struct cst_place place, uint32_t segment)
{
    uint64_t block = place.offset / (2 * at->layout.capacity);
    uint32_t rank = segment - MACHINES_POOLS;

    if (rank >= at->world || place.offset % (2 * at->layout.capacity) != 0 ||
        block >= at->pools[rank].parts[0].n_blocks) {
        return (struct found){.what = NOTHING};
    }
    return (struct found){.what = BLOCK, .cell = &at->blocks[rank][block]};
}

static struct found look_up(struct machines *sim, struct cst_place place)
{
    uint32_t machine = place.segment / MACHINES_SEGMENTS - 1;
    uint32_t segment = place.segment % MACHINES_SEGMENTS;
    struct found found = {.what = NOTHING};

    if (machine < sim->n && segment == MACHINES_STAGING) {
        found = (struct found){
            .what = STAGED, .machine = machine, .cell = &sim->machines[machine].staging};
    } else if (machine < sim->n) {
        found = segment >= MACHINES_POOLS ? find_block(&sim->machines[machine], place, segment)
                                          : find_row(&sim->machines[machine], place, segment);
        found.machine = machine;
    }
    return found;
}

static struct found find(struct machines *sim, uint32_t m, const struct mjob *job,
                         struct cst_place place)
{
    struct found found = look_up(sim, place);

    if (found.what == NOTHING) {
        machines_fail(sim, "machine %u: command %" PRIu64 " names %u+%" PRIu64 ", where nothing is",
                      m, job->command.ticket, place.segment, place.offset);
    }
    return found;
}

/* -- the ends of what commands wait for ------------------------------------------------------- */

static struct mjob *find_job(struct machine *at, uint64_t ticket)
{
    for (uint32_t j = 0; ticket != 0 && j < at->n_jobs; j++) {
        if (at->jobs[j].command.ticket == ticket) {
            return &at->jobs[j];
        }
    }
    return NULL;
}

static bool is_ready(struct machine *at, const struct mjob *job)
{
    for (uint32_t i = 0; i < job->command.n_after; i++) {
        if (find_job(at, job->command.after[i]) != NULL) {
            return false;
        }
    }
    return !job->begun && !job->command.promised;
}

/* Let commands begin that wait for nothing any more. */
static void look(struct machines *sim, uint32_t m)
{
    struct machine *at = &sim->machines[m];

    for (uint32_t j = 0; j < at->n_jobs; j++) {
        struct mjob *job = &at->jobs[j];

        if (job->command.ticket != 0 && (job->cancelled ? !job->begun : is_ready(at, job))) {
            job->begun = true;
            moments_push(&sim->moments,
                         (struct moment){.at = sim->now + machines_delay(sim, 20000),
                                         .kind = job->cancelled ? MOMENT_DONE : MOMENT_BEGIN,
                                         .node = m,
                                         .what = at->life << 16 | j});
        }
    }
}

/* Cancel what waits for @ticket, which has failed. */
static void cancel(struct machine *at, uint64_t ticket)
{
    for (uint32_t j = 0; j < at->n_jobs; j++) {
        struct mjob *job = &at->jobs[j];

        for (uint32_t i = 0; i < job->command.n_after && job->command.ticket != 0; i++) {
            if (job->command.after[i] == ticket && !job->begun) {
                job->cancelled = true;
            }
        }
    }
}

static void replace(struct machine *at, uint64_t from, uint64_t to)
{
    for (uint32_t j = 0; j < at->n_jobs; j++) {
        struct cst_command *command = &at->jobs[j].command;

        for (uint32_t i = 0; i < command->n_after && command->ticket != 0; i++) {
            if (command->after[i] == from && command->ticket != to) {
                command->after[i] = to;
            }
        }
    }
}

void engine_submit(struct machines *sim, uint32_t m, const struct cst_command *command)
{
    struct machine *at = &sim->machines[m];
    struct mjob *job = find_job(at, command->ticket);

    sim->totals->commands++;
    if (job != NULL && (!job->command.promised || command->promised)) {
        machines_fail(sim, "machine %u: command %" PRIu64 " comes twice", m, command->ticket);
    }
    for (uint32_t j = 0; j < MACHINES_JOBS && job == NULL; j++) {
        job = at->jobs[j].command.ticket == 0 ? &at->jobs[j] : NULL;
        at->n_jobs = at->n_jobs > j ? at->n_jobs : j + 1;
    }
    if (job == NULL) {
        machines_fail(sim, "machine %u: too many commands", m);
    }
    *job = (struct mjob){.command = *command, .other = m};
    if (command->kind == CST_COMMAND_COPY && command->n_src > 0) {
        job->other = command->src[0].segment / MACHINES_SEGMENTS - 1;
    }
    job->link = sim->links[m][job->other];
    /* A command can wait for one that is complete. */
    for (uint32_t i = 0; i < command->n_after; i++) {
        job->command.after[i] = find_job(at, command->after[i]) != NULL ? command->after[i] : 0;
    }
    for (uint32_t i = 0; i < command->n_replaces; i++) {
        replace(at, command->replaces[i], command->ticket);
    }
    look(sim, m);
}

void engine_recall(struct machines *sim, uint32_t m, uint64_t ticket)
{
    struct mjob *job = find_job(&sim->machines[m], ticket);

    if (job != NULL && job->command.promised) {
        job->cancelled = true;
        look(sim, m);
    }
}

/* -- commands --------------------------------------------------------------------------------- */

static struct cst_table_tile *tiles_of(struct machines *sim, uint32_t m, uint32_t chunk)
{
    return cst_table_tiles(sim->machines[m].table) + sim->model.tensors[chunk].first_tile;
}

static uint32_t count_tiles(const struct machines *sim, uint32_t chunk)
{
    return (uint32_t)cst_table_n_tiles(sim->model.tensors[chunk].n_elems);
}

/* The weights that the UPDATE @job writes. */
static struct cell *written_weights(struct machine *at, const struct mjob *job)
{
    return job->command.n_out > 0 ? &at->others[job->command.chunk]
                                  : &at->weights[job->command.chunk];
}

/* Fail if readers can read @cell of machine @m, which is about to be written. */
static void check_readable(struct machines *sim, uint32_t m, const struct cell *cell)
{
    const struct machine *at = &sim->machines[m];

    for (uint32_t c = 0; c < sim->n_chunks; c++) {
        if ((cell == &at->weights[c] && at->readable[0]) ||
            (cell == &at->others[c] && at->readable[1])) {
            machines_fail(sim, "machine %u: the weights of chunk %u are written while readable", m,
                          c);
        }
    }
}

static void begin_write(struct machines *sim, uint32_t m, const struct mjob *job,
                        const struct found *found)
{
    if (found->machine != m) {
        machines_fail(sim, "machine %u: command %" PRIu64 " writes to machine %u", m,
                      job->command.ticket, found->machine);
    }
    if (found->cell->writers > 0) {
        machines_fail(sim, "machine %u: command %" PRIu64 " writes where another one does", m,
                      job->command.ticket);
    }
    check_readable(sim, m, found->cell);
    memory_begin(found->cell);
}

/* Where the command writes: of a REDUCE a partial's row, or the grad row. */
static struct found target(struct machines *sim, uint32_t m, const struct mjob *job)
{
    struct machine *at = &sim->machines[m];
    uint32_t c = job->command.chunk;

    if (job->command.n_dst > 0) {
        return find(sim, m, job, job->command.dst[0]);
    }
    return (struct found){.what = GRAD, .machine = m, .chunk = c, .cell = &at->grads[c]};
}

static uint64_t source_changes(struct machines *sim, uint32_t m, const struct mjob *job)
{
    struct cell *target_cell =
        job->command.kind == CST_COMMAND_REDUCE ? target(sim, m, job).cell : NULL;
    uint64_t n = 0;

    for (uint32_t i = 0; i < job->command.n_src; i++) {
        struct found src = find(sim, m, job, job->command.src[i]);

        n += src.cell == target_cell ? 0 : src.cell->changes;
    }
    return n;
}

/* True if a copy from another machine cannot be: it is down, or the link is cut, or was since the
 * command was issued. */
static bool is_cut_off(const struct machines *sim, uint32_t m, const struct mjob *job)
{
    return job->other != m &&
           (sim->machines[job->other].core == NULL || (sim->cut[m] >> job->other & 1) != 0 ||
            sim->links[m][job->other] != job->link);
}

static uint64_t row_bytes(const struct machines *sim, uint32_t c, bool weights)
{
    return values_bytes(sim, c, weights) * sim->machines[0].layout.chunks[c].n_elems;
}

/* True if what the other machine has told before it was started with other rows can be meant. The
 * attempt is over there, so nothing comes of it. */
static bool is_of_old_rows(const struct machines *sim, const struct mjob *job)
{
    return sim->machines[job->other].adopted;
}

static void check_remote(struct machines *sim, uint32_t m, const struct mjob *job,
                         const struct found *src)
{
    if (job->command.node != sim->machines[m].layout.machines.n + 10 ||
        job->command.bytes != row_bytes(sim, job->command.chunk, src->what == WEIGHT) ||
        src->what == LANDING || src->what == BLOCK || src->chunk != job->command.chunk) {
        machines_fail(sim, "machine %u: a copy of %" PRIu64 " bytes from machine %u by engine %u",
                      m, job->command.bytes, src->machine, job->command.node);
    }
    sim->totals->bytes += job->command.bytes;
}

static void begin_copy(struct machines *sim, uint32_t m, struct mjob *job)
{
    struct found dst = find(sim, m, job, job->command.dst[0]), src;

    begin_write(sim, m, job, &dst);
    src = look_up(sim, job->command.src[0]);
    job->failed =
        is_cut_off(sim, m, job) || (job->other != m && is_of_old_rows(sim, job) &&
                                    (src.what == NOTHING || src.chunk != job->command.chunk ||
                                     src.what == LANDING || src.what == BLOCK));
    if (job->failed) {
        return;
    }
    if (job->other != m && sim->n_faults > 0 && machines_below(sim, 60) == 0) {
        sim->n_faults--;
        sim->totals->faults++;
        job->failed = true; /* The link is not down, and all is told again. */
        moments_push(&sim->moments, (struct moment){.at = sim->now + machines_delay(sim, 500000),
                                                    .kind = MOMENT_AGAIN});
        return;
    }
    src = find(sim, m, job, job->command.src[0]);
    job->value = memory_read(src.cell);
    if (src.machine != m) {
        check_remote(sim, m, job, &src);
    }
}

/* A write of master weights: a value, and the weights that are made of it. fp32 tensors have them
 * in one row. */
static void write_masters(struct machines *sim, uint32_t m, const struct mjob *job, bool ends)
{
    uint32_t c = job->command.chunk;
    const struct machine *at = &sim->machines[m];
    const uint64_t step = at->restores ? sim->restored.counters.step : 0;
    uint64_t master = at->restores ? sim->states[step][c] : values_initial(sim, c);
    uint64_t weight = at->restores ? sim->weights[step][c] : values_weight(master);

    for (uint32_t i = 0; i < job->command.n_dst; i++) {
        struct found dst = find(sim, m, job, job->command.dst[i]);
        bool kept = dst.what == WEIGHT && !sim->machines[m].layout.chunks[c].away &&
                    sim->model.tensors[c].dtype == CST_FP32 && values_trained(sim, c);

        if (dst.what != MOMENT && !ends) {
            begin_write(sim, m, job, &dst);
        } else if (dst.what != MOMENT) {
            memory_end(dst.cell, dst.what == WEIGHT ? weight : master);
        }
        if (kept && ends) {
            sim->machines[m].states[c].value = master;
        }
    }
}

static void begin_reduce(struct machines *sim, uint32_t m, struct mjob *job)
{
    const struct cst_command *command = &job->command;
    struct found dst = target(sim, m, job);
    bool any = command->accumulate;

    job->value = command->accumulate ? memory_read(dst.cell) : MEMORY_ZERO_SUM;
    for (uint32_t i = 0; i < command->n_src; i++) {
        struct found src = find(sim, m, job, command->src[i]);

        if (src.machine != m || src.what == WEIGHT || src.what == STATE) {
            machines_fail(sim, "machine %u: a sum of something else", m);
        }
        if ((src.what != BLOCK && sim->grad_fp32 &&
             sim->model.tensors[command->chunk].dtype != CST_FP32) != command->partials) {
            machines_fail(sim, "machine %u: a sum of the wrong format", m);
        }
        job->value = any ? values_add(job->value, memory_read(src.cell)) : memory_read(src.cell);
        any = true;
    }
    begin_write(sim, m, job, &dst);
}

static void end_reduce(struct machines *sim, uint32_t m, const struct mjob *job, uint64_t value)
{
    uint32_t c = job->command.chunk;

    memory_end(target(sim, m, job).cell, value);
    for (uint32_t i = 0; i < count_tiles(sim, c); i++) {
        tiles_of(sim, m, c)[i].sum_squares = values_square(value, i);
    }
}

/* Number of the chunk's tensor among those with states. */
static uint64_t span_of(struct machines *sim, uint32_t m, uint32_t chunk)
{
    return cst_table_chunks(sim->machines[m].table)[chunk].first_span;
}

/* The mark of the last update of chunk @c in the first @step steps. */
static uint64_t last_update(const struct machines *sim, uint64_t step, uint32_t c)
{
    return sim->skips ? sim->steps[step][c].last : sim->adam[step];
}

/* The steps of a chunk as the table says, which a command with the mark @mark reads, must be those
 * up to the step after @step steps. */
static void check_steps(struct machines *sim, uint32_t m, uint32_t c, uint64_t mark, uint64_t step)
{
    const struct cst_table_steps *here, *want = &sim->steps[step + 1][c];

    if (!sim->skips) {
        return;
    }
    here = cst_table_steps(sim->machines[m].table, span_of(sim, m, c), mark);
    if (memcmp(here, want, sizeof *here) != 0) {
        machines_fail(sim,
                      "machine %u: chunk %u has missed %" PRIu64 " steps, the last was %" PRIu64
                      ", of %" PRIu64 "; not %" PRIu64 " and %" PRIu64,
                      m, c, here->missed, here->last, mark, want->missed, want->last);
    }
}

/* The update of a chunk: number @mark, in the step after @step steps. */
static void begin_update(struct machines *sim, uint32_t m, struct mjob *job)
{
    struct machine *at = &sim->machines[m];
    uint32_t c = job->command.chunk;
    const struct cst_table_span *span;
    uint64_t step = 0;

    while (step < sim->options.n_steps && sim->adam[step + 1] < job->command.mark) {
        step++;
    }
    if (at->layout.chunks[c].away || memory_read(&at->grads[c]) != sim->sums[step][c] ||
        memory_read(&at->states[c]) != sim->states[step][c]) {
        machines_fail(sim,
                      "machine %u: update %" PRIu64 " of chunk %u from gradient %" PRIx64
                      " and states %" PRIx64 ", not %" PRIx64 " and %" PRIx64,
                      m, job->command.mark, c, memory_read(&at->grads[c]),
                      memory_read(&at->states[c]), sim->sums[step][c], sim->states[step][c]);
    }
    /* The table of a machine that has restored the states knows no update before. */
    if (cst_table_chunks(at->table)[c].update_mark != last_update(sim, step, c) &&
        (cst_table_chunks(at->table)[c].update_mark != 0 ||
         last_update(sim, step, c) > at->restored_mark)) {
        machines_fail(sim, "machine %u: update %" PRIu64 " of chunk %u after update %" PRIu64, m,
                      job->command.mark, c, cst_table_chunks(at->table)[c].update_mark);
    }
    check_steps(sim, m, c, job->command.mark, step);
    span = cst_table_spans(at->table) + span_of(sim, m, c);
    job->value = values_state(at->states[c].value, at->grads[c].value,
                              cst_table_step(at->table, span, job->command.mark));
    job->changes = at->grads[c].changes;
    memory_begin(&at->states[c]);
    check_readable(sim, m, written_weights(at, job));
    memory_begin(written_weights(at, job));
}

static void end_update(struct machines *sim, uint32_t m, struct mjob *job)
{
    struct machine *at = &sim->machines[m];
    uint32_t c = job->command.chunk;

    if (sim->fatal > 0 && --sim->fatal == 0) {
        job->failed = true; /* It has changed nothing. */
    }
    if (at->grads[c].changes != job->changes) {
        machines_fail(sim, "machine %u: the gradient of chunk %u changed during its update", m, c);
    }
    memory_end(&at->states[c], job->failed ? at->states[c].value : job->value);
    memory_end(written_weights(at, job),
               job->failed ? written_weights(at, job)->value : values_weight(job->value));
    if (job->failed) {
        return;
    }
    cst_table_chunks(at->table)[c].update_mark = job->command.mark;
}

static double norm_of(struct machines *sim, uint32_t m, uint64_t mark)
{
    struct cst_table_header *table = sim->machines[m].table;
    double squares = 0;

    for (uint32_t c = 0; c < sim->n_chunks; c++) {
        bool counts = values_trained(sim, c) &&
                      !cst_table_is_idle(table, cst_table_spans(table) + span_of(sim, m, c), mark);

        for (uint32_t i = 0; counts && i < count_tiles(sim, c); i++) {
            squares += tiles_of(sim, m, c)[i].sum_squares;
        }
    }
    return values_norm(squares);
}

/* -- moments ---------------------------------------------------------------------------------- */

void engine_begin(struct machines *sim, uint32_t m, uint32_t j)
{
    struct machine *at = &sim->machines[m];
    struct mjob *job = &at->jobs[j];
    uint32_t most = 100000 * (job->other != m ? sim->slow : 1);

    job->runs = true;
    switch (job->command.kind) {
    case CST_COMMAND_COPY:
        begin_copy(sim, m, job);
        break;
    case CST_COMMAND_REDUCE:
        begin_reduce(sim, m, job);
        break;
    case CST_COMMAND_UPDATE:
        begin_update(sim, m, job);
        break;
    case CST_COMMAND_SET_MASTER:
    case CST_COMMAND_ROUND:
        write_masters(sim, m, job, false);
        break;
    case CST_COMMAND_NORM:
        break;
    case CST_COMMAND_FILL:
    case CST_COMMAND_ENCODE:
    case CST_COMMAND_DECODE:
    case CST_COMMAND_JOIN:
    case CST_COMMAND_FLUSH:
        machines_fail(sim, "a command of kind %d, which nobody asked for", (int)job->command.kind);
    }
    if ((job->command.kind == CST_COMMAND_COPY || job->command.kind == CST_COMMAND_REDUCE) &&
        !job->failed) {
        job->changes = source_changes(sim, m, job);
    }
    moments_push(&sim->moments, (struct moment){.at = sim->now + machines_delay(sim, most),
                                                .kind = MOMENT_END,
                                                .node = m,
                                                .what = at->life << 16 | j});
}

void engine_end(struct machines *sim, uint32_t m, uint32_t j)
{
    struct machine *at = &sim->machines[m];
    struct mjob *job = &at->jobs[j];
    uint64_t value = job->value;

    if (job->command.kind == CST_COMMAND_COPY) {
        job->failed = job->failed || is_cut_off(sim, m, job);
    }
    if (job->command.kind == CST_COMMAND_UPDATE) {
        end_update(sim, m, job);
    } else if (cst_command_converts(job->command.kind)) {
        write_masters(sim, m, job, true);
    } else if (job->command.kind != CST_COMMAND_NORM) {
        value = job->failed || source_changes(sim, m, job) != job->changes ? MEMORY_GARBAGE : value;
        if (job->command.kind == CST_COMMAND_REDUCE) {
            end_reduce(sim, m, job, value);
        } else {
            memory_end(target(sim, m, job).cell, value);
        }
    }
    job->ended = true;
    moments_push(&sim->moments, (struct moment){.at = sim->now + machines_delay(sim, 20000),
                                                .kind = MOMENT_DONE,
                                                .node = m,
                                                .what = at->life << 16 | j});
}

void engine_tell(struct machines *sim, uint32_t m, uint32_t j)
{
    struct machine *at = &sim->machines[m];
    struct mjob job = at->jobs[j];
    struct cst_event event = {.kind = CST_EV_DONE,
                              .ticket = job.command.ticket,
                              .status = job.cancelled ? CST_ECANCELLED
                                        : job.failed  ? CST_ECONN
                                                      : CST_OK};

    sim->failed = sim->failed || (job.failed && job.command.kind == CST_COMMAND_UPDATE);
    if (job.command.kind == CST_COMMAND_NORM) {
        event.value = norm_of(sim, m, job.command.mark);
    }
    if (event.status != CST_OK && !job.command.may_fail) {
        cancel(at, job.command.ticket);
    }
    /* Those that wait for it wait until the core was told: it may replace the command. */
    machines_feed(sim, m, event);
    at->jobs[j].command.ticket = 0;
    look(sim, m);
}

void engine_kill(struct machines *sim, uint32_t m)
{
    struct machine *at = &sim->machines[m];

    for (uint32_t j = 0; j < at->n_jobs; j++) {
        struct mjob *job = &at->jobs[j];
        uint32_t c = job->command.chunk;
        bool runs = job->command.ticket != 0 && job->runs && !job->ended;

        /* An update is undone, and made again; other rows are torn. */
        if (runs && job->command.kind == CST_COMMAND_UPDATE) {
            memory_end(&at->states[c], at->states[c].value);
            memory_end(written_weights(at, job), written_weights(at, job)->value);
        } else if (runs && cst_command_converts(job->command.kind)) {
            write_masters(sim, m, job, true);
        } else if (runs && job->command.kind != CST_COMMAND_NORM &&
                   job->command.kind != CST_COMMAND_UPDATE) {
            memory_end(target(sim, m, job).cell, MEMORY_GARBAGE);
        }
        job->command.ticket = 0;
    }
}
