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
 * After some failures the room is given up, for this job. States that are on an accelerator are
 * updated there or not at all, and an accelerator that is gone is no room that fails: both end the
 * job. */
#include "offload/updates.h"

#include <inttypes.h>

static void count(struct cst_core *core, uint32_t r, uint32_t c, const struct cst_event *event,
                  const char *then)
{
    struct cst_room *room = &core->rooms[r];

    room->n_failures++;
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

/* The engine gave it back, but will not do anything else either. */
static bool is_gone(const struct cst_event *event)
{
    return event->status == CST_ELOST || event->status == CST_EENGINE;
}

bool cst_fallback_begin(struct cst_core *core, const struct cst_flight *flight,
                        const struct cst_event *event)
{
    const struct cst_chunk *chunk = &core->chunks[flight->chunk];

    if (core->phase == CST_PHASE_FAILED || chunk->device != 0 || is_gone(event)) {
        return false;
    }
    if (flight->kind == CST_FLIGHT_ROOM) {
        return true; /* its UPDATE fails with it, or has failed */
    }
    if (flight->kind == CST_FLIGHT_AWAY) {
        count(core, flight->rank, flight->chunk, event, "its node's engine makes it");
        cst_room_leave(core, flight->chunk);
        cst_update_return(core, flight->chunk);
        return true;
    }
    if (flight->down && flight->tries + 1 < CST_ROOM_MAX_TRIES) {
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
        count(core, flight->rank, flight->chunk, event, "the gradient comes up again");
    }
}
