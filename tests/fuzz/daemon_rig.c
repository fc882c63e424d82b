/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/daemon_rig.h"

#include "daemon/daemon.h"
#include "daemon/base/log.h"
#include "proto/cistern.pb-c.h"
#include "tests/fuzz/fake_engine.h"
#include "tests/fuzz/fuzz.h"
#include "daemon/budget/arena.h"
#include "daemon/budget/quota.h"
#include "daemon/engine/engines.h"
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"
#include "daemon/serve/server.h"
#include "daemon/session/linger.h"
#include "daemon/session/peer.h"
#include "daemon/settings/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUDGET = 32 << 20, MAX_TURNS = 10000 };

struct connection {
    int sock;         /* the client's end; -1: the daemon has closed its end */
    uint64_t n_asked; /* number of requests sent, which is also the last id */
    uint64_t n_replies;
};

struct cstd_daemon rig_daemon;
static struct cstd_settings config;
static struct connection connections[RIG_SESSIONS];

void rig_start(void (*adjust)(struct cstd_settings *))
{
    char dir[] = "/tmp/cistern-fuzz-XXXXXX";
    struct cst_err err = {0};

    cstd_log_init(getenv("FUZZ_LOG") != NULL ? CSTD_LOG_DEBUG : (enum cstd_log_level)0);
    fuzz_must(mkdtemp(dir) != NULL, "mkdtemp");
    cstd_settings_init(&config, 1ull << 30);
    config.host_bytes = config.pool_bytes = BUDGET;
    (void)snprintf(config.socket, sizeof config.socket, "%s/s", dir);
    (void)snprintf(config.manager_socket, sizeof config.manager_socket, "%s/m", dir);
    (void)snprintf(config.engine, sizeof config.engine, "/proc/self/exe");
    if (adjust != NULL) {
        adjust(&config);
    }
    fuzz_must(cstd_daemon_open(&rig_daemon, &config, &err) == CST_OK, err.text);
    cstd_server_stop(rig_daemon.server); /* no client may connect, and no file may be left behind */
    (void)rmdir(dir);
}

/* -- connections ---------------------------------------------------------------------------- */

void rig_open(unsigned i)
{
    struct cstd_quota_account *account = NULL;
    struct cst_err none = {0}, err = {0};
    struct cstd_peer peer;
    int ends[2];

    fuzz_must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0,
              "socketpair");
    fuzz_must(cstd_peer_open(&peer, ends[1]), "peer");
    peer.uid = i == 2 ? 4711 : 4710;
    if (i == 1) { /* the hang-up of this client is its death */
        cstd_peer_close(&peer);
    }
    fuzz_must(cstd_quota_open(rig_daemon.quota, peer.uid, peer.groups, peer.n_groups, &account,
                              &err) == CST_OK &&
                  cstd_quota_take(account, CSTD_QUOTA_SESSIONS, 1, "a connection", &err) == CST_OK,
              err.text);
    fuzz_must(cstd_server_take(rig_daemon.server, ends[1], &peer, account, false, &none, &err) ==
                  CST_OK,
              err.text);
    connections[i] = (struct connection){.sock = ends[0]};
}

void rig_close(unsigned i)
{
    if (connections[i].sock >= 0) {
        (void)close(connections[i].sock);
        connections[i].sock = -1;
    }
}

static void read_replies(unsigned i)
{
    static struct cst_frame_buf buf;
    struct connection *c = &connections[i];
    struct cst_frame frame;
    int rc = CST_OK;

    while (c->sock >= 0 && rc != CST_EAGAIN) {
        rc = cst_frame_recv(c->sock, MSG_DONTWAIT, &buf, &frame, NULL);
        if (rc == CST_OK) {
            fuzz_must(frame.flags == CST_FRAME_REPLY, "all that comes is a reply");
            if (frame.type == CISTERN__MSG_TYPE__MSG_ERROR) {
                cstd_log(CSTD_LOG_DEBUG, "connection %u, request %u: %.*s", i,
                         (unsigned)frame.request, (int)frame.body_bytes, (const char *)frame.body);
            }
            cst_frame_close_fds(&frame);
            c->n_replies++;
        } else if (rc != CST_EAGAIN) {
            fuzz_must(rc == CST_ECONN, "what comes is a frame");
            rig_close(i);
        }
    }
}

static void check_cores(void)
{
    const struct cstd_job *job;

    TAILQ_FOREACH(job, &rig_daemon.jobs->living, link)
    {
        const char *what = job->core != NULL ? cst_core_check(job->core) : NULL;

        fuzz_must(what == NULL, what);
    }
}

/* Return whether a thread builds the layout of a job. */
static bool lays_out(void)
{
    const struct cstd_job *job;
    bool any = false;

    TAILQ_FOREACH(job, &rig_daemon.jobs->living, link)
    {
        any = any || job->layout_work != NULL;
    }
    TAILQ_FOREACH(job, &rig_daemon.jobs->closing, link)
    {
        any = any || job->layout_work != NULL;
    }
    return any;
}

