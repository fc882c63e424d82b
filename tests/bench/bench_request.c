/* SPDX-License-Identifier: Apache-2.0 */
/* fetch_hit_vs_socket, fetch_batch16_us: the time of a fetch whose chunk is in the pool, compared
 * with a SOCK_SEQPACKET round trip of messages of equal sizes to a process that replies at once.
 * Both are measured in turns; reports medians.
 *
 * All three processes run on one core, where the time of a round trip is that of the software.
 * Between cores most of the time would be the wake-up of a sleeping core, which is equal for both
 * and would hide the difference.
 *
 * Starts a private ./cisternd and uses the protocol directly, packing and unpacking as libcistern
 * does. Run from the build tree. Usage: bench_request --json FILE */
#include "proto/cistern.pb-c.h"
#include "proto/frame.h"
#include "tests/bench/timing.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHUNKS = 16, CHUNK_ELEMS = 65536, ROUNDS = 60, PER_ROUND = 100, RUNS = ROUNDS * PER_ROUND };

struct peer {
    int sock;                 /* connection to the daemon */
    uint64_t request;         /* id of the last request */
    uint64_t attempt;         /* attempt of the last Sync */
    size_t sent_bytes;        /* size of the last request with its header */
    size_t received_bytes;    /* size of the last reply with its header */
    struct cst_frame_buf buf; /* buffer of the last reply */
};

static pid_t daemon_pid, echo_pid;
static char dir[] = "/tmp/bench-request.XXXXXX";

static void clean_up(void)
{
    char path[128];

    if (echo_pid > 0) {
        (void)kill(echo_pid, SIGKILL);
        (void)waitpid(echo_pid, NULL, 0);
    }
    if (daemon_pid > 0) {
        (void)kill(daemon_pid, SIGTERM);
        (void)waitpid(daemon_pid, NULL, 0);
    }
    (void)snprintf(path, sizeof path, "%s/empty.conf", dir);
    (void)unlink(path);
    (void)rmdir(dir);
}

static _Noreturn void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench_request: %s: %s\n", what, why);
    exit(1);
}

static void start_daemon(struct peer *peer)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char config[128];
    FILE *file;

    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s/cistern.sock", dir);
    (void)snprintf(config, sizeof config, "%s/empty.conf", dir);
    file = fopen(config, "we");
    if (file == NULL || fclose(file) != 0) {
        die(config, strerror(errno));
    }
    daemon_pid = fork();
    if (daemon_pid == 0) {
        (void)execl("./cisternd", "cisternd", "--config", config, "--socket", address.sun_path,
                    "--log-level", "warning", (char *)NULL);
        _exit(127);
    }
    for (int tries = 0; tries < 1000; tries++) {
        peer->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (connect(peer->sock, (struct sockaddr *)&address, sizeof address) == 0) {
            return;
        }
        (void)close(peer->sock);
        (void)usleep(10000);
    }
    die("./cisternd", "does not listen within 10 s");
}

/* Bind this process, its future children and the daemon's loop to the core on which this runs
 * now. */
static void share_core(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET((unsigned)sched_getcpu(), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0 ||
        sched_setaffinity(daemon_pid, sizeof set, &set) != 0) {
        die("sched_setaffinity", strerror(errno));
    }
}

/* Send one request and wait for its reply of @reply_type, which is unpacked by @form. The caller
 * frees the reply. */
static ProtobufCMessage *ask(struct peer *peer, unsigned type, const ProtobufCMessage *body,
                             unsigned reply_type, const ProtobufCMessageDescriptor *form)
{
    uint8_t bytes[8192];
    struct cst_err err = {0};
    struct cst_frame frame = {.type = (uint16_t)type, .request = ++peer->request, .body = bytes};
    ProtobufCMessage *reply;

    frame.body_bytes = body != NULL ? (uint32_t)protobuf_c_message_pack(body, bytes) : 0;
    peer->sent_bytes = CST_FRAME_HEADER_BYTES + frame.body_bytes;
    if (cst_frame_send(peer->sock, 0, &frame, &err) != CST_OK ||
        cst_frame_recv(peer->sock, 0, &peer->buf, &frame, &err) != CST_OK) {
        die("the daemon", err.text);
    }
    cst_frame_close_fds(&frame);
    peer->received_bytes = CST_FRAME_HEADER_BYTES + frame.body_bytes;
    if (frame.type == CISTERN__MSG_TYPE__MSG_ERROR) {
        Cistern__Error *error = cistern__error__unpack(NULL, frame.body_bytes, frame.body);

        die("the daemon answers", error != NULL ? error->text : "garbage");
    }
    if (frame.type != reply_type) {
        die("the daemon", "unexpected reply");
    }
    if (form == NULL) {
        return NULL;
    }
    reply = protobuf_c_message_unpack(form, NULL, frame.body_bytes, frame.body);
    if (reply == NULL) {
        die("the daemon", "broken reply");
    }
    return reply;
}

