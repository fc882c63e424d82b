/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of networks (cistern-engine-net) that read each other's memory, over each transport:
 * equal bytes, requests that are refused, machines that die, stop or are dropped, and other jobs.
 */
#include "config.h"

#include "kernels/math/undo.h"
#include "tests/lib/net_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

static const char *const transports[] = {
    "tcp",
    "tls",
#ifdef HAVE_UCX
    "ucx",
#endif
};

#define N_TRANSPORTS ((int)(sizeof transports / sizeof transports[0]))

static uint64_t seed, state;
static struct net_machine a, b; /* machines 1 and 2 */

static uint64_t next(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static struct cst_place in(uint32_t segment, uint64_t offset)
{
    return (struct cst_place){.segment = segment, .offset = offset};
}

/* Start both machines as peers of each other. NET_REMOTE of b is NET_SERVED of a. */
static void start(int transport)
{
    struct engine_segment_done done;

    state = seed;
    net_start(&a, 1, transports[transport], "127.0.0.1", 2, seed);
    net_start(&b, 2, transports[transport], "127.0.0.1", 2, seed);
    net_meet(&a, &b, net_token(1));
    done = net_add_remote(&b, NET_REMOTE, 1, NET_SERVED, NET_BYTES);
    ck_assert_msg(done.status == CST_OK, "%s", done.text);
}

static void stop(void)
{
    net_stop(&a);
    net_stop(&b);
}

static void must_copy(uint64_t to, uint64_t from, uint64_t bytes)
{
    const struct engine_completion *done =
        net_copy(&b, in(NET_OWN, to), in(NET_REMOTE, from), bytes);

    ck_assert_msg(done != NULL && done->status == CST_OK, "%s", done != NULL ? done->text : "");
    suite_must(memcmp(b.own + to, a.served + from, bytes) == 0,
               "%" PRIu64 " bytes from %" PRIu64 " to %" PRIu64 " differ", bytes, from, to);
}

/* The COPY @ticket of b must fail with @status, and each of the @words be in its text. */
static void must_fail(uint64_t ticket, int status, const char *const *words)
{
    const struct engine_completion *done = engine_proc_wait(&b.proc, ticket);

    ck_assert_ptr_nonnull(done);
    ck_assert_msg(done->status == status, "%s: %s", cst_status_name(done->status), done->text);
    for (; *words != NULL; words++) {
        ck_assert_msg(strstr(done->text, *words) != NULL, "'%s' is not in: %s", *words, done->text);
    }
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Submit COPYs of all of NET_REMOTE, a part each. Returns the last ticket. */
#define N_PARTS 20
static uint64_t submit_parts(void)
{
    const uint64_t part = NET_BYTES / N_PARTS;

    for (uint64_t at = 0; at < N_PARTS * part; at += part) {
        (void)net_submit(&b, in(NET_OWN, at), in(NET_REMOTE, at), part);
    }
    return b.ticket;
}

/* Each of the parts up to the ticket @last has come, or is lost with machine 1. */
static void await_parts(uint64_t last)
{
    const uint64_t part = NET_BYTES / N_PARTS;

    for (uint64_t i = 0; i < N_PARTS; i++) {
        const struct engine_completion *done = engine_proc_wait(&b.proc, last - N_PARTS + 1 + i);

        ck_assert_ptr_nonnull(done);
        if (done->status == CST_OK) {
            ck_assert_mem_eq(b.own + i * part, a.served + i * part, part);
        } else {
            ck_assert_msg(done->status == CST_ELOST && strstr(done->text, "machine 1") != NULL,
                          "%s: %s", cst_status_name(done->status), done->text);
        }
    }
}

/* -- bytes ---------------------------------------------------------------------------------- */

/* Whole segments, ranges that begin and end anywhere, single bytes and several commands at a time
 * give equal bytes, and nothing beside them changes. Both engines count what went. */
START_TEST(test_bytes)
{
    uint64_t sum = NET_BYTES, last = 0;

    start(_i);
    must_copy(0, 0, NET_BYTES);
    memset(b.own, 0, NET_BYTES);
    for (int i = 0; i < 50; i++) {
        uint64_t bytes = 1 + next(i % 5 == 0 ? 3 * MIB : 3000);
        uint64_t from = next(NET_BYTES - bytes + 1), to = 1 + next(NET_BYTES - bytes - 1);

        b.own[to - 1] = 17;
        b.own[to + bytes] = 18;
        must_copy(to, from, bytes);
        ck_assert_int_eq(b.own[to - 1], 17);
        ck_assert_int_eq(b.own[to + bytes], 18);
        sum += bytes;
    }
    for (uint64_t i = 0; i < 8; i++) {
        last = net_submit(&b, in(NET_OWN, i * MIB), in(NET_REMOTE, i * MIB + 3), MIB);
        sum += MIB;
    }
    for (uint64_t i = 0; i < 8; i++) {
        const struct engine_completion *done = engine_proc_wait(&b.proc, last - i);

        ck_assert_msg(done != NULL && done->status == CST_OK, "%s", done->text);
    }
    ck_assert_mem_eq(b.own, a.served + 3, 8 * MIB);
    ck_assert_uint_eq(net_traffic(&b, 1).pulled_bytes, sum);
    /* An answer is counted when it was sent, which the other machine may see earlier. */
    while (net_traffic(&a, 2).served_bytes < sum) {
    }
    ck_assert_uint_eq(net_traffic(&a, 2).served_bytes, sum);
    ck_assert_uint_eq(net_traffic(&b, 1).pulled, net_traffic(&a, 2).served);
    ck_assert_uint_eq(net_traffic(&b, 1).served, 0);
    ck_assert_uint_eq(net_traffic(&b, 1).damaged, 0);
    stop();
}
END_TEST

/* Both machines read from each other at the same time, and copy within themselves. */
START_TEST(test_both_ways)
{
    struct engine_segment_done done;
    uint64_t last[2] = {0, 0};

    start(_i);
    done = net_add_remote(&a, NET_REMOTE, 2, NET_SERVED, NET_BYTES);
    ck_assert_msg(done.status == CST_OK, "%s", done.text);
    (void)net_submit(&b, in(NET_OWN, 7 * MIB), in(NET_SERVED, 1), MIB);
    for (uint64_t at = 0; at < 7 * MIB; at += MIB) {
        last[0] = net_submit(&a, in(NET_OWN, at), in(NET_REMOTE, at), MIB);
        last[1] = net_submit(&b, in(NET_OWN, at), in(NET_REMOTE, at), MIB);
    }
    for (uint64_t i = 0; i < 8; i++) {
        ck_assert_ptr_nonnull(engine_proc_wait(&b.proc, last[1] - i));
    }
    for (uint64_t i = 0; i < 7; i++) {
        ck_assert_ptr_nonnull(engine_proc_wait(&a.proc, last[0] - i));
    }
    for (size_t i = 0; i < b.proc.n_done; i++) {
        ck_assert_msg(b.proc.done[i].status == CST_OK, "%s", b.proc.done[i].text);
    }
    ck_assert_mem_eq(a.own, b.served, 7 * MIB);
    ck_assert_mem_eq(b.own, a.served, 7 * MIB);
    ck_assert_mem_eq(b.own + 7 * MIB, b.served + 1, MIB);
    stop();
}
END_TEST

/* -- refusals ------------------------------------------------------------------------------- */

/* A range that is not in the segment there, a segment that is not served, none, and a machine that
 * was never added are errors with numbers. The other machine serves on. */
START_TEST(test_refused)
{
    start(_i);
    ck_assert_int_eq(net_add_remote(&b, 4, 1, NET_SERVED, NET_BYTES + 1).status, CST_OK);
    must_fail(net_submit(&b, in(NET_OWN, 0), in(4, 1), NET_BYTES), CST_EINVAL,
              WORDS("segment 1 of machine 1", "8388708"));
    ck_assert_int_eq(net_add_remote(&b, 5, 1, NET_OWN, NET_BYTES).status, CST_OK);
    must_fail(net_submit(&b, in(NET_OWN, 0), in(5, 0), 10), CST_ENOTFOUND,
              WORDS("machine 1", "no segment 2"));
    ck_assert_int_eq(net_add_remote(&b, 6, 1, 77, NET_BYTES).status, CST_OK);
    must_fail(net_submit(&b, in(NET_OWN, 0), in(6, 0), 10), CST_ENOTFOUND,
              WORDS("machine 1", "no segment 77"));
    ck_assert_int_eq(net_add_remote(&b, 7, 3, NET_SERVED, NET_BYTES).status, CST_OK);
    must_fail(net_submit(&b, in(NET_OWN, 0), in(7, 0), 10), CST_ELOST,
              WORDS("machine 3 is no peer"));
    must_copy(0, 0, MIB);
    stop();
}
END_TEST

/* Nobody writes another machine's memory. */
START_TEST(test_destination)
{
    struct engine_command fill = engine_command_fill(in(NET_REMOTE, 0), 100);
    char before[100];

    start(_i);
    memcpy(before, a.served, sizeof before);
    must_fail(net_submit(&b, in(NET_REMOTE, 0), in(NET_OWN, 0), 100), CST_EINVAL,
              WORDS("segment 1 of machine 1", "only read"));
    fill.ticket = ++b.ticket;
    engine_proc_submit(&b.proc, &fill, 1);
    must_fail(fill.ticket, CST_EINVAL, WORDS("machine 1"));
    ck_assert_mem_eq(a.served, before, sizeof before);
    stop();
}
END_TEST

/* Peers that cannot be are refused when they are added. */
START_TEST(test_peers)
{
    struct net_token zeros = {{0}};
    struct net_peer_done done;
    Engine__NetEnd end;

    start(_i);
    end = *a.proc.ready->end;
    done = net_add(&b, 1, &end, net_token(2));
    ck_assert_int_eq(done.status, CST_EEXIST);
    ck_assert_ptr_nonnull(strstr(done.text, "machine 1"));
    ck_assert_int_eq(net_add(&b, 3, &end, zeros).status, CST_EINVAL);
    ck_assert_int_eq(net_add(&b, 2, &end, net_token(1)).status, CST_EINVAL);
    end.version = (char *)(uintptr_t) "0.1";
    done = net_add(&b, 3, &end, net_token(1));
    ck_assert_int_eq(done.status, CST_EVERSION);
    ck_assert_ptr_nonnull(strstr(done.text, "0.1"));
    ck_assert_int_eq(net_drop(&b, 3, "x").status, CST_ENOTFOUND);
    must_copy(0, 0, MIB);
    stop();
}
END_TEST

/* A machine whose token is another gets nothing, whatever it knows besides, and neither does a
 * machine of another job that has the same number. */
START_TEST(test_other_job)
{
    struct net_machine other;
    const struct engine_completion *done;

    start(_i);
    net_start(&other, 2, transports[_i], "127.0.0.1", 1, seed);
    ck_assert_int_eq(net_add(&other, 1, a.proc.ready->end, net_token(2)).status, CST_OK);
    ck_assert_int_eq(net_add_remote(&other, NET_REMOTE, 1, NET_SERVED, NET_BYTES).status, CST_OK);
    memset(other.own, 5, MIB);
    done = net_copy(&other, in(NET_OWN, 0), in(NET_REMOTE, 0), MIB);
    ck_assert_ptr_nonnull(done);
    ck_assert_int_eq(done->status, CST_ELOST);
    ck_assert_msg(strstr(done->text, "machine 1") != NULL, "%s", done->text);
    for (uint64_t i = 0; i < MIB; i++) {
        suite_must(other.own[i] == 5, "byte %" PRIu64 " was written", i);
    }
    must_copy(0, 0, MIB);
    net_stop(&other);
    stop();
}
END_TEST

/* -- ends ----------------------------------------------------------------------------------- */

/* Copies from a machine that is killed fail soon. When it is back, with another address, it is
 * added again and serves. */
START_TEST(test_killed)
{
    start(_i);
    must_copy(0, 0, MIB);
    (void)submit_parts();
    engine_proc_kill(&a.proc);
    await_parts(b.ticket);
    must_fail(net_submit(&b, in(NET_OWN, 0), in(NET_REMOTE, 0), MIB), CST_ELOST,
              WORDS("machine 1"));
    (void)engine_proc_close(&a.proc);
    ck_assert_int_eq(net_drop(&b, 1, "its engine died").status, CST_OK);
    must_fail(net_submit(&b, in(NET_OWN, 0), in(NET_REMOTE, 0), MIB), CST_ELOST,
              WORDS("machine 1 was dropped: its engine died"));
    net_start(&a, 1, transports[_i], "127.0.0.1", 2, seed + 1);
    net_stop(&b);
    net_start(&b, 2, transports[_i], "127.0.0.1", 2, seed);
    net_meet(&a, &b, net_token(2));
    ck_assert_int_eq(net_add_remote(&b, NET_REMOTE, 1, NET_SERVED, NET_BYTES).status, CST_OK);
    must_copy(5, 6, 2 * MIB);
    stop();
}
END_TEST

/* Copies from a machine that has stopped end when it is dropped. Nothing is written to their
 * destination afterwards, also when the machine goes on. */
START_TEST(test_stopped)
{
    uint64_t last;

    start(_i);
    must_copy(0, 0, MIB);
    ck_assert_int_eq(kill(a.proc.pid, SIGSTOP), 0);
    last = submit_parts();
    /* The answer to the drop comes after the submissions were read. */
    ck_assert_int_eq(net_drop(&b, 1, "no heartbeat for 3 s").status, CST_OK);
    for (uint64_t i = 0; i < N_PARTS; i++) {
        must_fail(last - i, CST_ELOST, WORDS("machine 1 was dropped: no heartbeat for 3 s"));
    }
    memset(b.own, 9, NET_BYTES);
    ck_assert_int_eq(kill(a.proc.pid, SIGCONT), 0);
    ck_assert_int_eq(net_drop(&a, 2, "it has dropped me").status, CST_OK);
    net_meet(&a, &b, net_token(3));
    must_copy(0, 100, MIB);
    for (uint64_t i = MIB; i < NET_BYTES; i++) {
        suite_must(b.own[i] == 9, "byte %" PRIu64 " was written late", i);
    }
    stop();
}
END_TEST

/* The same if it stops while its bytes come. */
START_TEST(test_stopped_amid)
{
    start(_i);
    for (uint32_t round = 0; round < 8; round++) {
        uint64_t last = submit_parts();

        if (round % 2 == 0) {
            ck_assert_ptr_nonnull(engine_proc_wait(&b.proc, last - N_PARTS + 1 + next(N_PARTS)));
        }
        ck_assert_int_eq(kill(a.proc.pid, SIGSTOP), 0);
        ck_assert_int_eq(net_drop(&b, 1, "no heartbeat").status, CST_OK);
        await_parts(last);
        memset(b.own, 9, NET_BYTES);
        ck_assert_int_eq(kill(a.proc.pid, SIGCONT), 0);
        ck_assert_int_eq(net_drop(&a, 2, "it has dropped me").status, CST_OK);
        net_meet(&a, &b, net_token((uint8_t)(3 + round)));
        must_copy(0, 100, MIB);
        for (uint64_t i = MIB; i < NET_BYTES; i++) {
            suite_must(b.own[i] == 9, "byte %" PRIu64 " was written late", i);
        }
    }
    stop();
}
END_TEST

/* A machine that was dropped can read no more, with the token that it has. */
START_TEST(test_dropped_reader)
{
    start(_i);
    must_copy(0, 0, MIB);
    ck_assert_int_eq(net_drop(&a, 2, "another epoch").status, CST_OK);
    must_fail(net_submit(&b, in(NET_OWN, 0), in(NET_REMOTE, 0), MIB), CST_ELOST,
              WORDS("machine 1"));
    stop();
}
END_TEST

/* A segment is unmapped although a reader of it has stopped in the middle of the bytes. */
START_TEST(test_drop_segment)
{
    struct engine_segment_done done;

    start(_i);
    must_copy(0, 0, MIB);
    (void)submit_parts();
    ck_assert_int_eq(kill(b.proc.pid, SIGSTOP), 0);
    done = engine_proc_segment_done(&a.proc, engine_proc_drop(&a.proc, NET_SERVED, false));
    ck_assert_msg(done.status == CST_OK, "%s", done.text);
    ck_assert_int_eq(kill(b.proc.pid, SIGCONT), 0);
    for (uint64_t i = 0; i < N_PARTS; i++) {
        const struct engine_completion *part = engine_proc_wait(&b.proc, b.ticket - i);

        ck_assert_ptr_nonnull(part);
        ck_assert_msg(part->status == CST_OK || part->status == CST_ELOST ||
                          part->status == CST_ENOTFOUND,
                      "%s", part->text);
    }
    must_fail(net_submit(&b, in(NET_OWN, 0), in(NET_REMOTE, 0), 10), CST_ENOTFOUND,
              WORDS("machine 1 serves no segment 1"));
    stop();
}
END_TEST

/* -- SETUP ---------------------------------------------------------------------------------- */

/* An engine that is told of no network, or of one that it cannot have, ends and says why. */
START_TEST(test_setup)
{
    static const struct {
        const char *transport, *listen, *word;
    } wrong[] = {
        {NULL, NULL, "nothing of a network"},  {"carrier pigeon", "127.0.0.1", "tcp"},
        {"tcp", "localhost", "10.0.0.1:7000"}, {"tcp", "0.0.0.0", "all interfaces"},
        {"tls", "192.0.2.1", "192.0.2.1"},
#ifdef HAVE_UCX
        {"ucx", "192.0.2.1", "192.0.2.1"},
#endif
    };
    uint64_t undo_bytes = sizeof(struct cst_undo_slot);

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        Engine__Setup setup = ENGINE__SETUP__INIT;
        Engine__Net network = ENGINE__NET__INIT;
        Engine__Failed *failed;
        struct engine_proc proc;
        struct cst_frame frame;
        struct cst_err err;

        network.transport = (char *)(uintptr_t)wrong[i].transport;
        network.listen = (char *)(uintptr_t)wrong[i].listen;
        setup.net = wrong[i].transport != NULL ? &network : NULL;
        setup.undo_segment = 9;
        setup.undo_bytes = undo_bytes;
        engine_proc_use("./cistern-engine-net", NULL);
        engine_proc_start(&proc, -1);
        (void)engine_proc_send(&proc, ENGINE__MSG_TYPE__ENGINE_SETUP, &setup.base,
                               engine_proc_memfd(undo_bytes, NULL));
        ck_assert_int_eq(cst_frame_recv(proc.sock, 0, &proc.buf, &frame, &err), CST_OK);
        ck_assert_uint_eq(frame.type, ENGINE__MSG_TYPE__ENGINE_FAILED);
        failed = engine__failed__unpack(NULL, frame.body_bytes, frame.body);
        ck_assert_ptr_nonnull(failed);
        ck_assert_msg(failed->status == CST_EINVAL && strstr(failed->text, wrong[i].word) != NULL,
                      "%s", failed->text);
        engine__failed__free_unpacked(failed, NULL);
        ck_assert_int_ne(engine_proc_close(&proc), 0);
    }
}
END_TEST

#ifdef HAVE_UCX
/* Returns the signals that process @pid catches, as bits. */
static uint64_t caught_signals(pid_t pid)
{
    char path[64], line[256];
    uint64_t caught = UINT64_MAX;
    FILE *from;

    (void)snprintf(path, sizeof path, "/proc/%d/status", pid);
    from = fopen(path, "re");
    ck_assert_ptr_nonnull(from);
    while (fgets(line, sizeof line, from) != NULL) {
        (void)sscanf(line, "SigCgt: %" SCNx64, &caught);
    }
    (void)fclose(from);
    return caught;
}

/* Settings of UCX in the environment do not reach the engine, and UCX catches no signal. */
START_TEST(test_ucx_environment)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGHUP, SIGABRT};

    ck_assert_int_eq(setenv("UCX_TLS", "smoke", 1), 0);
    ck_assert_int_eq(setenv("UCX_NET_DEVICES", "signals", 1), 0);
    ck_assert_int_eq(setenv("UCX_HANDLE_ERRORS", "bt,freeze", 1), 0);
    start(N_TRANSPORTS - 1);
    must_copy(0, 0, NET_BYTES);
    ck_assert_str_eq(b.proc.ready->end->transport, "ucx");
    for (size_t i = 0; i < sizeof signals / sizeof signals[0] && !suite_is_sparse(); i++) {
        ck_assert_uint_eq(caught_signals(b.proc.pid) >> (signals[i] - 1) & 1, 0);
    }
    stop();
}
END_TEST
#endif

