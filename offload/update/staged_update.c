/* SPDX-License-Identifier: Apache-2.0 */
/* Staged updates: rows in, update, rows out. A chunk that gets one (device_choice.c) is updated in
 * a buffer of a device reservation. There are two reasons: an accelerator makes the update while
 * the engines of the nodes update other chunks (Deep Optimizer States); or the states are in a tier
 * that nobody can compute in, and are brought to host memory for the update.
 *
 *   COPY up x4 ----> UPDATE ----> COPY down: weight      (what fetches wait for)
 *   grad, master,    in -> out    COPY down: master, exp_avg, exp_avg_sq
 *   exp_avg(_sq)                  COPY down: weight, to a file that must have it (durable jobs)
 *   and weight, if it is (a part of) the master weights
 *
 * Where a row comes from does not matter. If its tier is that of the buffer there is no COPY up,
 * and UPDATE reads the row in its place. Otherwise one of both tiers is host memory, and the engine
 * of the other one copies.
 *
 * All commands are issued at once; `after` makes their order. An engine that dies repeats the
 * commands whose completion the daemon has not seen, so nothing may overwrite what such a command
 * would read:
 *
 *   - COPY up into a buffer overwrites `in` of the UPDATE before, and lets the next UPDATE
 *     overwrite `out` of the COPYs down before. So it waits until the daemon has seen the
 *     completions of these COPYs.
 *   - COPY down overwrites the rows that COPY up has read. So it waits until the daemon has seen
 *     the completion of UPDATE, and therefore of the COPYs up.
 *   - For the same reason the gradient's row is free for the next sum after the last COPY down.
 *   - If there is no COPY up, UPDATE waits instead.
 *   - UPDATE must not read what a failed COPY up did not bring. After a restart an engine does not
 *     know of the failure. So UPDATE waits until the daemon has seen the completions of the COPYs
 *     up.
 *
 * UPDATE writes to `out` and does not change what it reads. So until its COPYs down have begun, the
 * rows of the chunk are unchanged, and from then on the new rows are complete in `out`. */
#include "offload/update/staged_update.h"

#include "offload/core/core_state.h"
#include "offload/gradient/device_choice.h"
#include "offload/books/exposure.h"
#include "offload/weights/residency.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define N_UP (CST_UPDATE_STATES + 2) /* COPYs up: states, gradient, weights. */

/* The rows that lie apart, in their order: the states, then the weights in a file. */
static enum cst_row state_row(uint32_t i)
{
    return (enum cst_row)(CST_ROW_MASTER + i);
}

static int check_devices(const struct cst_core *core, struct cst_err *err)
{
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        uint32_t tier = core->layout->chunks[c].tier;

        if (cst_tier_is_apart(tier) && cst_device_choice_own(core, c) == CST_NONE) {
            return cst_err_set(err, CST_EINVAL,
                               "chunk %" PRIu32 " of %" PRIu64
                               " elements has its states in the memory of engine %" PRIu32
                               ", and there is no memory to update it (device_update_bytes)",
                               c, core->layout->chunks[c].n_elems, tier);
        }
    }
    return CST_OK;
}

static int open_reservation(struct cst_core *core, const struct cst_core_config *config, uint32_t i,
                            struct cst_err *err)
{
    struct cst_device_reservation *reservation =
        &core->device_updates.reservations[core->device_updates.n_reservations++];
    int rc = CST_OK;

    cst_staged_ahead_open(reservation);
    reservation->engine = config->reservations[i].engine;
    reservation->home = cst_core_reservation_home(&config->reservations[i]);
    reservation->segment = config->reservations[i].segment;
    if (config->reservations[i].lent) {
        rc = cst_lent_memory_open(core, reservation, config, i, err);
    } else {
        cst_buffers_divide(&reservation->buffers, core->layout, config->reservations[i].bytes);
    }
    if (!cst_tier_is_apart(reservation->engine)) {
        reservation->buffers.n_kept = 0; /* Gradients are in host memory anyhow. */
    }
    if (rc == CST_OK && cst_kept_gradients_open(reservation) != CST_OK) {
        rc = cst_err_set(err, CST_ENOMEM, "no memory for the books of a device reservation");
    }
    return rc;
}

