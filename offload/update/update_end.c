/* SPDX-License-Identifier: Apache-2.0 */
/* Completions of the commands of updates. If a command of a device update failed, the job goes on
 * without the device reservation.
 *
 *   - COPY up or UPDATE fails: the chunk's rows are unchanged, because nothing was copied down. The
 *     node's engine makes the update in place. What waits for the COPYs down, which have no effect,
 *     waits for that update instead.
 *   - COPY down fails: `out` is complete and the chunk's row is torn. The copy is made again; after
 *     a few failures the job fails.
 *   - COPY of a gradient that is to be kept in the device reservation fails: the gradient is not
 *     kept. The sum is made in any case.
 *
 * After a few failures the device reservation is given up for this job; if its engine is lost, at
 * once. A lost engine loses only the chunks whose UPDATE is known to be complete: their rows may be
 * half overwritten, and the new contents were in the lost memory. Then the job fails, and the
 * message names these chunks. The job also fails if an accelerator with states fails, because these
 * chunks are updated there or not at all. */
#include "offload/update/update_end.h"

#include "offload/books/chunk_update.h"
#include "offload/core/core_state.h"
#include "offload/update/replicas.h"
#include "offload/update/seal.h"
#include "offload/update/staged_update.h"
#include "offload/books/exposure.h"
#include "offload/gradient/kept_gradients.h"
#include "offload/gradient/lent_memory.h"
#include "offload/gradient/sum.h"
#include "offload/update/update.h"
#include "offload/update/versions.h"

#include <inttypes.h>
#include <stdio.h>

/* Count a failure and log it. Failures of a device reservation that was given up are not logged,
 * because everything that is in flight there can fail at once. */
static void count(struct cst_core *core, uint32_t r, uint32_t c, const struct cst_event *event,
                  const char *then)
{
    const struct cst_device_reservation *reservation = &core->device_updates.reservations[r];

    cst_staged_update_count_failure(core, r);
    if (reservation->given_up) {
        return;
    }
    cst_core_log(
        core, event->status,
        "step %" PRIu64 ": the update of chunk %" PRIu32 " on the accelerator of engine %" PRIu32
        " failed (failure %" PRIu32 " there): %s; %s",
        core->step, c, reservation->home, reservation->n_failures, cst_event_words(event), then);
    if (reservation->n_failures == CST_STAGED_UPDATE_MAX_FAILURES) {
        cst_staged_update_give_up(core, r);
        cst_core_log(core, CST_OK,
                     "the accelerator of engine %" PRIu32
                     " is no longer used for updates, after %d failures: of %" PRIu64
                     " updates so far %" PRIu64 " were made on accelerators",
                     reservation->home, CST_STAGED_UPDATE_MAX_FAILURES, core->updates_done.n,
                     core->updates_done.n_device);
    }
}

/* Give the device reservation up if its engine is lost, whatever the failed command was. Nodes'
 * engines make the updates of which nothing has been copied down. */
static void see_gone(struct cst_core *core, uint32_t r, const struct cst_event *event)
{
    struct cst_device_reservation *reservation = &core->device_updates.reservations[r];

    if (cst_event_engine_lost(event) && !reservation->given_up) {
        cst_staged_update_give_up(core, r);
        cst_core_log(core, event->status,
                     "step %" PRIu64 ": the accelerator of engine %" PRIu32
                     " is lost, and is no longer used for updates: %s; of %" PRIu64
                     " updates so far %" PRIu64 " were made on accelerators",
                     core->step, reservation->home, cst_event_words(event), core->updates_done.n,
                     core->updates_done.n_device);
    }
}

