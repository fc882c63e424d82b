/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/engine.h"

#include "daemon/engine/engines.h"
#include "daemon/base/log.h"
#include "daemon/engine/mounts.h"
#include "daemon/engine/drives.h"
#include "daemon/engine/net_engine.h"
#include "daemon/settings/paced.h"
#include "proto/engine.pb-c.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    /* Seconds after which a process that is busy and sends nothing is killed. */
    MAX_UNANSWERED = 60,
    /* Seconds after which a process that was killed for that reason is abandoned. */
    MAX_DYING = 10,
    /* Bytes of the undo segment per thread: a slot (kernels/math/undo.h) holds the gradients of a
     * tile. */
    UNDO_BYTES = 64 << 10,
};

static const struct cstd_process_ops ops;
static void on_refuse(struct cstd_deferred *later);
static void abandon(struct cstd_engine *engine, const char *why);

void cstd_engine_init(struct cstd_engine *engine, struct cstd_engines *engines, unsigned index,
                      unsigned os_node, const char *device)
{
    *engine = (struct cstd_engine){
        .engines = engines, .index = index, .os_node = os_node, .refuse.fn = on_refuse};
    (void)snprintf(engine->device, sizeof engine->device, "%s", device);
    cstd_commands_init(&engine->commands, &engines->tickets);
    if (cstd_engine_is_gpu(engine)) {
        (void)uv_timer_init(engines->loop, &engine->idle);
        engine->idle.data = engine;
        /* The timer alone must not keep the loop running. */
        uv_unref((uv_handle_t *)&engine->idle);
    }
}

void cstd_engine_close(struct cstd_engine *engine)
{
    if (engine->stuck != NULL) {
        cstd_process_forget(engine->stuck);
        engine->stuck = NULL;
    }
    cstd_commands_close(&engine->commands);
    if (engine->undo != NULL) {
        cstd_segment_unref(engine->undo);
        engine->undo = NULL;
    }
    if (cstd_engine_is_gpu(engine)) {
        uv_close((uv_handle_t *)&engine->idle, NULL);
    }
    cstd_net_engine_free(engine->net);
}

static int send_message(struct cstd_engine *engine, uint16_t type, uint64_t request,
                        const ProtobufCMessage *message, const int *fds, unsigned n_fds)
{
    uint8_t body[512];
    struct cst_frame frame = {.type = type, .request = request, .body = body, .n_fds = n_fds};

    if (message != NULL) {
        assert(protobuf_c_message_get_packed_size(message) <= sizeof body);
        frame.body_bytes = (uint32_t)protobuf_c_message_pack(message, body);
    }
    for (unsigned i = 0; i < n_fds; i++) {
        frame.fds[i] = fds[i];
    }
    return cstd_process_send(engine->process, &frame);
}

int cstd_engine_send_bytes(struct cstd_engine *engine, uint16_t type, uint64_t request,
                           const uint8_t *body, size_t n)
{
    struct cst_frame frame = {
        .type = type, .request = request, .body = body, .body_bytes = (uint32_t)n};

    return cstd_process_send(engine->process, &frame);
}

int cstd_engine_send(struct cstd_engine *engine, uint16_t type, uint64_t request,
                     const ProtobufCMessage *message, int fd)
{
    return send_message(engine, type, request, message, &fd, fd >= 0 ? 1 : 0);
}

static void send_setup(struct cstd_engine *engine)
{
    const struct cstd_engines *engines = engine->engines;
    const struct cstd_settings *config = engines->config;
    Engine__Setup setup = ENGINE__SETUP__INIT;
    Engine__Net net = ENGINE__NET__INIT;
    int fds[] = {engine->undo->fd, engines->traffic_memory->fd};

    setup.node = engine->os_node;
    setup.threads = config->threads;
    if (engine->net != NULL) {
        net.transport = engine->net->transport;
        net.listen = engine->net->listen;
        net.machine = engine->net->machine;
        setup.net = &net;
    }
    if (cstd_engine_is_gpu(engine)) {
        setup.device = engine->device;
    } else {
        setup.copy_threads = config->copy_threads;
        setup.has_copy_share = 1;
        setup.copy_share = (float)config->copy_share;
    }
    setup.undo_segment = engine->undo->id;
    setup.undo_bytes = engine->undo->bytes;
    setup.has_traffic_slots = 1;
    setup.traffic_slots = CSTD_ARENA_MAX_ENGINES;
    /* Accelerators' engines announce their copies in the table of traffic. Nodes' engines leave
     * memory bandwidth to these copies. */
    setup.has_traffic_slot = cstd_engine_is_gpu(engine);
    setup.traffic_slot = engine->index;
    setup.has_unsettled = !engines->settled;
    setup.unsettled = !engines->settled;
    engine->unsettled = !engines->settled;
    (void)send_message(engine, ENGINE__MSG_TYPE__ENGINE_SETUP, 1, &setup.base, fds, 2);
}

