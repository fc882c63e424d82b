/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what a connection may and may not send: malformed frames, invalid bodies, wrong order.
 * After every test the daemon has its initial number of descriptors and bytes in use. */
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* -- frames --------------------------------------------------------------------------------- */

static void put_header(uint8_t out[CST_FRAME_HEADER_BYTES], uint16_t type, uint32_t body_bytes,
                       unsigned n_fds)
{
    struct cst_frame frame = {
        .type = type, .request = 77, .body_bytes = body_bytes, .n_fds = n_fds};

    cst_frame_header(&frame, out);
}

enum broken {
    EMPTY,
    ONE_BYTE,
    HALF_HEADER,
    BAD_MAGIC,
    BAD_VERSION,
    UNKNOWN_FLAG,
    RESERVED_SET,
    BODY_SHORTER_THAN_SAID,
    BODY_LONGER_THAN_SAID,
    BODY_OVER_LIMIT,
    BODY_SAID_HUGE,
    FD_SAID_NONE_CAME,
    FD_CAME_NONE_SAID,
    FEWER_FDS_THAN_SAID,
    TOO_MANY_FDS,
    NOISE,
    N_BROKEN,
};

static void send_broken(struct raw_client *client, enum broken kind)
{
    static uint8_t bytes[CST_FRAME_HEADER_BYTES + CST_FRAME_MAX_BODY + 64];
    int fds[17];
    size_t n = CST_FRAME_HEADER_BYTES;
    unsigned n_fds = 0;

    for (unsigned i = 0; i < 17; i++) {
        fds[i] = STDERR_FILENO;
    }
    put_header(bytes, CISTERN__MSG_TYPE__MSG_PING, 0, 0);
    switch (kind) {
    case EMPTY:
        n = 0;
        break;
    case ONE_BYTE:
        n = 1;
        break;
    case HALF_HEADER:
        n = CST_FRAME_HEADER_BYTES - 1;
        break;
    case BAD_MAGIC:
        bytes[0] ^= 1;
        break;
    case BAD_VERSION:
        bytes[4] = 2;
        break;
    case UNKNOWN_FLAG:
        bytes[9] = 0x80;
        break;
    case RESERVED_SET:
        bytes[10] = 1;
        break;
    case BODY_SHORTER_THAN_SAID:
        bytes[12] = 100;
        n += 99;
        break;
    case BODY_LONGER_THAN_SAID:
        bytes[12] = 100;
        n += 101;
        break;
    case BODY_OVER_LIMIT:
        put_header(bytes, CISTERN__MSG_TYPE__MSG_PING, CST_FRAME_MAX_BODY + 1, 0);
        n += CST_FRAME_MAX_BODY + 1;
        break;
    case BODY_SAID_HUGE:
        memset(bytes + 12, 0xff, 4);
        break;
    case FD_SAID_NONE_CAME:
        bytes[5] = 1;
        break;
    case FD_CAME_NONE_SAID:
        n_fds = 1;
        break;
    case FEWER_FDS_THAN_SAID:
        bytes[5] = 3;
        n_fds = 2;
        break;
    case TOO_MANY_FDS:
        bytes[5] = 17;
        n_fds = 17;
        break;
    case NOISE:
        for (size_t i = 0; i < sizeof bytes; i++) {
            bytes[i] = (uint8_t)rand();
        }
        n = 1000;
        break;
    case N_BROKEN:
        break;
    }
    if (!raw_send(client, bytes, n, fds, n_fds, 0)) {
        ck_assert_uint_gt(n_fds, 0);
        ck_assert_int_eq(errno, EPERM); /* see unasked_descriptors_are_closed */
        ck_assert_int_eq(shutdown(client->sock, SHUT_WR), 0);
    }
}

/* A malformed frame closes its connection only, before Hello and after it. */
START_TEST(a_broken_frame_closes_its_connection)
{
    struct raw_client early, late;

    raw_connect(&early, proc.socket);
    raw_open(&late, proc.socket);
    send_broken(&early, (enum broken)_i);
    send_broken(&late, (enum broken)_i);
    ck_assert(!raw_receive(&early));
    ck_assert(!raw_receive(&late));
    raw_close(&early);
    raw_close(&late);
}
END_TEST

/* -- bodies --------------------------------------------------------------------------------- */

