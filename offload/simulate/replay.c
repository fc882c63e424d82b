/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/simulate/simulate.h"

#include "proto/durable.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TURNS 16 /* This many timers and ends of efforts count as one event of the core. */

/* -- commits -------------------------------------------------------------------------------- */

static struct cst_replay_counts count(const struct cst_sim *sim)
{
    struct cst_replay_counts sum = {0};
    struct cst_core_stats job;

    for (uint32_t rank = 0; rank < sim->world; rank++) {
        uint64_t n = (uint64_t)sim->workers[rank].stands_for;
        struct cst_rank_stats stats;

        cst_core_rank_stats(sim->core, rank, &stats);
        sum.bytes_up += n * stats.bytes_up;
        sum.bytes_down += n * stats.bytes_down;
        sum.hits += n * stats.hits;
        sum.late += n * stats.late;
        sum.misses += n * stats.misses;
        sum.evictions += n * stats.evictions;
        sum.prefetches += n * stats.prefetches;
        sum.surprises += n * stats.surprises;
    }
    cst_core_stats(sim->core, &job);
    sum.updates = job.n_updates;
    sum.device_updates = job.n_device_updates;
    return sum;
}

static void report_worker(struct cst_sim *sim)
{
    const struct cst_sim_worker *busiest = &sim->workers[0];
    struct cst_replay_result *r = &sim->result;

    for (uint32_t rank = 1; rank < sim->world; rank++) {
        const struct cst_sim_worker *w = &sim->workers[rank];

        busiest = w->compute_ns > busiest->compute_ns ? w : busiest;
    }
    r->compute_ns = busiest->compute_ns;
    r->wait_ns = busiest->wait_ns;
    r->tail_ns = sim->now > busiest->last_backward ? sim->now - busiest->last_backward : 0;
}

static void report_updates(struct cst_sim *sim)
{
    struct cst_replay_result *r = &sim->result;
    struct cst_core_stats stats;

    cst_core_stats(sim->core, &stats);
    r->update_ns = stats.last_update_ns;
    r->update_exposed_ns = stats.last_exposed_ns;
    r->update_hidden_ns =
        r->update_ns > r->update_exposed_ns ? r->update_ns - r->update_exposed_ns : 0;
    r->states_up = sim->states_up - sim->states_up_before;
    r->states_down = sim->states_down - sim->states_down_before;
    r->disk_read = sim->disk_read - sim->disk_read_before;
    r->disk_ahead = sim->disk_ahead - sim->disk_ahead_before;
    r->disk_written = sim->disk_written - sim->disk_written_before;
    sim->states_up_before = sim->states_up;
    sim->states_down_before = sim->states_down;
    sim->disk_read_before = sim->disk_read;
    sim->disk_ahead_before = sim->disk_ahead;
    sim->disk_written_before = sim->disk_written;
}

static void committed(struct cst_sim *sim)
{
    struct cst_replay_counts now = count(sim);
    struct cst_replay_result *r = &sim->result;

    sim->n_commits++;
    r->step_ns = sim->now - sim->commit_at;
    r->bytes_up = sim->moved_up - sim->moved_up_before;
    r->bytes_down = sim->moved_down - sim->moved_down_before;
    r->bytes_peer = sim->peer_bytes - sim->peer_before;
    r->hits = now.hits - sim->before.hits;
    r->late = now.late - sim->before.late;
    r->misses = now.misses - sim->before.misses;
    r->evictions = now.evictions - sim->before.evictions;
    r->prefetches = now.prefetches - sim->before.prefetches;
    r->device_updates = now.device_updates - sim->before.device_updates;
    report_worker(sim);
    report_updates(sim);
    memcpy(r->peak_blocks, sim->peak_blocks, sizeof r->peak_blocks);
    memset(sim->peak_blocks, 0, sizeof sim->peak_blocks);
    sim->before = now;
    sim->moved_up_before = sim->moved_up;
    sim->moved_down_before = sim->moved_down;
    sim->peer_before = sim->peer_bytes;
    sim->commit_at = sim->now;
}

