/* SPDX-License-Identifier: Apache-2.0 */
/* States that are brought to buffers of host memory before they are updated. Between two updates of
 * a chunk its states do not change, so those of the chunks that are updated first can be read while
 * the ranks compute. An update finds them in its buffer, or reads them itself.
 *
 *   updates of step t issued -> COPYs up of the first chunks, as their buffers become free
 *   commit of step t + 1     -> UPDATE from there
 *
 * Only for updates that are made in one order, after the commit: the order of the last step. */
#include "offload/update/staged_ahead.h"

#include "offload/core/core_state.h"
#include "offload/gradient/device_choice.h"
#include "offload/update/staged_update.h"

#include <string.h>

void cst_staged_ahead_open(struct cst_device_reservation *reservation)
{
    for (uint32_t b = 0; b < CST_BUFFERS_MAX; b++) {
        reservation->ahead[b].chunk = CST_NONE;
    }
}

/* Bring the states of chunk @c to the next buffer. Whoever uses it next waits for them. */
static void bring(struct cst_core *core, struct cst_device_reservation *reservation, uint32_t c)
{
    struct cst_staged_ahead *ahead = &reservation->ahead[reservation->next];
    uint64_t *down = reservation->down[reservation->next];
    bool any = false;

    memset(ahead->up, 0, sizeof ahead->up);
    for (uint32_t i = 0; i < CST_UPDATE_STATES; i++) {
        enum cst_row row = (enum cst_row)(CST_ROW_MASTER + i);

        if (core->layout->chunks[c].rows[row].segment != CST_LAYOUT_NO_ROW) {
            ahead->up[i] = cst_staged_update_copy_up(core, reservation, c, row, row,
                                                     core->commit.adam_step, CST_FLIGHT_AHEAD);
            any = any || ahead->up[i] != 0;
        }
    }
    if (any) {
        ahead->chunk = c;
        memset(down, 0, CST_STAGED_UPDATE_COPIES_DOWN * sizeof *down);
        memcpy(down, ahead->up, sizeof ahead->up);
    }
    reservation->next = (reservation->next + 1) % reservation->buffers.n;
}

void cst_staged_ahead_issue(struct cst_core *core)
{
    for (uint32_t r = 0; r < core->device_updates.n_reservations; r++) {
        struct cst_device_reservation *reservation = &core->device_updates.reservations[r];
        uint32_t n = 0;

        if (core->policy.overlap != CST_OVERLAP_COMMIT || reservation->lent.on ||
            reservation->given_up || !cst_tier_is_apart(reservation->home) ||
            cst_tier_is_apart(reservation->engine)) {
            continue;
        }
        for (uint32_t i = 0; i < core->n_trained && n < reservation->buffers.n; i++) {
            uint32_t c = core->commit.order[i];

            if (core->chunks[c].tier == reservation->home && cst_device_choice_own(core, c) == r) {
                bring(core, reservation, c);
                n++;
            }
        }
    }
}

uint32_t cst_staged_ahead_find(const struct cst_device_reservation *reservation, uint32_t c)
{
    for (uint32_t b = 0; b < reservation->buffers.n; b++) {
        if (reservation->ahead[b].chunk == c) {
            return b;
        }
    }
    return CST_NONE;
}

void cst_staged_ahead_drop(struct cst_device_reservation *reservation, uint32_t buffer)
{
    reservation->ahead[buffer].chunk = CST_NONE;
}

void cst_staged_ahead_forget(struct cst_core *core, uint32_t c)
{
    for (uint32_t r = 0; r < core->device_updates.n_reservations; r++) {
        struct cst_device_reservation *reservation = &core->device_updates.reservations[r];
        uint32_t b = cst_staged_ahead_find(reservation, c);

        if (b != CST_NONE) {
            cst_staged_ahead_drop(reservation, b);
        }
    }
}

void cst_staged_ahead_done(struct cst_core *core, const struct cst_flight *flight,
                           const struct cst_event *event)
{
    struct cst_device_reservation *reservation = &core->device_updates.reservations[flight->rank];
    struct cst_staged_ahead *ahead = &reservation->ahead[flight->buffer];
    uint64_t *down = reservation->down[flight->buffer];

    for (uint32_t i = 0; i < CST_UPDATE_STATES; i++) {
        if (ahead->up[i] == flight->ticket) {
            ahead->up[i] = 0;
            /* The update reads them itself, and says what is wrong if it fails, too. */
            if (event->status != CST_OK) {
                cst_staged_ahead_drop(reservation, flight->buffer);
            }
        }
    }
    /* The engine remembers failures, and who waits for one fails, too. */
    for (uint32_t i = 0; i < CST_STAGED_UPDATE_COPIES_DOWN && event->status != CST_OK; i++) {
        down[i] = down[i] == flight->ticket ? 0 : down[i];
    }
}
