/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated engines. A command may begin when its dependencies are done, end at any time after it
 * began, and be reported at any time after it ended. */
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* 1: the command may begin. 0: the command must wait. CST_ECANCELLED: all that it waited for has
 * ended, and some of it failed. An engine sees the ends of its own commands. A command that waits
 * for another engine is held by the driver until the driver was told of the end. */
static int is_ready(const struct sim *sim, const struct job *job)
{
    bool failed = job->cancelled;

    for (uint32_t i = 0; i < job->command.n_after; i++) {
        const struct job *first = driver_find(sim, job->command.after[i]);

        if (first == NULL) {
            continue;
        }
        if (first->state != JOB_FINISHED || job->held) {
            return 0;
        }
        failed = failed || first->status != CST_OK;
    }
    return failed ? CST_ECANCELLED : 1;
}

/* -- memory of a command --------------------------------------------------------------------- */

struct spot engines_find(const struct sim *sim, const struct job *job, struct cst_place place)
{
    struct spot spot = memory_find(&sim->memory, place);

    if (spot.kind == PLACE_NOWHERE) {
        sim_fail(sim, "command %" PRIu64 " names a place that is not there: %u+%" PRIu64,
                 job->command.ticket, place.segment, place.offset);
    }
    return over_resolve(sim, &job->command, spot);
}

struct cell *engines_cell(struct sim *sim, const struct spot *spot)
{
    switch (spot->kind) {
    case PLACE_ROW:
        return spot->row == CST_ROW_GRAD ? &sim->memory.grads[spot->chunk]
                                         : &sim->memory.states[spot->row][spot->tensor];
    case PLACE_BLOCK:
        return &sim->memory.blocks[spot->rank][spot->block];
    case PLACE_STAGING:
        return &sim->memory.staging[spot->slot];
    case PLACE_LANDING:
        return &sim->memory.landings[spot->slot];
    case PLACE_RESERVATION:
    case PLACE_NOWHERE:
        break;
    }
    sim_fail(sim, "a place that is not there");
}

static bool is_load(const struct spot *src, const struct spot *dst)
{
    return src->kind == PLACE_ROW && dst->kind == PLACE_BLOCK &&
           (src->row == CST_ROW_WEIGHT || src->row == CST_ROW_WEIGHT_OTHER ||
            src->row == CST_ROW_MASTER);
}

void engines_begin_write(struct sim *sim, const struct job *job, const struct spot *spot)
{
    struct cell *cell = engines_cell(sim, spot);

    if (cell->writers > 0) {
        sim_fail(sim, "command %" PRIu64 " writes where another one is writing",
                 job->command.ticket);
    }
    if (spot->kind == PLACE_BLOCK && workers_lease_block(sim, spot->rank, spot->block)) {
        sim_fail(sim, "command %" PRIu64 " writes to block %u of rank %u, which is leased",
                 job->command.ticket, spot->block, spot->rank);
    }
    memory_begin(cell);
    over_begin_write(sim, spot);
}

/* True if the command copies a part of a chunk's weights into a gathered block. */
static bool is_piece(const struct sim *sim, const struct job *job)
{
    return job->command.kind == CST_COMMAND_COPY && !reservation_has(sim, &job->command) &&
           memory_find(&sim->memory, job->command.dst[0]).kind == PLACE_BLOCK &&
           job->command.bytes < cst_layout_weight_bytes(&sim->layout.chunks[job->command.chunk]);
}

uint64_t engines_source_changes(struct sim *sim, const struct job *job)
{
    const struct cst_command *command = &job->command;
    uint64_t n = 0;

    for (uint32_t i = 0; i < command->n_src; i++) {
        struct spot src = engines_find(sim, job, command->src[i]);
        struct spot dst = command->n_dst > 0 ? engines_find(sim, job, command->dst[0]) : src;

        if (is_piece(sim, job) && src.kind == PLACE_BLOCK) {
            /* The block changes while other parts are copied into it; end_piece compares this part
             * itself. */
            continue;
        }
        if (is_load(&src, &dst)) {
            n += memory_changes(&sim->memory, sim->memory.states[src.row], src.chunk);
        } else if (command->kind == CST_COMMAND_COPY && src.kind == PLACE_ROW &&
                   src.row <= CST_ROW_GRAD && over_shares(sim, src.chunk)) {
            n += over_changes(sim, src.chunk);
        } else if (command->kind != CST_COMMAND_REDUCE || src.kind != PLACE_ROW) {
            n += engines_cell(sim, &src)->changes;
        }
    }
    return n;
}