static void ask_and_forget(struct peer *peer, unsigned type, const ProtobufCMessage *body,
                           unsigned reply_type)
{
    (void)ask(peer, type, body, reply_type, NULL);
}

/* Open a job of one rank with CHUNKS tensors that fill a chunk each. The pool holds all chunks. */
static void open_job(struct peer *peer)
{
    Cistern__Hello hello = CISTERN__HELLO__INIT;
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;
    Cistern__Declare declare = CISTERN__DECLARE__INIT;
    Cistern__Commit commit = CISTERN__COMMIT__INIT;
    Cistern__Sync sync = CISTERN__SYNC__INIT;
    Cistern__TensorDecl tensors[CHUNKS], *tensor_list[CHUNKS];
    Cistern__OperatorDecl operators[CHUNKS], *operator_list[CHUNKS];
    char names[CHUNKS][16];
    uint32_t numbers[CHUNKS];
    int64_t shape = CHUNK_ELEMS;
    Cistern__Synced *synced;

    hello.min_version = hello.max_version = 1;
    open.name = (char[]){"bench"};
    open.world = 1;
    open.has_chunk_elems = 1;
    open.chunk_elems = CHUNK_ELEMS;
    for (uint32_t i = 0; i < CHUNKS; i++) {
        (void)snprintf(names[i], sizeof names[i], "t%u", i);
        numbers[i] = i;
        cistern__tensor_decl__init(&tensors[i]);
        tensors[i].name = names[i];
        tensors[i].dtype = 1;
        tensors[i].n_shape = 1;
        tensors[i].shape = &shape;
        tensor_list[i] = &tensors[i];
        cistern__operator_decl__init(&operators[i]);
        operators[i].name = names[i];
        operators[i].n_tensors = 1;
        operators[i].tensors = &numbers[i];
        operator_list[i] = &operators[i];
    }
    declare.n_tensors = declare.n_operators = CHUNKS;
    declare.tensors = tensor_list;
    declare.operators = operator_list;
    commit.n_tensors = commit.n_operators = CHUNKS;
    ask_and_forget(peer, CISTERN__MSG_TYPE__MSG_HELLO, &hello.base, CISTERN__MSG_TYPE__MSG_WELCOME);
    ask_and_forget(peer, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open.base,
                   CISTERN__MSG_TYPE__MSG_JOB_OPENED);
    ask_and_forget(peer, CISTERN__MSG_TYPE__MSG_DECLARE, &declare.base, CISTERN__MSG_TYPE__MSG_OK);
    ask_and_forget(peer, CISTERN__MSG_TYPE__MSG_COMMIT, &commit.base,
                   CISTERN__MSG_TYPE__MSG_COMMITTED);
    synced = (Cistern__Synced *)ask(peer, CISTERN__MSG_TYPE__MSG_SYNC, &sync.base,
                                    CISTERN__MSG_TYPE__MSG_SYNCED, &cistern__synced__descriptor);
    peer->attempt = synced->attempt;
    cistern__synced__free_unpacked(synced, NULL);
}

/* Fetch the weights of chunks 0 to n-1 in one batch and release them in another. Returns the
 * microseconds of the first batch. */