static void note_blocks(struct cst_sim *sim)
{
    for (uint32_t rank = 0; rank < sim->world; rank++) {
        struct cst_rank_stats stats;
        uint32_t used;

        cst_core_rank_stats(sim->core, rank, &stats);
        used = stats.books.capacity - stats.books.free;
        if (used > sim->peak_blocks[rank]) {
            sim->peak_blocks[rank] = used;
        }
    }
}

/* -- the core ------------------------------------------------------------------------------- */

static void take_reply(struct cst_sim *sim, const struct cst_reply *reply)
{
    uint32_t rank = (uint32_t)(reply->tag >> 56) - 1;
    uint32_t batch = (uint32_t)(reply->tag >> 32) & 0xffffff;
    uint32_t item = (uint32_t)reply->tag;

    if (batch != CST_SIM_NO_BATCH) {
        cst_sim_worker_reply(&sim->workers[rank], batch, item, reply);
    } else if (reply->status != CST_OK) {
        cst_sim_fail(sim, &reply->err);
    } else if (item == CST_SIM_TAG_STEP) {
        cst_sim_timer(sim, sim->hop_ns, CST_SIM_STEP_END, (uint64_t)rank << 32);
    } else if (item == CST_SIM_TAG_SYNC) {
        sim->attempt = reply->attempt;
    } else if (item == CST_SIM_TAG_NEXT) {
        sim->workers[rank].has_unit = reply->has_unit;
        sim->workers[rank].unit = reply->unit;
        cst_sim_timer(sim, sim->hop_ns, CST_SIM_UNIT, (uint64_t)rank << 32);
    }
}

#define STOP_EVENTS 1024 /* Number of events, or of turns, between two calls of config->stop. */

/* True if the caller wants the simulation to end. */
static bool stops(const struct cst_sim *sim, uint64_t n)
{
    return sim->config->stop != NULL && n % STOP_EVENTS == 0 &&
           sim->config->stop(sim->config->stop_arg);
}

static void stop(struct cst_sim *sim)
{
    sim->status = cst_err_set(&sim->err, CST_ETIMEDOUT, "the replay was stopped");
}

static void give_up(struct cst_sim *sim)
{
    sim->status =
        cst_err_set(&sim->err, CST_ETIMEDOUT, "a replay of more than %" PRIu64 " events: given up",
                    sim->config->deadline_events);
}

static void pass_event(struct cst_sim *sim, struct cst_event *event)
{
    uint64_t step = sim->core->step;

    if (sim->status != CST_OK) {
        return;
    }
    if (++sim->n_events > sim->config->deadline_events && sim->config->deadline_events > 0) {
        give_up(sim);
        return;
    }
    if (stops(sim, sim->n_events)) {
        stop(sim);
        return;
    }
    event->now = sim->now;
    cst_core_step(sim->core, event, &sim->actions);
    for (size_t i = 0; i < sim->actions.n && sim->status == CST_OK; i++) {
        const struct cst_action *a = &sim->actions.v[i];

        if (a->kind == CST_ACT_COMMAND) {
            cst_sim_submit(sim, &a->command);
        } else if (a->kind == CST_ACT_REPLY) {
            take_reply(sim, &a->reply);
        } else if (a->kind == CST_ACT_SEAL) {
            cst_sim_timer(sim,
                          (uint64_t)(1e9 * cst_replay_seal_s(sim->config->rates,
                                                             sim->config->core->layout->n_chunks)),
                          CST_SIM_SEALED, 0);
        }
    }
    note_blocks(sim);
    if (sim->core->step != step) {
        committed(sim);
    }
}

uint64_t cst_replay_seal_bytes(uint32_t n_chunks)
{
    return cst_durable_seal_bytes(n_chunks);
}

double cst_replay_seal_s(const struct cst_rates *rates, uint32_t n_chunks)
{
    return 2 * cst_rates_flush(rates) + (double)cst_replay_seal_bytes(n_chunks) / rates->disk_write;
}

/* -- the clock ------------------------------------------------------------------------------ */