/* Size of the undo segment: one slot for each thread that the engine may have. */
static uint64_t undo_bytes(const struct cstd_settings *config)
{
    long n_cores = sysconf(_SC_NPROCESSORS_CONF);

    return UNDO_BYTES * (uint64_t)(config->threads > n_cores ? config->threads : n_cores);
}

/* Start the engine program, with the configured rates of a simulated accelerator or of a slowed
 * node. */
static int start_process(struct cstd_engine *engine, struct cst_err *err)
{
    struct cstd_engines *engines = engine->engines;
    const struct cstd_settings *config = engines->config;
    /* Simulated accelerators and drives run the host's engine program. */
    bool paced = cstd_paced_is(engine->device), disk = cstd_drive_is(engine->device);
    bool net = cstd_net_is(engine->device);
    bool gpu = cstd_engine_is_gpu(engine) && !paced && !disk && !net;
    char rates[CSTD_PACED_ARGUMENT];
    char *argv[4] = {net ? engines->net_program : gpu ? engines->gpu_program : engines->program};

    if (paced) {
        argv[1] = (char *)(uintptr_t) "--paced";
        argv[2] = cstd_paced_argument(config, rates);
    } else if (disk) {
        argv[1] = (char *)(uintptr_t) "--disk";
        argv[2] = rates;
        (void)snprintf(rates, sizeof rates, "--limit=%" PRIu32, config->disk_timeout_s);
    } else if (!gpu && !net && config->update_rate > 0) {
        argv[1] = (char *)(uintptr_t) "--pace";
        argv[2] = rates;
        (void)snprintf(rates, sizeof rates, "update=%" PRIu64, config->update_rate);
    }
    return cstd_process_start(&engine->process, engines->loop, argv, &ops, engine, err);
}

/* Store the reason of a failure in why: "engine 2 (GPU-...): ...". */
__attribute__((format(printf, 2, 3))) static void explain(struct cstd_engine *engine,
                                                          const char *fmt, ...)
{
    bool gpu = cstd_engine_is_gpu(engine);
    int n = snprintf(engine->why, sizeof engine->why, "engine %u%s%s%s: ", engine->index,
                     gpu ? " (" : "", engine->device, gpu ? ")" : "");
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(engine->why + n, sizeof engine->why - (size_t)n, fmt, ap);
    va_end(ap);
}

int cstd_engine_start(struct cstd_engine *engine, struct cst_err *err)
{
    struct cstd_engines *engines = engine->engines;
    int rc = CST_OK;

    if (engine->undo == NULL) {
        rc = cstd_segment_open(&engine->undo, cstd_engines_segment_id(engines),
                               undo_bytes(engines->config), NULL, NULL, "undo slots", err);
    }
    if (rc == CST_OK) {
        rc = start_process(engine, err);
    }
    if (rc != CST_OK) {
        engine->state = CSTD_ENGINE_FAILED;
        explain(engine, "%.150s", err->text);
        return rc;
    }
    engine->state = CSTD_ENGINE_STARTING;
    engine->n_unanswered = 0;
    engine->last_words = (struct cst_err){0};
    cstd_engines_watch(engines);
    send_setup(engine);
    return CST_OK;
}

/* Keep what the engine of a network says of how it is reached. */
static void keep_end(struct cstd_engine *engine, const Engine__NetEnd *end)
{
    uint8_t packed[CST_FRAME_MAX_BODY / 16];
    size_t n = engine->net != NULL && end != NULL ? engine__net_end__get_packed_size(end) : 0;

    if (n > 0 && n <= sizeof packed) {
        (void)engine__net_end__pack(end, packed);
        if (cstd_net_bytes_keep(&engine->net->end, packed, n) != CST_OK) {
            cstd_log(CSTD_LOG_ERROR, "engine %u: no memory for its address", engine->index);
            cstd_process_kill(engine->process);
        }
    }
}

