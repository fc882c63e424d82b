/* SPDX-License-Identifier: Apache-2.0 */
/* How long the updates of each step are in flight. (How much later the step is because of them:
 * instant.c.)
 *
 *   first update issued                     committed        last update done
 *        |<------------------- a round ----------|----------------->|
 *        | ==== time in which updates are in flight ============    |   update_ns
 *
 * A round consists of the updates of one step. If an update of the next step is issued before all
 * of them are complete, the round ends there. */
#include "offload/books/exposure.h"

#include "offload/core/core_state.h"

/* -- rounds ----------------------------------------------------------------------------------- */

static void open_round(struct cst_core *core)
{
    struct cst_exposure *e = &core->exposure;

    e->open = true;
    e->all_issued = false;
    e->round_from_ns = e->update_ns;
}

/* Add the time up to now to update_ns. */
static void settle(struct cst_core *core)
{
    struct cst_exposure *e = &core->exposure;

    if (e->n_updates > 0) {
        e->update_ns += core->now - e->since;
        e->since = core->now;
    }
}

static void close_round(struct cst_core *core)
{
    struct cst_exposure *e = &core->exposure;

    settle(core);
    e->open = false;
    e->n_rounds++;
    e->last_interleave = e->interleave;
    e->last_update_ns = e->update_ns - e->round_from_ns;
    e->total_update_ns += e->last_update_ns;
}

void cst_exposure_issued(struct cst_core *core)
{
    struct cst_exposure *e = &core->exposure;

    if (e->open && e->all_issued) {
        close_round(core);
    }
    if (!e->open) {
        open_round(core);
    }
    e->interleave = core->device_updates.interleave_now;
    if (e->n_updates++ == 0) {
        e->since = core->now;
    }
}

void cst_exposure_replaced(struct cst_core *core, uint32_t n)
{
    core->exposure.n_updates += 1 - n;
}

void cst_exposure_all_issued(struct cst_core *core)
{
    struct cst_exposure *e = &core->exposure;

    e->all_issued = e->open;
    if (e->open && e->n_updates == 0) {
        close_round(core);
    }
}

void cst_exposure_done(struct cst_core *core)
{
    struct cst_exposure *e = &core->exposure;

    if (--e->n_updates == 0) {
        e->quiet_since = core->now;
        e->update_ns += core->now - e->since;
        if (e->open && e->all_issued) {
            close_round(core);
        }
    }
}

/* -- statistics ------------------------------------------------------------------------------- */

void cst_exposure_stats(const struct cst_core *core, struct cst_core_stats *out)
{
    out->n_rounds = core->exposure.n_rounds;
    out->last_interleave = core->exposure.last_interleave;
    out->last_update_ns = core->exposure.last_update_ns;
    out->last_exposed_ns = core->clock.last_exposed_ns;
    out->update_ns = core->exposure.total_update_ns;
    out->exposed_ns = core->clock.total_exposed_ns;
}

const char *cst_exposure_check(const struct cst_core *core)
{
    uint32_t n_updates = 0;

    for (uint32_t i = 0; i < core->flights.n_slots; i++) {
        const struct cst_flight *f = &core->flights.slots[i];

        n_updates +=
            f->ticket != 0 && (f->kind == CST_FLIGHT_UPDATE || f->kind == CST_FLIGHT_STATES);
    }
    return n_updates != core->exposure.n_updates ? "updates under way are counted" : NULL;
}
