/* SPDX-License-Identifier: Apache-2.0 */
/* Reservations of accelerators, and the commands of the updates that use them. A row in a
 * reservation holds one number per tensor of the chunk that was copied there. */
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <string.h>

/* -- places ------------------------------------------------------------------------------------ */

/* True if a device update uses the place: it is in a reservation, or in a lent block. Only commands
 * of device updates wait for what the driver was told. */
static bool is_reservation(const struct sim *sim, const struct cst_command *command,
                           struct cst_place place)
{
    enum place_kind kind = memory_find(&sim->memory, place).kind;

    return kind == PLACE_RESERVATION || (kind == PLACE_BLOCK && command->after_ack);
}

bool reservation_goes_up(const struct sim *sim, const struct cst_command *command)
{
    return command->kind == CST_COMMAND_COPY && is_reservation(sim, command, command->dst[0]);
}

bool reservation_has(const struct sim *sim, const struct cst_command *command)
{
    if (command->kind == CST_COMMAND_UPDATE) {
        return command->n_in > 0;
    }
    return command->kind == CST_COMMAND_COPY && (is_reservation(sim, command, command->src[0]) ||
                                                 is_reservation(sim, command, command->dst[0]));
}

static bool is_lent(const struct reservation_row *row)
{
    return row->segment < MEMORY_RESERVATION_SEGMENT;
}

/* The block into which byte @at of the row falls, or NULL. */
static struct cell *block_at(struct sim *sim, const struct reservation_row *row, uint64_t at,
                             struct spot *spot)
{
    *spot = memory_find(&sim->memory,
                        (struct cst_place){.segment = row->segment, .offset = row->offset + at});
    return spot->kind == PLACE_BLOCK ? &sim->memory.blocks[spot->rank][spot->block] : NULL;
}

#define BLOCK_STEP (2 * CST_LAYOUT_CAPACITY_STEP) /* bytes; divides all blocks */

/* `changes` of the lent blocks that the row covers; 0 for a row in a reservation. */
static uint64_t block_changes(struct sim *sim, const struct reservation_row *row)
{
    uint64_t n = 0;

    for (uint64_t at = 0; is_lent(row) && at < row->bytes; at += BLOCK_STEP) {
        struct spot spot;
        const struct cell *cell = block_at(sim, row, at, &spot);

        if (cell == NULL) {
            sim_fail(sim, "a row goes beyond the blocks of segment %u", row->segment);
        }
        n += cell->changes;
    }
    return n;
}

/* The row is written: its blocks must be free of other users, and lose what they held. */
static void claim_blocks(struct sim *sim, struct reservation_row *row)
{
    for (uint64_t at = 0; is_lent(row) && at < row->bytes; at += BLOCK_STEP) {
        struct spot spot;
        struct cell *cell = block_at(sim, row, at, &spot);

        if (cell == NULL || cell->writers > 0 || workers_lease_block(sim, spot.rank, spot.block)) {
            sim_fail(sim, "block %u of rank %u is lent, but in use", spot.block, spot.rank);
        }
        memory_begin(cell);
        memory_end(cell, MEMORY_GARBAGE);
    }
    row->stamp = block_changes(sim, row);
}

/* Fails if anybody else has written to the row's blocks since the row was written. */
static void check_blocks(struct sim *sim, const struct reservation_row *row)
{
    if (block_changes(sim, row) != row->stamp) {
        sim_fail(sim, "lent blocks at %" PRIu64 " of segment %u were written by somebody else",
                 row->offset, row->segment);
    }
}

static void check_bounds(const struct sim *sim, struct cst_place place, uint64_t bytes)
{
    uint32_t reservation = place.segment - MEMORY_RESERVATION_SEGMENT;

    if (place.segment >= MEMORY_RESERVATION_SEGMENT &&
        (reservation >= sim->n_reservations ||
         place.offset > sim->reservations[reservation].bytes ||
         bytes > sim->reservations[reservation].bytes - place.offset)) {
        sim_fail(sim, "%" PRIu64 " bytes at %" PRIu64 " of reservation %u, which ends before",
                 bytes, place.offset, reservation);
    }
}

