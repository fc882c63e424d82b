/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/frame: one message on a SOCK_SEQPACKET socket, with its header and its
 * descriptors. */
#include "proto/frame.h"
#include "tests/lib/descriptors.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int ends[2];
static struct cst_frame_buf buf;
static struct cst_frame got;
static struct cst_err err;

static void setup(void)
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    err = (struct cst_err){0};
}

static void teardown(void)
{
    ck_assert_int_eq(close(ends[0]), 0);
    ck_assert_int_eq(close(ends[1]), 0);
}

static struct cst_frame make(uint16_t type, const void *body, uint32_t n)
{
    return (struct cst_frame){
        .type = type, .request = 0x1122334455667788, .body = body, .body_bytes = n};
}

/* -- header --------------------------------------------------------------------------------- */

/* The header is little-endian, with the layout drawn in frame.h. */
START_TEST(the_header_is_laid_out_as_drawn)
{
    static const uint8_t expected[CST_FRAME_HEADER_BYTES] = {
        'C', 'S', 'T', 'N', 1,    2,    0x34, 0x12, 1,    0,    0,    0,
        5,   0,   0,   0,   0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
    struct cst_frame frame = make(0x1234, "12345", 5);
    uint8_t header[CST_FRAME_HEADER_BYTES];

    frame.flags = CST_FRAME_REPLY;
    frame.n_fds = 2;
    cst_frame_header(&frame, header);
    ck_assert_mem_eq(header, expected, sizeof expected);
}
END_TEST

/* A header that was written is read back unchanged. */
START_TEST(a_header_is_read_back)
{
    uint8_t bytes[CST_FRAME_HEADER_BYTES + 3];
    struct cst_frame frame = make(7, NULL, 3), out;

    frame.flags = CST_FRAME_EVENT;
    cst_frame_header(&frame, bytes);
    memcpy(bytes + CST_FRAME_HEADER_BYTES, "abc", 3);
    ck_assert_int_eq(cst_frame_parse(bytes, sizeof bytes, 0, &out, &err), CST_OK);
    ck_assert_uint_eq(out.type, 7);
    ck_assert_uint_eq(out.flags, CST_FRAME_EVENT);
    ck_assert_uint_eq(out.request, frame.request);
    ck_assert_uint_eq(out.body_bytes, 3);
    ck_assert_ptr_eq(out.body, bytes + CST_FRAME_HEADER_BYTES);
}
END_TEST

/* A header with one changed byte is refused, or only its type, known flags or request differ. */
START_TEST(a_changed_byte_is_refused_or_harmless)
{
    uint8_t bytes[CST_FRAME_HEADER_BYTES + 3] = {0};
    struct cst_frame frame = make(7, NULL, 3), out;

    for (size_t i = 0; i < CST_FRAME_HEADER_BYTES; i++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            bool harmless = i == 6 || i == 7 || (i == 8 && bit < 2) || i >= 16;

            cst_frame_header(&frame, bytes);
            bytes[i] ^= (uint8_t)(1u << bit);
            ck_assert_int_eq(cst_frame_parse(bytes, sizeof bytes, 0, &out, &err),
                             harmless ? CST_OK : CST_EPROTO);
        }
    }
}
END_TEST

/* A frame whose length differs from its header's is refused. */
START_TEST(a_wrong_length_is_refused)
{
    uint8_t bytes[64] = {0};
    struct cst_frame frame = make(7, NULL, 10), out;

    cst_frame_header(&frame, bytes);
    for (size_t n = 0; n <= sizeof bytes; n++) {
        ck_assert_int_eq(cst_frame_parse(bytes, n, 0, &out, &err),
                         n == CST_FRAME_HEADER_BYTES + 10 ? CST_OK : CST_EPROTO);
    }
}
END_TEST

/* Random bytes are never parsed to a frame whose body lies outside of them. */
START_TEST(noise_is_refused)
{
    unsigned seed = (unsigned)getpid();
    uint8_t bytes[128];
    struct cst_frame out;

    printf("seed %u\n", seed);
    srand(seed);
    for (unsigned i = 0; i < 100000; i++) {
        size_t n = (size_t)rand() % sizeof bytes;

        for (size_t j = 0; j < n; j++) {
            bytes[j] = (uint8_t)rand();
        }
        if (i % 2 == 0 && n >= 5) {
            memcpy(bytes, "CSTN\1", 5);
        }
        if (cst_frame_parse(bytes, n, 0, &out, NULL) == CST_OK) {
            ck_assert_uint_eq(out.body_bytes, n - CST_FRAME_HEADER_BYTES);
        }
    }
}
END_TEST

/* -- sockets -------------------------------------------------------------------------------- */

