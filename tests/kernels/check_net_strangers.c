/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine of a network does with what does not come from a peer, or does not come as the
 * peer has sent it: garbage, requests without a token, connections that say nothing, and a network
 * that changes bytes. */
#include "config.h"

#include "kernels/net/address.h"
#include "kernels/net/wire.h"
#include "tests/lib/net_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)
#define N_STRANGERS 64 /* that an engine lets wait */

static const char *const transports[] = {
    "tcp",
    "tls",
#ifdef HAVE_UCX
    "ucx",
#endif
};

#define N_TRANSPORTS ((int)(sizeof transports / sizeof transports[0]))

static uint64_t seed;
static struct net_machine a, b; /* machines 1 and 2 */

static struct cst_place in(uint32_t segment, uint64_t offset)
{
    return (struct cst_place){.segment = segment, .offset = offset};
}

static void start(int transport)
{
    net_start(&a, 1, transports[transport], "127.0.0.1", 1, seed);
    net_start(&b, 2, transports[transport], "127.0.0.1", 1, seed);
    net_meet(&a, &b, net_token(1));
    ck_assert_int_eq(net_add_remote(&b, NET_REMOTE, 1, NET_SERVED, NET_BYTES).status, CST_OK);
}

static void stop(void)
{
    net_stop(&a);
    net_stop(&b);
}

static void must_copy(uint64_t bytes)
{
    const struct engine_completion *done = net_copy(&b, in(NET_OWN, 0), in(NET_REMOTE, 7), bytes);

    ck_assert_msg(done != NULL && done->status == CST_OK, "%s", done != NULL ? done->text : "");
    ck_assert_mem_eq(b.own, a.served + 7, bytes);
}

/* Connect to the address @text, or listen at it and write where to @listens (NULL: connect). */
static int make_socket(const char *text, char *listens)
{
    struct sockaddr_storage address;
    socklen_t bytes;
    struct cst_err err;
    int fd;

    ck_assert_msg(cste_address_read(text, &address, &bytes, &err) == CST_OK, "%s", err.text);
    fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    if (listens == NULL) {
        ck_assert_msg(connect(fd, (struct sockaddr *)&address, bytes) == 0, "%s", strerror(errno));
        return fd;
    }
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, bytes), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    cste_address_write(&address, listens);
    return fd;
}