static bool fall_back(struct cst_core *core, const struct cst_flight *flight,
                      const struct cst_event *event)
{
    const struct cst_chunk *chunk = &core->chunks[flight->chunk];
    bool on_device = flight->kind == CST_FLIGHT_UPDATE_ON_DEVICE;

    if (core->attempt.phase == CST_PHASE_FAILED || cst_tier_is_apart(chunk->tier)) {
        return false;
    }
    if (cst_flight_is_device_update(flight)) {
        see_gone(core, flight->rank, event);
    }
    if (flight->kind == CST_FLIGHT_DEVICE_UPDATE) {
        return true; /* The UPDATE of the chunk fails with this command, or has failed. */
    }
    if (on_device && event->status == CST_ECANCELLED && cst_lent_memory_is_recalled(core, flight)) {
        cst_staged_update_vacate(core, flight->chunk);
        if (cst_event_engine_lost(event) || !cst_staged_update_move(core, flight->chunk)) {
            cst_update_back_to_node(core, flight->chunk);
            cst_chunk_update_place(&core->chunks[flight->chunk], CST_UPDATE_NOT_LENT, CST_NONE);
        }
        return true;
    }
    if (on_device) {
        count(core, flight->rank, flight->chunk, event, "the engine of its node makes the update");
        cst_staged_update_vacate(core, flight->chunk);
        cst_update_back_to_node(core, flight->chunk);
        return true;
    }
    if (flight->down && !cst_event_engine_lost(event) &&
        flight->tries + 1 < CST_STAGED_UPDATE_MAX_TRIES) {
        count(core, flight->rank, flight->chunk, event, "the row is copied again");
        cst_staged_update_copy_again(core, flight);
        return true;
    }
    return false;
}

/* -- lost updates ----------------------------------------------------------------------------- */

/* True if the states of the chunk are in @tier, or on their way from a buffer for its updates. */
static bool is_lost(const struct cst_core *core, uint32_t c, uint32_t tier)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    bool copying =
        chunk->update.where == CST_UPDATE_COPYING_BACK && !cst_chunk_update_is_over(&chunk->update);

    return chunk->tier == tier ||
           (copying && core->device_updates.reservations[chunk->update.reservation].home == tier);
}

static void break_lost(struct cst_core *core, uint32_t tier)
{
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        if (is_lost(core, c, tier)) {
            cst_weight_row_break(&core->chunks[c]);
        }
    }
}

/* List the chunks that are lost with the tier that @flight's device reservation is for: "3, 5-9",
 * or the first ones and "...". */
