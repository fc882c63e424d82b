/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/engine_proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_BATCH 256 /* most commands in a SUBMIT; they are split if a frame is full */

/* Abort unless @ok. For errors that cannot occur unless the test or the machine is broken. */
static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "engine_proc: %s: %s\n", what, strerror(errno));
        abort();
    }
}

static const char *used_program, *used_device, *used_option, *used_value;

static bool unsettled; /* Setup.unsettled */
static float copy_share;

static Engine__Net *used_net; /* Setup.net */

void engine_proc_net(Engine__Net *net)
{
    used_net = net;
}

static int traffic_fd = -1, traffic_own = -1;
static uint32_t traffic_slots;

void engine_proc_traffic(int fd, uint32_t n, int own)
{
    traffic_fd = fd;
    traffic_slots = n;
    traffic_own = own;
}

void engine_proc_copy_share(float share)
{
    copy_share = share;
}

void engine_proc_use(const char *program, const char *device)
{
    used_program = program;
    used_device = device;
}

void engine_proc_use_option(const char *option, const char *value)
{
    used_option = option;
    used_value = value;
}

struct engine_command engine_command_copy(struct cst_place dst, struct cst_place src,
                                          uint64_t bytes)
{
    return (struct engine_command){.kind = ENGINE__COMMAND_KIND__COPY,
                                   .src = {src},
                                   .n_src = 1,
                                   .dst = {dst},
                                   .n_dst = 1,
                                   .bytes = bytes};
}

struct engine_command engine_command_fill(struct cst_place dst, uint64_t bytes)
{
    return (struct engine_command){
        .kind = ENGINE__COMMAND_KIND__FILL, .dst = {dst}, .n_dst = 1, .bytes = bytes};
}

const char *engine_proc_program(void)
{
    const char *program = used_program != NULL ? used_program : getenv("CST_ENGINE");

    return program != NULL ? program : "./cistern-engine-host";
}

int engine_proc_memfd(uint64_t bytes, void **base)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    must(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0, "memfd");
    must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0, "seals");
    if (base != NULL) {
        *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        must(*base != MAP_FAILED, "mmap");
    }
    return fd;
}

/* Run in the child: fd 3 becomes the socket, and exec closes all other descriptors above 2.
 * hwloc's messages on machines without /sys are turned off, so that stderr has only the engine's
 * messages. */
static void become_engine(int sock, int stderr_fd)
{
    const char *program = engine_proc_program();

    must(setenv("HWLOC_HIDE_ERRORS", "2", 1) == 0, "setenv");
    if (stderr_fd >= 0) {
        must(dup2(stderr_fd, STDERR_FILENO) >= 0, "dup2");
    }
    if (sock == 3) {
        must(fcntl(sock, F_SETFD, 0) == 0, "fcntl");
    } else {
        must(dup2(sock, 3) == 3, "dup2");
    }
    execl(program, program, "--fd", "3", used_option, used_value, (char *)NULL);
    must(false, program);
}

void engine_proc_start(struct engine_proc *proc, int stderr_fd)
{
    int pair[2];

    *proc = (struct engine_proc){.sock = -1};
    must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
    proc->pid = fork();
    must(proc->pid >= 0, "fork");
    if (proc->pid == 0) {
        become_engine(pair[1], stderr_fd);
    }
    (void)close(pair[1]);
    proc->sock = pair[0];
}

static uint64_t send_fds(struct engine_proc *proc, Engine__MsgType type,
                         const ProtobufCMessage *message, const int *fds, unsigned n_fds)
{
    static uint8_t body[CST_FRAME_MAX_BODY];
    struct cst_frame frame = {
        .type = (uint16_t)type, .request = ++proc->last_request, .body = body};
    struct cst_err err;

    if (message != NULL) {
        must(protobuf_c_message_get_packed_size(message) <= sizeof body, "message size");
        frame.body_bytes = (uint32_t)protobuf_c_message_pack(message, body);
    }
    for (unsigned i = 0; i < n_fds; i++) {
        frame.fds[frame.n_fds++] = fds[i];
    }
    /* The reader finds out about CST_ECONN. */
    (void)cst_frame_send(proc->sock, 0, &frame, &err);
    return proc->last_request;
}

