/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/session/outbox: frames that wait for a full socket. */
#include "daemon/session/outbox.h"
#include "tests/lib/descriptors.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct cstd_outbox outbox;
static struct cstd_unread unread;
static struct cstd_unread_total total;
static struct cst_frame_buf buf;
static struct cst_err err;
static int ends[2];

static void setup(void)
{
    unread.total = &total;
    unread.n = 0;
    total = (struct cstd_unread_total){.limit = 1000};
    cstd_outbox_init(&outbox, &unread);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
}

static void teardown(void)
{
    cstd_outbox_close(&outbox);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static int send_numbered(uint64_t number)
{
    struct cst_frame frame = {
        .type = 1, .request = number, .body = (const uint8_t *)"body", .body_bytes = 4};

    return cstd_outbox_send(&outbox, ends[0], &frame, &err);
}

/* Send frames until one waits. Returns the next number. */
static uint64_t fill(void)
{
    uint64_t n = 1;

    while (send_numbered(n++) == CST_OK) {
    }
    ck_assert_uint_eq(outbox.bytes, CST_FRAME_HEADER_BYTES + 4);
    return n;
}

static void expect(uint64_t number)
{
    struct cst_frame frame;

    ck_assert_int_eq(cst_frame_recv(ends[1], MSG_DONTWAIT, &buf, &frame, &err), CST_OK);
    ck_assert_uint_eq(frame.request, number);
    ck_assert_mem_eq(frame.body, "body", 4);
    cst_frame_close_fds(&frame);
}

/* If the socket accepts the frame, nothing waits. */
START_TEST(a_frame_goes_at_once)
{
    ck_assert_int_eq(send_numbered(1), CST_OK);
    ck_assert_uint_eq(outbox.bytes, 0);
    expect(1);
}
END_TEST

/* Frames that wait are sent in order, before later frames, and all of them arrive. */
START_TEST(what_waits_keeps_its_order)
{
    uint64_t n = fill(), next = 1;
    unsigned n_sent = 1;
    int rc;

    for (unsigned i = 0; i < 50; i++) {
        ck_assert_int_eq(send_numbered(n++), CST_EAGAIN);
    }
    ck_assert_int_eq(cstd_outbox_flush(&outbox, ends[0], &n_sent, &err), CST_EAGAIN);
    ck_assert_uint_eq(n_sent, 0);
    expect(next++); /* the socket has space again, but waiting frames are sent first */
    ck_assert_int_eq(send_numbered(n++), CST_EAGAIN);
    do {
        rc = cstd_outbox_flush(&outbox, ends[0], &n_sent, &err);
        expect(next++);
    } while (rc == CST_EAGAIN);
    ck_assert_int_eq(rc, CST_OK);
    ck_assert_uint_eq(outbox.bytes, 0);
    while (next < n) {
        expect(next++);
    }
}
END_TEST

/* A frame that waits has copies of its descriptors, so the sender may close its own. */
START_TEST(descriptors_wait_too)
{
    struct cst_frame frame = {.type = 1, .body_bytes = 0, .n_fds = 1}, got;
    unsigned fds = descriptors_count();
    uint64_t n = fill();
    int pipes[2];
    char byte;

    ck_assert_int_eq(pipe(pipes), 0);
    frame.request = n;
    frame.fds[0] = pipes[1];
    ck_assert_int_eq(cstd_outbox_send(&outbox, ends[0], &frame, &err), CST_EAGAIN);
    (void)close(pipes[1]);
    for (uint64_t i = 1; i < n; i++) {
        expect(i);
        (void)cstd_outbox_flush(&outbox, ends[0], NULL, &err);
    }
    ck_assert_int_eq(cst_frame_recv(ends[1], MSG_DONTWAIT, &buf, &got, &err), CST_OK);
    ck_assert_uint_eq(got.n_fds, 1);
    ck_assert_int_eq(write(got.fds[0], "x", 1), 1);
    ck_assert_int_eq(read(pipes[0], &byte, 1), 1);
    cst_frame_close_fds(&got);
    (void)close(pipes[0]);
    ck_assert_uint_eq(descriptors_count(), fds);
}
END_TEST

/* Closing drops the frames that wait, with their descriptors. */
START_TEST(closing_leaves_nothing)
{
    struct cst_frame frame = {.type = 1, .n_fds = 2, .fds = {STDERR_FILENO, STDERR_FILENO}};
    unsigned fds = descriptors_count();

    (void)fill();
    ck_assert_int_eq(cstd_outbox_send(&outbox, ends[0], &frame, &err), CST_EAGAIN);
    ck_assert_uint_eq(descriptors_count(), fds + 2);
    cstd_outbox_close(&outbox);
    ck_assert_uint_eq(outbox.bytes, 0);
    ck_assert_uint_eq(descriptors_count(), fds);
}
END_TEST

/* A peer that is gone gives ECONN, and a frame over the limits EINVAL. Neither frame waits. */
START_TEST(what_cannot_go_does_not_wait)
{
    struct cst_frame large = {.type = 1, .body_bytes = CST_FRAME_MAX_BODY + 1};

    ck_assert_int_eq(cstd_outbox_send(&outbox, ends[0], &large, &err), CST_EINVAL);
    ck_assert_int_eq(shutdown(ends[1], SHUT_RDWR), 0);
    ck_assert_int_eq(send_numbered(1), CST_ECONN);
    ck_assert_uint_eq(outbox.bytes, 0);
}
END_TEST

static int send_descriptors(unsigned n)
{
    struct cst_frame frame = {.type = 1, .n_fds = n};

    for (unsigned i = 0; i < n; i++) {
        frame.fds[i] = STDERR_FILENO;
    }
    return cstd_outbox_send(&outbox, ends[0], &frame, &err);
}

static void receive_descriptors(unsigned n)
{
    struct cst_frame got;

    ck_assert_int_eq(cst_frame_recv(ends[1], MSG_DONTWAIT, &buf, &got, &err), CST_OK);
    ck_assert_uint_eq(got.n_fds, n);
    cst_frame_close_fds(&got);
}

/* A peer that does not read gets only a limited number of descriptors, even if its socket has
 * space. Looking at a message without receiving it does not count as reading. When the peer has
 * read everything, the waiting frames are sent. */
START_TEST(unread_descriptors_are_bounded)
{
    ck_assert_int_eq(send_descriptors(16), CST_OK);
    ck_assert_int_eq(send_descriptors(16), CST_OK);
    ck_assert_uint_eq(total.n, CSTD_UNREAD_SESSION);
    ck_assert_int_eq(send_descriptors(1), CST_EAGAIN);
    ck_assert(outbox.retry);
    /* A later frame must wait after the descriptor. */
    ck_assert_int_eq(send_numbered(7), CST_EAGAIN);
    ck_assert_uint_eq(total.waiting, 1);
    ck_assert_int_gt(recv(ends[1], buf.bytes, sizeof buf.bytes, MSG_PEEK), 0);
    ck_assert_int_eq(cstd_outbox_flush(&outbox, ends[0], NULL, &err), CST_EAGAIN);
    receive_descriptors(16);
    ck_assert_int_eq(cstd_outbox_flush(&outbox, ends[0], NULL, &err), CST_EAGAIN);
    receive_descriptors(16);
    ck_assert_int_eq(cstd_outbox_flush(&outbox, ends[0], NULL, &err), CST_OK);
    ck_assert_uint_eq(total.n, 1);
    ck_assert_uint_eq(total.waiting, 0);
    receive_descriptors(1);
    expect(7);
    cstd_unread_refresh(&unread, ends[0]);
    ck_assert_uint_eq(total.n, 0);
}
END_TEST

/* The descriptors of all peers that are in flight, and those that wait, have a common limit each. A
 * frame that exceeds the latter is refused and leaves nothing behind. */
START_TEST(all_peers_together_are_bounded)
{
    unsigned fds = descriptors_count();

    total.limit = 20;
    total.n = 10; /* descriptors of other peers */
    ck_assert_int_eq(send_descriptors(10), CST_OK);
    ck_assert_int_eq(send_descriptors(1), CST_EAGAIN);
    ck_assert_int_eq(cstd_unread_limit(&unread, 1), CSTD_UNREAD_ALL);
    ck_assert_int_eq(send_descriptors(16), CST_EAGAIN);
    ck_assert_int_eq(send_descriptors(4), CST_ENOCREDIT);
    ck_assert_uint_eq(total.waiting, 17);
    cstd_outbox_close(&outbox);
    cstd_unread_close(&unread);
    ck_assert_uint_eq(total.n, 10);
    ck_assert_uint_eq(total.waiting, 0);
    ck_assert_uint_eq(descriptors_count(), fds);
}
END_TEST

/* As a user without capabilities and with a limit of 16 descriptors: send descriptors until the
 * system refuses (ETOOMANYREFS), then receive them. Returns the number of the check that failed, or
 * 0. */
static int run_short(void)
{
    struct rlimit limit = {.rlim_cur = 16, .rlim_max = 16};
    struct cstd_outbox engine;
    struct cst_frame frame = {.type = 1, .n_fds = 1, .fds = {STDERR_FILENO}}, got;
    int rc = CST_OK, n = 0;

    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || (geteuid() == 0 && setuid(65534) != 0)) {
        return 1;
    }
    cstd_outbox_init(&engine, NULL);
    while (rc == CST_OK && n++ < 1000) {
        rc = cstd_outbox_send(&engine, ends[0], &frame, &err);
    }
    if (rc != CST_EAGAIN || !engine.retry || n < 2) {
        return 2;
    }
    if (cstd_outbox_flush(&engine, ends[0], NULL, &err) != CST_EAGAIN || !engine.retry) {
        return 3;
    }
    for (int i = 1; i < n; i++) {
        if (cst_frame_recv(ends[1], MSG_DONTWAIT, &buf, &got, &err) != CST_OK) {
            return 4;
        }
        cst_frame_close_fds(&got);
    }
    return cstd_outbox_flush(&engine, ends[0], NULL, &err) == CST_OK && engine.bytes == 0 ? 0 : 5;
}