/* The row that begins at @place, created if there is none. Fails if it would overlap another
 * row. */
static struct reservation_row *row_at(struct sim *sim, struct cst_place place, uint64_t bytes)
{
    struct reservation_row *row = NULL;

    check_bounds(sim, place, bytes);
    for (unsigned i = 0; i < sim->n_reservation_rows; i++) {
        struct reservation_row *r = &sim->reservation_rows[i];

        if (r->segment == place.segment && r->offset == place.offset) {
            row = r;
        } else if (r->segment == place.segment && r->offset < place.offset + bytes &&
                   place.offset < r->offset + r->bytes) {
            sim_fail(sim, "rows of segment %u overlap at %" PRIu64, place.segment, place.offset);
        }
    }
    if (row == NULL) {
        if (sim->n_reservation_rows == SIM_MAX_RESERVATION_ROWS) {
            sim_fail(sim, "more than %d rows in reservations", SIM_MAX_RESERVATION_ROWS);
        }
        row = &sim->reservation_rows[sim->n_reservation_rows++];
        *row = (struct reservation_row){.segment = place.segment, .offset = place.offset};
    }
    /* A row may be used with fewer bytes than at first, as by a smaller chunk. */
    row->bytes = row->bytes > bytes ? row->bytes : bytes;
    return row;
}

static void check_place(const struct sim *sim, const struct cst_command *command,
                        struct cst_place place)
{
    const struct cst_core_device_reservation *r;

    if (memory_find(&sim->memory, place).kind != PLACE_RESERVATION) {
        return;
    }
    r = &sim->reservations[place.segment - MEMORY_RESERVATION_SEGMENT];
    if (command->node != r->engine &&
        (r->engine != CST_TIER_HOST ||
         (command->node >= sim->n_nodes && command->node != r->home))) {
        sim_fail(sim, "engine %u is given memory of a reservation that is engine %u's",
                 command->node, r->engine);
    }
}

void reservation_check(const struct sim *sim, const struct cst_command *command)
{
    for (uint32_t i = 0; i < command->n_src; i++) {
        check_place(sim, command, command->src[i]);
    }
    for (uint32_t i = 0; i < command->n_dst; i++) {
        check_place(sim, command, command->dst[i]);
    }
    for (uint32_t i = 0; i < command->n_in; i++) {
        check_place(sim, command, command->in[i].place);
    }
    for (uint32_t i = 0; i < command->n_out; i++) {
        check_place(sim, command, command->out[i].place);
    }
}

/* -- rows -------------------------------------------------------------------------------------- */

static uint32_t n_tensors_of(const struct sim *sim, uint32_t chunk)
{
    return sim->layout.chunks[chunk].n_tensors;
}

static uint64_t row_bytes(const struct sim *sim, uint32_t chunk, enum cst_row row)
{
    const struct cst_layout_chunk *of = &sim->layout.chunks[chunk];

    return row == CST_ROW_GRAD
               ? cst_layout_grad_bytes(&sim->layout, of)
               : cst_layout_chunk_row_bytes(&sim->layout, of, (int)row, of->n_elems);
}

/* The cell with the number of tensor @k of the chunk. A grad row has one cell for all tensors. */
static struct cell *arena_cell(struct sim *sim, const struct spot *spot, uint32_t k)
{
    uint32_t t = sim->layout.order[sim->layout.chunks[spot->chunk].first_tensor + k];

    return spot->row == CST_ROW_GRAD ? &sim->memory.grads[spot->chunk]
                                     : &sim->memory.states[spot->row][t];
}

static uint64_t arena_changes(struct sim *sim, const struct spot *spot)
{
    uint64_t n = 0;

    if (spot->row == CST_ROW_GRAD && over_shares(sim, spot->chunk)) {
        return over_changes(sim, spot->chunk);
    }
    for (uint32_t k = 0; k < n_tensors_of(sim, spot->chunk); k++) {
        n += arena_cell(sim, spot, k)->changes;
    }
    return n;
}