uint64_t engine_proc_send(struct engine_proc *proc, Engine__MsgType type,
                          const ProtobufCMessage *message, int fd)
{
    return send_fds(proc, type, message, &fd, fd >= 0 ? 1 : 0);
}

static void keep_done(struct engine_proc *proc, const struct cst_frame *frame)
{
    Engine__Done *done = engine__done__unpack(NULL, frame->body_bytes, frame->body);

    must(done != NULL, "DONE");
    for (size_t i = 0; i < done->n_completions; i++) {
        const Engine__Completion *c = done->completions[i];
        struct engine_completion *to;

        if (proc->n_done == proc->capacity) {
            proc->capacity = proc->capacity * 2 + 64;
            proc->done = realloc(proc->done, proc->capacity * sizeof *proc->done);
            must(proc->done != NULL, "realloc");
        }
        to = &proc->done[proc->n_done++];
        *to =
            (struct engine_completion){.ticket = c->ticket, .status = c->status, .value = c->value};
        (void)snprintf(to->text, sizeof to->text, "%s", c->text != NULL ? c->text : "");
    }
    engine__done__free_unpacked(done, NULL);
}

static void keep_progress(struct engine_proc *proc, const struct cst_frame *frame)
{
    Engine__Progress *progress = engine__progress__unpack(NULL, frame->body_bytes, frame->body);

    must(progress != NULL, "PROGRESS");
    proc->progress_bytes = progress->bytes;
    proc->n_progress++;
    engine__progress__free_unpacked(progress, NULL);
}

/* Receive one message; events are kept. CST_ECONN: the engine closed the connection. CST_EAGAIN: no
 * message. */
static int receive(struct engine_proc *proc, int flags, struct cst_frame *frame)
{
    struct cst_err err;
    int rc = cst_frame_recv(proc->sock, flags, &proc->buf, frame, &err);

    must(rc == CST_OK || rc == CST_ECONN || rc == CST_EAGAIN, "frame from the engine");
    if (rc == CST_OK && frame->type == ENGINE__MSG_TYPE__ENGINE_DONE) {
        keep_done(proc, frame);
    } else if (rc == CST_OK && frame->type == ENGINE__MSG_TYPE__ENGINE_PROGRESS) {
        keep_progress(proc, frame);
    }
    return rc;
}

const struct cst_frame *engine_proc_reply(struct engine_proc *proc, uint64_t request,
                                          struct cst_frame *frame)
{
    while (receive(proc, 0, frame) == CST_OK) {
        if ((frame->flags & CST_FRAME_REPLY) != 0 && frame->request == request) {
            return frame;
        }
    }
    return NULL;
}

void engine_proc_leave_unsettled(void)
{
    unsettled = true;
}

void engine_proc_open(struct engine_proc *proc, uint32_t threads, uint32_t copy_threads,
                      uint32_t undo_id, int undo_fd, uint64_t undo_bytes)
{
    Engine__Setup setup = ENGINE__SETUP__INIT;
    const int fds[] = {undo_fd, traffic_fd};
    struct cst_frame frame;
    Engine__Ready *ready;

    engine_proc_start(proc, -1);
    setup.node = 0;
    setup.threads = threads;
    setup.copy_threads = copy_threads;
    setup.undo_segment = undo_id;
    setup.undo_bytes = undo_bytes;
    setup.device = (char *)(uintptr_t)used_device;
    setup.has_copy_share = 1;
    setup.copy_share = copy_share;
    setup.has_traffic_slots = traffic_fd >= 0;
    setup.traffic_slots = traffic_slots;
    setup.has_traffic_slot = traffic_own >= 0;
    setup.traffic_slot = (uint32_t)traffic_own;
    setup.has_unsettled = setup.unsettled = unsettled;
    setup.net = used_net;
    must(engine_proc_reply(proc,
                           send_fds(proc, ENGINE__MSG_TYPE__ENGINE_SETUP, &setup.base, fds,
                                    traffic_fd >= 0 ? 2 : 1),
                           &frame) != NULL &&
             frame.type == ENGINE__MSG_TYPE__ENGINE_READY,
         "READY");
    ready = engine__ready__unpack(NULL, frame.body_bytes, frame.body);
    must(ready != NULL, "READY");
    proc->threads = ready->threads;
    proc->copy_threads = ready->copy_threads;
    (void)snprintf(proc->isa, sizeof proc->isa, "%s", ready->isa);
    (void)snprintf(proc->device_name, sizeof proc->device_name, "%s",
                   ready->device_name != NULL ? ready->device_name : "");
    proc->device_bytes = ready->device_bytes;
    proc->granularity = ready->granularity;
    proc->driver = ready->driver;
    proc->ready = ready;
}

