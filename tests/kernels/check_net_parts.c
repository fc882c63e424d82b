/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the parts of kernels/net that need no other machine: checksums, addresses, messages,
 * peers, served segments. */
#include "kernels/net/address.h"
#include "kernels/net/answer.h"
#include "kernels/net/crc32c.h"
#include "kernels/net/peers.h"
#include "kernels/net/pull.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed, state;

static uint64_t next(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static void set_up(void)
{
    state = seed;
}

/* -- checksums ------------------------------------------------------------------------------ */

/* The checksums of RFC 3720, B.4. */
START_TEST(test_known_sums)
{
    uint8_t bytes[32];

    memset(bytes, 0, sizeof bytes);
    ck_assert_uint_eq(cste_crc32c(bytes, sizeof bytes), 0x8a9136aau);
    memset(bytes, 0xff, sizeof bytes);
    ck_assert_uint_eq(cste_crc32c(bytes, sizeof bytes), 0x62a8ab43u);
    for (unsigned i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)i;
    }
    ck_assert_uint_eq(cste_crc32c(bytes, sizeof bytes), 0x46dd794eu);
    ck_assert_uint_eq(cste_crc32c("123456789", 9), 0xe3069283u);
}
END_TEST

/* The fast sum is that of the table, for all lengths and alignments. */
START_TEST(test_equal_sums)
{
    enum { MOST = 40000 };
    uint8_t *bytes = malloc(MOST);

    for (unsigned i = 0; i < MOST; i++) {
        bytes[i] = (uint8_t)next(256);
    }
    for (unsigned i = 0; i < 300; i++) {
        uint64_t n = i < 100 ? i : next(MOST), at = next(MOST - n + 1);

        suite_must(cste_crc32c(bytes + at, n) == cste_crc32c_ref(bytes + at, n),
                   "the sums of %" PRIu64 " bytes at %" PRIu64 " differ", n, at);
    }
    free(bytes);
}
END_TEST

/* -- addresses ------------------------------------------------------------------------------ */

static void must_read(const char *text, const char *written)
{
    struct sockaddr_storage address;
    char out[CSTE_ADDRESS_MAX];
    socklen_t bytes;
    struct cst_err err;

    ck_assert_msg(cste_address_read(text, &address, &bytes, &err) == CST_OK, "%s", err.text);
    ck_assert_int_eq(cste_address_check_own(&address, &err), CST_OK);
    cste_address_write(&address, out);
    ck_assert_str_eq(out, written);
}

START_TEST(test_addresses)
{
    static const char *const wrong[] = {"",
                                        "host",
                                        "10.0.0",
                                        "10.0.0.1:",
                                        "10.0.0.1:x",
                                        "10.0.0.1:70000",
                                        "[fd00::1",
                                        "[fd00::1]7",
                                        "fd00::1",
                                        "10.0.0.1:-1",
                                        "[10.0.0.1]:1",
                                        ":80",
                                        "/etc/hosts",
                                        "10.0.0.1:99999999"};
    struct sockaddr_storage address;
    socklen_t bytes;
    struct cst_err err;

    must_read("10.0.0.1", "10.0.0.1:0");
    must_read("10.0.0.1:65535", "10.0.0.1:65535");
    must_read("[fd00::1]", "[fd00::1]:0");
    must_read("[fd00::1]:7", "[fd00::1]:7");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ck_assert_msg(cste_address_read(wrong[i], &address, &bytes, &err) == CST_EINVAL, "'%s'",
                      wrong[i]);
        ck_assert_ptr_nonnull(strstr(err.text, wrong[i]));
    }
    ck_assert_int_eq(cste_address_read("0.0.0.0:5", &address, &bytes, &err), CST_OK);
    ck_assert_int_eq(cste_address_check_own(&address, &err), CST_EINVAL);
    ck_assert_int_eq(cste_address_read("[::]", &address, &bytes, &err), CST_OK);
    ck_assert_int_eq(cste_address_check_own(&address, &err), CST_EINVAL);
}
END_TEST

/* -- messages ------------------------------------------------------------------------------- */