static void begin_row(struct sim *sim, const struct job *job, struct reservation_row *row)
{
    if (row->writers > 0) {
        sim_fail(sim, "command %" PRIu64 " writes to a reservation where another one is writing",
                 job->command.ticket);
    }
    claim_blocks(sim, row);
    row->writers++;
    row->changes++;
}

static void end_row(struct sim *sim, struct reservation_row *row, uint32_t chunk, enum cst_row what)
{
    check_blocks(sim, row);
    row->writers--;
    row->changes++;
    row->chunk = chunk;
    row->row = what;
}

/* How commands name @row: both weight rows are weights. */
static enum cst_row named(enum cst_row row)
{
    return row == CST_ROW_WEIGHT_OTHER ? CST_ROW_WEIGHT : row;
}

static uint64_t read_row(struct sim *sim, const struct reservation_row *row, uint32_t k)
{
    check_blocks(sim, row);
    return row->writers > 0 ? MEMORY_GARBAGE : row->values[k];
}

/* The source or destination of a COPY that is in an arena. */
static struct spot arena_spot(struct sim *sim, const struct job *job, bool up)
{
    const struct cst_command *c = &job->command;
    struct spot spot = over_resolve(sim, c, memory_find(&sim->memory, up ? c->src[0] : c->dst[0]));

    if (spot.kind != PLACE_ROW || !spot.at_start || spot.chunk != c->chunk ||
        c->bytes != row_bytes(sim, spot.chunk, spot.row)) {
        sim_fail(sim, "command %" PRIu64 " copies what is not a row of chunk %u", c->ticket,
                 c->chunk);
    }
    return spot;
}

/* -- copies ------------------------------------------------------------------------------------ */

static bool goes_up(const struct sim *sim, const struct job *job)
{
    return reservation_goes_up(sim, &job->command);
}

static struct reservation_row *reservation_end_of(struct sim *sim, const struct job *job)
{
    const struct cst_command *c = &job->command;

    return row_at(sim, goes_up(sim, job) ? c->dst[0] : c->src[0], c->bytes);
}

/* True if the command copies a contribution from a block. A chunk with a single contribution keeps
 * it in the reservation as its sum. */
static bool is_kept(const struct sim *sim, const struct cst_command *command)
{
    return memory_find(&sim->memory, command->src[0]).kind == PLACE_BLOCK && !command->after_ack;
}

static struct cell *block_of(struct sim *sim, const struct job *job)
{
    struct spot spot = memory_find(&sim->memory, job->command.src[0]);

    if (spot.at != 0 || sim->memory.pools[spot.rank].tier != job->command.node) {
        sim_fail(sim, "command %" PRIu64 " keeps what is not a block of its accelerator",
                 job->command.ticket);
    }
    return &sim->memory.blocks[spot.rank][spot.block];
}

static void begin_keep(struct sim *sim, struct job *job)
{
    const struct cell *block = block_of(sim, job);

    job->old[0][0] = memory_read(block);
    job->changes = block->changes;
    begin_row(sim, job, reservation_end_of(sim, job));
}

static void end_keep(struct sim *sim, struct job *job, bool torn)
{
    struct reservation_row *row = reservation_end_of(sim, job);
    bool good = !torn && !job->doomed && block_of(sim, job)->changes == job->changes &&
                job->old[0][0] != MEMORY_GARBAGE;

    for (uint32_t k = 0; k < n_tensors_of(sim, job->command.chunk); k++) {
        row->values[k] = good ? memory_mix(MEMORY_ZERO_SUM, job->old[0][0]) : MEMORY_GARBAGE;
    }
    end_row(sim, row, job->command.chunk, CST_ROW_GRAD);
    sim->n_kept += good;
}

