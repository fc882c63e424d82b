/* daemon/outbox: what waits for a socket that is full. */
#include "daemon/outbox.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct cst_outbox outbox;
static struct cst_frame_buf buf;
static struct cst_err err;
static int ends[2];

static void setup(void)
{
    cst_outbox_init(&outbox);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
}

static void teardown(void)
{
    cst_outbox_close(&outbox);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static unsigned count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    ck_assert_ptr_nonnull(dir);
    while (readdir(dir) != NULL) {
        n++;
    }
    (void)closedir(dir);
    return n;
}

static int send_numbered(uint64_t number)
{
    struct cst_frame frame = {
        .type = 1, .request = number, .body = (const uint8_t *)"body", .body_bytes = 4};

    return cst_outbox_send(&outbox, ends[0], &frame, &err);
}

/* Send until something waits; returns the next number. */
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

/* Where the socket takes it, nothing waits. */
START_TEST(a_frame_goes_at_once)
{
    ck_assert_int_eq(send_numbered(1), CST_OK);
    ck_assert_uint_eq(outbox.bytes, 0);
    expect(1);
}
END_TEST

/* What waits goes in order, before what comes later, and every one arrives. */
START_TEST(what_waits_keeps_its_order)
{
    uint64_t n = fill(), next = 1;
    unsigned n_sent = 1;
    int rc;

    for (unsigned i = 0; i < 50; i++) {
        ck_assert_int_eq(send_numbered(n++), CST_EAGAIN);
    }
    ck_assert_int_eq(cst_outbox_flush(&outbox, ends[0], &n_sent, &err), CST_EAGAIN);
    ck_assert_uint_eq(n_sent, 0);
    expect(next++); /* there is room again: but those that wait come first */
    ck_assert_int_eq(send_numbered(n++), CST_EAGAIN);
    do {
        rc = cst_outbox_flush(&outbox, ends[0], &n_sent, &err);
        expect(next++);
    } while (rc == CST_EAGAIN);
    ck_assert_int_eq(rc, CST_OK);
    ck_assert_uint_eq(outbox.bytes, 0);
    while (next < n) {
        expect(next++);
    }
}
END_TEST

/* A frame that waits has descriptors of its own: the sender may close its ones. */
START_TEST(descriptors_wait_too)
{
    struct cst_frame frame = {.type = 1, .body_bytes = 0, .n_fds = 1}, got;
    unsigned fds = count_fds();
    uint64_t n = fill();
    int pipes[2];
    char byte;

    ck_assert_int_eq(pipe(pipes), 0);
    frame.request = n;
    frame.fds[0] = pipes[1];
    ck_assert_int_eq(cst_outbox_send(&outbox, ends[0], &frame, &err), CST_EAGAIN);
    (void)close(pipes[1]);
    for (uint64_t i = 1; i < n; i++) {
        expect(i);
        (void)cst_outbox_flush(&outbox, ends[0], NULL, &err);
    }
    ck_assert_int_eq(cst_frame_recv(ends[1], MSG_DONTWAIT, &buf, &got, &err), CST_OK);
    ck_assert_uint_eq(got.n_fds, 1);
    ck_assert_int_eq(write(got.fds[0], "x", 1), 1);
    ck_assert_int_eq(read(pipes[0], &byte, 1), 1);
    cst_frame_close_fds(&got);
    (void)close(pipes[0]);
    ck_assert_uint_eq(count_fds(), fds);
}
END_TEST

/* Closing drops what waits, and its descriptors. */
START_TEST(closing_leaves_nothing)
{
    struct cst_frame frame = {.type = 1, .n_fds = 2, .fds = {STDERR_FILENO, STDERR_FILENO}};
    unsigned fds = count_fds();

    (void)fill();
    ck_assert_int_eq(cst_outbox_send(&outbox, ends[0], &frame, &err), CST_EAGAIN);
    ck_assert_uint_eq(count_fds(), fds + 2);
    cst_outbox_close(&outbox);
    ck_assert_uint_eq(outbox.bytes, 0);
    ck_assert_uint_eq(count_fds(), fds);
}
END_TEST

/* A peer that is gone is ECONN, a frame over the limits EINVAL; neither waits. */
START_TEST(what_cannot_go_does_not_wait)
{
    struct cst_frame large = {.type = 1, .body_bytes = CST_FRAME_MAX_BODY + 1};

    ck_assert_int_eq(cst_outbox_send(&outbox, ends[0], &large, &err), CST_EINVAL);
    ck_assert_int_eq(shutdown(ends[1], SHUT_RDWR), 0);
    ck_assert_int_eq(send_numbered(1), CST_ECONN);
    ck_assert_uint_eq(outbox.bytes, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("outbox");
    TCase *tc = tcase_create("outbox");

    suite_add_tcase(suite, tc);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_frame_goes_at_once);
    tcase_add_test(tc, what_waits_keeps_its_order);
    tcase_add_test(tc, descriptors_wait_too);
    tcase_add_test(tc, closing_leaves_nothing);
    tcase_add_test(tc, what_cannot_go_does_not_wait);
    return suite_run(suite);
}
