/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/engine.h"

#include "kernels/engine/engine_parts.h"
#include "proto/sched_slice.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

/* Number of messages read in one iteration of the loop before anything is answered. */
#define MAX_MESSAGES 64

void cste_engine_fail(struct cste_engine *engine, int rc, const struct cst_err *err)
{
    if (rc != CST_OK && engine->status == CST_OK) {
        engine->status = rc;
        engine->err = *err;
    }
}

/* -- SETUP ---------------------------------------------------------------------------------- */

struct cste_thread_pool *cste_engine_lanes(struct cste_engine *engine, enum cste_device_lane lane)
{
    return &engine->lanes[engine->config.ops->memory->one_pool ? 0 : lane];
}

static void pin_team(void *arg, unsigned thread)
{
    struct cste_engine *engine = arg;

    (void)cste_cpus_pin(&engine->cpus, thread);
}

static void place_lane(void *arg, unsigned thread)
{
    struct cste_engine *engine = arg;

    (void)thread;
    /* Other processes wait for copies. If all processors are busy, a lane should run soon. */
    cst_sched_slice_short();
    (void)cste_cpus_stay(&engine->cpus);
}

/* Numbers of threads. */
struct sizes {
    unsigned n_team;  /* Size of the team. Each of its threads needs an undo slot. */
    unsigned n_lanes; /* Size of each thread pool of lanes, except for the thread pool that only
                         maps segments. */
    unsigned n_pools; /* Number of thread pools of lanes. */
};

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static struct sizes choose_sizes(const struct cste_engine *engine, const Engine__Setup *setup)
{
    const struct cste_device_ops *ops = engine->config.ops;
    unsigned cores = engine->cpus.n_cores;
    uint64_t n_slots = setup->undo_bytes / sizeof(struct cst_undo_slot);
    unsigned n_team = least(setup->threads > 0 ? setup->threads : cores, cste_device_max_team(ops));

    return (struct sizes){.n_team = n_team < n_slots ? n_team : (unsigned)n_slots,
                          .n_lanes = setup->copy_threads > 0 ? setup->copy_threads
                                                             : least(cores, ops->memory->max_lanes),
                          .n_pools = ops->memory->one_pool ? 1 : CSTE_LANES};
}

static unsigned pool_size(const struct sizes *sizes, unsigned pool)
{
    return pool == CSTE_LANE_MAP ? 1 : sizes->n_lanes;
}

static int check_setup(const Engine__Setup *setup, struct cst_err *err)
{
    if (setup->undo_segment == 0 || setup->undo_bytes < sizeof(struct cst_undo_slot)) {
        return cst_err_set(err, CST_EPROTO, "undo segment %u of %llu bytes, a slot has %zu",
                           setup->undo_segment, (unsigned long long)setup->undo_bytes,
                           sizeof(struct cst_undo_slot));
    }
    return CST_OK;
}

/* Lock the file of the table of traffic, which all engines of a daemon have, while this process
 * lives. A daemon that takes over the jobs of another daemon waits for the lock, so that engines of
 * two daemons never work with the same memory. The file is opened anew, because a lock belongs to
 * the file description, and the daemon shares this one. The engine of a drive, which may never end,
 * locks its slot @slot instead of the file: only jobs with states on drives wait for it. */
