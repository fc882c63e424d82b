/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/updates.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/job.h"
#include "daemon/base/log.h"
#include "daemon/job/planner.h"
#include "daemon/memory/device_reservation.h"
#include "offload/plan/pipeline.h"
#include "proto/busy_time.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/engines.h"
#include "daemon/settings/settings.h"
#include "daemon/memory/tiers/tier.h"

#include <inttypes.h>
#include <stdio.h>

/* -- rates of the machine --------------------------------------------------------------------- */

/* Return the device reservations that chunks with states in host memory use in turns. */
static struct cstd_device_reservations reservations_of(const struct cstd_job *job)
{
    const struct cstd_device_reservations all = cstd_device_reservation_describe(job);
    struct cstd_device_reservations of = {.n = 0};

    for (uint32_t i = 0; i < all.n; i++) {
        if (cst_tier_is_apart(all.v[i].engine)) {
            of.v[of.n++] = all.v[i];
        }
    }
    return of;
}

/* Return those of them that the core still uses. */
static struct cstd_device_reservations reservations_left(const struct cstd_job *job)
{
    const struct cstd_device_reservations all = reservations_of(job);
    struct cstd_device_reservations left = {.n = 0};

    for (uint32_t i = 0; i < all.n; i++) {
        if (cst_core_uses_reservation(job->core, &all.v[i])) {
            left.v[left.n++] = all.v[i];
        }
    }
    return left;
}

static bool has_engine(const struct cstd_device_reservations *reservations, uint32_t engine)
{
    for (uint32_t i = 0; i < reservations->n; i++) {
        if (reservations->v[i].engine == engine) {
            return true;
        }
    }
    return false;
}

/* Return the description of the machine with these device reservations, without its rates. */
static struct cst_interleave machine_of(const struct cstd_job *job,
                                        const struct cstd_device_reservations *reservations)
{
    struct cst_interleave m = {0};

    cst_pipeline_describe(&m, &job->layout, reservations->v, reservations->n, job->memory.pools,
                          job->world);
    return m;
}

/* Fill in the known rates. The slowest accelerator represents all. */
static void know(struct cstd_job *job, const struct cstd_device_reservations *reservations)
{
    struct cstd_interleave_tuner *tuner = &job->tuner;
    struct cst_interleave m = machine_of(job, reservations);
    struct cst_rates rates = {0};

    cstd_planner_rates_nodes(job->daemon, &rates);
    for (uint32_t i = 0; i < reservations->n; i++) {
        struct cst_rates_device d =
            cstd_planner_device(cstd_tiers_of_number(job->daemon, reservations->v[i].engine));

        cst_pipeline_rates(&m, &rates, &d);
        tuner->node.known = m.node_elems;
        tuner->up.known = i == 0 || m.up < tuner->up.known ? m.up : tuner->up.known;
        tuner->down.known = i == 0 || m.down < tuner->down.known ? m.down : tuner->down.known;
        tuner->device.known =
            i == 0 || m.device_elems < tuner->device.known ? m.device_elems : tuner->device.known;
    }
}

/* -- measurements ----------------------------------------------------------------------------- */

/* What one engine did of one kind of work, and the time it took. */
struct done {
    uint64_t amount;
    struct cst_busy_time busy;
};

struct window {
    struct done updates[CSTD_ARENA_MAX_ENGINES];
    struct done up[CSTD_ARENA_MAX_ENGINES], down[CSTD_ARENA_MAX_ENGINES];
};

/* cst_busy_time_add needs the intervals in the order of their ends, and the record has them in this
 * order. */
static void add(struct done *done, uint64_t amount, const struct cstd_record_interval *i)
{
    done->amount += amount;
    cst_busy_time_add(&done->busy, i->began, i->ended);
}

static void look(struct cstd_job *job, struct window *w)
{
    uint64_t first, end;

    cstd_record_range(job->record, &first, &end);
    first = job->updates_seen > first ? job->updates_seen : first;
    for (uint64_t n = first; n < end; n++) {
        const struct cstd_record_interval *i = cstd_record_get(job->record, n);

        /* A chunk whose states stay on an accelerator is always updated there, whatever k is. */
        if (i->chunk >= job->layout.n_chunks || i->number >= CSTD_ARENA_MAX_ENGINES ||
            cst_tier_is_apart(job->layout.chunks[i->chunk].tier)) {
            continue;
        }
        if (i->kind == CSTD_RECORD_UPDATE) {
            add(&w->updates[i->number], job->layout.chunks[i->chunk].n_elems, i);
        } else if (i->kind == CSTD_RECORD_STATES_UP) {
            add(&w->up[i->number], i->bytes, i);
        } else if (i->kind == CSTD_RECORD_STATES_DOWN) {
            add(&w->down[i->number], i->bytes, i);
        }
    }
    job->updates_seen = end;
}