struct engine_segment_done engine_proc_segment_done(struct engine_proc *proc, uint64_t request)
{
    struct engine_segment_done out = {.status = CST_ECONN, .fd = -1};
    struct cst_frame frame;
    Engine__SegmentDone *done;

    if (engine_proc_reply(proc, request, &frame) == NULL) {
        return out;
    }
    done = engine__segment_done__unpack(NULL, frame.body_bytes, frame.body);
    must(done != NULL && frame.type == ENGINE__MSG_TYPE__ENGINE_SEGMENT_DONE, "SEGMENT_DONE");
    out.status = done->status;
    out.locked = done->has_locked && done->locked;
    out.fd = frame.n_fds > 0 ? frame.fds[0] : -1;
    (void)snprintf(out.text, sizeof out.text, "%s", done->text != NULL ? done->text : "");
    engine__segment_done__free_unpacked(done, NULL);
    return out;
}

struct engine_segment_done engine_proc_add(struct engine_proc *proc, uint32_t id, int fd,
                                           uint64_t bytes, int node, bool populate, bool lock)
{
    Engine__SegmentAdd add = ENGINE__SEGMENT_ADD__INIT;

    add.id = id;
    add.bytes = bytes;
    add.has_node = 1;
    add.node = node;
    add.has_populate = 1;
    add.populate = populate;
    add.has_lock = 1;
    add.lock = lock;
    return engine_proc_segment_done(
        proc, engine_proc_send(proc, ENGINE__MSG_TYPE__ENGINE_SEGMENT_ADD, &add.base, fd));
}

struct engine_segment_done engine_proc_add_device(struct engine_proc *proc, uint32_t id, int fd,
                                                  uint64_t bytes)
{
    Engine__SegmentAdd add = ENGINE__SEGMENT_ADD__INIT;

    add.id = id;
    add.bytes = bytes;
    add.has_device = add.device = 1;
    add.has_create = add.create = fd < 0;
    return engine_proc_segment_done(
        proc, engine_proc_send(proc, ENGINE__MSG_TYPE__ENGINE_SEGMENT_ADD, &add.base, fd));
}

struct engine_segment_done engine_proc_add_file(struct engine_proc *proc, uint32_t id, int fd,
                                                uint64_t offset, uint64_t bytes, bool populate)
{
    Engine__SegmentAdd add = ENGINE__SEGMENT_ADD__INIT;

    add.id = id;
    add.bytes = bytes;
    add.has_device = add.device = 1;
    add.has_file_offset = 1;
    add.file_offset = offset;
    add.has_populate = add.populate = populate;
    return engine_proc_segment_done(
        proc, engine_proc_send(proc, ENGINE__MSG_TYPE__ENGINE_SEGMENT_ADD, &add.base, fd));
}

void engine_proc_must_add(struct engine_proc *proc, uint32_t id, int fd, uint64_t bytes)
{
    struct engine_segment_done done = engine_proc_add(proc, id, fd, bytes, -1, false, false);

    must(done.status == CST_OK, done.text);
}

uint64_t engine_proc_drop(struct engine_proc *proc, uint32_t id, bool discard)
{
    Engine__SegmentDrop drop = ENGINE__SEGMENT_DROP__INIT;

    drop.id = id;
    drop.has_discard = 1;
    drop.discard = discard;
    return engine_proc_send(proc, ENGINE__MSG_TYPE__ENGINE_SEGMENT_DROP, &drop.base, -1);
}

