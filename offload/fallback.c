/* SPDX-License-Identifier: Apache-2.0 */
/* Where a command of an update in a room fails, the job goes on without the room.
 *
 *   COPY up fails, or UPDATE      the chunk's rows are as they were, for nothing has come down: the
 *                                 node's engine updates it in place. What waits for the COPYs down,
 *                                 which come to nothing, waits for that instead
 *   COPY down fails               `out` is complete, the chunk's row is torn: it is copied again, a
 *                                 few times; then the job fails
 *   COPY of a gradient that is    it is not kept; the sum is made as it would have been
 *   to be kept there fails
 *
 * After some failures the room is given up, for this job; where its engine is gone, at once. Then
 * only those chunks are lost whose UPDATE was told to be complete: their rows may be half
 * overwritten, and what was to come is in memory that is gone. That ends the job, and names them.
 * So does an accelerator that fails states which are on it: they are updated there or not at all.
 */
#include "offload/updates.h"

#include <inttypes.h>
#include <stdio.h>

/* Of a room that was given up nobody wants to hear any more: what is under way there may fail all
 * at once. */
static void count(struct cst_core *core, uint32_t r, uint32_t c, const struct cst_event *event,
                  const char *then)
{
    struct cst_room *room = &core->rooms[r];

    room->n_failures++;
    if (room->given_up) {
        return;
    }
    cst_core_log(core, event->status,
                 "step %" PRIu64 ", chunk %" PRIu32 ": its update in the room of engine %" PRIu32
                 " failed (%" PRIu32 ". time there): %s; %s",
                 core->step, c, room->engine, room->n_failures, cst_event_words(event), then);
    if (room->n_failures == CST_ROOM_MAX_FAILURES) {
        cst_room_give_up(core, r);
        cst_core_log(core, CST_OK,
                     "the room of engine %" PRIu32 " is given up after %d failures: of %" PRIu64
                     " updates so far %" PRIu64 " were made on accelerators",
                     room->engine, CST_ROOM_MAX_FAILURES, core->n_updates, core->n_device_updates);
    }
}

/* Whatever it was to do: what has not come down yet is made by the nodes' engines. */
static void see_gone(struct cst_core *core, uint32_t r, const struct cst_event *event)
{
    struct cst_room *room = &core->rooms[r];

    if (cst_loss_is(event) && !room->given_up) {
        cst_room_give_up(core, r);
        cst_core_log(core, event->status,
                     "step %" PRIu64 ": the room of engine %" PRIu32
                     " is given up, which is gone: %s; of %" PRIu64 " updates so far %" PRIu64
                     " were made on accelerators",
                     core->step, room->engine, cst_event_words(event), core->n_updates,
                     core->n_device_updates);
    }
}

/* Of an update in a room. */
static bool is_there(const struct cst_flight *flight)
{
    return flight->kind == CST_FLIGHT_AWAY || flight->kind == CST_FLIGHT_ROOM || flight->down;
}

bool cst_fallback_begin(struct cst_core *core, const struct cst_flight *flight,
                        const struct cst_event *event)
{
    const struct cst_chunk *chunk = &core->chunks[flight->chunk];
    bool away = flight->kind == CST_FLIGHT_AWAY;

    if (core->phase == CST_PHASE_FAILED || chunk->device != 0) {
        return false;
    }
    if (is_there(flight)) {
        see_gone(core, flight->rank, event);
    }
    if (flight->kind == CST_FLIGHT_ROOM) {
        return true; /* its UPDATE fails with it, or has failed */
    }
    if (away) {
        count(core, flight->rank, flight->chunk, event, "its node's engine makes it");
        cst_room_leave(core, flight->chunk);
        cst_update_return(core, flight->chunk);
        return true;
    }
    if (flight->down && !cst_loss_is(event) && flight->tries + 1 < CST_ROOM_MAX_TRIES) {
        count(core, flight->rank, flight->chunk, event, "the row is copied again");
        cst_room_copy_again(core, flight);
        return true;
    }
    return false;
}

void cst_fallback_kept(struct cst_core *core, const struct cst_flight *flight,
                       const struct cst_event *event)
{
    if (core->rooms[flight->rank].held.slots[flight->block].chunk == flight->chunk) {
        cst_held_drop(core, flight->chunk);
    }
    if (core->phase != CST_PHASE_FAILED) {
        see_gone(core, flight->rank, event);
        count(core, flight->rank, flight->chunk, event, "the gradient comes up again");
    }
}

/* -- the end ---------------------------------------------------------------------------------- */

/* The states of the chunk are on @engine's accelerator, or on their way from it. */
static bool is_lost(const struct cst_core *core, uint32_t c, uint32_t engine)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    bool comes = chunk->room != CST_NONE && chunk->comes && !cst_update_is_over(chunk);

    return chunk->device == engine || (comes && core->rooms[chunk->room].engine == engine);
}

static void break_lost(struct cst_core *core, uint32_t engine)
{
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        core->chunks[c].broken = core->chunks[c].broken || is_lost(core, c, engine);
    }
}

/* "3, 5-9", or the first of them and "...": what is lost with the engine of @flight's room. */
static void name_lost(const struct cst_core *core, const struct cst_flight *flight, char *text,
                      size_t size)
{
    uint32_t engine = core->rooms[flight->rank].engine;
    size_t n = 0;

    text[0] = '\0';
    for (uint32_t c = 0; c < core->n_chunks && n < size; c++) {
        uint32_t last = c;

        while (last < core->n_chunks && (last == flight->chunk || is_lost(core, last, engine))) {
            last++;
        }
        if (last-- == c) {
            continue;
        }
        if (n + 32 > size) {
            (void)snprintf(text + n, size - n, ", ...");
            return;
        }
        n += (size_t)snprintf(text + n, size - n, "%s%" PRIu32, n > 0 ? ", " : "", c);
        if (last > c) {
            n += (size_t)snprintf(text + n, size - n, "-%" PRIu32, last);
        }
        c = last;
    }
}

void cst_fallback_fail(struct cst_core *core, const struct cst_flight *flight,
                       const struct cst_event *event)
{
    char lost[128];
    struct cst_err why;

    core->chunks[flight->chunk].broken = true;
    if (!is_there(flight) || !cst_loss_is(event)) {
        cst_ranks_fail_command(core, event, "update", flight->chunk);
        return;
    }
    break_lost(core, core->rooms[flight->rank].engine);
    name_lost(core, flight, lost, sizeof lost);
    (void)cst_err_set(&why, event->status,
                      "update of chunk %" PRIu32 " failed in step %" PRIu64
                      ": %.160s; lost with it are states of these chunks, which were there or on "
                      "their way home: %s",
                      flight->chunk, core->step, cst_event_words(event), lost);
    cst_ranks_fail(core, &why);
}
