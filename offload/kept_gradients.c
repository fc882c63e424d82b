/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that stay on an accelerator. A copy of a chunk's gradient is kept in the part of a
 * device reservation that its buffers leave free, if the whole gradient is one contribution in the
 * pool of that accelerator, and the chunk's last update was a device update there. The gradient
 * then need not be copied up for the update.
 *
 *   block --COPY--> slot --UPDATE--> (free)        The sum in the grad row has the same bits: one
 *     \--REDUCE--> grad row                        contribution is its own sum.
 *
 * A slot is free again when no chunk needs its contents and all commands that read or wrote it are
 * known to be complete. A kept gradient is void when its collection ends or its copy fails. */
#include "offload/kept_gradients.h"

#include "offload/core_state.h"

#include <stdlib.h>

int cst_kept_gradients_open(struct cst_room *room)
{
    struct cst_held *held = &room->held;

    held->n_free = room->buffers.n_held;
    held->slots = calloc(held->n_free + 1u, sizeof *held->slots);
    held->free = calloc(held->n_free + 1u, sizeof *held->free);
    if (held->slots == NULL || held->free == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t i = 0; i < held->n_free; i++) {
        held->slots[i].chunk = CST_NONE;
        held->free[i] = i;
    }
    return CST_OK;
}

void cst_kept_gradients_close(struct cst_room *room)
{
    free(room->held.slots);
    free(room->held.free);
}

static struct cst_place place_of(const struct cst_room *room, uint32_t slot)
{
    return (struct cst_place){.segment = room->segment,
                              .offset = room->buffers.held_first + slot * room->buffers.held_bytes};
}

static void settle(struct cst_room *room, uint32_t slot)
{
    struct cst_held *held = &room->held;

    if (held->slots[slot].chunk == CST_NONE && held->slots[slot].n_commands == 0) {
        held->free[held->n_free++] = slot;
    }
}

/* True if the chunk's next update is expected in the same device reservation as the last one. */
static bool is_expected(const struct cst_core *core, uint32_t c)
{
    const struct cst_chunk *chunk = &core->chunks[c];

    /* With a new k the chunk can belong to its node. */
    return chunk->update.room != CST_NONE &&
           !core->device_updates.rooms[chunk->update.room].given_up &&
           core->device_updates.interleave == core->device_updates.interleave_now &&
           chunk->kept == CST_NONE;
}

uint64_t cst_kept_gradients_keep(struct cst_core *core, uint32_t c, uint32_t rank)
{
    struct cst_room *room = rank != CST_NONE && is_expected(core, c)
                                ? &core->device_updates.rooms[core->chunks[c].update.room]
                                : NULL;
    struct cst_flight flight = {
        .kind = CST_FLIGHT_HELD, .chunk = c, .rank = core->chunks[c].update.room};
    const struct cst_pool *pool;
    struct cst_command *copy;

    if (room == NULL || room->held.n_free == 0 || core->ranks[rank].pool.engine != room->engine ||
        core->layout->chunks[c].n_elems > room->buffers.max_elems) {
        return 0;
    }
    pool = &core->ranks[rank].pool;
    flight.block = room->held.free[--room->held.n_free];
    room->held.slots[flight.block] = (struct cst_kept_gradients_slot){.chunk = c, .n_commands = 1};
    core->chunks[c].kept = flight.block;
    copy = cst_core_command(core, CST_COMMAND_COPY, room->engine, &flight);
    copy->may_fail = true;
    copy->priority = CST_PRIORITY_EVICTION;
    copy->src[copy->n_src++] = cst_pool_place(pool, pool->grad_of[c]);
    copy->dst[copy->n_dst++] = place_of(room, flight.block);
    copy->bytes = 2 * core->layout->chunks[c].n_elems;
    return copy->ticket;
}

struct cst_place cst_kept_gradients_use(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];
    struct cst_room *room = &core->device_updates.rooms[chunk->update.room];
    struct cst_kept_gradients_slot *slot = &room->held.slots[chunk->kept];
    struct cst_place place = place_of(room, chunk->kept);

    slot->chunk = CST_NONE;
    slot->n_commands++;
    chunk->kept = CST_NONE;
    return place;
}

void cst_kept_gradients_drop(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];
    uint32_t slot = chunk->kept;

    if (slot != CST_NONE) {
        core->device_updates.rooms[chunk->update.room].held.slots[slot].chunk = CST_NONE;
        settle(&core->device_updates.rooms[chunk->update.room], slot);
        chunk->kept = CST_NONE;
    }
}

void cst_kept_gradients_done(struct cst_core *core, const struct cst_flight *flight)
{
    struct cst_room *room = &core->device_updates.rooms[flight->rank];

    room->held.slots[flight->block].n_commands--;
    settle(room, flight->block);
}

const char *cst_kept_gradients_check(const struct cst_core *core)
{
    for (uint32_t r = 0; r < core->device_updates.n_rooms; r++) {
        const struct cst_room *room = &core->device_updates.rooms[r];
        uint32_t n_free = 0;

        for (uint32_t i = 0; i < room->buffers.n_held; i++) {
            const struct cst_kept_gradients_slot *slot = &room->held.slots[i];

            n_free += slot->chunk == CST_NONE && slot->n_commands == 0;
            if (slot->chunk != CST_NONE && (core->chunks[slot->chunk].kept != i ||
                                            core->chunks[slot->chunk].update.room != r)) {
                return "a gradient that is kept up is its chunk's";
            }
        }
        if (n_free != room->held.n_free) {
            return "places for gradients that are kept up are counted";
        }
    }
    return NULL;
}