static void on_timer(struct cst_sim *sim, const struct cst_timer *timer)
{
    struct cst_event sealed = {.kind = CST_EV_SEALED};

    switch ((enum cst_sim_timer)timer->kind) {
    case CST_SIM_COMMAND:
        cst_sim_arrived(sim, timer->arg);
        break;
    case CST_SIM_DONE:
        cst_sim_done(sim, timer->arg);
        break;
    case CST_SIM_SEALED:
        pass_event(sim, &sealed);
        break;
    case CST_SIM_BATCH:
    case CST_SIM_BATCH_END:
    case CST_SIM_PREPARE:
    case CST_SIM_STEP:
    case CST_SIM_STEP_END:
    case CST_SIM_NEXT:
    case CST_SIM_UNIT:
        cst_sim_worker_timer(&sim->workers[timer->arg >> 32], (enum cst_sim_timer)timer->kind,
                             (uint32_t)timer->arg);
        break;
    }
}

static bool is_workers(const struct cst_sim *sim, const struct cst_effort *effort)
{
    /* The owner of an effort is a worker or a command; only workers are in this array. */
    const char *owner = effort->owner, *first = (const char *)sim->workers;

    return owner >= first && owner < first + sim->world * sizeof *sim->workers;
}

static void on_end(struct cst_sim *sim, struct cst_effort *effort)
{
    cst_shared_rates_stop(&sim->machine, effort);
    if (is_workers(sim, effort)) {
        cst_sim_worker_ended(effort->owner, effort);
    } else {
        cst_sim_ended(sim, effort->owner);
    }
}

/* Process the next timer or end of an effort. False: there is none, or the simulation has
 * failed. */
static bool turn(struct cst_sim *sim)
{
    uint64_t at = UINT64_MAX, timer_at = cst_timers_next(&sim->timers);
    struct cst_effort *effort = cst_shared_rates_next(&sim->machine, &at);

    if (effort == NULL && timer_at == UINT64_MAX) {
        return false;
    }
    if (++sim->n_turns / TURNS > sim->config->deadline_events && sim->config->deadline_events > 0) {
        give_up(sim);
        return false;
    }
    if (stops(sim, sim->n_turns)) {
        stop(sim);
        return false;
    }
    /* Messages go before ends of efforts at the same time. */
    sim->now = timer_at <= at ? timer_at : at;
    if (sim->now >= CST_SHARED_RATES_END) {
        sim->status = cst_err_set(&sim->err, CST_EINVAL,
                                  "rates: with these a step takes more than a century");
        return false;
    }
    cst_shared_rates_advance(&sim->machine, sim->now);
    if (timer_at <= at) {
        struct cst_timer timer = cst_timers_take(&sim->timers);

        on_timer(sim, &timer);
    } else {
        on_end(sim, effort);
    }
    return true;
}

static void sync_all(struct cst_sim *sim)
{
    for (uint32_t rank = 0; rank < sim->world; rank++) {
        struct cst_event attach = {.kind = CST_EV_ATTACH, .rank = rank};

        pass_event(sim, &attach);
    }
    for (uint32_t rank = 0; rank < sim->world; rank++) {
        struct cst_event sync = {.kind = CST_EV_SYNC,
                                 .rank = rank,
                                 .tag = ((uint64_t)rank + 1) << 56 |
                                        (uint64_t)CST_SIM_NO_BATCH << 32 | CST_SIM_TAG_SYNC};

        pass_event(sim, &sync);
    }
    for (uint32_t rank = 0; rank < sim->world && sim->status == CST_OK; rank++) {
        cst_sim_worker_run(&sim->workers[rank], sim->attempt);
    }
}

static void play_all(struct cst_sim *sim)
{
    sync_all(sim);
    while (sim->status == CST_OK && turn(sim)) {
    }
    if (sim->status == CST_OK && sim->n_commits < sim->config->n_steps) {
        sim->status =
            cst_err_set(&sim->err, CST_EINTERNAL,
                        "the replay stands still in step %" PRIu64 ": every rank waits for a block",
                        sim->n_commits);
    }
    sim->result.total = count(sim);
    sim->result.moved_up = sim->moved_up;
    sim->result.moved_down = sim->moved_down;
    sim->result.n_events = sim->n_events;
}

/* -- open ----------------------------------------------------------------------------------- */