static void begin_copy(struct sim *sim, struct job *job)
{
    bool up = goes_up(sim, job);
    struct spot spot = arena_spot(sim, job, up);
    struct reservation_row *row = reservation_end_of(sim, job);

    for (uint32_t k = 0; k < n_tensors_of(sim, spot.chunk); k++) {
        struct cell *cell = arena_cell(sim, &spot, k);

        job->old[0][k] = up ? memory_read(cell) : read_row(sim, row, k);
        if (up) {
            continue;
        }
        if (spot.row == CST_ROW_GRAD || cell->writers > 0 || row->chunk != spot.chunk ||
            row->row != named(spot.row)) {
            sim_fail(sim, "command %" PRIu64 " brings row %d of chunk %u down, which is not there",
                     job->command.ticket, (int)spot.row, spot.chunk);
        }
        over_begin_write(sim, &spot);
        memory_begin(cell);
    }
    job->changes = up ? arena_changes(sim, &spot) : row->changes;
    if (up) {
        begin_row(sim, job, row);
    }
}

/* @torn: an engine's death interrupted the copy. */
static void end_copy(struct sim *sim, struct job *job, bool torn)
{
    bool up = goes_up(sim, job);
    struct spot spot = arena_spot(sim, job, up);
    struct reservation_row *row = reservation_end_of(sim, job);
    bool changed = job->changes != (up ? arena_changes(sim, &spot) : row->changes);

    check_blocks(sim, row);
    for (uint32_t k = 0; k < n_tensors_of(sim, spot.chunk); k++) {
        uint64_t value = torn || changed || job->doomed ? MEMORY_GARBAGE : job->old[0][k];

        if (up) {
            row->values[k] = value;
        } else {
            memory_end(arena_cell(sim, &spot, k), value);
        }
    }
    if (up) {
        end_row(sim, row, spot.chunk, spot.row);
    } else if (spot.row == CST_ROW_WEIGHT) {
        over_end_weights(sim, spot.chunk);
    }
    sim->n_through += !torn;
}

/* -- updates ----------------------------------------------------------------------------------- */

static struct reservation_row *named_row(struct sim *sim, const struct job *job,
                                         const struct cst_command_row *at)
{
    return row_at(sim, at->place, row_bytes(sim, job->command.chunk, at->row));
}

/* The rows of states: those that the device update reads in place, if the chunk's states are in
 * device memory. */
static const enum cst_row state_rows[] = {CST_ROW_MASTER, CST_ROW_MOMENT, CST_ROW_MOMENT + 1};

/* Bit mask of the rows of states that the chunk has. */
static unsigned states_of(const struct sim *sim, uint32_t c)
{
    unsigned rows = 0;

    for (unsigned i = 0; i < sizeof state_rows / sizeof state_rows[0]; i++) {
        rows |= model_lacks(sim, c, state_rows[i]) ? 0 : 1u << state_rows[i];
    }
    return rows;
}

static bool has_kept(const struct sim *sim, const struct cst_command *command)
{
    uint32_t device = sim->layout.chunks[command->chunk].tier;

    if (device == sim->slow && command->node == sim->layout.chunks[command->chunk].node) {
        return false; /* They are brought to its node. */
    }
    if (device != 0 && device != command->node) {
        sim_fail(sim, "chunk %u is updated by engine %u, its states are on engine %u's accelerator",
                 command->chunk, command->node, device);
    }
    return device != 0;
}

static uint64_t kept_changes(struct sim *sim, uint32_t c)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < sizeof state_rows / sizeof state_rows[0]; i++) {
        n +=
            arena_changes(sim, &(struct spot){.kind = PLACE_ROW, .row = state_rows[i], .chunk = c});
    }
    return n;
}