bool engines_copies(const struct job *job)
{
    return job->command.kind == CST_COMMAND_COPY || job->command.kind == CST_COMMAND_FILL ||
           (cst_command_converts(job->command.kind) && job->command.n_dst == 1);
}

/* -- kinds of commands ----------------------------------------------------------------------- */

/* The number of the row to which the source of a part belongs. */
static uint64_t read_piece(struct sim *sim, const struct job *job)
{
    struct spot src = engines_find(sim, job, job->command.src[0]);
    struct spot dst = engines_find(sim, job, job->command.dst[0]);

    if (src.kind == PLACE_ROW && (src.row == CST_ROW_WEIGHT || src.row == CST_ROW_WEIGHT_OTHER) &&
        src.chunk == job->command.chunk && src.at == dst.at) {
        return memory_weights(&sim->memory, sim->memory.states[src.row], src.chunk);
    }
    if (src.kind != PLACE_BLOCK || src.at != dst.at) {
        sim_fail(sim, "command %" PRIu64 " brings a part from somewhere else", job->command.ticket);
    }
    return memory_read_piece(engines_cell(sim, &src), src.at, job->command.bytes);
}

static void begin_piece(struct sim *sim, struct job *job)
{
    struct spot dst = engines_find(sim, job, job->command.dst[0]);

    job->value = read_piece(sim, job);
    if (workers_lease_block(sim, dst.rank, dst.block) ||
        !memory_begin_piece(engines_cell(sim, &dst), dst.at, job->command.bytes)) {
        sim_fail(sim, "command %" PRIu64 " writes a part of block %u of rank %u, which is in use",
                 job->command.ticket, dst.block, dst.rank);
    }
}

static void end_piece(struct sim *sim, struct job *job, uint64_t value)
{
    struct spot dst = engines_find(sim, job, job->command.dst[0]);

    if (job->doomed || read_piece(sim, job) != value) {
        value = MEMORY_GARBAGE;
    }
    if (workers_lease_block(sim, dst.rank, dst.block)) {
        sim_fail(sim, "block %u of rank %u was leased while it was written", dst.block, dst.rank);
    }
    memory_end_piece(engines_cell(sim, &dst), dst.at, value,
                     cst_layout_weight_bytes(&sim->layout.chunks[job->command.chunk]));
    sim->n_gathered++;
}

static void begin_copy(struct sim *sim, struct job *job)
{
    struct cst_command *command = &job->command;
    struct spot dst = engines_find(sim, job, command->dst[0]);
    struct spot src = command->n_src > 0 ? engines_find(sim, job, command->src[0]) : dst;

    if (is_piece(sim, job)) {
        begin_piece(sim, job);
        return;
    }
    if (is_load(&src, &dst)) {
        const struct cst_layout_chunk *chunk = &sim->layout.chunks[src.chunk];
        bool made = src.row == CST_ROW_MASTER;

        if (!src.at_start || made != (command->kind == CST_COMMAND_ROUND) ||
            (made ? command->n_elems != chunk->n_elems
                  : command->bytes != cst_layout_weight_bytes(chunk))) {
            sim_fail(sim, "a load that is not a whole row");
        }
        job->value = memory_weights(&sim->memory, sim->memory.states[src.row], src.chunk);
        sim->n_made += made;
    } else {
        job->value = memory_read(engines_cell(sim, &src));
    }
    if (dst.kind == PLACE_ROW && dst.row != CST_ROW_GRAD) {
        job->value =
            engines_cell(sim, &dst)->value + 1; /* A write of the tool stores the next number. */
    }
    if (dst.kind == PLACE_ROW && dst.row == CST_ROW_GRAD && !dst.at_start) {
        sim_fail(sim, "a gradient staged into the middle of a row");
    }
    sim->n_landed += dst.kind == PLACE_LANDING;
    engines_begin_write(sim, job, &dst);
}