/* Tell the new process of a network what its predecessor was told. */
static void tell_peers(struct cstd_engine *engine)
{
    for (uint32_t m = 0; engine->net != NULL && m < CSTD_NET_MACHINES; m++) {
        const struct cstd_net_bytes *peer = &engine->net->peers[m];

        if (peer->v != NULL) {
            (void)cstd_engine_send_bytes(engine, ENGINE__MSG_TYPE__ENGINE_PEER_ADD, m, peer->v,
                                         peer->n);
        }
    }
}

/* Another machine is a peer of the engine of a network now, or no longer. */
static void on_peer_done(struct cstd_engine *engine, const struct cst_frame *frame)
{
    Engine__PeerDone *done = engine__peer_done__unpack(NULL, frame->body_bytes, frame->body);

    if (done == NULL || done->status != CST_OK) {
        cstd_log(CSTD_LOG_ERROR, "engine %u (%s): machine %u: %s", engine->index, engine->device,
                 done != NULL ? done->machine : 0,
                 done == NULL         ? "invalid answer"
                 : done->text != NULL ? done->text
                                      : cst_status_words(done->status));
    }
    engine__peer_done__free_unpacked(done, NULL);
}

/* The process is ready. It first maps the segments of its predecessor again. Commands wait for
 * these segments only, not for new ones. */
static void on_ready(struct cstd_engine *engine, const struct cst_frame *frame)
{
    Engine__Ready *ready = engine__ready__unpack(NULL, frame->body_bytes, frame->body);

    if (ready == NULL || engine->state != CSTD_ENGINE_STARTING) {
        cstd_log(CSTD_LOG_ERROR, "engine %u: unexpected or invalid answer to setup", engine->index);
        engine__ready__free_unpacked(ready, NULL);
        cstd_process_kill(engine->process);
        return;
    }
    engine->threads = ready->threads;
    engine->copy_threads = ready->copy_threads;
    (void)snprintf(engine->isa, sizeof engine->isa, "%s", ready->isa);
    /* Not 0, which means that the engine has not been up. */
    engine->granularity = ready->granularity > 0 ? ready->granularity : 1;
    engine->staged = false;
    keep_end(engine, ready->end);
    engine__ready__free_unpacked(ready, NULL);
    cstd_log(CSTD_LOG_INFO, "engine %u: ready on %s%sNUMA node %u, %u threads, %u copy threads, %s",
             engine->index, engine->device, cstd_engine_is_gpu(engine) ? ", " : "", engine->os_node,
             engine->threads, engine->copy_threads, engine->isa);
    engine->state = CSTD_ENGINE_MOUNTING;
    tell_peers(engine);
    cstd_mounts_renew(engine);
    if (engine->unsettled && engine->engines->settled) { /* Settled meanwhile. */
        (void)cstd_engine_send(engine, ENGINE__MSG_TYPE__ENGINE_SETTLED, 0, NULL, -1);
    }
    if (engine->n_remounting == 0) {
        engine->state = CSTD_ENGINE_READY;
    }
    if (cstd_engine_is_gpu(engine)) {
        engine->engines->on_up(engine->engines->arg);
    }
}

/* -- commands ------------------------------------------------------------------------------- */

static void on_done(struct cstd_engine *engine, const struct cst_frame *frame)
{
    struct cstd_engines *engines = engine->engines;
    Engine__Done *done = engine__done__unpack(NULL, frame->body_bytes, frame->body);

    if (done == NULL) {
        cstd_log(CSTD_LOG_ERROR, "engine %u: invalid list of completions", engine->index);
        cstd_process_kill(engine->process);
        return;
    }
    for (size_t i = 0; i < done->n_completions; i++) {
        const Engine__Completion *c = done->completions[i];
        const struct cstd_command *command = cstd_commands_find(&engines->tickets, c->ticket);
        bool may_fail = command != NULL && command->may_fail;

        /* A completion of a job that was removed is ignored. */
        if (cstd_commands_remove(&engine->commands, c->ticket)) {
            engine->n_completed++;
            engine->deaths = (struct cstd_deaths){0};
            /* Reported before the completion, which ends the command's entry in the record. */
            if (c->has_ended_ns && engines->on_timed != NULL) {
                engines->on_timed(engines->arg, c->ticket, engine->index, c->began_ns, c->ended_ns);
            }
            /* Statuses are 0 or negative. */
            cstd_engines_complete(engines, c->ticket, c->status > 0 ? CST_EPROTO : c->status,
                                  c->value, c->text, may_fail);
        }
    }
    engine__done__free_unpacked(done, NULL);
}