static void read_kept(struct sim *sim, struct job *job)
{
    uint32_t c = job->command.chunk;

    for (unsigned i = 0; i < sizeof state_rows / sizeof state_rows[0]; i++) {
        struct spot spot = {.kind = PLACE_ROW, .row = state_rows[i], .chunk = c};

        for (uint32_t k = 0; k < n_tensors_of(sim, c); k++) {
            job->old[spot.row][k] = memory_read(arena_cell(sim, &spot, k));
            if (job->old[spot.row][k] == MEMORY_GARBAGE && !sim->failed) {
                sim_fail(sim, "update %" PRIu64 " of chunk %u: row %d is torn", job->command.mark,
                         c, (int)spot.row);
            }
        }
    }
}

/* True if an update in host memory reads its gradient where it is. */
static bool is_in_arena(const struct sim *sim, const struct cst_command_row *at, struct spot *spot)
{
    *spot = memory_find(&sim->memory, at->place);
    return spot->kind == PLACE_ROW;
}

static uint64_t in_changes(struct sim *sim, const struct job *job)
{
    uint64_t n = has_kept(sim, &job->command) ? kept_changes(sim, job->command.chunk) : 0;

    for (uint32_t i = 0; i < job->command.n_in; i++) {
        const struct cst_command_row *at = &job->command.in[i];
        struct spot spot;

        n += is_in_arena(sim, at, &spot) ? arena_changes(sim, &spot)
                                         : named_row(sim, job, at)->changes;
    }
    return n;
}

static void read_arena(struct sim *sim, struct job *job, const struct cst_command_row *at,
                       const struct spot *spot)
{
    if (at->row != CST_ROW_GRAD || spot->row != CST_ROW_GRAD || !spot->at_start ||
        spot->chunk != job->command.chunk) {
        sim_fail(sim, "update %" PRIu64 " of chunk %u names row %d of an arena", job->command.mark,
                 job->command.chunk, (int)at->row);
    }
    for (uint32_t k = 0; k < n_tensors_of(sim, spot->chunk); k++) {
        job->old[at->row][k] = memory_read(arena_cell(sim, spot, k));
    }
}

static void read_in(struct sim *sim, struct job *job, const struct cst_command_row *at)
{
    const struct reservation_row *row;
    uint32_t c = job->command.chunk;
    struct spot spot;

    if (is_in_arena(sim, at, &spot)) {
        read_arena(sim, job, at, &spot);
        return;
    }
    row = named_row(sim, job, at);
    if (row->chunk != c || named(row->row) != at->row) {
        sim_fail(sim, "update %" PRIu64 " of chunk %u: row %d is not in the reservation",
                 job->command.mark, c, (int)at->row);
    }
    for (uint32_t k = 0; k < n_tensors_of(sim, c); k++) {
        job->old[at->row][k] = read_row(sim, row, k);
        if (read_row(sim, row, k) == MEMORY_GARBAGE && !sim->failed) {
            sim_fail(sim, "update %" PRIu64 " of chunk %u: row %d is torn in the reservation",
                     job->command.mark, c, (int)at->row);
        }
    }
}

/* The scratch of an update by Muon, or NULL. */
static struct reservation_row *scratch_of(struct sim *sim, const struct job *job)
{
    uint32_t c = job->command.chunk;

    if (job->command.n_dst != (sim->layout.chunks[c].muon ? 1 : 0)) {
        sim_fail(sim, "update %" PRIu64 " of chunk %u names %u scratches", job->command.mark, c,
                 job->command.n_dst);
    }
    return job->command.n_dst > 0 ? row_at(sim, job->command.dst[0], sim->layout.scratch_bytes)
                                  : NULL;
}

/* Check that an update that reads @rows finds all of them, and writes all others of the chunk. The
 * master weights of fp32 tensors are their weights. */
static void check_rows(const struct sim *sim, const struct cst_command *command, unsigned rows)
{
    unsigned states = states_of(sim, command->chunk);
    unsigned in = states | 1u << CST_ROW_GRAD;
    unsigned out = states | 1u << CST_ROW_WEIGHT;

    in |= model_is_fp32(sim, command->chunk) ? 1u << CST_ROW_WEIGHT : 0;
    for (uint32_t i = 0; i < command->n_out; i++) {
        out ^= 1u << command->out[i].row;
    }
    if (rows != in || out != 0) {
        sim_fail(sim, "update %" PRIu64 " of chunk %u: some rows are not in the reservation",
                 command->mark, command->chunk);
    }
}