int cst_device_updates_open(struct cst_core *core, const struct cst_core_config *config,
                            struct cst_err *err)
{
    int rc = CST_OK;

    if (config->n_reservations > CST_CORE_MAX_UPDATE_DEVICES) {
        return cst_err_set(err, CST_EINVAL,
                           "%" PRIu32 " device reservations: at most %d are allowed",
                           config->n_reservations, CST_CORE_MAX_UPDATE_DEVICES);
    }
    for (uint32_t i = 0; i < config->n_reservations && rc == CST_OK; i++) {
        rc = open_reservation(core, config, i, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    core->device_updates.in_order = calloc(core->n_nodes, sizeof *core->device_updates.in_order);
    if (core->device_updates.in_order == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %" PRIu32 " chunks", core->n_chunks);
    }
    core->device_updates.interleave = config->interleave;
    core->device_updates.order_ended = true;
    return check_devices(core, err);
}

void cst_device_updates_close(struct cst_core *core)
{
    for (uint32_t i = 0; i < core->device_updates.n_reservations; i++) {
        cst_kept_gradients_close(&core->device_updates.reservations[i]);
    }
    free(core->device_updates.in_order);
}

/* -- commands ---------------------------------------------------------------------------------- */

/* True if the chunk has row @row where its states are. */
static bool has_row(const struct cst_core *core, uint32_t c, enum cst_row row)
{
    return (int)row < cst_layout_rows_apart(core->layout) &&
           cst_layout_row(&core->layout->chunks[c], (int)row)->segment != CST_LAYOUT_NO_ROW;
}

static uint64_t row_bytes(const struct cst_core *core, uint32_t c, enum cst_row row)
{
    const struct cst_layout_chunk *chunk = &core->layout->chunks[c];

    return row == CST_ROW_GRAD
               ? cst_layout_grad_bytes(core->layout, chunk)
               : cst_layout_chunk_row_bytes(core->layout, chunk, (int)row, chunk->n_elems);
}

/* The place at @offset of buffer @buffer. */
static struct cst_place place_of(const struct cst_core *core,
                                 const struct cst_device_reservation *reservation, uint32_t buffer,
                                 uint64_t offset)
{
    if (reservation->lent.on) {
        return cst_lent_memory_place(core, reservation, buffer, offset);
    }
    return (struct cst_place){.segment = reservation->segment,
                              .offset = buffer * reservation->buffers.bytes + offset};
}

static struct cst_place place_in(const struct cst_core *core,
                                 const struct cst_device_reservation *reservation, enum cst_row row)
{
    return place_of(core, reservation, reservation->next, reservation->buffers.in[row]);
}

static struct cst_place place_out(const struct cst_core *core,
                                  const struct cst_device_reservation *reservation, uint32_t buffer,
                                  enum cst_row row)
{
    bool weights = (int)row == CST_ROW_WEIGHT_OTHER;

    return place_of(core, reservation, buffer,
                    reservation->buffers.out[weights ? CST_ROW_WEIGHT : row]);
}

/* The tier that has @row of the chunk. */
static uint32_t tier_of(const struct cst_core *core, uint32_t c, enum cst_row row)
{
    bool apart = row >= CST_ROW_MASTER && (int)row < cst_layout_rows_apart(core->layout);

    return apart ? core->chunks[c].tier : CST_TIER_HOST;
}

/* True if the row need not be brought to the buffer: UPDATE reads it where it is. */
static bool is_there(const struct cst_core *core, const struct cst_device_reservation *reservation,
                     uint32_t c, enum cst_row row)
{
    return tier_of(core, c, row) == reservation->engine;
}

/* The engine that works on memory of @tier for the chunk. */
static uint32_t engine_of(const struct cst_core *core, uint32_t c, uint32_t tier)
{
    return cst_tier_is_apart(tier) ? tier : core->layout->chunks[c].node;
}

/* The engine that copies the row to the buffer and back. */
static uint32_t carrier_of(const struct cst_core *core,
                           const struct cst_device_reservation *reservation, uint32_t c,
                           enum cst_row row)
{
    uint32_t tier = tier_of(core, c, row);

    return engine_of(core, c, cst_tier_is_apart(tier) ? tier : reservation->engine);
}

/* Issue a command for @engine that uses @flight's buffer of the device reservation @r. */
static struct cst_command *command_of(struct cst_core *core, uint32_t r, enum cst_command_kind kind,
                                      uint32_t engine, struct cst_flight flight)
{
    flight.rank = r;
    cst_lent_memory_issued(&core->device_updates.reservations[r], flight.buffer);
    return cst_core_command(core, kind, engine, &flight);
}

static uint32_t number_of(const struct cst_core *core,
                          const struct cst_device_reservation *reservation)
{
    return (uint32_t)(reservation - core->device_updates.reservations);
}

/* Make @command the first one that uses the next buffer. It waits until the last chunk has left the
 * buffer and the chunk's own last update is complete, both as seen by the daemon. */
static void enter(const struct cst_core *core, const struct cst_device_reservation *reservation,
                  uint32_t c, struct cst_command *command)
{
    command->after_ack = true;
    for (uint32_t i = 0; i < CST_STAGED_UPDATE_COPIES_DOWN; i++) {
        cst_command_after(command, reservation->down[reservation->next][i]);
    }
    cst_chunk_update_before(command, &core->chunks[c].update);
}

uint64_t cst_staged_update_copy_up(struct cst_core *core,
                                   const struct cst_device_reservation *reservation, uint32_t c,
                                   enum cst_row row, enum cst_row named, uint64_t mark,
                                   enum cst_flight_kind kind)
{
    struct cst_flight flight = {
        .kind = kind, .chunk = c, .block = CST_NONE, .buffer = reservation->next};
    struct cst_command *copy = command_of(core, number_of(core, reservation), CST_COMMAND_COPY,
                                          carrier_of(core, reservation, c, row), flight);

    copy->priority = CST_PRIORITY_PREFETCH;
    copy->src[copy->n_src++] = cst_table_is_state((int)row)
                                   ? cst_core_state_place(core, c, row, mark)
                                   : cst_core_row_place(core, c, row, 0);
    copy->dst[copy->n_dst++] = place_in(core, reservation, named);
    copy->bytes = row_bytes(core, c, row);
    enter(core, reservation, c, copy);
    return copy->ticket;
}

/* Copy up what the update @what reads: states are those after the update before. */
static uint64_t copy_up(struct cst_core *core, const struct cst_device_reservation *reservation,
                        const struct cst_update *what, enum cst_row row, enum cst_row named)
{
    return cst_staged_update_copy_up(core, reservation, what->chunk, row, named, what->mark - 1,
                                     CST_FLIGHT_DEVICE_UPDATE);
}

static void name_row(struct cst_command_row *rows, uint32_t *n, enum cst_row row,
                     struct cst_place place)
{
    rows[(*n)++] = (struct cst_command_row){.row = row, .place = place};
}

/* The place of the gradient for the update: kept in the device reservation, where it is, or copied
 * up now. */
static struct cst_place bring_grad(struct cst_core *core,
                                   const struct cst_device_reservation *reservation,
                                   const struct cst_update *what, uint64_t *ticket)
{
    const uint32_t c = what->chunk;

    if (core->chunks[c].kept != CST_NONE) {
        *ticket = 0;
        return cst_kept_gradients_use(core, c);
    }
    if (is_there(core, reservation, c, CST_ROW_GRAD)) {
        *ticket = 0;
        return cst_core_row_place(core, c, CST_ROW_GRAD, 0);
    }
    *ticket = copy_up(core, reservation, what, CST_ROW_GRAD, CST_ROW_GRAD);
    return place_in(core, reservation, CST_ROW_GRAD);
}

/* The row of the weights before the update: of two weight rows the one that is not written. */
static enum cst_row weights_before(const struct cst_core *core, const struct cst_update *what)
{
    struct cst_place first = cst_core_row_place(core, what->chunk, CST_ROW_WEIGHT, 0);
    bool written = first.segment == what->weight.segment && first.offset == what->weight.offset;

    return core->two_weights && written ? CST_ROW_WEIGHT_OTHER : CST_ROW_WEIGHT;
}

/* The place of the weights before the update: where they are, or copied up now. */
static struct cst_place bring_weights(struct cst_core *core,
                                      const struct cst_device_reservation *reservation,
                                      const struct cst_update *what, uint64_t *ticket)
{
    enum cst_row row = weights_before(core, what);

    if (is_there(core, reservation, what->chunk, row)) {
        *ticket = 0;
        return cst_core_row_place(core, what->chunk, row, 0);
    }
    *ticket = copy_up(core, reservation, what, row, CST_ROW_WEIGHT);
    return place_in(core, reservation, CST_ROW_WEIGHT);
}

static uint64_t update_there(struct cst_core *core,
                             const struct cst_device_reservation *reservation,
                             const struct cst_update *what)
{
    struct cst_flight flight = {.kind = CST_FLIGHT_UPDATE_ON_DEVICE,
                                .chunk = what->chunk,
                                .block = core->chunks[what->chunk].kept,
                                .buffer = reservation->next};
    const struct cst_staged_ahead *ahead = &reservation->ahead[reservation->next];
    uint64_t up[N_UP] = {0};
    bool brought[CST_UPDATE_STATES],
        reads_weights = cst_layout_reads_weights(core->layout, &core->layout->chunks[what->chunk]);
    struct cst_place weights;
    struct cst_place grad = bring_grad(core, reservation, what, &up[CST_UPDATE_STATES]);
    struct cst_command *update;

    for (uint32_t i = 0; i < CST_UPDATE_STATES; i++) {
        brought[i] = !is_there(core, reservation, what->chunk, state_row(i)) &&
                     has_row(core, what->chunk, state_row(i));
        if (brought[i]) {
            up[i] = ahead->chunk == what->chunk
                        ? ahead->up[i]
                        : copy_up(core, reservation, what, state_row(i), state_row(i));
        }
    }
    if (reads_weights) {
        weights = bring_weights(core, reservation, what, &up[N_UP - 1]);
    }
    update = command_of(core, number_of(core, reservation), CST_COMMAND_UPDATE,
                        engine_of(core, what->chunk, reservation->engine), flight);
    cst_chunk_update_fill(core, update, what);
    update->after_ack = true;
    if (core->layout->chunks[what->chunk].muon) {
        update->dst[update->n_dst++] =
            place_of(core, reservation, reservation->next, reservation->buffers.scratch);
    }
    name_row(update->in, &update->n_in, CST_ROW_GRAD, grad);
    name_row(update->out, &update->n_out, CST_ROW_WEIGHT,
             place_out(core, reservation, reservation->next, CST_ROW_WEIGHT));
    for (uint32_t i = 0; i < N_UP; i++) {
        cst_command_after(update, up[i]);
    }
    /* Everything is there already, so UPDATE itself is the first command that uses the
     * buffer. */
    if (update->n_after == 0) {
        enter(core, reservation, what->chunk, update);
    }
    if (reads_weights) {
        name_row(update->in, &update->n_in, CST_ROW_WEIGHT, weights);
    }
    for (uint32_t i = 0; i < CST_UPDATE_STATES; i++) {
        /* Otherwise the table names the row's place: it is there, or does not exist. */
        if (brought[i]) {
            name_row(update->in, &update->n_in, state_row(i),
                     place_in(core, reservation, state_row(i)));
        }
        if (has_row(core, what->chunk, state_row(i))) {
            name_row(update->out, &update->n_out, state_row(i),
                     place_out(core, reservation, reservation->next, state_row(i)));
        }
    }
    return update->ticket;
}

/* Copy a row of the chunk down from its buffer; the caller adds the commands to wait for. A failure
 * is may_fail if the copy can be repeated. */
static struct cst_command *copy_down(struct cst_core *core, uint32_t c, enum cst_row row,
                                     uint32_t tries)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    const struct cst_device_reservation *reservation =
        &core->device_updates.reservations[chunk->update.reservation];
    bool weight = row == CST_ROW_WEIGHT;
    struct cst_flight flight = {.kind = weight ? CST_FLIGHT_UPDATE : CST_FLIGHT_STATES,
                                .chunk = c,
                                .buffer = chunk->update.buffer,
                                .down = true,
                                .tries = tries};
    struct cst_command *copy = command_of(core, chunk->update.reservation, CST_COMMAND_COPY,
                                          carrier_of(core, reservation, c, row), flight);

    copy->priority = weight ? CST_PRIORITY_DEMAND : CST_PRIORITY_EVICTION;
    copy->src[copy->n_src++] = place_out(core, reservation, chunk->update.buffer, row);
    copy->dst[copy->n_dst++] = weight ? chunk->update.what.weight
                                      : cst_core_state_place(core, c, row, chunk->update.what.mark);
    copy->bytes = row_bytes(core, c, row);
    copy->sums = core->seal.on && !weight;
    copy->after_ack = true;
    copy->may_fail = !cst_tier_is_apart(chunk->tier) && tries + 1 < CST_STAGED_UPDATE_MAX_TRIES;
    return copy;
}

static uint64_t copy_down_after(struct cst_core *core, uint32_t c, enum cst_row row,
                                uint64_t update)
{
    struct cst_command *copy = copy_down(core, c, row, 0);

    cst_command_after(copy, update);
    cst_exposure_issued(core);
    return copy->ticket;
}

/* Issue the COPYs of what UPDATE @update (0: it is done) has left of @what in @buffer. */
static void copy_all_down(struct cst_core *core, struct cst_device_reservation *reservation,
                          uint32_t buffer, const struct cst_update *what, uint64_t update)
{
    struct cst_chunk *chunk = &core->chunks[what->chunk];
    uint64_t *down = reservation->down[buffer];

    cst_chunk_update_begin_device(chunk, what, buffer);
    down[0] = copy_down_after(core, what->chunk, CST_ROW_WEIGHT, update);
    for (uint32_t i = 0; i < CST_UPDATE_APART; i++) {
        down[i + 1] = has_row(core, what->chunk, state_row(i))
                          ? copy_down_after(core, what->chunk, state_row(i), update)
                          : 0;
    }
    cst_chunk_update_issued_down(chunk, down);
}

void cst_staged_update_update(struct cst_core *core, uint32_t r, const struct cst_update *what)
{
    struct cst_device_reservation *reservation = &core->device_updates.reservations[r];
    uint64_t update;

    uint32_t ahead = cst_staged_ahead_find(reservation, what->chunk);

    if (reservation->lent.on) {
        cst_lent_memory_take(core, reservation);
    }
    reservation->next = ahead != CST_NONE ? ahead : reservation->next;
    update = update_there(core, reservation, what);
    cst_staged_ahead_drop(reservation, reservation->next);
    copy_all_down(core, reservation, reservation->next, what, update);
    reservation->next = (reservation->next + 1) % reservation->buffers.n;
}

bool cst_staged_update_move(struct cst_core *core, uint32_t c)
{
    static const uint64_t none[CST_STAGED_UPDATE_COPIES_DOWN] = {0};
    struct cst_chunk *chunk = &core->chunks[c];
    struct cst_device_reservation *reservation =
        &core->device_updates.reservations[chunk->update.reservation];
    uint64_t from[CST_STAGED_UPDATE_COPIES_DOWN] = {chunk->update.ticket};
    uint64_t update, *down;

    if (!cst_lent_memory_join(reservation)) {
        return false;
    }
    memcpy(from + 1, chunk->update.states_tickets, sizeof chunk->update.states_tickets);
    cst_chunk_update_issued_down(chunk, none); /* The new commands do not wait for the old ones. */
    update = update_there(core, reservation, &chunk->update.what);
    chunk->update.buffer = reservation->next;
    down = reservation->down[reservation->next];
    for (uint32_t i = 0; i < CST_STAGED_UPDATE_COPIES_DOWN; i++) {
        struct cst_command *copy =
            from[i] != 0 ? copy_down(core, c, i == 0 ? CST_ROW_WEIGHT : state_row(i - 1), 0) : NULL;

        down[i] = copy != NULL ? copy->ticket : 0;
        if (copy != NULL) {
            cst_command_after(copy, update);
            cst_core_replace(core, copy, from[i]);
            cst_exposure_replaced(core, 1);
        }
    }
    cst_chunk_update_issued_down(chunk, down);
    (void)cst_chunk_update_replace(chunk, from[0], down[0]); /* The ticket that fetches wait for. */
    cst_residency_replaced(core, c, from[0], down[0]);
    reservation->next = (reservation->next + 1) % reservation->buffers.n;
    return true;
}

void cst_staged_update_done(struct cst_core *core, uint32_t c)
{
    const struct cst_chunk_update *update = &core->chunks[c].update;

    core->device_updates.reservations[update->reservation].user[update->buffer] = c;
    cst_chunk_update_copying_back(&core->chunks[c]);
}

const struct cst_update *cst_staged_update_copying(const struct cst_core *core, uint32_t r,
                                                   uint32_t buffer)
{
    const struct cst_device_reservation *reservation = &core->device_updates.reservations[r];
    const struct cst_chunk *chunk = &core->chunks[reservation->user[buffer]];
    bool copying = chunk->update.where == CST_UPDATE_COPYING_BACK &&
                   chunk->update.reservation == r && chunk->update.buffer == buffer &&
                   !cst_chunk_update_is_over(&chunk->update);

    return copying ? &chunk->update.what : NULL;
}

void cst_staged_update_copy_back(struct cst_core *core, uint32_t r, uint32_t buffer,
                                 const struct cst_update *what)
{
    struct cst_device_reservation *reservation = &core->device_updates.reservations[r];

    cst_chunk_update_place(&core->chunks[what->chunk], CST_UPDATE_ON_DEVICE, r);
    if (reservation->lent.on) {
        cst_lent_memory_occupy(core, reservation, buffer);
    }
    copy_all_down(core, reservation, buffer, what, 0);
    cst_staged_update_done(core, what->chunk);
}

/* -- failures --------------------------------------------------------------------------------- */

/* In the list of commands that the next user of @buffer waits for, replace @from by @to; 0: by
 * nothing. */
static void rename_down(struct cst_device_reservation *reservation, uint32_t buffer, uint64_t from,
                        uint64_t to)
{
    for (uint32_t i = 0; i < CST_STAGED_UPDATE_COPIES_DOWN; i++) {
        if (reservation->down[buffer][i] == from) {
            reservation->down[buffer][i] = to;
        }
    }
}

void cst_staged_update_count_failure(struct cst_core *core, uint32_t r)
{
    core->device_updates.reservations[r].n_failures++;
}

void cst_staged_update_give_up(struct cst_core *core, uint32_t r)
{
    core->device_updates.reservations[r].given_up = true;
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        if (core->chunks[c].update.reservation == r) {
            cst_kept_gradients_drop(core, c);
        }
    }
}