static void on_pong(struct cstd_engine *engine, const struct cst_frame *frame)
{
    Engine__Pong *pong = engine__pong__unpack(NULL, frame->body_bytes, frame->body);
    struct cstd_engine_counters now;

    if (pong == NULL) {
        return;
    }
    now = cstd_engine_counters_of(pong);
    cstd_rates_see(&engine->seen, &engine->counters, &now);
    engine->counters = now;
    engine->progress = pong->progress;
    if (engine->net != NULL) {
        cstd_net_engine_see(engine->net, pong);
    }
    engine__pong__free_unpacked(pong, NULL);
}

static void on_failed(struct cstd_engine *engine, const struct cst_frame *frame)
{
    Engine__Failed *failed = engine__failed__unpack(NULL, frame->body_bytes, frame->body);

    if (failed != NULL && failed->status < 0) {
        (void)cst_err_set(&engine->last_words, failed->status, "%s", failed->text);
    }
    engine__failed__free_unpacked(failed, NULL);
    /* A thread of the process is in a call that does not return. */
    if (engine->last_words.status == CST_ETIMEDOUT) {
        abandon(engine, engine->last_words.text);
    }
}

static void on_frame(void *arg, struct cst_frame *frame)
{
    struct cstd_engine *engine = arg;

    engine->n_unanswered = 0;
    switch (frame->type) {
    case ENGINE__MSG_TYPE__ENGINE_READY:
        on_ready(engine, frame);
        break;
    case ENGINE__MSG_TYPE__ENGINE_SEGMENT_DONE:
        cstd_mounts_done(engine, frame);
        break;
    case ENGINE__MSG_TYPE__ENGINE_PROGRESS:
        cstd_mounts_progress(engine, frame);
        break;
    case ENGINE__MSG_TYPE__ENGINE_DONE:
        on_done(engine, frame);
        break;
    case ENGINE__MSG_TYPE__ENGINE_PONG:
        on_pong(engine, frame);
        break;
    case ENGINE__MSG_TYPE__ENGINE_FAILED:
        on_failed(engine, frame);
        break;
    case ENGINE__MSG_TYPE__ENGINE_PEER_DONE:
        on_peer_done(engine, frame);
        break;
    default:
        cstd_log(CSTD_LOG_WARNING, "engine %u: message of unknown type %u", engine->index,
                 frame->type);
        break;
    }
}

void cstd_engine_flush(struct cstd_engine *engine)
{
    uint8_t *body = engine->engines->body;
    struct cstd_command *upto = NULL;
    size_t n;

    /* Not in MOUNTING: commands need the segments that are being mapped again. */
    while (engine->state == CSTD_ENGINE_READY && engine->commands.unsent != NULL &&
           (n = cstd_commands_pack(&engine->commands, body, CST_FRAME_MAX_BODY, &upto)) > 0) {
        struct cst_frame frame = {
            .type = ENGINE__MSG_TYPE__ENGINE_SUBMIT, .body = body, .body_bytes = (uint32_t)n};

        if (cstd_process_try_send(engine->process, &frame) != CST_OK) {
            return; /* on_writable or on_exit follows. */
        }
        cstd_commands_sent(&engine->commands, upto);
    }
}

static void on_writable(void *arg)
{
    cstd_engine_flush(arg);
}

bool cstd_engine_is_busy(const struct cstd_engine *engine)
{
    return engine->process != NULL &&
           (engine->commands.n > 0 || engine->n_asked > 0 || engine->state != CSTD_ENGINE_READY);
}

void cstd_engine_ping(struct cstd_engine *engine)
{
    if (engine->process == NULL) {
        return;
    }
    if (++engine->n_unanswered > MAX_UNANSWERED + MAX_DYING) {
        abandon(engine, "it does not answer, and does not end although it was killed");
    } else if (engine->n_unanswered > MAX_UNANSWERED) {
        cstd_log(CSTD_LOG_ERROR, "engine %u: no answer for %d s, killed", engine->index,
                 MAX_UNANSWERED);
        cstd_process_kill(engine->process);
    } else if (cstd_engine_is_up(engine)) { /* A process that is starting cannot answer yet. */
        (void)cstd_engine_send(engine, ENGINE__MSG_TYPE__ENGINE_PING, 2, NULL, -1);
    }
}

