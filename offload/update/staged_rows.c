/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes of states in a tier whose engine only copies. Elements are converted in a buffer
 * of the tier's reservation, in which chunks are updated, by the engine of the chunk's node:
 *
 *   read    COPY up of what is read -> DECODE or JOIN to the staging segment
 *   write   SET_MASTER, or COPY up and ENCODE, in the buffer -> COPY down of what was written
 *
 * They take turns with updates. A buffer's next user waits for the last command of the one before,
 * as seen by the daemon, so that an engine that repeats a command after its death finds what the
 * command reads. They use the rows that an update reads, and not those that it writes: results of
 * an update that are being copied back are not touched. */
#include "offload/update/staged_rows.h"

#include "offload/books/chunk_update.h"
#include "offload/core/core_state.h"
#include "offload/gradient/device_choice.h"
#include "offload/update/staged_update.h"

#include <string.h>

/* Bytes of a row that are adjacent. */
struct range {
    uint64_t offset, bytes;
};

enum { MAX_RANGES = 2 };

/* Find the bytes of the elements [@first, @first + @n) of @row, from the beginning of the row on.
 * Of MX8 those are codes and exponents, of whole blocks. Returns the number of ranges. */
static uint32_t ranges_of(const struct cst_core *core, uint32_t c, enum cst_row row, uint64_t first,
                          uint64_t n, struct range out[MAX_RANGES])
{
    const struct cst_layout_states *states = &core->layout->states;
    uint64_t bytes = sizeof(float), n_row = core->layout->chunks[c].n_elems;

    if (cst_table_is_moment((int)row) && states->moments == CST_MOMENTS_MX8) {
        uint64_t begin = first / CST_MX8_BLOCK, end = (first + n - 1) / CST_MX8_BLOCK + 1;

        out[0] = (struct range){begin * CST_MX8_BLOCK, (end - begin) * CST_MX8_BLOCK};
        out[1] = (struct range){n_row + begin, end - begin};
        return 2;
    }
    if (cst_table_is_moment((int)row) ? states->moments == CST_MOMENTS_BF16
                                      : states->masters == CST_MASTERS_SPLIT) {
        bytes = sizeof(uint16_t);
    }
    out[0] = (struct range){bytes * first, bytes * n};
    return 1;
}

static struct cst_place ahead(struct cst_place place, uint64_t bytes)
{
    place.offset += bytes;
    return place;
}

static struct cst_place in_buffer(const struct cst_core *core, const struct cst_staged_rows *rows,
                                  enum cst_row row)
{
    const struct cst_device_reservation *reservation =
        &core->device_updates.reservations[rows->reservation];

    return (struct cst_place){.segment = reservation->segment,
                              .offset = rows->buffer * reservation->buffers.bytes +
                                        reservation->buffers.in[row]};
}

bool cst_staged_rows_serve(const struct cst_core *core, uint32_t c)
{
    uint32_t r =
        cst_tier_is_apart(core->chunks[c].tier) ? cst_device_choice_own(core, c) : CST_NONE;

    return r != CST_NONE && !cst_tier_is_apart(core->device_updates.reservations[r].engine);
}

struct cst_staged_rows cst_staged_rows_take(struct cst_core *core, uint32_t c, uint64_t first,
                                            uint64_t n_elems)
{
    uint32_t r = cst_device_choice_own(core, c);
    struct cst_device_reservation *reservation = &core->device_updates.reservations[r];
    struct cst_staged_rows rows = {.chunk = c,
                                   .first = first,
                                   .n_elems = n_elems,
                                   .reservation = r,
                                   .buffer = reservation->next};

    cst_staged_ahead_drop(reservation, rows.buffer);
    reservation->next = (reservation->next + 1) % reservation->buffers.n;
    return rows;
}

void cst_staged_rows_use(struct cst_core *core, struct cst_staged_rows *rows,
                         struct cst_command *command)
{
    uint64_t *down = core->device_updates.reservations[rows->reservation].down[rows->buffer];
    const struct cst_chunk *chunk = &core->chunks[rows->chunk];

    command->after_ack = true;
    if (rows->ticket != 0) {
        cst_command_after(command, rows->ticket);
    } else {
        for (uint32_t i = 0; i < CST_STAGED_UPDATE_COPIES_DOWN; i++) {
            cst_command_after(command, down[i]);
        }
        cst_chunk_update_before(command, &chunk->update);
        cst_command_after(command, chunk->writes.ticket);
    }
    memset(down, 0, CST_STAGED_UPDATE_COPIES_DOWN * sizeof *down);
    rows->ticket = down[0] = command->ticket;
}

/* Copy @range of @row to the buffer or, if @down, from there. */
static struct cst_command *copy(struct cst_core *core, struct cst_staged_rows *rows,
                                enum cst_row row, const struct range *range, bool down,
                                struct cst_flight *flight)
{
    struct cst_flight part = {.kind = CST_FLIGHT_PART, .chunk = rows->chunk};
    const struct cst_place tier =
                               ahead(cst_core_row_place(core, rows->chunk, row, 0), range->offset),
                           buffer = ahead(in_buffer(core, rows, row), range->offset);
    struct cst_command *command =
        cst_core_command(core, CST_COMMAND_COPY, cst_core_keeper(core, rows->chunk, row),
                         flight != NULL ? flight : &part);

    command->src[command->n_src++] = down ? buffer : tier;
    command->dst[command->n_dst++] = down ? tier : buffer;
    command->bytes = range->bytes;
    cst_staged_rows_use(core, rows, command);
    return command;
}

void cst_staged_rows_bring(struct cst_core *core, struct cst_staged_rows *rows, enum cst_row row)
{
    struct range ranges[MAX_RANGES];
    uint32_t n = ranges_of(core, rows->chunk, row, rows->first, rows->n_elems, ranges);

    for (uint32_t i = 0; i < n; i++) {
        (void)copy(core, rows, row, &ranges[i], false, NULL);
    }
}

struct cst_place cst_staged_rows_place(const struct cst_core *core,
                                       const struct cst_staged_rows *rows, enum cst_row row,
                                       uint64_t elem)
{
    struct range ranges[MAX_RANGES];

    (void)ranges_of(core, rows->chunk, row, elem, 1, ranges);
    return ahead(in_buffer(core, rows, row), ranges[0].offset);
}

struct cst_command *cst_staged_rows_store(struct cst_core *core, struct cst_staged_rows *rows,
                                          enum cst_row row, struct cst_flight *flight)
{
    struct range ranges[MAX_RANGES];
    uint32_t n = ranges_of(core, rows->chunk, row, rows->first, rows->n_elems, ranges);
    struct cst_command *last = NULL;

    for (uint32_t i = 0; i < n; i++) {
        last = copy(core, rows, row, &ranges[i], true, i + 1 < n ? NULL : flight);
    }
    return last;
}