/* Parts of one command's message, which point to each other and into @from. */
struct rows {
    Engine__RowPlace v[ENGINE_PROC_MAX_ROWS], *pointers[ENGINE_PROC_MAX_ROWS];
    Engine__Place places[ENGINE_PROC_MAX_ROWS];
};

struct message {
    Engine__Command command;
    struct rows in, out;
    Engine__Place places[ENGINE_PROC_MAX_SRC + 4];
    Engine__Place *pointers[ENGINE_PROC_MAX_SRC + 4];
    Engine__Hyper hyper;
};

static void fill_places(struct message *m, const struct engine_command *from)
{
    for (unsigned i = 0; i < from->n_src + from->n_dst; i++) {
        const struct cst_place *p = i < from->n_src ? &from->src[i] : &from->dst[i - from->n_src];

        m->places[i] = (Engine__Place)ENGINE__PLACE__INIT;
        m->places[i].segment = p->segment;
        m->places[i].offset = p->offset;
        m->pointers[i] = &m->places[i];
    }
    m->command.n_src = from->n_src;
    m->command.src = m->pointers;
    m->command.n_dst = from->n_dst;
    m->command.dst = m->pointers + from->n_src;
}

static void fill_rows(struct rows *rows, const struct engine_row *from, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        rows->places[i] = (Engine__Place)ENGINE__PLACE__INIT;
        rows->places[i].segment = from[i].place.segment;
        rows->places[i].offset = from[i].place.offset;
        rows->v[i] = (Engine__RowPlace)ENGINE__ROW_PLACE__INIT;
        rows->v[i].row = from[i].row;
        rows->v[i].place = &rows->places[i];
        rows->pointers[i] = &rows->v[i];
    }
}

static void fill_update(struct message *m, const struct engine_command *from)
{
    m->hyper = (Engine__Hyper)ENGINE__HYPER__INIT;
    m->hyper.lr = from->lr;
    m->hyper.beta1 = from->beta1;
    m->hyper.beta2 = from->beta2;
    m->hyper.eps = from->eps;
    m->hyper.weight_decay = from->weight_decay;
    m->hyper.grad_scale = from->grad_scale;
    m->command.hyper = &m->hyper;
    fill_rows(&m->in, from->in, from->n_in);
    m->command.n_in = from->n_in;
    m->command.in = m->in.pointers;
    fill_rows(&m->out, from->out, from->n_out);
    m->command.n_out = from->n_out;
    m->command.out = m->out.pointers;
    m->command.has_guard = from->guard;
    m->command.guard = from->guard;
}

static void fill_convert(Engine__Command *c, const struct engine_command *from)
{
    c->moments = from->moments;
    c->has_moments = from->clear || from->kind == ENGINE__COMMAND_KIND__ENCODE ||
                     from->kind == ENGINE__COMMAND_KIND__DECODE;
    c->has_from_bf16 = from->from_bf16;
    c->from_bf16 = from->from_bf16;
    c->has_split = from->split;
    c->split = from->split;
    c->has_fp32 = from->fp32;
    c->fp32 = from->fp32;
    c->has_row = c->has_first = c->has_row_elems = 1;
    c->row = from->row;
    c->first = from->first;
    c->row_elems = from->row_elems;
}

static void fill_message(struct message *m, const struct engine_command *from)
{
    Engine__Command *c = &m->command;

    *c = (Engine__Command)ENGINE__COMMAND__INIT;
    c->ticket = from->ticket;
    c->kind = from->kind;
    c->n_after = from->n_after;
    c->after = (uint64_t *)(uintptr_t)from->after;
    c->has_priority = 1;
    c->priority = from->priority;
    c->has_newest_first = from->newest_first;
    c->newest_first = from->newest_first;
    fill_places(m, from);
    c->has_bytes = c->has_n_elems = c->has_table = c->has_chunk = c->has_mark = 1;
    c->bytes = from->bytes;
    c->n_elems = from->n_elems;
    c->table = from->table;
    c->chunk = from->chunk;
    c->mark = from->mark;
    c->has_accumulate = from->accumulate;
    c->accumulate = from->accumulate;
    c->has_partials = from->partials;
    c->partials = from->partials;
    if (from->kind == ENGINE__COMMAND_KIND__UPDATE) {
        fill_update(m, from);
    }
    if (from->kind >= ENGINE__COMMAND_KIND__SET_MASTER) {
        fill_convert(c, from);
    }
}