static void hold_lock(struct cste_engine *engine, int fd, uint32_t slot)
{
    struct flock own_slot = {
        .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
    bool drive = engine->config.ops->memory->in_files && slot != UINT32_MAX;
    char path[40];
    struct cst_err err;
    int own;

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    own = open(path, O_RDWR | O_CLOEXEC);
    if (own < 0 ||
        (drive ? fcntl(own, F_OFD_SETLK, &own_slot) : flock(own, LOCK_SH | LOCK_NB)) != 0) {
        (void)cst_err_errno(&err, CST_EIO, errno, "locking the table of traffic");
        engine->config.warn(&err);
    }
    engine->lock = own;
}

/* Map the undo segment. The loop thread touches its pages itself: the segment is small, and no
 * command can be waiting yet. */
static int open_undo(struct cste_engine *engine, const Engine__Setup *setup, int fd,
                     struct cst_err *err)
{
    struct cst_err note;
    int rc = cste_segments_check_fd(fd, setup->undo_bytes, err);

    engine->undo = (struct cste_mem){.bytes = setup->undo_bytes};
    if (rc == CST_OK) {
        rc = cste_device_map(&engine->device, fd, -1, &engine->undo, &note, err);
    }
    if (rc == CST_OK) {
        rc = cste_device_populate(&engine->device, fd, &engine->undo, 0, setup->undo_bytes, err);
    }
    if (rc != CST_OK) {
        return cst_err_prefix(err, "undo segment %u", setup->undo_segment);
    }
    engine->undo_id = setup->undo_segment;
    engine->unsettled = setup->unsettled;
    engine->recovery = (struct cste_recovery){
        .slots = engine->undo.base,
        .n_slots = (uint32_t)(setup->undo_bytes / sizeof(struct cst_undo_slot))};
    return CST_OK;
}

static int open_device(struct cste_engine *engine, const Engine__Setup *setup,
                       const struct sizes *sizes, struct cst_err *err)
{
    struct cste_net_spec net;
    struct cste_device_spec spec = {.cpus = &engine->cpus,
                                    .id = setup->device,
                                    .n_team = sizes->n_team,
                                    .pace = engine->config.pace,
                                    .call_limit_s = engine->config.call_limit_s,
                                    .net = cste_engine_net_spec(setup, &net),
                                    .warn = engine->config.warn};
    struct cste_work_context *context = &engine->context;

    spec.n_threads = spec.n_team;
    for (unsigned i = 0; i < sizes->n_pools; i++) {
        spec.n_threads += pool_size(sizes, i);
    }
    context->doing = calloc(spec.n_threads, sizeof *context->doing);
    context->n_doing = spec.n_threads;
    if (context->doing == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %u threads", spec.n_threads);
    }
    return cste_device_open(&engine->device, engine->config.ops, &spec, err);
}

/* Start all thread pools. Threads are numbered through all thread pools, beginning with the team.
 * Undo slots and the device use these numbers. */
static int open_pools(struct cste_engine *engine, const struct sizes *sizes, struct cst_err *err)
{
    unsigned window = engine->config.ops->window;
    struct cste_thread_pool_config team = {.name = "cst-team",
                                           .n_threads = sizes->n_team,
                                           .window = window,
                                           .start = pin_team,
                                           .arg = engine};
    struct cste_thread_pool_config lanes = {.name = "cst-lane",
                                            .first = sizes->n_team,
                                            .window = window,
                                            .start = place_lane,
                                            .arg = engine};
    int rc = cste_thread_pool_open(&engine->team, &team, err);

    for (unsigned i = 0; i < sizes->n_pools && rc == CST_OK; i++) {
        lanes.n_threads = pool_size(sizes, i);
        rc = cste_thread_pool_open(&engine->lanes[i], &lanes, err);
        lanes.first += lanes.n_threads;
    }
    return rc;
}

static int open_cpus(struct cste_engine *engine, unsigned node, struct cst_err *err)
{
    struct cst_err what;
    int rc = cste_cpus_open(&engine->cpus, node, err);

    if (rc == CST_OK && !engine->cpus.node_found) {
        (void)cst_err_set(
            &what, CST_ENOTFOUND,
            "no processor of NUMA node %u may be used: running on %u cores of any node", node,
            engine->cpus.n_cores);
        engine->config.warn(&what);
    }
    return rc;
}

/* Open the budget. If there is a table of traffic, the engine of an accelerator enters its copies
 * in the table, and the engine of a node counts the copies in it. */
static int open_budget(struct cste_engine *engine, const Engine__Setup *setup, unsigned n_team,
                       int traffic_fd, struct cst_err *err)
{
    struct cste_work_context *context = &engine->context;
    uint32_t own = setup->has_traffic_slot ? setup->traffic_slot : UINT32_MAX;
    int rc = cste_bandwidth_share_open(&context->budget, (double)setup->copy_share, n_team, err);

    if (rc == CST_OK && traffic_fd >= 0) {
        hold_lock(engine, traffic_fd, own);
        rc = cste_engine_traffic_open(&engine->traffic, traffic_fd, setup->traffic_slots, own, err);
    }
    if (rc == CST_OK && engine->traffic.own == NULL) {
        cste_bandwidth_share_watch(&context->budget, engine->traffic.slots,
                                   engine->traffic.n_slots);
    }
    context->traffic = engine->traffic.own;
    return rc;
}

static int open_parts(struct cste_engine *engine, const Engine__Setup *setup, int undo_fd,
                      int traffic_fd, struct cst_err *err)
{
    struct sizes sizes;
    int rc = check_setup(setup, err);

    if (rc == CST_OK) {
        rc = open_cpus(engine, setup->node, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    sizes = choose_sizes(engine, setup);
    rc = open_device(engine, setup, &sizes, err);
    if (rc == CST_OK) {
        rc = open_undo(engine, setup, undo_fd, err);
        engine->recovery.n_team = sizes.n_team;
    }
    if (rc == CST_OK) {
        rc = cste_mailbox_open(&engine->box, err);
    }
    if (rc == CST_OK) {
        rc = open_budget(engine, setup, sizes.n_team, traffic_fd, err);
    }
    if (rc == CST_OK) {
        rc = open_pools(engine, &sizes, err);
    }
    if (rc == CST_OK) {
        engine->context.device = &engine->device;
        engine->context.segments = &engine->segments;
        engine->context.slots = engine->recovery.slots;
        engine->context.box = &engine->box;
        engine->context.n_threads = engine->team.n_started;
        engine->set_up = true;
    }
    return rc;
}

static int say_ready(struct cste_engine *engine, uint64_t request, struct cst_err *err)
{
    const struct cste_device_about *about = &engine->device.about;
    Engine__Ready ready = ENGINE__READY__INIT;
    Engine__NetEnd end;

    ready.threads = engine->team.n_started;
    ready.copy_threads = engine->lanes[CSTE_LANE_UP].n_started;
    ready.isa = (char *)(uintptr_t)about->isa;
    /* Only a device with memory of its own has these properties. */
    if (about->granularity > 0) {
        ready.device_name = (char *)(uintptr_t)about->name;
        ready.has_device_bytes = 1;
        ready.device_bytes = about->bytes;
        ready.has_driver = 1;
        ready.driver = about->driver;
        ready.has_granularity = 1;
        ready.granularity = about->granularity;
    }
    if (about->end.address != NULL) {
        cste_engine_say_end(&about->end, &end);
        ready.end = &end;
    }
    return cste_outbox_say(&engine->outbox, ENGINE__MSG_TYPE__ENGINE_READY, CST_FRAME_REPLY,
                           request, &ready.base, -1, err);
}

static int on_setup(struct cste_engine *engine, const struct cst_frame *frame, struct cst_err *err)
{
    Engine__Setup *setup = engine__setup__unpack(NULL, frame->body_bytes, frame->body);
    int rc;

    /* The file descriptors are those of the undo segment and, if there is one, of the table of
     * traffic. */
    if (setup == NULL || engine->set_up || frame->n_fds != (setup->has_traffic_slots ? 2 : 1)) {
        rc = cst_err_set(err, CST_EPROTO, "malformed or second SETUP, or it came with %u fds",
                         frame->n_fds);
    } else {
        rc = open_parts(engine, setup, frame->fds[0], setup->has_traffic_slots ? frame->fds[1] : -1,
                        err);
    }
    engine__setup__free_unpacked(setup, NULL);
    return rc != CST_OK ? rc : say_ready(engine, frame->request, err);
}

/* -- messages ------------------------------------------------------------------------------- */

/* Check that the device answers its threads. If it does not, answer the command that waits for it,
 * so that the daemon can tell which one that is. */
static int check_late(struct cste_engine *engine, struct cst_err *err)
{
    const struct cste_work_context *context = &engine->context;
    unsigned thread = 0;
    struct cst_err lost;
    int rc = cste_device_check_late(&engine->device, &thread, err);
    uint64_t ticket =
        rc != CST_OK && thread < context->n_doing ? atomic_load(&context->doing[thread]) : 0;

    if (ticket != 0) {
        (void)cste_outbox_complete(&engine->outbox, ticket, rc, NULL, err->text, 0, 0, &lost);
    }
    return rc;
}

static int on_ping(struct cste_engine *engine, const struct cst_frame *frame, struct cst_err *err)
{
    struct cste_work_context *context = &engine->context;
    Engine__Pong pong = ENGINE__PONG__INIT;
    int rc = check_late(engine, err);

    if (rc == CST_OK) {
        rc = cste_engine_count_peers(engine, &pong, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    pong.commands = context->commands;
    pong.in_flight = engine->tickets.n;
    pong.copy_bytes = context->copy_bytes;
    pong.copy_ns = context->copying.ns;
    pong.update_elems = context->update_elems;
    pong.update_ns = context->updating.ns;
    pong.reduce_elems = context->reduce_elems;
    pong.reduce_ns = context->reducing.ns;
    pong.has_update_bytes = pong.has_reduce_bytes = pong.has_held_ns = 1;
    pong.held_ns = cste_bandwidth_share_held_ns(&context->budget);
    pong.update_bytes = context->update_bytes;
    pong.reduce_bytes = context->reduce_bytes;
    pong.has_product_flops = pong.has_product_ns = 1;
    pong.product_flops = (uint64_t)context->product_flops;
    pong.product_ns = context->product_ns;
    pong.progress = atomic_load(&context->progress);
    /* Only a device with memory of its own has a link. */
    if (engine->device.about.granularity > 0) {
        pong.has_up_bytes = pong.has_up_ns = pong.has_down_bytes = pong.has_down_ns = 1;
        pong.up_bytes = context->up_bytes;
        pong.up_ns = context->copying_up.ns;
        pong.down_bytes = context->down_bytes;
        pong.down_ns = context->copying_down.ns;
    }
    rc = cste_outbox_say(&engine->outbox, ENGINE__MSG_TYPE__ENGINE_PONG, CST_FRAME_REPLY,
                         frame->request, &pong.base, -1, err);
    cste_engine_uncount_peers(&pong);
    return rc;
}

static int on_message(struct cste_engine *engine, struct cst_frame *frame, struct cst_err *err)
{
    if (!engine->set_up && frame->type != ENGINE__MSG_TYPE__ENGINE_SETUP) {
        return cst_err_set(err, CST_EPROTO, "message type %u before SETUP", frame->type);
    }
    switch (frame->type) {
    case ENGINE__MSG_TYPE__ENGINE_SETTLED:
        cste_engine_settle(engine);
        return CST_OK;
    case ENGINE__MSG_TYPE__ENGINE_SETUP:
        return on_setup(engine, frame, err);
    case ENGINE__MSG_TYPE__ENGINE_SEGMENT_ADD:
        return cste_engine_add_segment(engine, frame, err);
    case ENGINE__MSG_TYPE__ENGINE_SEGMENT_DROP:
        return cste_engine_drop_segment(engine, frame, err);
    case ENGINE__MSG_TYPE__ENGINE_SUBMIT:
        return cste_engine_submit(engine, frame, err);
    case ENGINE__MSG_TYPE__ENGINE_PEER_ADD:
        return cste_engine_add_peer(engine, frame, err);
    case ENGINE__MSG_TYPE__ENGINE_PEER_DROP:
        return cste_engine_drop_peer(engine, frame, err);
    case ENGINE__MSG_TYPE__ENGINE_PING:
        return on_ping(engine, frame, err);
    default:
        return cst_err_set(err, CST_EPROTO, "message type %u is not for an engine", frame->type);
    }
}

/* Read and handle messages. CST_ECONN: the daemon closed the connection. */
static int read_messages(struct cste_engine *engine, struct cst_err *err)
{
    int rc = CST_OK;

    for (int i = 0; i < MAX_MESSAGES && rc == CST_OK; i++) {
        struct cst_frame frame;

        rc = cst_frame_recv(engine->config.sock, MSG_DONTWAIT, &engine->buf, &frame, err);
        if (rc == CST_OK) {
            rc = on_message(engine, &frame, err);
            cst_frame_close_fds(&frame);
        }
    }
    return rc == CST_EAGAIN ? CST_OK : rc;
}

/* -- the loop ------------------------------------------------------------------------------- */

/* Sleep until there is something to do, and do it. */
static int turn(struct cste_engine *engine, struct cst_err *err)
{
    /* The mailbox exists after SETUP. poll ignores a negative fd. */
    struct pollfd fds[2] = {
        {.fd = engine->config.sock, .events = POLLIN},
        {.fd = engine->set_up ? engine->box.fd : -1, .events = POLLIN},
    };
    int rc = CST_OK;

    if (engine->outbox.full && !engine->outbox.starved) {
        fds[0].events |= POLLOUT;
    }
    if (poll(fds, 2, engine->outbox.starved ? CSTE_OUTBOX_RETRY_MS : -1) < 0 && errno != EINTR) {
        return cst_err_errno(err, CST_EINTERNAL, errno, "poll");
    }
    if (fds[1].revents != 0) {
        cste_mailbox_deliver(&engine->box, engine);
    }
    /* Reading also finds a closed connection (POLLHUP, POLLERR). */
    if ((fds[0].revents & ~POLLOUT) != 0) {
        rc = read_messages(engine, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    cste_engine_start_ready(engine);
    cste_engine_report_progress(engine);
    if (engine->status != CST_OK) {
        *err = engine->err;
        return engine->status;
    }
    return cste_outbox_send(&engine->outbox, err);
}

/* Tell the daemon why the engine ends. If that is not possible, the standard error output has it.
 */
static void say_failed(struct cste_engine *engine, const struct cst_err *why)
{
    Engine__Failed failed = ENGINE__FAILED__INIT;
    struct cst_err err;

    failed.status = why->status;
    failed.text = (char *)(uintptr_t)why->text;
    if (cste_outbox_say(&engine->outbox, ENGINE__MSG_TYPE__ENGINE_FAILED, CST_FRAME_EVENT, 0,
                        &failed.base, -1, &err) == CST_OK) {
        (void)cste_outbox_send(&engine->outbox, &err);
    }
}

int cste_engine_run(const struct cste_engine_config *config, struct cst_err *err)
{
    struct cste_engine *engine = calloc(1, sizeof *engine);
    int rc = CST_OK;

    if (engine == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the engine");
    }
    /* The daemon waits for the loop thread, which never runs for long. */
    cst_sched_slice_short();
    engine->config = *config;
    engine->held_tail = &engine->held;
    cste_outbox_init(&engine->outbox, config->sock);
    cste_segments_init(&engine->segments);
    rc = cst_ticket_graph_open(&engine->tickets, err);
    while (rc == CST_OK) {
        rc = turn(engine, err);
    }
    if (rc != CST_ECONN) {
        say_failed(engine, err);
    }
    /* The engine is not freed, because the threads still use all of its parts. The caller ends the
     * process. */
    return rc == CST_ECONN ? CST_OK : rc;
}