static bool read_all(int fd, void *to, size_t bytes)
{
    for (char *at = to; bytes > 0;) {
        ssize_t n = recv(fd, at, bytes, 0);

        if (n <= 0) {
            return false;
        }
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool write_all(int fd, const void *from, size_t bytes)
{
    for (const char *at = from; bytes > 0;) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);

        if (n <= 0) {
            return false;
        }
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* Wait until the other side has closed @fd. */
static void await_end(int fd)
{
    char bytes[4096];

    while (recv(fd, bytes, sizeof bytes, 0) > 0) {
    }
    (void)close(fd);
}

/* -- strangers ------------------------------------------------------------------------------ */

/* Garbage of any length ends its connection, and the engine serves on. */
START_TEST(test_garbage)
{
    uint64_t state = seed;

    start(_i);
    for (size_t n = 1; n < 6000; n = n * 3 + 1) {
        int fd = make_socket(a.proc.ready->end->address, NULL);
        char bytes[6000];

        for (size_t i = 0; i < n; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = (char)(state >> 56);
        }
        (void)write_all(fd, bytes, n);
        (void)shutdown(fd, SHUT_WR);
        /* What UCX does with it is UCX's. */
        if (_i < 2) {
            await_end(fd);
        } else {
            (void)close(fd);
        }
    }
    must_copy(MIB);
    stop();
}
END_TEST

static struct cste_wire_request right_request(void)
{
    struct cste_wire_request request = {.id = 5, .machine = 2, .segment = NET_SERVED, .bytes = 100};
    struct net_token token = net_token(1);

    memcpy(request.token, token.bytes, sizeof request.token);
    return request;
}

/* Send @request to machine a. Returns whether a reply has come, in *reply. */
static bool ask(int fd, const struct cste_wire_request *request, struct cste_wire_reply *reply)
{
    uint8_t bytes[CSTE_WIRE_BYTES];
    struct cst_err err;

    cste_wire_write_request(request, bytes);
    return write_all(fd, bytes, sizeof bytes) && read_all(fd, bytes, sizeof bytes) &&
           cste_wire_read_reply(bytes, sizeof bytes, reply, &err) == CST_OK;
}

/* Whoever does not know the token gets a refusal and no byte, and whoever knows it gets bytes. */
START_TEST(test_token)
{
    struct cste_wire_request request;
    struct cste_wire_reply reply;
    char payload[100];
    int fd;

    start(0);
    for (unsigned i = 0; i < sizeof request.token; i++) {
        request = right_request();
        request.token[i] ^= 0x80;
        fd = make_socket(a.proc.ready->end->address, NULL);
        ck_assert(ask(fd, &request, &reply));
        ck_assert_int_eq(reply.status, CST_EDENIED);
        ck_assert_int_eq((int)recv(fd, payload, sizeof payload, 0), 0);
        (void)close(fd);
    }
    request = right_request();
    fd = make_socket(a.proc.ready->end->address, NULL);
    ck_assert(ask(fd, &request, &reply));
    ck_assert_int_eq(reply.status, CST_OK);
    ck_assert(read_all(fd, payload, sizeof payload));
    ck_assert_mem_eq(payload, a.served, sizeof payload);
    /* A connection belongs to one machine. */
    request.machine = 3;
    ck_assert(ask(fd, &request, &reply));
    ck_assert_int_eq(reply.status, CST_EDENIED);
    await_end(fd);
    must_copy(MIB);
    stop();
}
END_TEST

/* Strangers that say nothing, or begin to, take each other's places and not those of peers. */
START_TEST(test_many)
{
    int fds[3 * N_STRANGERS];
    const int n = (int)(sizeof fds / sizeof fds[0]);

    start(_i);
    must_copy(MIB);
    for (int i = 0; i < n; i++) {
        fds[i] = make_socket(a.proc.ready->end->address, NULL);
        (void)write_all(fds[i], "CSPN", (size_t)(i % 4));
    }
    must_copy(MIB);
    await_end(fds[0]);
    for (int i = 1; i < n; i++) {
        (void)close(fds[i]);
    }
    must_copy(MIB);
    stop();
}
END_TEST

/* With "tls", the token is not enough: the certificate must be that of the machine. */
START_TEST(test_certificates)
{
    const struct engine_completion *done;
    struct net_machine c;
    Engine__NetEnd end;

    start(1);
    /* c knows the token and calls itself machine 2, but a has been told of b's certificate. */
    net_start(&c, 2, "tls", "127.0.0.1", 1, seed);
    ck_assert_int_eq(net_add(&c, 1, a.proc.ready->end, net_token(1)).status, CST_OK);
    ck_assert_int_eq(net_add_remote(&c, NET_REMOTE, 1, NET_SERVED, NET_BYTES).status, CST_OK);
    done = net_copy(&c, in(NET_OWN, 0), in(NET_REMOTE, 0), MIB);
    ck_assert_msg(done != NULL && done->status == CST_ELOST, "%s", done->text);
    /* Machine 3 is a peer, and calls itself machine 2. */
    ck_assert_int_eq(net_add(&a, 3, c.proc.ready->end, net_token(1)).status, CST_OK);
    done = net_copy(&c, in(NET_OWN, 0), in(NET_REMOTE, 0), MIB);
    ck_assert_msg(done != NULL && done->status == CST_ELOST, "%s", done->text);
    /* b is told that a has c's certificate, as if c had taken a's address. */
    ck_assert_int_eq(net_drop(&b, 1, "test").status, CST_OK);
    end = *c.proc.ready->end;
    end.address = a.proc.ready->end->address;
    ck_assert_int_eq(net_add(&b, 1, &end, net_token(1)).status, CST_OK);
    done = net_copy(&b, in(NET_OWN, 0), in(NET_REMOTE, 0), MIB);
    ck_assert_msg(done != NULL && done->status == CST_ELOST, "%s", done->text);
    ck_assert_ptr_nonnull(strstr(done->text, "certificate"));
    net_stop(&c);
    stop();
}
END_TEST

/* -- a network that changes bytes ----------------------------------------------------------- */

/* Relays between b and a, reply by reply, and changes some. */
struct relay {
    pthread_t thread;
    int listener;
    char address[CSTE_ADDRESS_MAX];
    /* Changes that are left to make: of payloads, of headers, and headers that promise more bytes.
     */
    int payloads, headers, lengths;
};

static struct relay relay;

static bool take(int *left)
{
    return *left > 0 && (*left)-- > 0;
}

/* Relay one request and its reply. Returns false when a side has closed its connection. */
static bool relay_one(int from_b, int to_a)
{
    static uint8_t payload[CSTE_WIRE_MAX_PAYLOAD];
    uint8_t bytes[CSTE_WIRE_BYTES];
    struct cste_wire_reply reply;
    struct cst_err err;

    if (!read_all(from_b, bytes, sizeof bytes) || !write_all(to_a, bytes, sizeof bytes) ||
        !read_all(to_a, bytes, sizeof bytes) ||
        cste_wire_read_reply(bytes, sizeof bytes, &reply, &err) != CST_OK ||
        !read_all(to_a, payload, reply.bytes)) {
        return false;
    }
    if (take(&relay.payloads)) {
        payload[reply.bytes / 2] ^= 1;
    }
    if (take(&relay.headers)) {
        bytes[30] ^= 1;
    }
    if (take(&relay.lengths)) {
        struct cste_wire_reply longer = reply;

        longer.bytes++;
        cste_wire_write_reply(&longer, bytes);
    }
    return write_all(from_b, bytes, sizeof bytes) && write_all(from_b, payload, reply.bytes);
}

static void *run_relay(void *arg)
{
    int from_b;

    (void)arg;
    while ((from_b = accept(relay.listener, NULL, NULL)) >= 0) {
        int to_a = make_socket(a.proc.ready->end->address, NULL);

        while (relay_one(from_b, to_a)) {
        }
        (void)close(from_b);
        (void)close(to_a);
    }
    return NULL;
}

/* b reads from a through a relay that makes the given changes. */
static void start_relay(int payloads, int headers, int lengths)
{
    Engine__NetEnd end;

    start(0);
    relay = (struct relay){.payloads = payloads, .headers = headers, .lengths = lengths};
    relay.listener = make_socket("127.0.0.1", relay.address);
    ck_assert_int_eq(pthread_create(&relay.thread, NULL, run_relay, NULL), 0);
    ck_assert_int_eq(net_drop(&b, 1, "test").status, CST_OK);
    end = *a.proc.ready->end;
    end.address = relay.address;
    ck_assert_int_eq(net_add(&b, 1, &end, net_token(1)).status, CST_OK);
}

static void stop_relay(void)
{
    stop();
    (void)shutdown(relay.listener, SHUT_RDWR);
    (void)pthread_join(relay.thread, NULL);
    (void)close(relay.listener);
}

/* Bytes that come damaged are asked for again, and counted. */
START_TEST(test_damaged)
{
    start_relay(3, 0, 0);
    must_copy(7 * MIB + 5);
    ck_assert_uint_eq(net_traffic(&b, 1).damaged, 3);
    ck_assert_uint_eq(net_traffic(&b, 1).pulled_bytes, 7 * MIB + 5);
    stop_relay();
}
END_TEST

/* If they come damaged each time, the COPY fails with the numbers. The next one succeeds. */
START_TEST(test_always_damaged)
{
    const struct engine_completion *done;

    start_relay(4, 0, 0);
    done = net_copy(&b, in(NET_OWN, 0), in(NET_REMOTE, 7), 1000);
    ck_assert_msg(done != NULL && done->status == CST_EIO, "%s", done->text);
    ck_assert_ptr_nonnull(strstr(done->text, "1000 bytes at 7 of segment 1 of machine 1"));
    ck_assert_ptr_nonnull(strstr(done->text, "damaged 4 times"));
    must_copy(MIB);
    stop_relay();
}
END_TEST

/* A damaged header, or one of another length, ends the connection: the COPY fails, writes nothing
 * beside its destination, and the next one succeeds over a new connection. */
START_TEST(test_headers)
{
    const struct engine_completion *done;

    start_relay(0, _i == 0, _i == 1);
    b.own[1000] = 42;
    done = net_copy(&b, in(NET_OWN, 0), in(NET_REMOTE, 7), 1000);
    ck_assert_msg(done != NULL && done->status == CST_ELOST, "%s", done->text);
    ck_assert_ptr_nonnull(strstr(done->text, _i == 0 ? "checksum" : "1001 bytes"));
    ck_assert_int_eq(b.own[1000], 42);
    must_copy(MIB);
    stop_relay();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("net_strangers");
    TCase *tc = suite_case(suite, "strangers", NULL, NULL);

    seed = suite_seed();
    suite_add_loop(tc, test_garbage, 0, N_TRANSPORTS);
    tcase_add_test(tc, test_token);
    /* UCX lets strangers wait on its own terms. */
    tcase_add_loop_test(tc, test_many, 0, 2);
    tcase_add_test(tc, test_certificates);
    tc = suite_case(suite, "changes", NULL, NULL);
    tcase_add_test(tc, test_damaged);
    tcase_add_test(tc, test_always_damaged);
    tcase_add_loop_test(tc, test_headers, 0, 2);
    return suite_run(suite);
}
