/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for both engine programs, for tests of the daemon: an engine of the host device behind
 * a proxy that reads and changes the messages between daemon and engine.
 *
 *   daemon --fd 3--> this thread: SEGMENT_ADD with device becomes a memfd --socketpair--> engine
 *
 * For a GPU (SETUP names a device), "device memory" is a memfd that the stub makes, seals and
 * exports, so that processes can look at it. A command that the engine of a GPU is never given ends
 * the process with a message. For a node the stub is an engine of the host, only slower.
 *
 * Environment:
 *
 *   STUB_GPUS        number of GPUs that --probe reports (2): GPU-00000000-stub-n, of 64 MiB each
 *   STUB_ERROR       error that --probe reports instead
 *   STUB_GATE        a FIFO: --probe waits until a process has opened it for writing
 *   STUB_BROKEN      while this file exists, an engine of a GPU exits at SETUP
 *   STUB_FULL        a UUID: this GPU has no memory left
 *   STUB_FATAL       while this file exists, GPU 1's engine exits when it is to allocate memory
 *   STUB_KILLED_AT   bytes: an engine of a node that is to populate a larger segment is killed, as
 *                    the kernel does when a control group has no memory left
 *   STUB_TWICE       an engine of a node sends each answer about a segment twice
 *   STUB_UNREACHABLE GPUs cannot map each other's memory
 *   STUB_DELAY_US    largest random delay of commands on their way to the engine */
#include "kernels/engine/engine.h"
#include "kernels/host/host.h"
#include "proto/engine.pb-c.h"
#include "proto/frame.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { DAEMON_FD = 3, GRANULARITY = 2 << 20, MAX_MADE = 256 };

struct made {
    uint64_t request; /* id of the SEGMENT_ADD; 0: unused */
    int fd;           /* descriptor to send with the answer */
};

struct stub {
    int engine;      /* the proxy's end of the socketpair */
    char device[64]; /* UUID of the GPU; empty: an engine of a node */
    unsigned delay_us;
    unsigned seed;
    /* Memory that SEGMENT_ADD asked to create and that is not answered yet. */
    struct made made[MAX_MADE];
    struct cst_frame_buf in;
    uint8_t body[CST_FRAME_MAX_BODY];
};

static void give_up(const char *what) __attribute__((noreturn));

static void give_up(const char *what)
{
    fprintf(stderr, "engine_stub: %s\n", what);
    _exit(70);
}

static const char *setting(const char *name, const char *otherwise)
{
    const char *value = getenv(name);

    return value != NULL ? value : otherwise;
}

/* -- --probe ---------------------------------------------------------------------------------- */

static int probe(void)
{
    const char *gate = getenv("STUB_GATE"), *error = getenv("STUB_ERROR");
    int n = atoi(setting("STUB_GPUS", "2"));

    if (gate != NULL) {
        (void)close(open(gate, O_RDONLY | O_CLOEXEC)); /* waits until there is a writer */
    }
    if (error != NULL) {
        printf("{\"error\":\"%s\"}\n", error);
        return EXIT_SUCCESS;
    }
    printf("{\"gpus\":[");
    for (int i = 0; i < n; i++) {
        printf("%s{\"index\":%d,\"uuid\":\"GPU-00000000-stub-%d\",\"name\":\"Stub\","
               "\"memory_bytes\":%d}",
               i > 0 ? "," : "", i, i, 64 << 20);
    }
    printf("],\"driver\":13000}\n");
    return EXIT_SUCCESS;
}

/* -- to the engine ---------------------------------------------------------------------------- */

static void pass_on(int sock, struct cst_frame *frame)
{
    if (cst_frame_send(sock, 0, frame, NULL) != CST_OK) {
        _exit(EXIT_SUCCESS); /* the daemon is gone */
    }
    cst_frame_close_fds(frame);
}

static void repack(struct stub *stub, struct cst_frame *frame, const ProtobufCMessage *message)
{
    frame->body_bytes = (uint32_t)protobuf_c_message_pack(message, stub->body);
    frame->body = stub->body;
}

static void on_setup(struct stub *stub, struct cst_frame *frame)
{
    Engine__Setup *setup = engine__setup__unpack(NULL, frame->body_bytes, frame->body);

    if (setup == NULL) {
        give_up("broken SETUP");
    }
    if (setup->device != NULL) {
        if (access(setting("STUB_BROKEN", ""), F_OK) == 0) {
            give_up("broken, as it was told");
        }
        (void)snprintf(stub->device, sizeof stub->device, "%s", setup->device);
        free(setup->device);
        setup->device = NULL;
    }
    repack(stub, frame, &setup->base);
    engine__setup__free_unpacked(setup, NULL);
}