static void begin_reduce(struct sim *sim, struct job *job)
{
    struct cst_command *command = &job->command;
    struct spot dst = {.kind = PLACE_ROW, .row = CST_ROW_GRAD, .chunk = command->chunk};
    unsigned n_landed = 0;

    job->value =
        command->accumulate ? memory_read(&sim->memory.grads[command->chunk]) : MEMORY_ZERO_SUM;
    for (uint32_t i = 0; i < command->n_src; i++) {
        struct spot src = engines_find(sim, job, command->src[i]);

        n_landed += src.kind == PLACE_LANDING;
        if (src.kind == PLACE_ROW && (src.row != CST_ROW_GRAD || src.chunk != command->chunk)) {
            sim_fail(sim, "a reduction out of another row");
        }
        job->value = memory_mix(job->value, memory_read(engines_cell(sim, &src)));
    }
    sim->n_shared += n_landed > 1;
    sim->tiles[command->chunk] = MEMORY_GARBAGE;
    engines_begin_write(sim, job, &dst);
}

static void begin_norm(struct sim *sim, const struct job *job)
{
    if (job->is_void) {
        return;
    }
    for (uint32_t c = 0; c < sim->layout.n_chunks; c++) {
        if (model_is_trained(sim, c) && !sim->failed && sim->tiles[c] != model_sum(sim, c)) {
            sim_fail(sim, "norm: the gradient of chunk %u is not the sum of what was handed in", c);
        }
    }
}

/* A conversion writes the weights and the states up to row @last. Those of fp32 tensors have no
 * master row, and those that Muon updates one moment. */
static uint32_t count_states(const struct sim *sim, uint32_t chunk, int last)
{
    uint32_t n = 1;

    for (int row = CST_ROW_MASTER; row <= last; row++) {
        n += !model_lacks(sim, chunk, (enum cst_row)row);
    }
    return n;
}

static void begin_convert(struct sim *sim, struct job *job)
{
    for (uint32_t i = 0; i < job->command.n_dst; i++) {
        struct spot dst = engines_find(sim, job, job->command.dst[i]);

        job->old[dst.row][0] = engines_cell(sim, &dst)->value;
        engines_begin_write(sim, job, &dst);
    }
    /* Moments stay once the job has begun: tool.c checks their values. */
    if (job->command.n_dst != count_states(sim, job->command.chunk, CST_ROW_MOMENT + 1) &&
        job->command.n_dst != count_states(sim, job->command.chunk, CST_ROW_MASTER)) {
        sim_fail(sim, "a conversion with %u destinations", job->command.n_dst);
    }
}

/* True for a command in a reservation whose failure the job survives. */
static bool is_spare(const struct sim *sim, const struct cst_command *command)
{
    return reservation_has(sim, command) && sim->layout.chunks[command->chunk].tier == 0 &&
           (command->kind == CST_COMMAND_UPDATE || reservation_goes_up(sim, command) ||
            command->may_fail);
}

/* Copies to blocks, grad rows and staging can fail, and so can the commands of device updates that
 * is_spare allows. Copies to landings fail only with the chance of fatal errors, because the sum
 * fails with the copy. A failure of any other command fails the job. */
static bool will_fail(struct sim *sim, const struct job *job)
{
    struct spot dst;

    if (is_spare(sim, &job->command)) {
        return sim_chance(sim, sim->p_reservation_fail);
    }
    if (!engines_copies(job) || reservation_has(sim, &job->command)) {
        return sim_chance(sim, sim->p_fatal);
    }
    dst = engines_find(sim, job, job->command.dst[0]);
    if (dst.kind == PLACE_LANDING) {
        return sim_chance(sim, sim->p_fatal);
    }
    return (dst.kind != PLACE_ROW || dst.row == CST_ROW_GRAD) && !sim_is_calm(sim) &&
           sim_chance(sim, sim->p_copy_fail);
}