static const uint16_t with_body[] = {
    CISTERN__MSG_TYPE__MSG_HELLO,       CISTERN__MSG_TYPE__MSG_JOB_OPEN,
    CISTERN__MSG_TYPE__MSG_STAGING,     CISTERN__MSG_TYPE__MSG_CANCEL,
    CISTERN__MSG_TYPE__MSG_JOB_LIST,    CISTERN__MSG_TYPE__MSG_JOB_INFO,
    CISTERN__MSG_TYPE__MSG_EXPLAIN,     CISTERN__MSG_TYPE__MSG_JOB_REMOVE,
    CISTERN__MSG_TYPE__MSG_DECLARE,     CISTERN__MSG_TYPE__MSG_COMMIT,
    CISTERN__MSG_TYPE__MSG_LAYOUT,      CISTERN__MSG_TYPE__MSG_POOL,
    CISTERN__MSG_TYPE__MSG_BATCH,       CISTERN__MSG_TYPE__MSG_STEP,
    CISTERN__MSG_TYPE__MSG_TENSOR_READ, CISTERN__MSG_TYPE__MSG_TENSOR_WRITE,
};

static void send_body(struct raw_client *client, uint16_t type, const void *body, uint32_t n)
{
    static uint8_t bytes[CST_FRAME_HEADER_BYTES + CST_FRAME_MAX_BODY];

    put_header(bytes, type, n, 0);
    memcpy(bytes + CST_FRAME_HEADER_BYTES, body, n);
    ck_assert(raw_send(client, bytes, CST_FRAME_HEADER_BYTES + n, NULL, 0, 0));
}

/* Open job "x", so that the body of every type of request is parsed. */
static void open_in_job(struct raw_client *client)
{
    struct raw_job job = {.name = "x", .world = 1};

    raw_open(client, proc.socket);
    ck_assert_int_eq(raw_job_open(client, &job), CST_OK);
}

/* A body that is not valid protobuf is answered with EPROTO, for every type with a body, and the
 * connection goes on. */
START_TEST(a_broken_body_is_answered)
{
    static const uint8_t garbage[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                      0xff, 0xff, 0xff, 0xff, 0xff, 0x7f};
    struct raw_client client;

    open_in_job(&client);
    send_body(&client, with_body[_i], garbage, sizeof garbage);
    ck_assert_int_eq(raw_status(&client, 77), CST_EPROTO);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    raw_close(&client);
}
END_TEST

/* A message with a wrong inner length is answered with EPROTO. */
START_TEST(an_inner_length_that_lies_is_answered)
{
    static const uint8_t lie[] = {1 << 3 | 2, 0xff, 0xff, 0xff, 0xff, 0x07, 'x'};
    struct raw_client client;

    open_in_job(&client);
    send_body(&client, CISTERN__MSG_TYPE__MSG_DECLARE, lie, sizeof lie);
    ck_assert_int_eq(raw_status(&client, 77), CST_EPROTO);
    raw_close(&client);
}
END_TEST

/* A string with a zero byte is refused, also in an inner message: job "x", which it would seem to
 * name, is neither shown nor removed. */
START_TEST(a_string_with_a_zero_is_refused)
{
    static const uint8_t name[] = {1 << 3 | 2, 3, 'x', 0, 'y'};
    static const uint8_t later[] = {15 << 3, 1, 1 << 3 | 2, 3,
                                    'x',     0, 'y'}; /* field 15 is unknown */
    static const uint8_t tensor[] = {1 << 3 | 2, 7,   1 << 3 | 2, 3, 't',
                                     0,          'x', 2 << 3,     1}; /* Declare.tensors.name */
    struct raw_client client;

    open_in_job(&client);
    send_body(&client, CISTERN__MSG_TYPE__MSG_JOB_INFO, name, sizeof name);
    ck_assert_int_eq(raw_status(&client, 77), CST_EPROTO);
    raw_says(&client, "byte 0");
    send_body(&client, CISTERN__MSG_TYPE__MSG_JOB_INFO, later, sizeof later);
    ck_assert_int_eq(raw_status(&client, 77), CST_EPROTO);
    raw_says(&client, "byte 0");
    send_body(&client, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, name, sizeof name);
    ck_assert_int_eq(raw_status(&client, 77), CST_EPROTO);
    send_body(&client, CISTERN__MSG_TYPE__MSG_DECLARE, tensor, sizeof tensor);
    ck_assert_int_eq(raw_status(&client, 77), CST_EPROTO);
    raw_says(&client, "byte 0");
    (void)raw_job_info(&client, "x");
    raw_close(&client);
}
END_TEST

/* Text from a client is shown in errors and in the log without control characters and invalid
 * UTF-8. */
START_TEST(what_is_echoed_is_clean)
{
    struct raw_client client;

    open_in_job(&client);
    ck_assert_int_eq(raw_job_remove(&client, "\x1b]0;x\a\xff"), CST_ENOTFOUND);
    raw_says(&client, "'\\x1b]0;x\\x07\\xff'");
    ck_assert_ptr_null(memchr(client.reply.body, 0x1b, client.reply.body_bytes));
    ck_assert_ptr_null(memmem(client.reply.body, client.reply.body_bytes, "\xff'", 2));
    raw_close(&client);
}
END_TEST