static double fetch(struct peer *peer, uint32_t n, size_t *sent_bytes, size_t *received_bytes)
{
    Cistern__BatchItem items[CHUNKS], *list[CHUNKS];
    Cistern__Batch batch = CISTERN__BATCH__INIT;
    Cistern__BatchDone *done;
    double began, us;

    batch.attempt = peer->attempt;
    batch.n_items = n;
    batch.items = list;
    began = bench_now();
    for (uint32_t i = 0; i < n; i++) {
        cistern__batch_item__init(&items[i]);
        items[i].kind = CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT;
        items[i].chunk = i;
        list[i] = &items[i];
    }
    done = (Cistern__BatchDone *)ask(peer, CISTERN__MSG_TYPE__MSG_BATCH, &batch.base,
                                     CISTERN__MSG_TYPE__MSG_BATCH_DONE,
                                     &cistern__batch_done__descriptor);
    us = (bench_now() - began) * 1e6;
    *sent_bytes = peer->sent_bytes;
    *received_bytes = peer->received_bytes;
    for (uint32_t i = 0; i < n; i++) {
        if (done->n_results != n || done->results[i]->status != CST_OK) {
            die("fetch", done->n_results == n && done->results[i]->text != NULL
                             ? done->results[i]->text
                             : "failed");
        }
        items[i].kind = CISTERN__BATCH_ITEM__KIND__RELEASE;
        items[i].has_generation = 1;
        items[i].generation = done->results[i]->generation;
    }
    cistern__batch_done__free_unpacked(done, NULL);
    ask_and_forget(peer, CISTERN__MSG_TYPE__MSG_BATCH, &batch.base,
                   CISTERN__MSG_TYPE__MSG_BATCH_DONE);
    return us;
}

/* Start a process that answers each message on the returned socket with @reply_bytes bytes. */
static int start_echo(size_t reply_bytes)
{
    static char bytes[65536];
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        die("socketpair", strerror(errno));
    }
    echo_pid = fork();
    if (echo_pid == 0) {
        (void)close(pair[0]);
        while (recv(pair[1], bytes, sizeof bytes, 0) > 0 &&
               send(pair[1], bytes, reply_bytes, MSG_NOSIGNAL) > 0) {
        }
        _exit(0);
    }
    (void)close(pair[1]);
    return pair[0];
}

static double echo(int sock, size_t bytes)
{
    static char buffer[65536];
    double began = bench_now();

    if (send(sock, buffer, bytes, MSG_NOSIGNAL) < 0 || recv(sock, buffer, sizeof buffer, 0) <= 0) {
        die("echo", strerror(errno));
    }
    return (bench_now() - began) * 1e6;
}

int main(int argc, char **argv)
{
    static struct peer peer;
    static double hit[RUNS], bare[RUNS], batch[RUNS];
    size_t sent, received, batch_sent, batch_received;
    double hit_us, bare_us, batch_us;
    FILE *out;
    int sock;

    if (argc != 3 || strcmp(argv[1], "--json") != 0) {
        die("usage", "bench_request --json FILE");
    }
    if (mkdtemp(dir) == NULL) {
        die(dir, strerror(errno));
    }
    (void)atexit(clean_up);
    start_daemon(&peer);
    open_job(&peer);
    share_core();
    (void)fetch(&peer, CHUNKS, &batch_sent, &batch_received); /* these fetches miss */
    (void)fetch(&peer, 1, &sent, &received);
    sock = start_echo(received);
    for (int round = 0, i = 0; round < ROUNDS; round++) {
        for (int k = 0; k < PER_ROUND; k++) {
            bare[i + k] = echo(sock, sent);
        }
        for (int k = 0; k < PER_ROUND; k++) {
            hit[i + k] = fetch(&peer, 1, &sent, &received);
        }
        for (int k = 0; k < PER_ROUND; k++) {
            batch[i + k] = fetch(&peer, CHUNKS, &batch_sent, &batch_received) / CHUNKS;
        }
        i += PER_ROUND;
    }
    hit_us = bench_median(hit, RUNS);
    bare_us = bench_median(bare, RUNS);
    batch_us = bench_median(batch, RUNS);
    out = fopen(argv[2], "ae");
    if (out == NULL) {
        die(argv[2], strerror(errno));
    }
    (void)fprintf(out,
                  "{\"name\": \"fetch_hit_vs_socket\", \"value\": %.2f, \"unit\": \"us\", "
                  "\"yardstick\": %.2f, \"ratio\": %.3f, \"runs\": %d}\n",
                  hit_us, bare_us, hit_us / bare_us, RUNS);
    (void)fprintf(out,
                  "{\"name\": \"fetch_batch16_us\", \"value\": %.2f, \"unit\": \"us\", "
                  "\"yardstick\": %.2f, \"ratio\": %.3f, \"runs\": %d}\n",
                  batch_us, bare_us, batch_us / bare_us, RUNS);
    return fclose(out) == 0 ? 0 : 1;
}
