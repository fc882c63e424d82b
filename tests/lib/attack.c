/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/attack.h"

#include "proto/cistern.pb-c.h"
#include "proto/frame.h"
#include "tests/lib/child.h"
#include "tests/lib/user.h"

#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MAX_KEPT = 300,      /* connections that an attacker keeps open */
    MAX_MAPPED = 64,     /* pools of removed jobs that an attacker keeps mapped */
    PATIENCE_MS = 10000, /* time to wait for a reply */
    PAGE = 6,            /* tensors, and operators, in a Declare */
    UNREAD = 150,        /* requests for staging per connection whose replies are not read */
    FIRST_MS = 100,      /* time to wait for a reply that may never come */
    IDLE_MS = 20,        /* time between two rounds of an attacker that holds all that it can */
};

struct mapping {
    void *base;
    size_t bytes;
};

struct attacker {
    const char *socket;
    struct attack_state *state;
    /* Open connections; when all MAX_KEPT are in use the oldest is at `next`; -1: none. */
    int kept[MAX_KEPT];
    unsigned next;
    /* Mapped pools; when all MAX_MAPPED are in use the oldest is replaced. */
    struct mapping mapped[MAX_MAPPED];
    unsigned next_mapped;
    uint64_t request; /* id of the last request */
    uint8_t body[CST_FRAME_MAX_BODY];
    struct cst_frame reply; /* the last reply; its body is in `buf` */
    struct cst_frame_buf buf;
};

/* -- one connection ------------------------------------------------------------------------- */

static int dial(const struct attacker *a)
{
    const struct timeval patience = {.tv_sec = PATIENCE_MS / 1000};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", a->socket);
    if (sock >= 0) {
        (void)setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        if (connect(sock, (struct sockaddr *)&address, sizeof address) != 0) {
            (void)close(sock);
            sock = -1;
        }
    }
    return sock;
}

static bool say_bytes(struct attacker *a, int sock, uint16_t type, const void *body, size_t n)
{
    const struct cst_frame frame = {
        .type = type, .request = ++a->request, .body = body, .body_bytes = (uint32_t)n};

    return sock >= 0 && cst_frame_send(sock, 0, &frame, NULL) == CST_OK;
}

static bool say(struct attacker *a, int sock, uint16_t type, const ProtobufCMessage *message)
{
    return say_bytes(a, sock, type, a->body,
                     message != NULL ? protobuf_c_message_pack(message, a->body) : 0);
}

/* Receive the next reply. True if it is of @type; the caller then owns its descriptors. */
static bool hear(struct attacker *a, int sock, uint16_t type)
{
    struct pollfd p = {.fd = sock, .events = POLLIN};
    bool heard = sock >= 0 && poll(&p, 1, PATIENCE_MS) == 1 &&
                 cst_frame_recv(sock, MSG_DONTWAIT, &a->buf, &a->reply, NULL) == CST_OK;

    if (heard && a->reply.type != type) {
        cst_frame_close_fds(&a->reply);
        heard = false;
    }
    if (!heard) {
        atomic_fetch_add(&a->state->n_refused, 1);
    }
    return heard;
}

static bool greet(struct attacker *a, int sock)
{
    Cistern__Hello hello = CISTERN__HELLO__INIT;

    hello.min_version = hello.max_version = 1;
    return say(a, sock, CISTERN__MSG_TYPE__MSG_HELLO, &hello.base) &&
           hear(a, sock, CISTERN__MSG_TYPE__MSG_WELCOME);
}

/* Keep @sock open, and close the oldest kept connection if there are too many. */
static void keep(struct attacker *a, int sock)
{
    int *place = &a->kept[a->next++ % MAX_KEPT];

    if (*place >= 0) {
        (void)close(*place);
    }
    *place = sock;
}

/* -- jobs ----------------------------------------------------------------------------------- */

static bool open_job(struct attacker *a, int sock, const char *name, uint32_t ttl_s)
{
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;

    open.name = (char *)(uintptr_t)name;
    open.world = 1;
    open.has_ttl_s = ttl_s != 0;
    open.ttl_s = ttl_s;
    return say(a, sock, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open.base) &&
           hear(a, sock, CISTERN__MSG_TYPE__MSG_JOB_OPENED);
}