/* A message of 64 KiB that would unpack into much more memory is refused or served, but never needs
 * more memory of the daemon than the limit. */
START_TEST(a_body_of_many_parts_is_bounded)
{
    static uint8_t body[CST_FRAME_MAX_BODY];
    struct raw_client client;
    open_in_job(&client);
    for (size_t i = 0; i + 1 < sizeof body; i += 2) { /* 32768 empty operators */
        body[i] = 2 << 3 | 2;
        body[i + 1] = 0;
    }
    send_body(&client, CISTERN__MSG_TYPE__MSG_DECLARE, body, sizeof body);
    ck_assert_int_eq(raw_status(&client, 77), CST_EPROTO);
    memset(body, 0, sizeof body); /* packed numbers of tensors: 65 thousand zeros */
    body[0] = 2 << 3 | 2;
    body[1] = 0xfc;
    body[2] = 0xff;
    body[3] = 0x03;
    body[4] = 1 << 3 | 2;
    body[5] = 1;
    body[6] = 'o';
    body[7] = 2 << 3 | 2;
    body[8] = 0xf4;
    body[9] = 0xff;
    body[10] = 0x03;
    send_body(&client, CISTERN__MSG_TYPE__MSG_DECLARE, body, sizeof body);
    ck_assert_int_ne(raw_status(&client, 77), CST_OK);
    raw_close(&client);
}
END_TEST

/* Several declarations in a long message are refused with the limit, because other users would wait
 * while the daemon unpacks them. A single declaration may be long. */
START_TEST(a_long_declare_has_one_declaration)
{
    static uint8_t body[CST_FRAME_DECLARE_BYTES + 2];
    struct raw_client client;

    open_in_job(&client);
    for (size_t i = 0; i < sizeof body; i += 2) { /* empty operators */
        body[i] = 2 << 3 | 2;
        body[i + 1] = 0;
    }
    send_body(&client, CISTERN__MSG_TYPE__MSG_DECLARE, body, sizeof body);
    ck_assert_int_eq(raw_status(&client, 77), CST_EPROTO);
    raw_says(&client, "has 514 bytes");
    raw_says(&client, "is 512");
    memset(body, 'x', sizeof body); /* one operator with a long name */
    body[0] = 2 << 3 | 2;
    body[3] = 1 << 3 | 2;
    body[1] = (sizeof body - 3) % 128 | 128;
    body[2] = (sizeof body - 3) / 128;
    body[4] = (sizeof body - 6) % 128 | 128;
    body[5] = (sizeof body - 6) / 128;
    send_body(&client, CISTERN__MSG_TYPE__MSG_DECLARE, body, sizeof body);
    ck_assert_int_eq(raw_status(&client, 77), CST_EINVAL);
    raw_says(&client, "longer than 255 bytes");
    raw_close(&client);
}
END_TEST

/* A type of request that the daemon does not know is answered with UNSUPPORTED, and the connection
 * stays open. */
START_TEST(an_unknown_type_is_unsupported)
{
    static const uint16_t types[] = {
        0, CISTERN__MSG_TYPE__MSG_ERROR, CISTERN__MSG_TYPE__MSG_WELCOME, 29, 999, 65535};
    struct raw_client client;

    raw_open(&client, proc.socket);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        ck_assert_int_eq(raw_call(&client, types[i], NULL), CST_EUNSUPPORTED);
    }
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    raw_close(&client);
}
END_TEST

/* A request with the flag of a reply is answered with EPROTO. */
START_TEST(a_reply_is_no_request)
{
    uint8_t bytes[CST_FRAME_HEADER_BYTES];
    struct raw_client client;

    raw_open(&client, proc.socket);
    put_header(bytes, CISTERN__MSG_TYPE__MSG_PING, 0, 0);
    bytes[8] = CST_FRAME_REPLY;
    ck_assert(raw_send(&client, bytes, sizeof bytes, NULL, 0, 0));
    ck_assert_int_eq(raw_status(&client, 77), CST_EPROTO);
    raw_close(&client);
}
END_TEST

/* True if the kernel can refuse descriptors on a socket (Linux 6.16). */
static bool kernel_refuses_descriptors(void)
{
    int ends[2], off = 0, rc;

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    rc = setsockopt(ends[0], SOL_SOCKET, 83 /* SO_PASSRIGHTS */, &off, sizeof off);
    ck_assert_int_eq(close(ends[0]), 0);
    ck_assert_int_eq(close(ends[1]), 0);
    return rc == 0;
}

/* Descriptors, which no request has, do not reach the daemon, where closing them could take long. A
 * kernel that cannot refuse them passes them on; they are then closed and answered with EPROTO. */