/* -- death of the process ------------------------------------------------------------------- */

/* Find the next command that must be refused: any command of an accelerator's engine, else one that
 * is not kept. */
static bool find_refused(const struct cstd_engine *engine, uint64_t *ticket)
{
    return cstd_engine_is_gpu(engine) ? cstd_commands_first(&engine->commands, ticket)
                                      : cstd_commands_first_refused(&engine->commands, ticket);
}

/* Refuse what cannot be done while the engine is given up, and tell the owners of the commands that
 * are kept. */
static void refuse_all(struct cstd_engine *engine)
{
    struct cstd_engines *engines = engine->engines;
    uint64_t ticket;

    engine->retry = false;
    cstd_mounts_fail(engine);
    cstd_commands_give_up(&engine->commands);
    while (find_refused(engine, &ticket)) {
        (void)cstd_commands_remove(&engine->commands, ticket);
        cstd_engines_complete(engines, ticket, CST_EENGINE, 0, engine->why, false);
    }
    /* Commits that wait for this engine must fail now. */
    if (cstd_engine_is_gpu(engine)) {
        engines->on_up(engines->arg);
    } else if (engine->commands.n > 0) {
        engines->on_given_up(engines->arg, engine->index, engine->why);
    }
}

/* Drop the undo data of an accelerator's engine that is given up. It covers sums of gradients of
 * steps that are void now. Another engine may have made these sums again, and restoring the old
 * contents would destroy them. The undo data of a node's engine may cover states and is kept. */
static void forget_undo(struct cstd_engine *engine)
{
    if (cstd_engine_is_gpu(engine) && engine->undo != NULL) {
        cstd_segment_unref(engine->undo);
        engine->undo = NULL;
    }
}

/* The present process is not used any more: take its counters, and let its successor do what it has
 * not done. */
static void end_process(struct cstd_engine *engine)
{
    engine->process = NULL;
    if (engine->net != NULL) {
        cstd_net_engine_end_process(engine->net);
    }
    /* The dead process cannot clear its own slot, and the copies that it announced would slow down
     * the nodes' updates forever. */
    cst_traffic_clear(&engine->engines->traffic[engine->index]);
    cstd_engine_counters_add(&engine->base, &engine->counters);
    engine->counters = (struct cstd_engine_counters){0};
}

static void give_up(struct cstd_engine *engine)
{
    cstd_log(CSTD_LOG_ERROR, "%s", engine->why);
    engine->state = CSTD_ENGINE_FAILED;
    forget_undo(engine);
    refuse_all(engine);
}

/* Give the engine up with its process, which may never end. */
static void abandon(struct cstd_engine *engine, const char *why)
{
    explain(engine, "%.400s; it is used again when process %d has ended", why,
            (int)cstd_process_pid(engine->process));
    engine->stuck = engine->process;
    end_process(engine);
    cstd_mounts_forget(engine);
    cstd_commands_rewind(&engine->commands);
    cstd_process_abandon(engine->stuck);
    give_up(engine);
}

static void on_refuse(struct cstd_deferred *later)
{
    struct cstd_engine *engine = cstd_owner_of(later, struct cstd_engine, refuse);

    /* A node's engine is tried again for a new command. Otherwise the last start failed, and those
     * who wait must be told. */
    if (engine->state == CSTD_ENGINE_FAILED && engine->retry) {
        engine->retry = false;
        cstd_engine_need(engine);
    } else if (engine->state == CSTD_ENGINE_FAILED) {
        refuse_all(engine);
    }
}

void cstd_engine_need(struct cstd_engine *engine)
{
    struct cst_err err = {0};

    if (engine->engines->traffic == NULL) {
        return; /* cstd_engines_start starts it. */
    }
    if (engine->state != CSTD_ENGINE_FAILED && engine->state != CSTD_ENGINE_OFF) {
        return; /* In ENDING the function ended() starts the engine again. */
    }
    if (engine->stuck != NULL) {
        cstd_deferred_add(engine->engines->later, &engine->refuse);
        return;
    }
    if (engine->state == CSTD_ENGINE_FAILED) {
        cstd_log(CSTD_LOG_NOTICE, "engine %u: started again after it was given up", engine->index);
    }
    /* Deaths before the engine was given up do not count against the new attempt. */
    engine->deaths = (struct cstd_deaths){0};
    if (cstd_engine_start(engine, &err) != CST_OK) {
        cstd_log(CSTD_LOG_ERROR, "%s", engine->why);
        cstd_deferred_add(engine->engines->later, &engine->refuse);
    }
}