static void begin(struct sim *sim, struct job *job)
{
    job->state = JOB_RUNNING;
    job->doomed = will_fail(sim, job);
    if (reservation_has(sim, &job->command)) {
        reservation_begin(sim, job);
        return;
    }
    job->changes = engines_source_changes(sim, job);
    if (engines_copies(job)) {
        begin_copy(sim, job);
        return;
    }
    switch (job->command.kind) {
    case CST_COMMAND_REDUCE:
        begin_reduce(sim, job);
        break;
    case CST_COMMAND_NORM:
        begin_norm(sim, job);
        break;
    case CST_COMMAND_UPDATE:
        update_begin(sim, job);
        break;
    case CST_COMMAND_SET_MASTER:
        begin_convert(sim, job);
        break;
    case CST_COMMAND_ROUND:
    case CST_COMMAND_ENCODE:
    case CST_COMMAND_DECODE:
    case CST_COMMAND_JOIN:
    case CST_COMMAND_FLUSH:
    case CST_COMMAND_COPY:
    case CST_COMMAND_FILL:
        sim_fail(sim, "a command that the core does not use");
    }
}

/* End a conversion. @add is 1, or 0 if the engine died: the conversion will then begin again. */
static void end_convert(struct sim *sim, struct job *job, uint64_t add)
{
    for (uint32_t i = 0; i < job->command.n_dst; i++) {
        struct spot dst = engines_find(sim, job, job->command.dst[i]);

        memory_end(engines_cell(sim, &dst),
                   over_weight(sim, dst.chunk, dst.row, job->old[dst.row][0], add));
    }
    if (add > 0) {
        over_end_weights(sim, job->command.chunk);
    }
}

static void end_copy(struct sim *sim, struct job *job, uint64_t value)
{
    struct spot dst = engines_find(sim, job, job->command.dst[0]);
    struct cell *cell = engines_cell(sim, &dst);

    if (dst.kind == PLACE_BLOCK && workers_lease_block(sim, dst.rank, dst.block)) {
        sim_fail(sim, "block %u of rank %u was leased while it was written", dst.block, dst.rank);
    }
    if (dst.kind == PLACE_ROW && dst.row != CST_ROW_GRAD && value == MEMORY_GARBAGE) {
        /* After a failed write of the tool the content is undefined; the next number is
         * accepted. */
        value = cell->value + 1;
    }
    memory_end(cell, value);
}

static void finish(struct sim *sim, struct job *job, int status)
{
    job->state = JOB_FINISHED;
    job->status = status;
    job->order = ++sim->n_finished;
}

static void end(struct sim *sim, struct job *job)
{
    uint64_t value;

    finish(sim, job, job->doomed ? CST_EIO : CST_OK);
    if (reservation_has(sim, &job->command)) {
        reservation_end(sim, job, false);
        return;
    }
    value = engines_source_changes(sim, job) == job->changes ? job->value : MEMORY_GARBAGE;
    if (is_piece(sim, job)) {
        end_piece(sim, job, value);
        return;
    }
    if (engines_copies(job)) {
        end_copy(sim, job, job->doomed ? MEMORY_GARBAGE : value);
        return;
    }
    switch (job->command.kind) {
    case CST_COMMAND_REDUCE:
        memory_end(&sim->memory.grads[job->command.chunk], value);
        sim->tiles[job->command.chunk] = value;
        break;
    case CST_COMMAND_UPDATE:
        update_end(sim, job, false);
        break;
    case CST_COMMAND_SET_MASTER:
        end_convert(sim, job, 1);
        break;
    case CST_COMMAND_ROUND:
    case CST_COMMAND_ENCODE:
    case CST_COMMAND_DECODE:
    case CST_COMMAND_JOIN:
    case CST_COMMAND_FLUSH:
    case CST_COMMAND_COPY:
    case CST_COMMAND_NORM:
    case CST_COMMAND_FILL:
        break;
    }
}

/* -- turns ----------------------------------------------------------------------------------- */

static void report(struct sim *sim, unsigned i)
{
    struct cst_event event = {.kind = CST_EV_DONE,
                              .ticket = sim->jobs[i].command.ticket,
                              .status = sim->jobs[i].status,
                              .value = 1.0};

    if (sim->jobs[i].command.kind == CST_COMMAND_NORM && sim_chance(sim, sim->p_nan)) {
        event.value = NAN;
    }
    event.text = event.status == CST_OK ? NULL : "the fake engine failed it";
    if (event.status != CST_OK && !sim->jobs[i].command.may_fail) {
        driver_failed(sim, event.ticket);
    }
    if (sim->told[sim->jobs[i].command.node] < sim->jobs[i].order) {
        sim->told[sim->jobs[i].command.node] = sim->jobs[i].order;
    }
    sim->jobs[i] = sim->jobs[--sim->n_jobs];
    sim_event(sim, event);
}