/* Make a memfd whose name contains the device. */
static int make_memory(const struct stub *stub, uint64_t bytes)
{
    int fd = memfd_create(stub->device, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        give_up("no memfd");
    }
    return fd;
}

static bool is_own(const struct stub *stub, int fd)
{
    char path[64], name[128];
    ssize_t n;

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    n = readlink(path, name, sizeof name - 1);
    name[n > 0 ? n : 0] = '\0';
    return strstr(name, stub->device) != NULL;
}

static void create(struct stub *stub, struct cst_frame *frame, uint64_t bytes)
{
    for (unsigned i = 0; i < MAX_MADE; i++) {
        if (stub->made[i].request == 0) {
            stub->made[i] =
                (struct made){.request = frame->request, .fd = make_memory(stub, bytes)};
            frame->fds[0] = fcntl(stub->made[i].fd, F_DUPFD_CLOEXEC, 0);
            frame->n_fds = 1;
            return;
        }
    }
    give_up("too many segments at a time");
}

static void refuse(struct cst_frame *frame, uint32_t id, int status, const char *why)
{
    Engine__SegmentDone done = ENGINE__SEGMENT_DONE__INIT;
    struct cst_frame reply = {.type = ENGINE__MSG_TYPE__ENGINE_SEGMENT_DONE,
                              .flags = CST_FRAME_REPLY,
                              .request = frame->request};
    uint8_t body[256];

    done.id = id;
    done.status = status;
    done.text = (char *)(uintptr_t)why;
    reply.body_bytes = (uint32_t)engine__segment_done__pack(&done, body);
    reply.body = body;
    pass_on(DAEMON_FD, &reply);
    cst_frame_close_fds(frame);
}

/* Returns false if the stub has answered the request itself. */
static bool on_segment_add(struct stub *stub, struct cst_frame *frame)
{
    Engine__SegmentAdd *add = engine__segment_add__unpack(NULL, frame->body_bytes, frame->body);
    bool good = true;

    if (add == NULL || (add->create && !add->device) || (add->create ? 1u : 0u) == frame->n_fds) {
        give_up("broken SEGMENT_ADD");
    }
    if (add->device && (stub->device[0] == '\0' || add->bytes % GRANULARITY != 0)) {
        give_up("memory of a GPU for an engine of a node, or not a multiple of the granularity");
    }
    if (add->populate && add->bytes > strtoull(setting("STUB_KILLED_AT", "-1"), NULL, 10)) {
        (void)raise(SIGKILL);
    }
    if (add->device && !add->create && getenv("STUB_UNREACHABLE") != NULL &&
        !is_own(stub, frame->fds[0])) {
        refuse(frame, add->id, CST_EUNSUPPORTED, "no way from one GPU to the other");
        good = false;
    } else if (add->create && strcmp(setting("STUB_FULL", ""), stub->device) == 0) {
        refuse(frame, add->id, CST_ENOMEM, "the GPU is out of memory");
        good = false;
    } else if (add->create) {
        if (strchr(stub->device, '\0')[-1] == '1' && access(setting("STUB_FATAL", ""), F_OK) == 0) {
            give_up("fatal, as it was told");
        }
        create(stub, frame, add->bytes);
    }
    if (good) {
        add->has_device = add->has_create = 0;
        repack(stub, frame, &add->base);
    }
    engine__segment_add__free_unpacked(add, NULL);
    return good;
}

static bool makes_weights(const Engine__Command *command)
{
    return command->kind == ENGINE__COMMAND_KIND__ROUND;
}

static void check_commands(const struct cst_frame *frame)
{
    Engine__Submit *submit = engine__submit__unpack(NULL, frame->body_bytes, frame->body);

    if (submit == NULL) {
        give_up("broken SUBMIT");
    }
    for (size_t i = 0; i < submit->n_commands; i++) {
        if (submit->commands[i]->kind != ENGINE__COMMAND_KIND__COPY &&
            submit->commands[i]->kind != ENGINE__COMMAND_KIND__REDUCE &&
            !makes_weights(submit->commands[i])) {
            give_up("a command that a GPU's engine does not do");
        }
    }
    engine__submit__free_unpacked(submit, NULL);
}