/* A message arrives with its body and its descriptors, which are CLOEXEC. */
START_TEST(a_message_arrives_whole)
{
    static uint8_t body[CST_FRAME_MAX_BODY];
    struct cst_frame frame = make(9, body, sizeof body);
    unsigned fds = descriptors_count();

    memset(body, 0x5a, sizeof body);
    for (; frame.n_fds < CST_FRAME_MAX_FDS; frame.n_fds++) {
        frame.fds[frame.n_fds] = STDERR_FILENO;
    }
    ck_assert_int_eq(cst_frame_send(ends[0], 0, &frame, &err), CST_OK);
    ck_assert_int_eq(cst_frame_recv(ends[1], 0, &buf, &got, &err), CST_OK);
    ck_assert_uint_eq(got.body_bytes, sizeof body);
    ck_assert_mem_eq(got.body, body, sizeof body);
    ck_assert_uint_eq(got.n_fds, CST_FRAME_MAX_FDS);
    for (unsigned i = 0; i < got.n_fds; i++) {
        ck_assert_int_eq(fcntl(got.fds[i], F_GETFD), FD_CLOEXEC);
    }
    cst_frame_close_fds(&got);
    ck_assert_uint_eq(got.n_fds, 0);
    ck_assert_uint_eq(descriptors_count(), fds);
}
END_TEST

/* A message that exceeds a limit is not sent. */
START_TEST(over_the_limits_nothing_is_sent)
{
    static uint8_t body[CST_FRAME_MAX_BODY + 1];
    struct cst_frame large = make(9, body, sizeof body), many = make(9, NULL, 0);

    many.n_fds = CST_FRAME_MAX_FDS + 1;
    ck_assert_int_eq(cst_frame_send(ends[0], 0, &large, &err), CST_EINVAL);
    ck_assert_int_eq(cst_frame_send(ends[0], 0, &many, &err), CST_EINVAL);
    ck_assert_int_eq(cst_frame_recv(ends[1], MSG_DONTWAIT, &buf, &got, &err), CST_EAGAIN);
}
END_TEST

/* An empty socket and a full socket return EAGAIN, a closed one returns ECONN, and there is no
 * SIGPIPE. */
START_TEST(empty_full_and_closed_are_told_apart)
{
    struct cst_frame frame = make(9, "x", 1);
    int rc, other[2];

    ck_assert_int_eq(cst_frame_recv(ends[1], MSG_DONTWAIT, &buf, &got, &err), CST_EAGAIN);
    do {
        rc = cst_frame_send(ends[0], MSG_DONTWAIT, &frame, &err);
    } while (rc == CST_OK);
    ck_assert_int_eq(rc, CST_EAGAIN);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, other), 0);
    ck_assert_int_eq(close(other[1]), 0);
    ck_assert_int_eq(cst_frame_send(other[0], 0, &frame, &err), CST_ECONN);
    ck_assert_int_eq(cst_frame_recv(other[0], 0, &buf, &got, &err), CST_ECONN);
    ck_assert_int_eq(close(other[0]), 0);
}
END_TEST

/* Send @n bytes with @n_fds descriptors, whatever the header in them says. */
static void send_raw(const void *bytes, size_t n, unsigned n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 64)];
    } control = {.bytes = {0}};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n_fds > 0) {
        struct cmsghdr *c;

        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        for (unsigned i = 0; i < n_fds; i++) {
            int fd = STDERR_FILENO;

            memcpy(CMSG_DATA(c) + i * sizeof fd, &fd, sizeof fd);
        }
    }
    ck_assert_int_ge(sendmsg(ends[0], &msg, 0), 0);
}

/* If the number of descriptors differs from the header's, the result is EPROTO, and none of them
 * stays open. */
START_TEST(descriptors_that_lie_are_closed)
{
    uint8_t header[CST_FRAME_HEADER_BYTES];
    struct cst_frame frame = make(9, NULL, 0);
    unsigned fds = descriptors_count(), n = (unsigned)_i;

    for (unsigned said = 0; said <= 20; said++) {
        int expected = said == n && n <= CST_FRAME_MAX_FDS ? CST_OK : CST_EPROTO;

        frame.n_fds = said;
        cst_frame_header(&frame, header);
        send_raw(header, sizeof header, n);
        ck_assert_int_eq(cst_frame_recv(ends[1], 0, &buf, &got, &err), expected);
        if (expected == CST_OK) {
            cst_frame_close_fds(&got);
        }
        ck_assert_uint_eq(descriptors_count(), fds);
    }
}
END_TEST

/* A message that is longer than allowed is EPROTO, and its descriptors are closed. */
START_TEST(a_message_too_long_is_refused)
{
    static uint8_t bytes[sizeof buf.bytes + 1];
    unsigned fds = descriptors_count();

    send_raw(bytes, sizeof bytes, 3);
    ck_assert_int_eq(cst_frame_recv(ends[1], 0, &buf, &got, &err), CST_EPROTO);
    ck_assert_uint_eq(descriptors_count(), fds);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("frame");
    TCase *tc = suite_case(suite, "frame", setup, teardown);

    tcase_add_test(tc, the_header_is_laid_out_as_drawn);
    tcase_add_test(tc, a_header_is_read_back);
    tcase_add_test(tc, a_changed_byte_is_refused_or_harmless);
    tcase_add_test(tc, a_wrong_length_is_refused);
    tcase_add_test(tc, noise_is_refused);
    tcase_add_test(tc, a_message_arrives_whole);
    tcase_add_test(tc, over_the_limits_nothing_is_sent);
    tcase_add_test(tc, empty_full_and_closed_are_told_apart);
    tcase_add_loop_test(tc, descriptors_that_lie_are_closed, 0, 30);
    tcase_add_test(tc, a_message_too_long_is_refused);
    return suite_run(suite);
}
