/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/engines.h"

#include "daemon/base/log.h"
#include "daemon/engine/drives.h"
#include "daemon/engine/mounts.h"
#include "daemon/engine/net_engine.h"
#include "proto/host_nodes.h"
#include "proto/engine.pb-c.h"
#include "proto/program.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PING_MS = 1000, STOP_MS = 2000 };

/* -- start and stop ------------------------------------------------------------------------- */

static int find_programs(struct cstd_engines *engines, struct cst_err *err)
{
    const struct cstd_settings *config = engines->config;
    int rc = cst_program_find("cistern-engine-host", config->engine, "CISTERN_ENGINE_HOST",
                              engines->program, sizeof engines->program, err);

    /* The daemon cannot work without this program. */
    if (rc == CST_EAGAIN) {
        return CST_ENOTFOUND;
    }
    if (rc == CST_OK && strcmp(config->gpu_devices, "none") != 0) {
        rc = cst_program_find("cistern-engine-cuda", config->gpu_engine, "CISTERN_ENGINE_CUDA",
                              engines->gpu_program, sizeof engines->gpu_program, err);
        /* Without the program there are no GPUs. */
        rc = rc == CST_EAGAIN ? CST_OK : rc;
    }
    if (rc == CST_OK) {
        rc = cst_program_find("cistern-engine-net", "", "CISTERN_ENGINE_NET", engines->net_program,
                              sizeof engines->net_program, err);
        /* Without the program there are no jobs on several nodes. */
        rc = rc == CST_EAGAIN ? CST_OK : rc;
    }
    return rc;
}

static bool is_wanted(const struct cstd_settings *config, unsigned os_node)
{
    bool wanted = config->n_nodes == 0;

    for (unsigned i = 0; i < config->n_nodes; i++) {
        wanted = wanted || config->nodes[i] == os_node;
    }
    return wanted;
}

/* Make an engine for each wanted host node. */
static int find_nodes(struct cstd_engines *engines, struct cst_err *err)
{
    const struct cstd_settings *config = engines->config;
    struct cst_host_nodes nodes;
    int rc = cst_host_nodes_open(&nodes, CST_HOST_NODES_ONLY, err);

    if (rc != CST_OK) {
        return rc;
    }
    for (unsigned i = 0; i < nodes.n && engines->n < CSTD_SETTINGS_MAX_NODES; i++) {
        if (is_wanted(config, nodes.v[i].os_index)) {
            cstd_engine_init(&engines->v[engines->n], engines, engines->n, nodes.v[i].os_index, "");
            engines->n++;
        }
    }
    cst_host_nodes_close(&nodes);
    if (engines->n < config->n_nodes) {
        return cst_err_set(err, CST_EINVAL,
                           "'nodes' in [host] names %u NUMA nodes, but only %u of them exist and "
                           "have processors and memory",
                           config->n_nodes, engines->n);
    }
    /* hwloc found no host node: treat the machine as one node. */
    if (engines->n == 0) {
        cstd_engine_init(&engines->v[engines->n++], engines, 0, 0, "");
    }
    engines->n_nodes = engines->n;
    return CST_OK;
}

int cstd_engines_init(struct cstd_engines *engines, uv_loop_t *loop,
                      const struct cstd_settings *config, struct cstd_deferred_queue *later,
                      cstd_engines_done_fn on_done, cstd_engines_up_fn on_up,
                      cstd_engines_given_up_fn on_given_up, void *arg, struct cst_err *err)
{
    int rc;

    memset(engines, 0, sizeof *engines);
    engines->loop = loop;
    engines->config = config;
    engines->later = later;
    engines->on_done = on_done;
    engines->on_up = on_up;
    engines->on_given_up = on_given_up;
    engines->arg = arg;
    engines->next_segment = 1;
    engines->settled = true; /* Unless jobs are found. */
    TAILQ_INIT(&engines->segments);
    rc = find_programs(engines, err);
    if (rc == CST_OK) {
        rc = find_nodes(engines, err);
    }
    if (rc == CST_OK) {
        rc = cst_ticket_graph_open(&engines->tickets, err);
    }
    if (rc == CST_OK) {
        (void)uv_timer_init(loop, &engines->ping);
        engines->ping.data = engines;
    }
    return rc;
}

int cstd_engines_add_device(struct cstd_engines *engines, const char *uuid, int os_node,
                            unsigned *index, struct cst_err *err)
{
    if (engines->n == CSTD_ARENA_MAX_ENGINES) {
        return cst_err_set(err, CST_EUNSUPPORTED, "more than %d engines", CSTD_ARENA_MAX_ENGINES);
    }
    cstd_engine_init(&engines->v[engines->n], engines, engines->n,
                     os_node >= 0 ? (unsigned)os_node : engines->v[0].os_node, uuid);
    *index = engines->n++;
    return CST_OK;
}