START_TEST(unasked_descriptors_are_closed)
{
    uint8_t bytes[CST_FRAME_HEADER_BYTES];
    int pipes[2];
    struct raw_client client;

    raw_open(&client, proc.socket);
    ck_assert_int_eq(pipe(pipes), 0);
    put_header(bytes, CISTERN__MSG_TYPE__MSG_PING, 0, 1);
    if (raw_send(&client, bytes, sizeof bytes, &pipes[1], 1, 0)) {
        ck_assert(!kernel_refuses_descriptors());
        ck_assert_int_eq(raw_status(&client, 77), CST_EPROTO);
    } else {
        ck_assert_int_eq(errno, EPERM);
    }
    ck_assert_int_eq(close(pipes[1]), 0);
    /* End of file: no process has the other end. */
    ck_assert_int_eq(read(pipes[0], bytes, 1), 0);
    ck_assert_int_eq(close(pipes[0]), 0);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    raw_close(&client);
}
END_TEST

/* -- Hello ---------------------------------------------------------------------------------- */

/* A request before Hello is answered with EPROTO, and the connection is closed. */
START_TEST(hello_must_come_first)
{
    struct raw_client client;

    raw_connect(&client, proc.socket);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_STAT, NULL), CST_EPROTO);
    ck_assert(!raw_receive(&client));
    raw_close(&client);
}
END_TEST

/* A client of another protocol version gets EVERSION with both versions, and the connection is
 * closed. */
START_TEST(a_wrong_version_is_refused)
{
    Cistern__Hello hello = CISTERN__HELLO__INIT;
    struct raw_client client;

    raw_connect(&client, proc.socket);
    hello.min_version = 2;
    hello.max_version = 9;
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_HELLO, &hello.base), CST_EVERSION);
    ck_assert_ptr_nonnull(strstr(client.err.text, "2 to 9"));
    ck_assert(!raw_receive(&client));
    raw_close(&client);
}
END_TEST

/* A second Hello is an error and changes nothing. */
START_TEST(hello_comes_once)
{
    Cistern__Hello hello = CISTERN__HELLO__INIT;
    struct raw_client client;

    raw_open(&client, proc.socket);
    hello.min_version = hello.max_version = 1;
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_HELLO, &hello.base), CST_EPROTO);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    raw_close(&client);
}
END_TEST

/* Requests for a job are refused on a connection without a job. */
START_TEST(job_requests_need_a_job)
{
    Cistern__Commit commit = CISTERN__COMMIT__INIT;
    struct raw_client client;

    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_SYNC, NULL), CST_EINVAL);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_COMMIT, &commit.base), CST_EINVAL);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_LEAVE, NULL), CST_EINVAL);
    raw_close(&client);
}
END_TEST

/* The counters of a Restore that is refused count for nothing: the job's states are in no
 * checkpoint. */
START_TEST(a_refused_restore_saves_nothing)
{
    Cistern__Restore counters = CISTERN__RESTORE__INIT;
    struct raw_client client;

    open_in_job(&client);
    counters.step = counters.adam_step = 7;
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_RESTORE, &counters.base), CST_EINVAL);
    ck_assert(!raw_job_info(&client, "x")->has_saved_step);
    raw_close(&client);
}
END_TEST

/* -- the suite ------------------------------------------------------------------------------ */

int main(void)
{
    Suite *suite = suite_create("protocol");
    TCase *tc;

    tc = suite_case(suite, "frames", job_rig_setup, job_rig_teardown);
    tcase_add_loop_test(tc, a_broken_frame_closes_its_connection, 0, N_BROKEN);
    tc = suite_case(suite, "bodies", job_rig_setup, job_rig_teardown);
    tcase_add_loop_test(tc, a_broken_body_is_answered, 0,
                        (int)(sizeof with_body / sizeof *with_body));
    tcase_add_test(tc, an_inner_length_that_lies_is_answered);
    tcase_add_test(tc, a_string_with_a_zero_is_refused);
    tcase_add_test(tc, what_is_echoed_is_clean);
    tcase_add_test(tc, a_body_of_many_parts_is_bounded);
    tcase_add_test(tc, a_long_declare_has_one_declaration);
    tcase_add_test(tc, an_unknown_type_is_unsupported);
    tcase_add_test(tc, a_reply_is_no_request);
    tcase_add_test(tc, unasked_descriptors_are_closed);
    tc = suite_case(suite, "greeting", job_rig_setup, job_rig_teardown);
    tcase_add_test(tc, hello_must_come_first);
    tcase_add_test(tc, a_wrong_version_is_refused);
    tcase_add_test(tc, hello_comes_once);
    tcase_add_test(tc, job_requests_need_a_job);
    tcase_add_test(tc, a_refused_restore_saves_nothing);
    return suite_run(suite);
}