static bool job_turn(struct sim *sim, unsigned i)
{
    struct job *job = &sim->jobs[i];
    int ready;

    if (lost_refuses(sim, job)) {
        report(sim, i);
        return true;
    }
    if (job->state == JOB_FINISHED) {
        if (!sim_is_calm(sim) && sim_chance(sim, sim->p_quiet)) {
            return false;
        }
        report(sim, i);
        return true;
    }
    if (job->state == JOB_RUNNING) {
        end(sim, job);
        return true;
    }
    ready = is_ready(sim, job);
    if (ready < 0) {
        finish(sim, job, ready);
    } else if (ready > 0) {
        begin(sim, job);
    }
    return ready != 0;
}

bool engines_turn(struct sim *sim)
{
    unsigned first;

    if (sim->n_jobs == 0) {
        return false;
    }
    if (sim_chance(sim, sim->p_stop)) {
        sim->stopped = sim_below(sim, 1u << sim->n_engines);
    }
    first = sim_below(sim, sim->n_jobs);
    for (unsigned k = 0; k < sim->n_jobs; k++) {
        unsigned i = (first + k) % sim->n_jobs;

        if ((sim->stopped >> sim->jobs[i].command.node & 1) == 0 && job_turn(sim, i)) {
            return true;
        }
    }
    if (sim->stopped != 0) {
        sim->stopped = 0; /* no engine is stopped for ever */
        return true;
    }
    return false;
}

/* The command had ended, but the driver was told neither of it nor of any later end: the restarted
 * engine executes the command again. Commands that update in place are not repeated, because their
 * marks show that they were done. */
static void redo(struct sim *sim, struct job *job)
{
    bool cancelled = job->status == CST_ECANCELLED && !job->held;

    if (job->state == JOB_FINISHED && (job->status == CST_OK || cancelled) &&
        job->order > sim->told[job->command.node] && reservation_has(sim, &job->command)) {
        job->state = JOB_WAITING;
        sim->n_redone++;
    }
}

/* Only the engine that died remembered which earlier commands had failed. Failures that the driver
 * remembers (@held) stay. */
static void forget(struct job *job)
{
    job->cancelled = job->cancelled && job->held;
}

void engines_tear(struct sim *sim, struct job *job)
{
    if (reservation_has(sim, &job->command)) {
        reservation_end(sim, job, true);
    } else if (job->command.kind == CST_COMMAND_REDUCE) {
        struct cell *cell = &sim->memory.grads[job->command.chunk];

        /* An engine that restarts restores the tiles, because the old sum may contain a
         * contribution. */
        memory_end(cell, cell->value);
    } else if (is_piece(sim, job)) {
        end_piece(sim, job, MEMORY_GARBAGE);
    } else if (engines_copies(job)) {
        struct spot dst = engines_find(sim, job, job->command.dst[0]);
        struct cell *cell = engines_cell(sim, &dst);

        memory_end(cell,
                   dst.kind == PLACE_ROW && dst.row != CST_ROW_GRAD ? cell->value : MEMORY_GARBAGE);
    } else if (job->command.kind == CST_COMMAND_UPDATE) {
        update_end(sim, job, true);
    } else {
        end_convert(sim, job, 0);
    }
}

void engines_restart(struct sim *sim)
{
    uint32_t engine = sim_below(sim, sim->n_engines);
    /* false: some running commands had already ended, but nobody was told yet. */
    bool all = sim_chance(sim, 5000);

    for (unsigned i = 0; i < sim->n_jobs; i++) {
        struct job *job = &sim->jobs[i];

        if (job->command.node != engine) {
            continue;
        }
        forget(job);
        if (all) {
            redo(sim, job);
        }
        if (job->state != JOB_RUNNING || (!all && sim_chance(sim, 5000))) {
            continue;
        }
        engines_tear(sim, job);
        job->state = JOB_WAITING;
    }
}