/* Declare @n tensors (at most PAGE), from number @first on, and an operator for each. */
static bool declare(struct attacker *a, int sock, uint32_t first, uint32_t n, int64_t elems)
{
    static Cistern__TensorDecl tensors[PAGE], *tensor_pointers[PAGE];
    static Cistern__OperatorDecl operators[PAGE], *operator_pointers[PAGE];
    static char names[PAGE][16];
    static uint32_t numbers[PAGE];
    Cistern__Declare message = CISTERN__DECLARE__INIT;

    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(names[i], sizeof names[i], "x%u", first + i);
        numbers[i] = first + i;
        cistern__tensor_decl__init(&tensors[i]);
        tensors[i].name = names[i];
        tensors[i].dtype = 1;
        tensors[i].n_shape = 1;
        tensors[i].shape = &elems;
        tensor_pointers[i] = &tensors[i];
        cistern__operator_decl__init(&operators[i]);
        operators[i].name = names[i];
        operators[i].n_tensors = 1;
        operators[i].tensors = &numbers[i];
        operator_pointers[i] = &operators[i];
    }
    message.n_tensors = message.n_operators = n;
    message.tensors = tensor_pointers;
    message.operators = operator_pointers;
    return say(a, sock, CISTERN__MSG_TYPE__MSG_DECLARE, &message.base) &&
           hear(a, sock, CISTERN__MSG_TYPE__MSG_OK);
}

/* Open a connection and ask for the commit of a job of @n tensors of @elems. Returns the
 * connection, or -1 if a request before the commit was refused. */
static int ask_commit(struct attacker *a, const char *name, uint32_t n, int64_t elems,
                      uint32_t ttl_s)
{
    Cistern__Commit commit = CISTERN__COMMIT__INIT;
    int sock = dial(a);
    bool good = greet(a, sock) && open_job(a, sock, name, ttl_s);

    for (uint32_t first = 0; good && first < n; first += PAGE) {
        good = declare(a, sock, first, n - first < PAGE ? n - first : PAGE, elems);
    }
    commit.n_tensors = commit.n_operators = n;
    good = good && say(a, sock, CISTERN__MSG_TYPE__MSG_COMMIT, &commit.base);
    if (!good && sock >= 0) {
        (void)close(sock);
        sock = -1;
    }
    return sock;
}

static void remove_job(struct attacker *a, int sock, const char *name)
{
    Cistern__JobName message = CISTERN__JOB_NAME__INIT;

    message.name = (char *)(uintptr_t)name;
    if (say(a, sock, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &message.base)) {
        (void)hear(a, sock, CISTERN__MSG_TYPE__MSG_OK);
    }
}

/* -- attacks -------------------------------------------------------------------------------- */

/* Ask for replies with descriptors, and do not read them, on as many connections as possible. The
 * first reply is waited for, because there is no staging before it; at a limit that wait is in
 * vain. */
static void unread(struct attacker *a)
{
    Cistern__StagingGet get = CISTERN__STAGING_GET__INIT;
    int sock = dial(a);
    struct pollfd p = {.fd = sock, .events = POLLIN};
    bool good = greet(a, sock);

    get.bytes = 65536;
    if (good && say(a, sock, CISTERN__MSG_TYPE__MSG_STAGING, &get.base) &&
        poll(&p, 1, FIRST_MS) >= 0) {
        size_t n = protobuf_c_message_pack(&get.base, a->body);
        struct cst_frame frame = {
            .type = CISTERN__MSG_TYPE__MSG_STAGING, .body = a->body, .body_bytes = (uint32_t)n};

        for (unsigned i = 0; i < UNREAD; i++) {
            frame.request = ++a->request;
            (void)cst_frame_send(sock, MSG_DONTWAIT, &frame, NULL);
        }
    }
    keep(a, sock);
}