/* The machine's limit on descriptors in flight ends no connection: frames over the limit wait, and
 * are sent when others have been received. */
START_TEST(a_shortage_is_waited_out)
{
    pid_t pid = fork();
    int status;

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        _exit(run_short());
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}
END_TEST

/* If no descriptor is free for the copy, the frame is refused and leaves nothing behind. */
START_TEST(no_descriptor_for_a_copy)
{
    struct rlimit limit, none;

    (void)fill();
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = limit.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    ck_assert_int_eq(send_descriptors(1), CST_ENOMEM);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_uint_eq(total.waiting, 0);
    ck_assert_uint_eq(outbox.n_fds, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("outbox");
    TCase *tc = suite_case(suite, "outbox", setup, teardown);

    tcase_add_test(tc, a_frame_goes_at_once);
    tcase_add_test(tc, what_waits_keeps_its_order);
    tcase_add_test(tc, descriptors_wait_too);
    tcase_add_test(tc, closing_leaves_nothing);
    tcase_add_test(tc, what_cannot_go_does_not_wait);
    tcase_add_test(tc, unread_descriptors_are_bounded);
    tcase_add_test(tc, all_peers_together_are_bounded);
    tcase_add_test(tc, a_shortage_is_waited_out);
    tcase_add_test(tc, no_descriptor_for_a_copy);
    return suite_run(suite);
}