void rig_turn(void)
{
    (void)uv_run(&rig_daemon.loop, UV_RUN_NOWAIT);
    (void)uv_run(&rig_daemon.loop, UV_RUN_NOWAIT);
    while (lays_out()) {
        (void)uv_run(&rig_daemon.loop, UV_RUN_ONCE);
    }
    for (unsigned i = 0; i < RIG_SESSIONS; i++) {
        read_replies(i);
    }
    check_cores();
}

/* -- steps ---------------------------------------------------------------------------------- */

unsigned rig_take_byte(struct rig_input *in)
{
    return in->at < in->end ? *in->at++ : 0;
}

const uint8_t *rig_take_bytes(struct rig_input *in, size_t *n)
{
    const uint8_t *at;
    size_t left;

    *n = rig_take_byte(in);
    *n |= (size_t)rig_take_byte(in) << 8;
    at = in->at;
    left = (size_t)(in->end - in->at);
    *n = *n < left ? *n : left;
    in->at += *n;
    return at;
}

static void send_frame(struct rig_input *in)
{
    struct connection *c = &connections[rig_take_byte(in) % RIG_SESSIONS];
    struct cst_frame frame = {.type = (uint16_t)rig_take_byte(in)};
    size_t n;

    frame.body = rig_take_bytes(in, &n);
    frame.body_bytes = (uint32_t)n;
    frame.request = c->n_asked + 1;
    if (c->sock >= 0 && cst_frame_send(c->sock, MSG_DONTWAIT, &frame, NULL) == CST_OK) {
        c->n_asked++;
    }
}

static void send_raw(struct rig_input *in)
{
    unsigned i = rig_take_byte(in) % RIG_SESSIONS;
    size_t n;
    const uint8_t *bytes = rig_take_bytes(in, &n);

    /* The bytes may be a valid frame, which gets a reply. The number of replies can then no longer
     * be checked. */
    if (connections[i].sock >= 0 && send(connections[i].sock, bytes, n, MSG_DONTWAIT) >= 0) {
        rig_turn();
        rig_close(i);
    }
}

static void reopen(unsigned i)
{
    rig_close(i);
    rig_turn();
    rig_open(i);
}

void rig_step(enum rig_op op, struct rig_input *in)
{
    switch (op) {
    case RIG_FRAME:
        send_frame(in);
        break;
    case RIG_RAW:
        send_raw(in);
        break;
    case RIG_ENGINE:
        (void)fake_engine_turn(rig_take_byte(in));
        break;
    case RIG_KILL:
        fake_engine_kill();
        break;
    case RIG_CLOSE:
        reopen(rig_take_byte(in) % RIG_SESSIONS);
        break;
    case RIG_OPS:
        break;
    }
    rig_turn();
}

/* -- the end -------------------------------------------------------------------------------- */

void rig_settle(void)
{
    for (unsigned i = 0; i < MAX_TURNS; i++) {
        bool moved = fake_engine_turn(0);

        rig_turn();
        if (!moved && i > 2) {
            return;
        }
    }
    fuzz_must(false, "the engines come to rest");
}

void rig_end(void)
{
    struct cst_err why = {.status = CST_ECANCELLED, .text = "the end"};
    struct cstd_job *job;

    rig_settle();
    while ((job = TAILQ_FIRST(&rig_daemon.jobs->living)) != NULL) {
        cstd_job_remove(job, 0, &why);
    }
    rig_settle();
    for (unsigned i = 0; i < RIG_SESSIONS; i++) {
        fuzz_must(connections[i].sock < 0 || connections[i].n_replies == connections[i].n_asked,
                  "every request has one reply");
        rig_close(i);
    }
    rig_settle();
    cstd_lingers_look(&rig_daemon.server->lingers); /* The clients' sockets are closed. */
    fuzz_must(TAILQ_EMPTY(&rig_daemon.server->lingers.sockets), "no socket is left");
    fuzz_must(rig_daemon.server->n_sessions == 0, "no session is left");
    fuzz_must(TAILQ_EMPTY(&rig_daemon.jobs->closing) && rig_daemon.jobs->n == 0, "no job is left");
    fuzz_must(rig_daemon.host->used == 0 && rig_daemon.pool->used == 0, "no memory is left");
    fuzz_must(LIST_EMPTY(&rig_daemon.quota->accounts), "no account is left");
    fuzz_must(TAILQ_EMPTY(&rig_daemon.engines->segments), "no segment is left");
    for (unsigned e = 0; e < rig_daemon.engines->n; e++) {
        fuzz_must(rig_daemon.engines->v[e].commands.n == 0, "no command is left");
    }
}