static void dawdle(struct stub *stub)
{
    struct timespec time = {
        .tv_nsec = 1000L * (long)((unsigned)rand_r(&stub->seed) % (stub->delay_us + 1))};

    if (stub->delay_us > 0) {
        (void)nanosleep(&time, NULL);
    }
}

static void from_daemon(struct stub *stub, struct cst_frame *frame)
{
    bool pass = true;

    if (frame->type == ENGINE__MSG_TYPE__ENGINE_SETUP) {
        on_setup(stub, frame);
    } else if (frame->type == ENGINE__MSG_TYPE__ENGINE_SEGMENT_ADD) {
        pass = on_segment_add(stub, frame);
    } else if (frame->type == ENGINE__MSG_TYPE__ENGINE_SUBMIT) {
        if (stub->device[0] != '\0') {
            check_commands(frame);
        }
        dawdle(stub);
    }
    if (pass) {
        pass_on(stub->engine, frame);
    }
}

/* -- to the daemon ---------------------------------------------------------------------------- */

static void on_ready(struct stub *stub, struct cst_frame *frame)
{
    Engine__Ready *ready = engine__ready__unpack(NULL, frame->body_bytes, frame->body);

    if (ready == NULL) {
        give_up("broken READY");
    }
    ready->has_device_bytes = ready->has_driver = ready->has_granularity = 1;
    ready->device_bytes = 64 << 20;
    ready->driver = 13000;
    ready->granularity = GRANULARITY;
    repack(stub, frame, &ready->base);
    engine__ready__free_unpacked(ready, NULL);
}

static void on_segment_done(struct stub *stub, struct cst_frame *frame)
{
    for (unsigned i = 0; i < MAX_MADE; i++) {
        if (stub->made[i].request == frame->request) {
            frame->fds[0] = stub->made[i].fd;
            frame->n_fds = 1;
            stub->made[i].request = 0;
            return;
        }
    }
}

static void from_engine(struct stub *stub, struct cst_frame *frame)
{
    if (stub->device[0] != '\0' && frame->type == ENGINE__MSG_TYPE__ENGINE_READY) {
        on_ready(stub, frame);
    } else if (stub->device[0] != '\0' && frame->type == ENGINE__MSG_TYPE__ENGINE_SEGMENT_DONE) {
        on_segment_done(stub, frame);
    } else if (frame->type == ENGINE__MSG_TYPE__ENGINE_SEGMENT_DONE &&
               getenv("STUB_TWICE") != NULL) {
        pass_on(DAEMON_FD, frame);
    }
    pass_on(DAEMON_FD, frame);
}

/* -- the proxy -------------------------------------------------------------------------------- */

static void go_between(struct stub *stub)
{
    struct pollfd fds[2] = {{.fd = DAEMON_FD, .events = POLLIN},
                            {.fd = stub->engine, .events = POLLIN}};

    for (;;) {
        struct cst_frame frame;

        if (poll(fds, 2, -1) < 0) {
            continue;
        }
        for (int i = 0; i < 2; i++) {
            if (fds[i].revents == 0) {
                continue;
            }
            if (cst_frame_recv(fds[i].fd, 0, &stub->in, &frame, NULL) != CST_OK) {
                _exit(i == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
            }
            (i == 0 ? from_daemon : from_engine)(stub, &frame);
        }
    }
}

static void warn(const struct cst_err *what)
{
    fprintf(stderr, "engine_stub: %s\n", what->text);
}

static void *run_engine(void *arg)
{
    struct cste_engine_config config = {.sock = *(int *)arg, .ops = &cste_host_ops, .warn = warn};
    struct cst_err err;

    if (cste_engine_run(&config, &err) != CST_OK) {
        warn(&err);
    }
    _exit(EXIT_FAILURE);
}

int main(int argc, char **argv)
{
    static struct stub stub;
    int ends[2];
    pthread_t thread;

    if (argc == 2 && strcmp(argv[1], "--probe") == 0) {
        return probe();
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)signal(SIGPIPE, SIG_IGN);
    stub.delay_us = (unsigned)atoi(setting("STUB_DELAY_US", "0"));
    stub.seed = (unsigned)getpid();
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        give_up("no socketpair");
    }
    stub.engine = ends[0];
    if (pthread_create(&thread, NULL, run_engine, &ends[1]) != 0) {
        give_up("no thread");
    }
    go_between(&stub);
}