/* Add what was seen to the medians. The rates of the nodes' engines are added up, because the nodes
 * work at the same time; accelerators are measured singly. */
static void see(struct cstd_job *job, const struct cstd_device_reservations *reservations)
{
    struct cstd_interleave_tuner *tuner = &job->tuner;
    struct window w = {0};
    double nodes = 0;

    look(job, &w);
    for (uint32_t e = 0; e < job->daemon->engines->n; e++) {
        uint64_t ns = w.updates[e].busy.ns;

        if (e < job->daemon->engines->n_nodes) {
            nodes += ns > 0 ? (double)w.updates[e].amount / (double)ns * 1e9 : 0;
        } else if (has_engine(reservations, e)) {
            cstd_rates_median_add(&tuner->device.seen, w.updates[e].amount, ns);
            cstd_rates_median_add(&tuner->up.seen, w.up[e].amount, w.up[e].busy.ns);
            cstd_rates_median_add(&tuner->down.seen, w.down[e].amount, w.down[e].busy.ns);
        }
    }
    /* The sum is a rate; added as the amount of one second it remains the same rate. */
    cstd_rates_median_add(&tuner->node.seen, (uint64_t)nodes, nodes > 0 ? 1000000000 : 0);
}

/* -- decision --------------------------------------------------------------------------------- */

static void tell(const struct cstd_job *job, enum cstd_log_level level,
                 const struct cst_interleave *machine, const char *why)
{
    const struct cstd_interleave_tuner *tuner = &job->tuner;
    struct cst_interleave m = cstd_interleave_tuner_machine(tuner, machine);
    char text[80];

    if (tuner->k == CST_INTERLEAVE_NEVER) {
        (void)snprintf(text, sizeof text, "no chunk is updated on an accelerator");
    } else {
        (void)snprintf(text, sizeof text,
                       "one of %" PRIu32 " chunks of each node is updated on an accelerator",
                       tuner->k);
    }
    cstd_log_about(level, CSTD_JOB_ABOUT(job),
                   "%s (%s): nodes %.3g elements/s, accelerators %.3g, up %.3g bytes/s, down %.3g; "
                   "predicted time of updates %.3g s, or %.3g s without accelerators",
                   text, why, m.node_elems, m.device_elems, m.up, m.down,
                   cstd_interleave_tuner_promise(tuner, machine, tuner->k),
                   cstd_interleave_tuner_promise(tuner, machine, CST_INTERLEAVE_NEVER));
}

static bool is_fixed(const struct cstd_job *job)
{
    return job->daemon->config->interleave != CSTD_SETTINGS_INTERLEAVE_AUTO;
}

static void on_step(struct cstd_deferred *later)
{
    struct cstd_job *job = cstd_owner_of(later, struct cstd_job, tuning);
    const struct cstd_device_reservations left = reservations_left(job);
    struct cst_interleave machine;
    struct cstd_interleave_tuner_phase last;
    struct cst_core_stats stats;

    if (left.n == 0) {
        return; /* All accelerators are lost, hence there is no choice. */
    }
    see(job, &left);
    machine = machine_of(job, &left);
    cst_core_stats(job->core, &stats);
    last = (struct cstd_interleave_tuner_phase){
        .number = stats.n_rounds, .k = stats.last_interleave, .ns = stats.last_update_ns};
    if (cstd_interleave_tuner_step(&job->tuner, &machine, &last)) {
        tell(job, cstd_log_due(&job->replanned, uv_hrtime()) ? CSTD_LOG_NOTICE : CSTD_LOG_DEBUG,
             &machine, "as measured");
        cst_core_set_interleave(job->core, job->tuner.k);
    }
}

uint32_t cstd_updates_open(struct cstd_job *job)
{
    const struct cstd_device_reservations all = reservations_of(job);
    struct cst_interleave machine;

    job->tuner = (struct cstd_interleave_tuner){0};
    job->updates_seen = 0;
    job->tuning.fn = on_step;
    if (all.n == 0) {
        return CST_INTERLEAVE_NEVER;
    }
    know(job, &all);
    machine = machine_of(job, &all);
    if (is_fixed(job)) {
        job->tuner.k = job->daemon->config->interleave;
    } else {
        cstd_interleave_tuner_begin(&job->tuner, &machine);
    }
    tell(job, CSTD_LOG_NOTICE, &machine, is_fixed(job) ? "as configured" : "at first");
    return job->tuner.k;
}

void cstd_updates_step(struct cstd_job *job)
{
    if (reservations_of(job).n > 0 && !is_fixed(job)) {
        cstd_deferred_add(&job->daemon->idle_work, &job->tuning);
    }
}

void cstd_updates_close(struct cstd_job *job)
{
    cstd_deferred_remove(&job->daemon->idle_work, &job->tuning);
}