void cst_staged_update_vacate(struct cst_core *core, uint32_t c)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    struct cst_device_reservation *reservation =
        &core->device_updates.reservations[chunk->update.reservation];

    assert(chunk->update.reservation != CST_NONE);
    rename_down(reservation, chunk->update.buffer, chunk->update.ticket, 0);
    for (uint32_t i = 0; i < CST_UPDATE_APART; i++) {
        rename_down(reservation, chunk->update.buffer, chunk->update.states_tickets[i], 0);
    }
}

void cst_staged_update_copy_again(struct cst_core *core, const struct cst_flight *flight)
{
    struct cst_chunk *chunk = &core->chunks[flight->chunk];
    enum cst_row row = CST_ROW_WEIGHT;
    struct cst_command *copy;

    assert(chunk->update.reservation != CST_NONE);
    for (uint32_t i = 0; i < CST_UPDATE_APART && flight->kind == CST_FLIGHT_STATES; i++) {
        if (chunk->update.states_tickets[i] == flight->ticket) {
            row = state_row(i);
        }
    }
    copy = copy_down(core, flight->chunk, row, flight->tries + 1);
    copy->replaces[copy->n_replaces++] = flight->ticket;
    rename_down(&core->device_updates.reservations[chunk->update.reservation], chunk->update.buffer,
                flight->ticket, copy->ticket);
    (void)cst_chunk_update_replace(chunk, flight->ticket, copy->ticket);
    cst_residency_replaced(core, flight->chunk, flight->ticket, copy->ticket);
    cst_exposure_replaced(core, 1);
}