/* Each changed bit of a message is found. */
START_TEST(test_changed_bits)
{
    struct cste_wire_request request = {
        .id = 7, .machine = 3, .token = "token", .segment = 9, .offset = 1ull << 40, .bytes = 100};
    struct cste_wire_reply reply = {.id = 7, .bytes = 100, .payload_sum = 0x12345678};
    uint8_t a[CSTE_WIRE_BYTES], b[CSTE_WIRE_BYTES];
    struct cst_err err;

    cste_wire_write_request(&request, a);
    cste_wire_write_reply(&reply, b);
    ck_assert_int_eq(cste_wire_read_request(a, sizeof a, &request, &err), CST_OK);
    ck_assert_uint_eq(request.offset, 1ull << 40);
    ck_assert_int_eq(cste_wire_read_reply(b, sizeof b, &reply, &err), CST_OK);
    ck_assert_uint_eq(reply.payload_sum, 0x12345678);
    ck_assert_int_eq(cste_wire_read_reply(a, sizeof a, &reply, &err), CST_EPROTO);
    ck_assert_int_eq(cste_wire_read_request(b, sizeof b, &request, &err), CST_EPROTO);
    for (unsigned bit = 0; bit < 8 * CSTE_WIRE_BYTES; bit++) {
        a[bit / 8] ^= (uint8_t)(1u << bit % 8);
        b[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_ne(cste_wire_read_request(a, sizeof a, &request, &err), CST_OK);
        ck_assert_int_ne(cste_wire_read_reply(b, sizeof b, &reply, &err), CST_OK);
        a[bit / 8] ^= (uint8_t)(1u << bit % 8);
        b[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    /* Another version is told apart, so that people know what to do. */
    a[4]++;
    ck_assert_int_eq(cste_wire_read_request(a, sizeof a, &request, &err), CST_EVERSION);
}
END_TEST

/* -- peers and segments --------------------------------------------------------------------- */

static struct cste_net net;

static void open_net(void)
{
    struct cste_peer_spec spec = {
        .machine = 5,
        .token = {1, 2, 3},
        .end = {.transport = "tcp", .version = "1", .address = "10.0.0.5:1"}};
    struct cst_err err;

    set_up();
    net.machine = 4;
    cste_net_peers_init(&net.peers);
    cste_served_init(&net.served);
    cste_complaints_init(&net.complaints, NULL);
    ck_assert_int_eq(cste_net_peers_add(&net.peers, &spec, &err), CST_OK);
}

static void close_net(void)
{
    cste_net_peers_close(&net.peers);
    cste_served_close(&net.served);
    cste_complaints_close(&net.complaints);
}

static void nothing(void *arg)
{
    (void)arg;
}

/* Returns the status of the answer to @request. */
static int ask(const struct cste_wire_request *request, uint64_t *segment_bytes)
{
    uint8_t bytes[CSTE_WIRE_BYTES];
    struct cste_net_answer answer;
    struct cste_wire_reply reply;
    struct cst_err err;

    cste_wire_write_request(request, bytes);
    ck_assert_int_eq(cste_net_answer_make(&net, bytes, sizeof bytes, &answer, &err), CST_OK);
    ck_assert_int_eq(cste_wire_read_reply(answer.reply, sizeof answer.reply, &reply, &err), CST_OK);
    ck_assert_uint_eq(reply.id, request->id);
    ck_assert_int_eq(answer.segment != NULL, reply.status == CST_OK);
    cste_net_answer_end(&net, &answer, false);
    *segment_bytes = reply.segment_bytes;
    return reply.status;
}

/* A request is answered if machine, token, segment and range are right, and otherwise refused. */
START_TEST(test_answers)
{
    static const char memory[1000];
    struct cste_wire_request right = {.id = 3,
                                      .machine = 5,
                                      .token = {1, 2, 3},
                                      .segment = 8,
                                      .offset = 999,
                                      .bytes = 1},
                             request;
    uint64_t bytes;
    struct cst_err err;

    ck_assert_int_eq(ask(&right, &bytes), CST_ENOTFOUND);
    ck_assert_int_eq(cste_served_add(&net.served, 8, memory, sizeof memory, &err), CST_OK);
    ck_assert_int_eq(ask(&right, &bytes), CST_OK);
    request = right;
    request.bytes = 2;
    ck_assert_int_eq(ask(&request, &bytes), CST_EINVAL);
    ck_assert_uint_eq(bytes, sizeof memory);
    request.offset = UINT64_MAX;
    ck_assert_int_eq(ask(&request, &bytes), CST_EINVAL);
    request = right;
    request.segment = 9;
    ck_assert_int_eq(ask(&request, &bytes), CST_ENOTFOUND);
    request = right;
    request.machine = 6;
    ck_assert_int_eq(ask(&request, &bytes), CST_EDENIED);
    for (unsigned i = 0; i < 8 * CSTE_WIRE_TOKEN_BYTES; i++) {
        request = right;
        request.token[i / 8] ^= (uint8_t)(1u << i % 8);
        ck_assert_int_eq(ask(&request, &bytes), CST_EDENIED);
    }
    cste_served_remove(&net.served, 8, nothing, NULL);
    ck_assert_int_eq(ask(&right, &bytes), CST_ENOTFOUND);
    ck_assert_int_eq(cste_net_peers_drop(&net.peers, 5, "gone", &err), CST_OK);
    ck_assert_int_eq(ask(&right, &bytes), CST_EDENIED);
}
END_TEST

/* A held segment is removed when it is given back, which the interrupt brings about. */
static struct cste_served_segment *held;

static void give_back(void *arg)
{
    struct cste_served *served = arg;
    struct cste_served_segment *again;
    uint64_t bytes;

    ck_assert(!cste_served_lasts(served, held));
    ck_assert_int_eq(cste_served_hold(served, 8, 0, 1, &again, &bytes), CST_ENOTFOUND);
    cste_served_release(served, held);
}

START_TEST(test_remove_held)
{
    static const char memory[10];
    uint64_t bytes;
    struct cst_err err;

    ck_assert_int_eq(cste_served_add(&net.served, 8, memory, sizeof memory, &err), CST_OK);
    ck_assert_int_eq(cste_served_hold(&net.served, 8, 2, 8, &held, &bytes), CST_OK);
    ck_assert(cste_served_lasts(&net.served, held));
    cste_served_remove(&net.served, 8, give_back, &net.served);
    /* One that is not there is left alone. */
    cste_served_remove(&net.served, 8, give_back, &net.served);
}
END_TEST

/* -- complaints ----------------------------------------------------------------------------- */

static unsigned n_lines;
static struct cst_err last_line;

static void keep_line(const struct cst_err *line)
{
    n_lines++;
    last_line = *line;
}

/* A line says who was refused and why. Those that come too soon after another one are counted, and
 * the next line has their number. */
START_TEST(test_complaints)
{
    struct cste_complaints complaints;
    struct cst_err why;

    (void)cst_err_set(&why, CST_EPROTO, "a reason");
    cste_complaints_init(&complaints, keep_line);
    cste_complain(&complaints, "10.0.0.9:1", &why);
    ck_assert_uint_eq(n_lines, 1);
    ck_assert_str_eq(last_line.text, "refused 10.0.0.9:1: a reason");
    for (int i = 0; i < 1000; i++) {
        cste_complain(&complaints, "10.0.0.9:1", &why);
    }
    ck_assert_uint_lt(n_lines, 1000);
    complaints.last_ns = 1;
    complaints.n_skipped = 7;
    cste_complain(&complaints, "10.0.0.9:1", &why);
    ck_assert_str_eq(last_line.text, "refused 10.0.0.9:1: a reason (and 7 others before)");
    cste_complaints_close(&complaints);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("net_parts");
    TCase *tc = suite_case(suite, "sums", set_up, NULL);

    seed = suite_seed();
    tcase_add_test(tc, test_known_sums);
    tcase_add_test(tc, test_equal_sums);
    tcase_add_test(suite_case(suite, "addresses", NULL, NULL), test_addresses);
    tcase_add_test(suite_case(suite, "messages", NULL, NULL), test_changed_bits);
    tcase_add_test(suite_case(suite, "answers", open_net, close_net), test_answers);
    tcase_add_test(suite_case(suite, "held", open_net, close_net), test_remove_held);
    tcase_add_test(suite_case(suite, "complaints", NULL, NULL), test_complaints);
    return suite_run(suite);
}