/* True for buffers of host memory in which states of a drive are updated. */
static bool is_of_drive(const struct cst_core_device_reservation *reservation)
{
    return !cst_tier_is_apart(reservation->engine) &&
           cst_tier_is_apart(cst_core_reservation_home(reservation));
}

/* Check the rates of drives, and make those of a device with a link from them. */
static int open_drives(struct cst_sim *sim, struct cst_err *err)
{
    const struct cst_rates *rates = sim->config->rates;
    double each = cst_rates_mixed(rates) / 2;

    if (sim->n_drives > 0 && !(rates->disk_read > 0 && rates->disk_write > 0)) {
        return cst_err_set(err, CST_EINVAL,
                           "rates: disk_read and disk_write, of the drives with states, are not "
                           "known: measure with cistern probe --disk");
    }
    sim->drive = (struct cst_rates_device){.name = "drive",
                                           .up = rates->disk_read,
                                           .down = rates->disk_write,
                                           .up_both = each,
                                           .down_both = each};
    return CST_OK;
}

/* Check that the rates say how fast accelerators with device reservations update. */
static int
open_reservations(const struct cst_sim *sim,
                  struct cst_core_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES],
                  struct cst_err *err)
{
    const struct cst_core_config *core = sim->config->core;

    for (uint32_t i = 0; i < core->n_reservations && i < CST_CORE_MAX_UPDATE_DEVICES; i++) {
        const struct cst_rates_device *device;

        reservations[i] = core->reservations[i];
        reservations[i].segment = CST_SIM_RESERVATION_SEGMENT + i;
        if (is_of_drive(&core->reservations[i])) {
            continue;
        }
        if (core->reservations[i].engine < sim->n_nodes) {
            return cst_err_set(err, CST_EINVAL,
                               "a device reservation on engine %" PRIu32 ", which is a node's",
                               core->reservations[i].engine);
        }
        device = sim->engines[core->reservations[i].engine].rates;
        if (device->update <= 0) {
            return cst_err_set(err, CST_EINVAL, "rates: device '%s': update is not known",
                               device->name);
        }
    }
    return CST_OK;
}

static int open_core(struct cst_sim *sim, struct cst_err *err)
{
    struct cst_core_config core = *sim->config->core;
    struct cst_core_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES];
    struct cst_core_pool *pools = calloc(core.world, sizeof *pools);
    int rc = CST_ENOMEM;

    sim->arena_segments = calloc(core.layout->n_segments + 1ul, sizeof *sim->arena_segments);
    sim->slabs = calloc((size_t)core.world * CST_SIM_POOL_STRIDE, sizeof *sim->slabs);
    if (pools == NULL || sim->arena_segments == NULL || sim->slabs == NULL) {
        (void)cst_err_set(err, rc, "no memory for a replay");
        goto out;
    }
    for (uint32_t i = 0; i < core.layout->n_segments; i++) {
        sim->arena_segments[i] = i + 1;
    }
    for (uint32_t rank = 0; rank < core.world; rank++) {
        uint32_t *slabs = sim->slabs + (size_t)rank * CST_SIM_POOL_STRIDE;

        for (uint32_t i = 0; i < CST_LAYOUT_MAX_CLASSES; i++) {
            slabs[i] = CST_SIM_POOL_SEGMENT + rank * CST_SIM_POOL_STRIDE + i;
        }
        pools[rank] = core.pools[rank];
        pools[rank].segments = slabs;
        /* One slab per class. */
        for (uint32_t class = 0; class < CST_LAYOUT_MAX_CLASSES; class ++) {
            pools[rank].parts[class].first_slab = class;
            pools[rank].parts[class].blocks_per_slab = pools[rank].parts[class].n_blocks;
        }
    }
    core.arena_segments = sim->arena_segments;
    core.pools = pools;
    core.reservations = reservations;
    core.table_segment = 0;
    core.first_ticket = 1;
    core.peer_timeout_ns = CST_CORE_NEVER;
    core.step = 0;
    rc = open_reservations(sim, reservations, err);
    if (rc == CST_OK) {
        rc = cst_core_open(&sim->core, &core, err);
    }
out:
    free(pools);
    return rc;
}