static void map_pool(struct attacker *a)
{
    for (unsigned i = 0; i < a->reply.n_fds; i++) {
        struct mapping *m = &a->mapped[a->next_mapped++ % MAX_MAPPED];
        off_t end = lseek(a->reply.fds[i], 0, SEEK_END);

        if (m->base != NULL) {
            (void)munmap(m->base, m->bytes);
        }
        m->bytes = end > 0 ? (size_t)end : 1;
        m->base = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->reply.fds[i], 0);
        if (m->base == MAP_FAILED) {
            m->base = NULL;
        } else {
            memset(m->base, 0x5a, m->bytes);
        }
    }
    cst_frame_close_fds(&a->reply);
}

/* Open jobs, remove them at once, and keep their pools mapped. */
static void pools(struct attacker *a)
{
    Cistern__PoolGet get = CISTERN__POOL_GET__INIT;
    int sock = ask_commit(a, "pool", 64, 4096, 0);

    if (hear(a, sock, CISTERN__MSG_TYPE__MSG_COMMITTED) &&
        say(a, sock, CISTERN__MSG_TYPE__MSG_POOL, &get.base) &&
        hear(a, sock, CISTERN__MSG_TYPE__MSG_POOL_PART)) {
        map_pool(a);
    }
    remove_job(a, sock, "pool");
    if (sock >= 0) {
        (void)close(sock);
    }
}

/* Open connections and send nothing. */
static void silent(struct attacker *a)
{
    for (unsigned i = 0; i < MAX_KEPT; i++) {
        keep(a, dial(a));
    }
    (void)poll(NULL, 0, IDLE_MS);
}

/* Hold as many jobs, connections and as much memory as possible, for the longest ttl. Then ask for
 * more. */
static void hoard(struct attacker *a)
{
    char name[16];
    int sock;

    (void)snprintf(name, sizeof name, "h%u", atomic_load(&a->state->n_rounds));
    sock = ask_commit(a, name, 64, 4096,
                      atomic_load(&a->state->n_rounds) % 2 == 0 ? UINT32_MAX : 3600);
    if (sock >= 0) {
        (void)hear(a, sock, CISTERN__MSG_TYPE__MSG_COMMITTED);
    } else {
        sock = dial(a);
        (void)greet(a, sock);
    }
    keep(a, sock);
    (void)poll(NULL, 0, IDLE_MS / 10);
}

/* Ask for plans of many tensors, and close the connection at once. */
static void searches(struct attacker *a)
{
    for (unsigned i = 0; i < 8; i++) {
        char name[16];
        int sock;

        (void)snprintf(name, sizeof name, "s%u", i);
        sock = ask_commit(a, name, 8192, 1, 0);
        if (sock >= 0) {
            (void)close(sock);
        }
    }
}

/* Open jobs larger than all memory, and as large as the user's share of it. */
static void huge(struct attacker *a)
{
    static const uint32_t sizes[] = {512, 64, 16};

    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int sock = ask_commit(a, "huge", sizes[i], 1 << 16, 0);

        (void)hear(a, sock, CISTERN__MSG_TYPE__MSG_COMMITTED);
        remove_job(a, sock, "huge");
        if (sock >= 0) {
            (void)close(sock);
        }
    }
}