#define TRAFFIC_BYTES (CSTD_ARENA_MAX_ENGINES * sizeof(struct cst_traffic))

static int open_traffic(struct cstd_engines *engines, struct cst_err *err)
{
    void *slots;
    int rc = CST_OK;

    if (engines->traffic_memory == NULL) {
        rc = cstd_segment_open(&engines->traffic_memory, cstd_engines_segment_id(engines),
                               TRAFFIC_BYTES, NULL, NULL, "table of traffic", err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    slots = mmap(NULL, TRAFFIC_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                 engines->traffic_memory->fd, 0);
    if (slots == MAP_FAILED) {
        return cst_err_errno(err, CST_ENOMEM, errno, "mapping the table of traffic");
    }
    memset(slots, 0, TRAFFIC_BYTES); /* An earlier daemon's engines have left it. */
    engines->traffic = slots;
    return CST_OK;
}

static void close_traffic(struct cstd_engines *engines)
{
    if (engines->traffic != NULL) {
        (void)munmap(engines->traffic, TRAFFIC_BYTES);
    }
    if (engines->traffic_memory != NULL) {
        cstd_segment_unref(engines->traffic_memory);
    }
}

int cstd_engines_start(struct cstd_engines *engines, struct cst_err *err)
{
    int rc = open_traffic(engines, err);

    for (unsigned i = 0; i < engines->n_nodes && rc == CST_OK; i++) {
        rc = cstd_engine_start(&engines->v[i], err);
    }
    for (unsigned i = engines->n_nodes; i < engines->n && rc == CST_OK; i++) {
        if (engines->v[i].n_users > 0) {
            cstd_engine_need(&engines->v[i]);
        }
    }
    return rc;
}

/* An engine whose drive does not answer cannot be killed. The daemon ends without it, and the
 * kernel ends it when the drive answers. */
static void on_stop_too_late(uv_timer_t *timer)
{
    struct cstd_engines *engines = timer->data;

    for (unsigned i = 0; i < engines->n; i++) {
        struct cstd_process *process = engines->v[i].process;

        if (process != NULL) {
            cstd_log(CSTD_LOG_ERROR, "engine %u: process %d does not end, although it was killed",
                     i, (int)cstd_process_pid(process));
            engines->v[i].process = NULL;
            cstd_process_forget(process);
        }
    }
}

static void on_stop_late(uv_timer_t *timer)
{
    struct cstd_engines *engines = timer->data;

    for (unsigned i = 0; i < engines->n; i++) {
        if (engines->v[i].process != NULL) {
            cstd_log(CSTD_LOG_WARNING, "engine %u: still running after %d ms, killed", i, STOP_MS);
            cstd_process_kill(engines->v[i].process);
        }
    }
    (void)uv_timer_start(timer, on_stop_too_late, STOP_MS, 0);
    uv_unref((uv_handle_t *)timer);
}

void cstd_engines_stop(struct cstd_engines *engines)
{
    engines->stopping = true;
    for (unsigned i = 0; i < engines->n; i++) {
        if (engines->v[i].process != NULL) {
            cstd_process_stop(engines->v[i].process);
        }
    }
    /* The engines are not checked any more, and the timer can limit the time of their end. */
    (void)uv_timer_start(&engines->ping, on_stop_late, STOP_MS, 0);
    /* The timer must not keep the loop running when all processes have ended in time. */
    uv_unref((uv_handle_t *)&engines->ping);
}

bool cstd_engines_all_ended(const struct cstd_engines *engines)
{
    for (unsigned i = 0; i < engines->n; i++) {
        if (engines->v[i].process != NULL) {
            return false;
        }
    }
    return true;
}

void cstd_engines_close(struct cstd_engines *engines)
{
    uv_close((uv_handle_t *)&engines->ping, NULL);
    for (unsigned i = 0; i < engines->n; i++) {
        cstd_engine_close(&engines->v[i]);
    }
    cst_ticket_graph_close(&engines->tickets);
    close_traffic(engines);
}

/* -- segments ------------------------------------------------------------------------------- */

static void list_segment(struct cstd_engines *engines, struct cstd_segment *segment)
{
    struct cstd_segment **bucket = &engines->buckets[segment->id % CSTD_ENGINES_BUCKETS];

    if (!segment->listed) {
        segment->listed = true;
        segment->same_bucket = *bucket;
        *bucket = segment;
        TAILQ_INSERT_TAIL(&engines->segments, segment, link);
    }
}

void cstd_engines_unlist(struct cstd_engines *engines, struct cstd_segment *segment)
{
    struct cstd_segment **p = &engines->buckets[segment->id % CSTD_ENGINES_BUCKETS];

    for (unsigned i = 0; i < engines->n; i++) {
        if (segment->mounts[i] != CSTD_MOUNT_NONE) {
            return;
        }
    }
    while (*p != segment) {
        p = &(*p)->same_bucket;
    }
    *p = segment->same_bucket;
    TAILQ_REMOVE(&engines->segments, segment, link);
    segment->listed = false;
}

struct cstd_segment *cstd_engines_find(const struct cstd_engines *engines, uint32_t id)
{
    struct cstd_segment *segment = engines->buckets[id % CSTD_ENGINES_BUCKETS];

    while (segment != NULL && segment->id != id) {
        segment = segment->same_bucket;
    }
    return segment;
}

static bool maps(const struct cstd_engines *engines, const struct cstd_segment *segment, unsigned i)
{
    return cst_set_none(&segment->engines) ? i < engines->n_nodes
                                           : cst_set_has(&segment->engines, i);
}

void cstd_engines_mount(struct cstd_engines *engines, struct cstd_segment *segment)
{
    list_segment(engines, segment);
    /* Count all engines before the first one is asked, or an early answer would look like the last
     * one. */
    for (unsigned i = 0; i < engines->n; i++) {
        if (maps(engines, segment, i)) {
            segment->mounts[i] = CSTD_MOUNT_WANTED;
            segment->n_waiting++;
            cstd_segment_ref(segment);
        }
    }
    for (unsigned i = 0; i < engines->n; i++) {
        if (segment->mounts[i] == CSTD_MOUNT_WANTED) {
            cstd_engine_need(&engines->v[i]);
            cstd_mounts_add(&engines->v[i], segment);
        }
    }
}

void cstd_engines_settle(struct cstd_engines *engines)
{
    engines->settled = true;
    for (unsigned i = 0; i < engines->n; i++) {
        if (cstd_engine_is_up(&engines->v[i])) {
            (void)cstd_engine_send(&engines->v[i], ENGINE__MSG_TYPE__ENGINE_SETTLED, 0, NULL, -1);
        }
    }
}

void cstd_engines_unmount(struct cstd_engines *engines, struct cstd_segment *segment)
{
    /* Keeps the segment while cstd_mounts_drop releases the references of engines. */
    cstd_segment_ref(segment);
    for (unsigned i = 0; i < engines->n; i++) {
        if (segment->mounts[i] != CSTD_MOUNT_NONE) {
            cstd_mounts_drop(&engines->v[i], segment);
        }
    }
    cstd_segment_unref(segment);
}

/* -- commands ------------------------------------------------------------------------------- */

static bool any_is_busy(const struct cstd_engines *engines)
{
    bool any = false;

    for (unsigned i = 0; i < engines->n; i++) {
        any = any || cstd_engine_is_busy(&engines->v[i]);
    }
    return any;
}

/* Check all engines. The last check, which finds no busy engine, has still asked for the
 * counters. */
static void on_ping(uv_timer_t *timer)
{
    struct cstd_engines *engines = timer->data;

    for (unsigned i = 0; i < engines->n; i++) {
        cstd_engine_ping(&engines->v[i]);
    }
    if (!any_is_busy(engines)) {
        engines->pinging = false;
        (void)uv_timer_stop(timer);
        for (unsigned i = 0; i < engines->n; i++) {
            engines->v[i].n_unanswered = 0;
        }
    }
}

void cstd_engines_watch(struct cstd_engines *engines)
{
    if (!engines->pinging && !engines->stopping) {
        engines->pinging = true;
        (void)uv_timer_start(&engines->ping, on_ping, PING_MS, PING_MS);
    }
}

/* Find the commands that @command must wait for here, and store their tickets. 0: its engine can
 * order them itself. An engine only knows its own commands. A command also waits here for a command
 * of its own engine if
 * - `after_ack` requires that the daemon has seen the completion, or
 * - that command is `may_fail`, because the engine would pass its failure on. */
static uint32_t find_waits(const struct cstd_engines *engines, const struct cst_command *command,
                           uint64_t *tickets)
{
    const struct cstd_commands *own = &engines->v[command->node].commands;
    bool hold = command->promised;
    uint32_t n = 0;

    for (uint32_t i = 0; i < command->n_after; i++) {
        const struct cstd_command *first = cstd_commands_find(&engines->tickets, command->after[i]);

        if (first != NULL) {
            hold = hold || first->commands != own || first->state == CSTD_COMMAND_HELD ||
                   command->after_ack || first->may_fail;
            tickets[n++] = command->after[i];
        }
    }
    return hold ? n : 0;
}

/* Report that @command will not be executed, because it waited for a command that has failed. The
 * commands that wait for it are cancelled next unless it is may_fail. */
static void cancel(struct cstd_engines *engines, struct cstd_command *command)
{
    uint64_t ticket = command->ticket.number;
    bool may_fail = command->may_fail;
    struct cst_err err;

    cstd_commands_explain(command, &err);
    (void)cstd_commands_remove(command->commands, ticket);
    engines->on_done(engines->arg, ticket, err.status, 0, err.text);
    cstd_commands_done(&engines->tickets, ticket, may_fail ? CST_OK : err.status, err.text);
}

/* Queue the commands that no longer wait. Commands that are submitted meanwhile by on_done are
 * queued by the call that runs already. */
static void release(struct cstd_engines *engines)
{
    struct cstd_command *command;

    if (engines->releasing) {
        return;
    }
    engines->releasing = true;
    while ((command = cstd_commands_take(&engines->tickets)) != NULL) {
        if (command->ticket.doomed) {
            cancel(engines, command);
        } else {
            cstd_engine_queue(command);
            cstd_engines_watch(engines);
        }
    }
    engines->releasing = false;
}

int cstd_engines_submit(struct cstd_engines *engines, const struct cst_command *command,
                        struct cst_err *err)
{
    uint64_t tickets[CST_COMMAND_MAX_AFTER];
    uint32_t n = 0;
    int rc;

    if (command->node >= engines->n) {
        return cst_err_set(err, CST_EINTERNAL, "command for engine %u of %u", command->node,
                           engines->n);
    }
    rc = cstd_commands_keep_promise(&engines->tickets, command, err);
    if (rc != CST_ENOTFOUND) {
        release(engines);
        return rc;
    }
    /* A single engine orders its commands itself. `after_ack` and `may_fail` would need a hold even
     * then, but only jobs with accelerators use them. */
    if (command->n_after > 0 && engines->n > 1) {
        n = find_waits(engines, command, tickets);
    }
    rc = cstd_commands_add(&engines->v[command->node].commands, command, tickets, n, err);
    if (rc != CST_OK) {
        return rc;
    }
    /* Commands that wait for a failed command now wait for the one that replaces it. */
    for (uint32_t i = 0; i < command->n_replaces; i++) {
        cstd_commands_replace(&engines->tickets, command->replaces[i], command->ticket);
    }
    release(engines);
    return CST_OK;
}

void cstd_engines_complete(struct cstd_engines *engines, uint64_t ticket, int status, double value,
                           const char *text, bool may_fail)
{
    engines->on_done(engines->arg, ticket, status, value, text);
    cstd_commands_done(&engines->tickets, ticket, may_fail ? CST_OK : status, text);
    release(engines);
}

void cstd_engines_forget(struct cstd_engines *engines, unsigned shift, uint64_t value)
{
    for (unsigned i = 0; i < engines->n; i++) {
        cstd_commands_forget(&engines->v[i].commands, shift, value);
    }
}

void cstd_engines_recall(struct cstd_engines *engines, uint64_t ticket)
{
    engines->has_recalled =
        cstd_commands_recall(&engines->tickets, ticket) || engines->has_recalled;
}

static void cancel_recalled(struct cstd_engines *engines)
{
    engines->has_recalled = false;
    for (unsigned i = 0; i < engines->n; i++) {
        cstd_commands_doom_recalled(&engines->v[i].commands);
    }
    release(engines);
}

void cstd_engines_flush(struct cstd_engines *engines)
{
    if (engines->has_recalled) {
        cancel_recalled(engines);
    }
    for (unsigned i = 0; i < engines->n; i++) {
        if (engines->v[i].commands.unsent != NULL) {
            cstd_engine_flush(&engines->v[i]);
        }
    }
}

bool cstd_engines_alive(struct cstd_engines *engines)
{
    bool alive = true;

    for (unsigned i = 0; i < engines->n; i++) {
        struct cstd_engine *engine = &engines->v[i];

        /* An engine in FAILED keeps commands but cannot make progress, and restarting the daemon
         * would lose the states. That of a drive has a limit of its own ([disk] timeout). */
        if (engine->commands.n > 0 && !cstd_drive_is(engine->device) &&
            !cstd_net_is(engine->device) && engine->progress == engine->progress_seen &&
            engine->state != CSTD_ENGINE_FAILED) {
            alive = false;
        }
        engine->progress_seen = engine->progress;
    }
    return alive;
}