static int open_machine(struct cst_sim *sim)
{
    uint32_t n_links = sim->n_engines - sim->n_nodes;
    const struct cst_rates_device **devices = calloc(n_links + 1ul, sizeof(*devices));
    int rc = CST_ENOMEM;

    if (devices != NULL) {
        for (uint32_t i = 0; i < n_links; i++) {
            devices[i] = cst_sim_device(sim, i);
        }
        rc = cst_shared_rates_init(&sim->machine, sim->config->rates, devices, n_links);
    }
    free(devices);
    return rc;
}

static void need_engine(struct cst_sim *sim, uint32_t engine)
{
    if (engine >= sim->n_engines) {
        sim->n_engines = engine + 1;
    }
}

static int count_engines(struct cst_sim *sim, struct cst_err *err)
{
    const struct cst_core_config *core = sim->config->core;
    uint32_t first = UINT32_MAX, gpus;

    sim->n_nodes = 1;
    for (uint32_t c = 0; c < core->layout->n_chunks; c++) {
        if (core->layout->chunks[c].node >= sim->n_nodes) {
            sim->n_nodes = core->layout->chunks[c].node + 1;
        }
    }
    sim->n_engines = sim->n_nodes;
    for (uint32_t rank = 0; rank < core->world; rank++) {
        need_engine(sim, core->pools[rank].tier);
    }
    for (uint32_t i = 0; i < core->n_reservations; i++) {
        if (!is_of_drive(&core->reservations[i])) {
            need_engine(sim, core->reservations[i].engine);
        }
    }
    gpus = sim->n_engines;
    for (uint32_t i = 0; i < core->n_reservations; i++) {
        if (is_of_drive(&core->reservations[i])) {
            need_engine(sim, core->reservations[i].home);
            first = core->reservations[i].home < first ? core->reservations[i].home : first;
        }
    }
    if (first < gpus) {
        return cst_err_set(err, CST_EINVAL,
                           "a drive has engine %" PRIu32 ", below those of accelerators", first);
    }
    sim->n_drives = first == UINT32_MAX ? 0 : sim->n_engines - first;
    return CST_OK;
}

static int open_play(struct cst_sim *sim, struct cst_err *err)
{
    int rc = count_engines(sim, err);

    rc = rc == CST_OK ? open_drives(sim, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    sim->world = sim->config->core->world;
    sim->hop_ns = (uint64_t)(sim->config->rates->request_s * 1e9 / 2);
    sim->workers = calloc(sim->world, sizeof *sim->workers);
    if (sim->workers == NULL || cst_sim_engines_open(sim) != CST_OK ||
        open_machine(sim) != CST_OK) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a replay");
    }
    rc = open_core(sim, err);
    for (uint32_t rank = 0; rank < sim->world && rc == CST_OK; rank++) {
        rc = cst_sim_worker_open(sim, rank, err);
    }
    return rc;
}

static void close_play(struct cst_sim *sim)
{
    for (uint32_t rank = 0; sim->workers != NULL && rank < sim->world; rank++) {
        cst_sim_worker_close(&sim->workers[rank]);
    }
    cst_sim_engines_close(sim);
    cst_core_close(sim->core);
    cst_actions_close(&sim->actions);
    cst_shared_rates_close(&sim->machine);
    cst_timers_close(&sim->timers);
    free(sim->arena_segments);
    free(sim->slabs);
    free(sim->workers);
}

int cst_replay_run(const struct cst_replay_config *config, struct cst_replay_result *out,
                   struct cst_err *err)
{
    struct cst_sim sim = {.config = config, .event = pass_event};
    int rc = cst_rates_check(config->rates, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (config->n_steps == 0 || config->micro_batches == 0) {
        return cst_err_set(err, CST_EINVAL, "a replay of %u steps of %u micro-batches",
                           config->n_steps, config->micro_batches);
    }
    cst_timers_init(&sim.timers);
    cst_actions_init(&sim.actions);
    rc = open_play(&sim, err);
    if (rc == CST_OK) {
        play_all(&sim);
        rc = sim.status;
        if (rc == CST_OK) {
            *out = sim.result;
        } else if (err != NULL) {
            *err = sim.err;
        }
    }
    close_play(&sim);
    return rc;
}