/* Send names with invalid characters in every request that has a name. */
static void names(struct attacker *a)
{
    static const char *const bad[] = {"a\0b", "\033[2J", "a\nb", "\xff\xfe\xc0", "%s%n", "\r\t\v"};
    static const size_t n_bytes[] = {3, 4, 3, 3, 4, 3};
    static const uint16_t types[] = {
        CISTERN__MSG_TYPE__MSG_JOB_OPEN,   CISTERN__MSG_TYPE__MSG_JOB_INFO,
        CISTERN__MSG_TYPE__MSG_JOB_REMOVE, CISTERN__MSG_TYPE__MSG_EXPLAIN,
        CISTERN__MSG_TYPE__MSG_TRACE,      CISTERN__MSG_TYPE__MSG_HISTORY};
    int sock = dial(a);

    for (unsigned i = 0; greet(a, sock) && i < sizeof bad / sizeof *bad; i++) {
        for (unsigned t = 0; t < sizeof types / sizeof *types; t++) {
            uint8_t *to = a->body;

            /* Field 1 is the name. JobOpen also has rank and world, and Explain and Trace have
             * further varints. */
            *to++ = 0x0a;
            *to++ = (uint8_t)n_bytes[i];
            memcpy(to, bad[i], n_bytes[i]);
            to += n_bytes[i];
            if (types[t] == CISTERN__MSG_TYPE__MSG_EXPLAIN) {
                *to++ = 0x12;
                *to++ = (uint8_t)n_bytes[i];
                memcpy(to, bad[i], n_bytes[i]);
                to += n_bytes[i];
            } else {
                memcpy(to, "\x10\x00\x18\x01", 4);
                to += 4;
            }
            if (say_bytes(a, sock, types[t], a->body, (size_t)(to - a->body))) {
                (void)hear(a, sock, CISTERN__MSG_TYPE__MSG_OK); /* normally a refusal */
            }
        }
        (void)close(sock);
        sock = dial(a);
    }
    if (sock >= 0) {
        (void)close(sock);
    }
}

/* Send requests as fast as they are answered, on many connections. */
static void requests(struct attacker *a)
{
    static const unsigned n_wide = 32;

    for (unsigned i = 0; i < n_wide; i++) {
        int *sock = &a->kept[i];

        if (*sock < 0) {
            *sock = dial(a);
            (void)greet(a, *sock);
        }
        if (!say(a, *sock, CISTERN__MSG_TYPE__MSG_STAT, NULL)) {
            (void)close(*sock);
            *sock = -1;
        }
    }
    for (unsigned i = 0; i < n_wide; i++) {
        if (a->kept[i] >= 0) {
            (void)hear(a, a->kept[i], CISTERN__MSG_TYPE__MSG_STAT_REPLY);
        }
    }
}

const struct attack attacks[] = {
    {"unread", "replies with descriptors stay unread", 140},
    {"pools", "pools of removed jobs stay mapped and are written", 10},
    {"silent", "connections say nothing", 2},
    {"hoard", "jobs, connections and memory up to all limits, for the longest time", 150},
    {"searches", "searches for plans whose askers go", 1},
    {"huge", "jobs larger than all memory, and as large as the limit", 3},
    {"names", "names with NUL, control characters and bytes that are no UTF-8", 2},
    {"requests", "requests as fast as they are answered", 10},
};
const unsigned n_attacks = sizeof attacks / sizeof *attacks;

static void (*const rounds[])(struct attacker *) = {unread,   pools, silent, hoard,
                                                    searches, huge,  names,  requests};

/* -- start and stop ------------------------------------------------------------------------- */

_Static_assert(sizeof rounds / sizeof *rounds == sizeof attacks / sizeof *attacks,
               "each attack has a function");

pid_t attack_start(unsigned attack, const char *socket, struct attack_state *state)
{
    static struct attacker a;
    pid_t pid;

    memset(state, 0, sizeof *state);
    pid = child_start();
    if (pid == 0) {
        user_become(USER_ALICE);
        struct sched_param idle = {0};
        (void)sched_setscheduler(0, SCHED_IDLE, &idle);
        a = (struct attacker){.socket = socket, .state = state};
        for (unsigned i = 0; i < MAX_KEPT; i++) {
            a.kept[i] = -1;
        }
        while (!atomic_load(&state->stop)) {
            rounds[attack](&a);
            atomic_fetch_add(&state->n_rounds, 1);
        }
        _exit(0);
    }
    return pid;
}

bool attack_await(pid_t attacker, const struct attack_state *state, unsigned n_rounds)
{
    while (atomic_load(&state->n_rounds) < n_rounds) {
        siginfo_t info = {0};

        if (waitid(P_PID, (id_t)attacker, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid != 0) {
            return false;
        }
        (void)poll(NULL, 0, 1);
    }
    return true;
}

void attack_stop(pid_t attacker, struct attack_state *state)
{
    atomic_store(&state->stop, true);
    ck_assert_int_eq(child_wait(attacker), 0);
}
