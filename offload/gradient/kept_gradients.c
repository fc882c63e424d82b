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
#include "offload/gradient/kept_gradients.h"

#include "offload/core/core_state.h"

#include <stdlib.h>

int cst_kept_gradients_open(struct cst_device_reservation *reservation)
{
    struct cst_kept_gradients *kept = &reservation->kept;

    kept->n_free = reservation->buffers.n_kept;
    kept->slots = calloc(kept->n_free + 1u, sizeof *kept->slots);
    kept->free = calloc(kept->n_free + 1u, sizeof *kept->free);
    if (kept->slots == NULL || kept->free == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t i = 0; i < kept->n_free; i++) {
        kept->slots[i].chunk = CST_NONE;
        kept->free[i] = i;
    }
    return CST_OK;
}

void cst_kept_gradients_close(struct cst_device_reservation *reservation)
{
    free(reservation->kept.slots);
    free(reservation->kept.free);
}

static struct cst_place place_of(const struct cst_device_reservation *reservation, uint32_t slot)
{
    return (struct cst_place){.segment = reservation->segment,
                              .offset = reservation->buffers.kept_first +
                                        slot * reservation->buffers.kept_bytes};
}

static void settle(struct cst_device_reservation *reservation, uint32_t slot)
{
    struct cst_kept_gradients *kept = &reservation->kept;

    if (kept->slots[slot].chunk == CST_NONE && kept->slots[slot].n_commands == 0) {
        kept->free[kept->n_free++] = slot;
    }
}

/* True if the chunk's next update is expected in the same device reservation as the last one. */
static bool is_expected(const struct cst_core *core, uint32_t c)
{
    const struct cst_chunk *chunk = &core->chunks[c];

    /* With a new k the chunk can belong to its node. */
    return chunk->update.reservation != CST_NONE &&
           !core->device_updates.reservations[chunk->update.reservation].given_up &&
           core->device_updates.interleave == core->device_updates.interleave_now &&
           chunk->kept == CST_NONE;
}

uint64_t cst_kept_gradients_keep(struct cst_core *core, uint32_t c, uint32_t rank)
{
    struct cst_device_reservation *reservation =
        rank != CST_NONE && is_expected(core, c)
            ? &core->device_updates.reservations[core->chunks[c].update.reservation]
            : NULL;
    struct cst_flight flight = {
        .kind = CST_FLIGHT_KEEP, .chunk = c, .rank = core->chunks[c].update.reservation};
    const struct cst_pool *pool;
    struct cst_command *copy;

    if (reservation == NULL || reservation->kept.n_free == 0 ||
        core->ranks[rank].pool.tier != reservation->engine ||
        !cst_buffers_hold(&reservation->buffers, &core->layout->chunks[c])) {
        return 0;
    }
    pool = &core->ranks[rank].pool;
    flight.block = reservation->kept.free[--reservation->kept.n_free];
    reservation->kept.slots[flight.block] =
        (struct cst_kept_gradients_slot){.chunk = c, .n_commands = 1};
    core->chunks[c].kept = flight.block;
    copy = cst_core_command(core, CST_COMMAND_COPY, reservation->engine, &flight);
    copy->may_fail = true;
    copy->priority = CST_PRIORITY_EVICTION;
    copy->src[copy->n_src++] = cst_pool_place(pool, pool->grad_of[c]);
    copy->dst[copy->n_dst++] = place_of(reservation, flight.block);
    copy->bytes = cst_layout_weight_bytes(&core->layout->chunks[c]);
    return copy->ticket;
}

struct cst_place cst_kept_gradients_use(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];
    struct cst_device_reservation *reservation =
        &core->device_updates.reservations[chunk->update.reservation];
    struct cst_kept_gradients_slot *slot = &reservation->kept.slots[chunk->kept];
    struct cst_place place = place_of(reservation, chunk->kept);

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
        core->device_updates.reservations[chunk->update.reservation].kept.slots[slot].chunk =
            CST_NONE;
        settle(&core->device_updates.reservations[chunk->update.reservation], slot);
        chunk->kept = CST_NONE;
    }
}

void cst_kept_gradients_done(struct cst_core *core, const struct cst_flight *flight)
{
    struct cst_device_reservation *reservation = &core->device_updates.reservations[flight->rank];

    reservation->kept.slots[flight->block].n_commands--;
    settle(reservation, flight->block);
}

const char *cst_kept_gradients_check(const struct cst_core *core)
{
    for (uint32_t r = 0; r < core->device_updates.n_reservations; r++) {
        const struct cst_device_reservation *reservation = &core->device_updates.reservations[r];
        uint32_t n_free = 0;

        for (uint32_t i = 0; i < reservation->buffers.n_kept; i++) {
            const struct cst_kept_gradients_slot *slot = &reservation->kept.slots[i];

            n_free += slot->chunk == CST_NONE && slot->n_commands == 0;
            if (slot->chunk != CST_NONE && (core->chunks[slot->chunk].kept != i ||
                                            core->chunks[slot->chunk].update.reservation != r)) {
                return "a gradient that is kept up is its chunk's";
            }
        }
        if (n_free != reservation->kept.n_free) {
            return "places for gradients that are kept up are counted";
        }
    }
    return NULL;
}
