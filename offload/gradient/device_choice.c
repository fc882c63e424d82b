/* SPDX-License-Identifier: Apache-2.0 */
/* Every k-th chunk of each node, in the order of updates, gets a device update. Chunks are counted
 * per node; if they were counted together, all chunks with device updates could belong to one
 * node. */
#include "offload/gradient/device_choice.h"

#include "offload/core/core_state.h"
#include "offload/gradient/kept_gradients.h"

#include <string.h>

static bool holds(const struct cst_core *core, uint32_t r, uint32_t c)
{
    return cst_buffers_hold(&core->device_updates.reservations[r].buffers,
                            &core->layout->chunks[c]);
}

uint32_t cst_device_choice_own(const struct cst_core *core, uint32_t c)
{
    for (uint32_t r = 0; r < core->device_updates.n_reservations; r++) {
        if (core->device_updates.reservations[r].home == core->layout->chunks[c].tier &&
            !core->device_updates.reservations[r].lent.on && holds(core, r, c)) {
            return r;
        }
    }
    return CST_NONE;
}

void cst_core_set_interleave(struct cst_core *core, uint32_t k)
{
    core->device_updates.interleave = k;
}

void cst_device_choice_end(struct cst_core *core)
{
    core->device_updates.order_ended = true;
}

/* True if the device reservation is in use for chunks whose states are in host memory, too: its
 * engine is not that of their nodes. */
static bool takes_turns(const struct cst_device_reservation *reservation)
{
    return !reservation->given_up && cst_tier_is_apart(reservation->engine);
}

/* True if a device reservation is in use for turns. */
static bool has_reservations(const struct cst_core *core)
{
    bool any = false;

    for (uint32_t r = 0; r < core->device_updates.n_reservations; r++) {
        any = any || takes_turns(&core->device_updates.reservations[r]);
    }
    return any;
}

/* Begin a new order of updates, with the k that is set now. */
static void begin_order(struct cst_core *core)
{
    core->device_updates.interleave_now =
        has_reservations(core) ? core->device_updates.interleave : 0;
    memset(core->device_updates.in_order, 0, core->n_nodes * sizeof *core->device_updates.in_order);
    core->device_updates.order_ended = false;
}

/* True if the device reservation takes turns, its buffers fit the chunk and, if they are lent, one
 * can be entered now. */
static bool can_update(const struct cst_core *core, uint32_t r, uint32_t c)
{
    const struct cst_device_reservation *reservation = &core->device_updates.reservations[r];

    return takes_turns(reservation) && holds(core, r, c) &&
           (!reservation->lent.on || cst_lent_memory_is_available(core, reservation));
}

/* True if the buffers of a device reservation that takes turns fit the chunk. */
static bool fits_any(const struct cst_core *core, uint32_t c)
{
    bool any = false;

    for (uint32_t r = 0; r < core->device_updates.n_reservations; r++) {
        any = any || (takes_turns(&core->device_updates.reservations[r]) && holds(core, r, c));
    }
    return any;
}

/* True if Muon updates the chunk and no device reservation has a scratch, as lent memory has
 * none. */
static bool needs_node(const struct cst_core *core, uint32_t c)
{
    bool any = false;

    for (uint32_t r = 0; r < core->device_updates.n_reservations; r++) {
        any = any || core->device_updates.reservations[r].buffers.scratch_bytes > 0;
    }
    return core->layout->chunks[c].muon && !any;
}

/* The next device reservation in turn that can update the chunk; CST_NONE: none. */
static uint32_t find_reservation(const struct cst_core *core, uint32_t c)
{
    for (uint32_t i = 0; i < core->device_updates.n_reservations; i++) {
        uint32_t r =
            (core->device_updates.next_reservation + i) % core->device_updates.n_reservations;

        if (can_update(core, r, c)) {
            return r;
        }
    }
    return CST_NONE;
}

/* True if chunk @c, as the next one to be updated, is the k-th of its node. */
static bool is_kth(struct cst_core *core, uint32_t c)
{
    if (core->device_updates.order_ended) {
        begin_order(core);
    }
    return core->device_updates.interleave_now > 0 &&
           (core->device_updates.in_order[core->layout->chunks[c].node] + 1) %
                   core->device_updates.interleave_now ==
               0;
}

static void count(struct cst_core *core, uint32_t c)
{
    core->device_updates.in_order[core->layout->chunks[c].node]++;
}

bool cst_device_choice_pass(struct cst_core *core, uint32_t c)
{
    /* States that are apart have staged updates, whatever the order says. */
    if (cst_tier_is_apart(core->chunks[c].tier) ||
        (is_kth(core, c) && find_reservation(core, c) != CST_NONE)) {
        return false;
    }
    count(core, c);
    cst_kept_gradients_drop(core, c);
    cst_chunk_update_place(&core->chunks[c], CST_UPDATE_BY_NODE, CST_NONE);
    return true;
}

uint32_t cst_device_choice_make(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];
    uint32_t reservation = chunk->update.reservation;
    bool kth;

    if (needs_node(core, c)) { /* The chunk is not counted, because there is no choice. */
        cst_chunk_update_place(chunk, CST_UPDATE_BY_NODE, CST_NONE);
        return CST_NONE;
    }
    if (cst_tier_is_apart(chunk->tier)) { /* Likewise. */
        cst_chunk_update_place(chunk, CST_UPDATE_ON_DEVICE, cst_device_choice_own(core, c));
        return chunk->update.reservation;
    }
    kth = is_kth(core, c);
    count(core, c);
    /* A chunk with a kept gradient must go to the device reservation that has it. */
    if (!kth || chunk->kept == CST_NONE) {
        cst_kept_gradients_drop(core, c);
        reservation = kth ? find_reservation(core, c) : CST_NONE;
    }
    cst_chunk_update_place(chunk,
                           reservation != CST_NONE ? CST_UPDATE_ON_DEVICE
                           : !kth                  ? CST_UPDATE_BY_NODE
                           : fits_any(core, c)     ? CST_UPDATE_NOT_LENT
                                                   : CST_UPDATE_TOO_LARGE,
                           reservation);
    if (reservation != CST_NONE) {
        core->device_updates.next_reservation = reservation + 1;
    }
    return reservation;
}