/* Segments of other machines and for them are refused where they make no sense. */
START_TEST(test_segments)
{
    Engine__SegmentAdd add = ENGINE__SEGMENT_ADD__INIT;
    uint64_t undo_bytes = sizeof(struct cst_undo_slot);
    struct engine_segment_done done;
    struct engine_proc host;

    start(0);
    ck_assert_int_eq(net_add_remote(&b, 20, 1, 0, 100).status, CST_EINVAL);
    ck_assert_int_eq(net_add_remote(&b, NET_OWN, 1, 1, 100).status, CST_EEXIST);
    ck_assert_int_eq(engine_proc_add_device(&b.proc, 21, -1, 4096).status, CST_EUNSUPPORTED);
    stop();
    engine_proc_use("./cistern-engine-host", NULL);
    engine_proc_net(NULL);
    engine_proc_open(&host, 1, 1, 9, engine_proc_memfd(undo_bytes, NULL), undo_bytes);
    add.id = 1;
    add.bytes = 4096;
    add.has_served = add.served = 1;
    done = engine_proc_segment_done(&host,
                                    engine_proc_send(&host, ENGINE__MSG_TYPE__ENGINE_SEGMENT_ADD,
                                                     &add.base, engine_proc_memfd(4096, NULL)));
    ck_assert_int_eq(done.status, CST_EUNSUPPORTED);
    ck_assert_int_eq(engine_proc_close(&host), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("net");
    const struct {
        const char *name;
        const TTest *test;
    } tests[] = {
        {"bytes", test_bytes},
        {"both_ways", test_both_ways},
        {"refused", test_refused},
        {"destination", test_destination},
        {"peers", test_peers},
        {"other_job", test_other_job},
        {"killed", test_killed},
        {"stopped", test_stopped},
        {"stopped_amid", test_stopped_amid},
        {"dropped_reader", test_dropped_reader},
        {"drop_segment", test_drop_segment},
    };

    seed = suite_seed();
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        suite_add_loop(suite_case(suite, tests[i].name, NULL, NULL), tests[i].test, 0,
                       N_TRANSPORTS);
    }
#ifdef HAVE_UCX
    tcase_add_test(suite_case(suite, "ucx_environment", NULL, NULL), test_ucx_environment);
#endif
    tcase_add_test(suite_case(suite, "setup", NULL, NULL), test_setup);
    tcase_add_test(suite_case(suite, "segments", NULL, NULL), test_segments);
    return suite_run(suite);
}