void engine_proc_submit(struct engine_proc *proc, const struct engine_command *commands, size_t n)
{
    static struct message messages[MAX_BATCH];
    Engine__Command *pointers[MAX_BATCH];

    for (size_t i = 0; i < n;) {
        Engine__Submit submit = ENGINE__SUBMIT__INIT;
        size_t k = 0;

        submit.commands = pointers;
        while (k < MAX_BATCH && i + k < n) {
            fill_message(&messages[k], &commands[i + k]);
            pointers[k] = &messages[k].command;
            submit.n_commands = k + 1;
            if (engine__submit__get_packed_size(&submit) > CST_FRAME_MAX_BODY) {
                break;
            }
            k++;
        }
        submit.n_commands = k;
        (void)engine_proc_send(proc, ENGINE__MSG_TYPE__ENGINE_SUBMIT, &submit.base, -1);
        i += k;
    }
}

const struct engine_completion *engine_proc_find(const struct engine_proc *proc, uint64_t ticket)
{
    for (size_t i = 0; i < proc->n_done; i++) {
        if (proc->done[i].ticket == ticket) {
            return &proc->done[i];
        }
    }
    return NULL;
}

const struct engine_completion *engine_proc_wait(struct engine_proc *proc, uint64_t ticket)
{
    const struct engine_completion *c;
    struct cst_frame frame;

    while ((c = engine_proc_find(proc, ticket)) == NULL) {
        if (receive(proc, 0, &frame) != CST_OK) {
            return NULL;
        }
    }
    return c;
}

bool engine_proc_read(struct engine_proc *proc, int timeout_ms)
{
    struct pollfd fd = {.fd = proc->sock, .events = POLLIN};
    struct cst_frame frame;
    int rc;

    if (poll(&fd, 1, timeout_ms) <= 0) {
        return true;
    }
    do {
        rc = receive(proc, MSG_DONTWAIT, &frame);
    } while (rc == CST_OK);
    return rc == CST_EAGAIN;
}

void engine_proc_ping(struct engine_proc *proc, Engine__Pong *out)
{
    struct cst_frame frame;
    Engine__Pong *pong;

    must(engine_proc_reply(proc, engine_proc_send(proc, ENGINE__MSG_TYPE__ENGINE_PING, NULL, -1),
                           &frame) != NULL &&
             frame.type == ENGINE__MSG_TYPE__ENGINE_PONG,
         "PONG");
    pong = engine__pong__unpack(NULL, frame.body_bytes, frame.body);
    must(pong != NULL, "PONG");
    *out = *pong;
    out->n_peers = 0;
    out->peers = NULL;
    engine__pong__free_unpacked(pong, NULL);
}

void engine_proc_kill(struct engine_proc *proc)
{
    struct cst_frame frame;

    must(kill(proc->pid, SIGKILL) == 0 && waitpid(proc->pid, NULL, 0) == proc->pid, "kill");
    proc->pid = 0;
    /* Read what the engine sent before its death. The end is ECONN, or ECONNRESET if the engine
     * left messages unread. */
    while (receive(proc, MSG_DONTWAIT, &frame) == CST_OK) {
    }
    (void)close(proc->sock);
    proc->sock = -1;
}

int engine_proc_close(struct engine_proc *proc)
{
    int status = 0;

    if (proc->sock >= 0) {
        (void)close(proc->sock);
    }
    if (proc->pid > 0) {
        must(waitpid(proc->pid, &status, 0) == proc->pid, "waitpid");
    }
    free(proc->done);
    if (proc->ready != NULL) {
        engine__ready__free_unpacked(proc->ready, NULL);
    }
    *proc = (struct engine_proc){.sock = -1};
    return status;
}