static void begin_update(struct sim *sim, struct job *job)
{
    uint32_t c = job->command.chunk;
    bool fp32 = model_is_fp32(sim, c);
    struct reservation_row *scratch = scratch_of(sim, job);
    unsigned rows = 0;

    for (uint32_t i = 0; i < job->command.n_in; i++) {
        read_in(sim, job, &job->command.in[i]);
        rows |= 1u << job->command.in[i].row;
    }
    if (has_kept(sim, &job->command)) {
        read_kept(sim, job);
        rows |= states_of(sim, c);
    }
    check_rows(sim, &job->command, rows);
    if (job->old[CST_ROW_GRAD][0] != job->sum && !sim->failed) {
        sim_fail(sim, "update %" PRIu64 " of chunk %u: its gradient was overwritten",
                 job->command.mark, c);
    }
    for (uint32_t k = 0; k < n_tensors_of(sim, c) && !job->begun; k++) {
        uint32_t t = sim->layout.order[sim->layout.chunks[c].first_tensor + k];
        uint64_t newest = memory_newest(&sim->memory, t);

        if (fp32 && job->old[CST_ROW_WEIGHT][k] != newest && !sim->failed) {
            sim_fail(sim, "update %" PRIu64 " of chunk %u reads old weights", job->command.mark, c);
        }
        job->old[CST_ROW_WEIGHT][k] = newest;
    }
    job->begun = true;
    if (over_shares(sim, c)) { /* the update makes weights from master weights */
        memcpy(job->old[CST_ROW_WEIGHT], job->old[CST_ROW_MASTER], sizeof job->old[0]);
    }
    job->changes = in_changes(sim, job);
    if (scratch != NULL) {
        begin_row(sim, job, scratch);
    }
    for (uint32_t i = 0; i < job->command.n_out; i++) {
        begin_row(sim, job, named_row(sim, job, &job->command.out[i]));
    }
}

static void end_update(struct sim *sim, struct job *job, bool torn)
{
    uint32_t c = job->command.chunk;
    struct reservation_row *scratch = scratch_of(sim, job);

    if (!torn && in_changes(sim, job) != job->changes && !sim->failed) {
        sim_fail(sim, "update %" PRIu64 " of chunk %u: what it reads was written",
                 job->command.mark, c);
    }
    if (scratch != NULL) { /* It is no row that anybody reads. */
        end_row(sim, scratch, UINT32_MAX, CST_ROW_GRAD);
        sim->n_muon_reservations += !torn && !job->doomed;
    }
    sim->n_slow += !torn && sim->layout.chunks[c].tier == sim->slow;
    for (uint32_t i = 0; i < job->command.n_out; i++) {
        const struct cst_command_row *at = &job->command.out[i];
        struct reservation_row *row = named_row(sim, job, at);

        for (uint32_t k = 0; k < n_tensors_of(sim, c); k++) {
            row->values[k] = torn || job->doomed ? MEMORY_GARBAGE : job->old[at->row][k] + 1;
        }
        end_row(sim, row, c, at->row);
    }
}

void reservation_begin(struct sim *sim, struct job *job)
{
    if (job->command.kind == CST_COMMAND_UPDATE) {
        begin_update(sim, job);
    } else if (is_kept(sim, &job->command)) {
        begin_keep(sim, job);
    } else {
        begin_copy(sim, job);
    }
}

void reservation_end(struct sim *sim, struct job *job, bool torn)
{
    if (job->command.kind == CST_COMMAND_UPDATE) {
        end_update(sim, job, torn);
    } else if (is_kept(sim, &job->command)) {
        end_keep(sim, job, torn);
    } else {
        end_copy(sim, job, torn);
    }
}