void cstd_engine_queue(struct cstd_command *command)
{
    struct cstd_engine *engine = cstd_owner_of(command->commands, struct cstd_engine, commands);

    cstd_commands_queue(command);
    if (engine->state == CSTD_ENGINE_FAILED) {
        /* Deferred, because the caller may be in the middle of the actions of a core. */
        engine->retry = !cstd_engine_is_gpu(engine);
        cstd_deferred_add(engine->engines->later, &engine->refuse);
    }
}

/* The process has ended because no job used it. Jobs may want it again meanwhile. */
static void ended(struct cstd_engine *engine)
{
    cstd_log(CSTD_LOG_INFO, "engine %u: stopped, because no job uses %s", engine->index,
             engine->device);
    engine->state = CSTD_ENGINE_OFF;
    cstd_segment_unref(engine->undo); /* No tile is partly updated. */
    engine->undo = NULL;
    if (engine->n_users > 0) {
        cstd_engine_need(engine);
    }
}

/* True if the process has said that its accelerator lacks what an engine needs, and none was ever
 * up: the next process would end in the same way. */
static bool is_useless(const struct cstd_engine *engine)
{
    return cstd_engine_is_gpu(engine) && engine->granularity == 0 &&
           engine->last_words.status == CST_EUNSUPPORTED;
}

static void on_exit_of_process(void *arg, const char *how)
{
    struct cstd_engine *engine = arg;
    const struct cst_err *last = &engine->last_words;
    struct cst_err err = {0};
    bool populating;

    if (engine->process == NULL) {
        cstd_log(CSTD_LOG_NOTICE, "engine %u: the process that was given up has ended: %s",
                 engine->index, how);
        engine->stuck = NULL;
        return;
    }
    end_process(engine);
    populating = cstd_mounts_blame(engine);
    cstd_mounts_forget(engine);
    cstd_commands_rewind(&engine->commands);
    if (engine->engines->stopping) {
        engine->state = CSTD_ENGINE_OFF;
        return;
    }
    if (engine->state == CSTD_ENGINE_ENDING) {
        ended(engine);
        return;
    }
    cstd_log(CSTD_LOG_WARNING, "engine %u: %s with %llu commands in flight%s%s", engine->index, how,
             (unsigned long long)engine->commands.n, last->status != CST_OK ? ": " : "",
             last->text);
    if (is_useless(engine)) {
        explain(engine, "%s", last->text);
        give_up(engine);
        return;
    }
    if (populating) {
        cstd_log(CSTD_LOG_WARNING, "engine %u: it died while it populated memory of a job",
                 engine->index);
        cstd_mounts_refuse(engine, how);
    } else if (cstd_deaths_add(&engine->deaths, cstd_engine_is_gpu(engine), uv_hrtime())) {
        explain(engine,
                "it died %u times in a row without completing a command, the last time: %.80s%s%s",
                engine->deaths.n, how, last->status != CST_OK ? ": " : "", last->text);
        give_up(engine);
        return;
    }
    engine->n_restarts++;
    if (cstd_engine_start(engine, &err) != CST_OK) {
        give_up(engine);
    }
}

/* -- use by ranks --------------------------------------------------------------------------- */

static void on_idle(uv_timer_t *timer)
{
    struct cstd_engine *engine = timer->data;

    if (engine->process != NULL && !engine->engines->stopping) {
        engine->state = CSTD_ENGINE_ENDING;
        cstd_engines_watch(engine->engines);
        cstd_process_stop(engine->process);
    }
}

void cstd_engine_use(struct cstd_engine *engine)
{
    engine->n_users++;
    (void)uv_timer_stop(&engine->idle);
    cstd_engine_need(engine);
}

void cstd_engine_end_idle(struct cstd_engine *engine)
{
    if (engine->n_users == 0) {
        (void)uv_timer_stop(&engine->idle);
        on_idle(&engine->idle);
    }
}

void cstd_engine_unuse(struct cstd_engine *engine)
{
    if (--engine->n_users == 0 && !engine->engines->stopping) {
        (void)uv_timer_start(&engine->idle, on_idle,
                             (uint64_t)engine->engines->config->gpu_idle_s * 1000, 0);
    }
}

static const struct cstd_process_ops ops = {
    .on_frame = on_frame, .on_writable = on_writable, .on_exit = on_exit_of_process};