static void name_lost(const struct cst_core *core, const struct cst_flight *flight, char *text,
                      size_t size)
{
    uint32_t tier = core->device_updates.reservations[flight->rank].home;
    size_t n = 0;

    text[0] = '\0';
    for (uint32_t c = 0; c < core->n_chunks && n < size; c++) {
        uint32_t last = c;

        while (last < core->n_chunks && (last == flight->chunk || is_lost(core, last, tier))) {
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

/* True if the loss of an engine loses the results of @flight. Those of updates in host memory, of
 * chunks with states in a tier that only copies, are lost only of the chunks whose commands fail.
 */
static bool loses_all(const struct cst_core *core, const struct cst_flight *flight,
                      const struct cst_event *event)
{
    return cst_flight_is_device_update(flight) && cst_event_engine_lost(event) &&
           cst_tier_is_apart(core->device_updates.reservations[flight->rank].engine);
}

static void fail(struct cst_core *core, const struct cst_flight *flight,
                 const struct cst_event *event)
{
    char lost[128];
    struct cst_err why;

    cst_weight_row_break(&core->chunks[flight->chunk]);
    if (!loses_all(core, flight, event)) {
        cst_fact_command_failed(&core->facts, event, core->step, "update", flight->chunk);
        return;
    }
    break_lost(core, core->device_updates.reservations[flight->rank].home);
    name_lost(core, flight, lost, sizeof lost);
    (void)cst_err_set(&why, event->status,
                      "update of chunk %" PRIu32 " failed in step %" PRIu64
                      ": %.160s; the states of these chunks were on the accelerator or on their "
                      "way from it, and are lost: %s",
                      flight->chunk, core->step, cst_event_words(event), lost);
    cst_fact_job_failed(&core->facts, &why);
}

/* -- completions ------------------------------------------------------------------------------ */

/* Free the slot of the kept gradient that a device update has read. */
static void end_use(struct cst_core *core, const struct cst_flight *flight)
{
    bool there =
        flight->kind == CST_FLIGHT_UPDATE_ON_DEVICE || flight->kind == CST_FLIGHT_DEVICE_UPDATE;

    if (there && flight->block != CST_NONE) {
        cst_kept_gradients_done(core, flight);
    }
}

/* The chunk's update is over. Engines mark only updates in place. */
static void mark(struct cst_core *core, uint32_t c, const struct cst_event *event)
{
    const struct cst_chunk_update *update = &core->chunks[c].update;

    if (core->table != NULL && update->reservation != CST_NONE && event->status == CST_OK) {
        cst_table_chunks(core->table)[c].update_mark = update->what.mark;
    }
}

static void end_command(struct cst_core *core, const struct cst_flight *flight,
                        const struct cst_event *event)
{
    struct cst_chunk *chunk = &core->chunks[flight->chunk];

    if (chunk->away && cst_replicas_copied(core, flight, event)) {
        return;
    }
    if (event->status != CST_OK && fall_back(core, flight, event)) {
        end_use(core, flight);
        return;
    }
    if (flight->kind == CST_FLIGHT_UPDATE_ON_DEVICE && event->status == CST_OK) {
        cst_staged_update_done(core, flight->chunk);
    }
    if (flight->kind == CST_FLIGHT_STATES && event->status == CST_OK) {
        cst_seal_row_written(core, flight, event);
    }
    if (cst_chunk_update_replace(chunk, flight->ticket, 0) &&
        cst_chunk_update_is_over(&chunk->update)) {
        core->updates_done.n += !chunk->away;
        core->updates_done.n_device += chunk->update.reservation != CST_NONE;
        core->updates_done.n_lent +=
            chunk->update.reservation != CST_NONE &&
            core->device_updates.reservations[chunk->update.reservation].lent.on;
        mark(core, flight->chunk, event);
        if (event->status == CST_OK) {
            cst_replicas_tell(core, flight->chunk);
        }
    }
    if (flight->kind == CST_FLIGHT_UPDATE || flight->kind == CST_FLIGHT_STATES) {
        cst_exposure_done(core);
    }
    end_use(core, flight);
    if (chunk->gradient.reduce_ticket == flight->ticket) {
        cst_sum_fused(core, flight, event);
    }
    if (event->status != CST_OK) {
        fail(core, flight, event);
    }
    if (flight->kind == CST_FLIGHT_UPDATE) {
        cst_fact_weights_written(&core->facts, flight->chunk, flight->ticket);
    }
}

void cst_update_end(struct cst_core *core, const struct cst_flight *flight,
                    const struct cst_event *event)
{
    end_command(core, flight, event);
    if (event->status == CST_OK) {
        cst_versions_updated(core, flight->chunk);
    }
    if (cst_flight_is_device_update(flight)) {
        cst_lent_memory_done(core, flight);
    }
}

void cst_update_end_kept(struct cst_core *core, const struct cst_flight *flight,
                         const struct cst_event *event)
{
    if (event->status == CST_OK) {
        cst_kept_gradients_done(core, flight);
        return;
    }
    if (core->device_updates.reservations[flight->rank].kept.slots[flight->block].chunk ==
        flight->chunk) {
        cst_kept_gradients_drop(core, flight->chunk);
    }
    if (core->attempt.phase != CST_PHASE_FAILED) {
        see_gone(core, flight->rank, event);
        count(core, flight->rank, flight->chunk, event,
              "the gradient is copied to the accelerator again");
    }
    cst_kept_gradients_done(core, flight);
}
