/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/links against those who can reach its port: each is refused for a reason that is
 * said, nothing changes, and a machine still gets its link. */
#include "tests/lib/certificates.h"
#include "tests/lib/link_rig.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { A, B, C, DAY = 86400 };

static struct cst_err err;
static struct link_stranger stranger;
static int silent; /* A socket that listens and never answers; -1: none. */

static void setup(void)
{
    err = (struct cst_err){0};
    memset(&stranger, 0, sizeof stranger);
    silent = -1;
    link_rig_open();
    link_rig_start(A, 11);
    link_rig_start(B, 12);
    link_rig_trust(A, B);
}

static bool are_all_proven(void *arg)
{
    (void)arg;
    return link_rig.machines[A].links->n_unproven == 0;
}

/* A machine still gets its link, and everything else is as before. */
static void teardown(void)
{
    link_stranger_close(&stranger);
    ck_assert_uint_eq(link_rig.machines[A].n_up, 0);
    link_rig_trust(B, A);
    link_rig_connect(A, B);
    ck_assert_uint_eq(link_rig.machines[A].links->n_machines, 1);
    link_rig_wait(are_all_proven, NULL);
    link_rig_close();
    if (silent >= 0) {
        (void)close(silent);
    }
}

static bool has_ended(void *arg)
{
    const struct link_stranger *who = arg;

    return who->connection == NULL;
}

/* Wait until the stranger's connection has ended, and check what he is told. */
static void assert_refused(const char *words)
{
    link_rig_wait(has_ended, &stranger);
    ck_assert_msg(strstr(stranger.refusal, words) != NULL ||
                      strstr(stranger.why.text, words) != NULL,
                  "'%s' and '%s' do not say '%s'", stranger.refusal, stranger.why.text, words);
    ck_assert(!stranger.is_welcome);
}

/* Make the files of somebody, and dial A as him. */
static void dial_as(const struct certificate_spec *spec)
{
    char fingerprint[CST_FINGERPRINT_BYTES];
    const char *key = link_rig_path(A, "other.key"), *certificate = link_rig_path(A, "other.crt");

    certificate_make(spec, key, certificate, fingerprint);
    cstd_hello_init(&stranger.hello, "b", 4711);
    link_stranger_dial(&stranger, A, key, certificate);
}

/* True if A waits at the address where nobody answers. */
static bool waits_in_vain(void *arg)
{
    const struct cstd_machine *machine = link_rig_find(A, B);

    (void)arg;
    return machine->dialled != NULL &&
           strcmp(machine->dialled->address, machine->entry.address) == 0;
}

/* Let the stranger take the place of B. A dials an address where nobody answers meanwhile. */
static void pose_as_b(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char address[CSTD_MACHINE_ADDRESS_BYTES];
    socklen_t size = sizeof at;

    link_rig_stop(B);
    silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(silent, 0);
    ck_assert_int_eq(bind(silent, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(listen(silent, 16), 0);
    ck_assert_int_eq(getsockname(silent, (struct sockaddr *)&at, &size), 0);
    ck_assert_int_eq(cstd_links_add(link_rig.machines[A].links, "b",
                                    cstd_machine_address_text((struct sockaddr *)&at, address),
                                    link_rig.machines[B].fingerprint, &err),
                     CST_OK);
    link_rig_wait(waits_in_vain, NULL);
    cstd_hello_init(&stranger.hello, "b", 4711);
}

static void back_to_b(void)
{
    link_rig_start(B, 12);
}

/* -- certificates --------------------------------------------------------------------------- */

/* Another certificate than one of the list, also with the name of a machine. */
START_TEST(another_certificate)
{
    dial_as(&(struct certificate_spec){.name = "b", .from_s = -DAY, .until_s = DAY});
    assert_refused("does not accept the certificate");
    ck_assert_uint_eq(stranger.n_frames, 0); /* He is told nothing. */
}
END_TEST

/* The certificate of a machine, which anybody can have, without its key: he remains a stranger. */
START_TEST(a_certificate_without_its_key)
{
    const char *key = link_rig_path(A, "forged.key");
    unsigned n_failures;

    pose_as_b();
    n_failures = link_rig_find(A, B)->n_failures;
    certificate_forge_key(link_rig.machines[B].config.certificate, key);
    link_stranger_dial(&stranger, A, key, link_rig.machines[B].config.certificate);
    link_rig_wait(has_ended, &stranger);
    ck_assert_uint_eq(stranger.n_frames, 0);
    ck_assert_uint_eq(link_rig_find(A, B)->n_failures, n_failures); /* It is not B that failed. */
    back_to_b();
}
END_TEST

/* The certificate that this machine itself has. */
START_TEST(the_own_certificate)
{
    link_stranger_pose(&stranger, A, A);
    assert_refused("does not accept the certificate");
}
END_TEST

/* A certificate of the list that has expired, or is not valid yet. */
START_TEST(a_certificate_out_of_its_time)
{
    const struct certificate_spec specs[] = {{.name = "c", .from_s = -2 * DAY, .until_s = -60},
                                             {.name = "c", .from_s = 3600, .until_s = DAY}};
    char fingerprint[CST_FINGERPRINT_BYTES];

    certificate_make(&specs[_i], link_rig_path(C, "key"), link_rig_path(C, "crt"), fingerprint);
    ck_assert_int_eq(
        cstd_links_add(link_rig.machines[A].links, "c", "127.0.0.1:9", fingerprint, &err), CST_OK);
    cstd_hello_init(&stranger.hello, "c", 4711);
    link_stranger_dial(&stranger, A, link_rig_path(C, "key"), link_rig_path(C, "crt"));
    assert_refused("does not accept the certificate");
    ck_assert_int_eq(cstd_links_drop(link_rig.machines[A].links, "c", &err), CST_OK);
}
END_TEST

/* With an authority, a machine is known by the name in its certificate; not one with another name,
 * one that another authority has signed, or one of the authority that is not in the list. */
START_TEST(certificates_of_an_authority)
{
    static const struct {
        const char *name, *words;
        bool other_authority;
    } cases[] = {{"c", NULL, false},
                 {"c", "does not accept the certificate", true},
                 {"d", "does not accept the certificate", false},
                 {"b", "does not accept the certificate", false}};
    const struct certificate_spec authority = {
        .name = "the site", .from_s = -DAY, .until_s = DAY, .is_authority = true};
    struct link_machine *machine = &link_rig.machines[A];
    char unused[CST_FINGERPRINT_BYTES];

    certificate_make(&authority, link_rig_path(A, "ca.key"), link_rig_path(A, "ca.crt"), unused);
    certificate_make(&authority, link_rig_path(B, "ca.key"), link_rig_path(B, "ca.crt"), unused);
    (void)snprintf(machine->config.authorities, sizeof machine->config.authorities, "%s",
                   link_rig_path(A, "ca.crt"));
    ck_assert_msg(cstd_links_reload(machine->links, &err) == CST_OK, "%s", err.text);
    ck_assert_int_eq(cstd_links_add(machine->links, "c", "127.0.0.1:9", CSTD_MACHINE_CA, &err),
                     CST_OK);
    certificate_make(
        &(struct certificate_spec){
            .name = cases[_i].name,
            .from_s = -DAY,
            .until_s = DAY,
            .signer_key = link_rig_path(cases[_i].other_authority ? B : A, "ca.key"),
            .signer = link_rig_path(cases[_i].other_authority ? B : A, "ca.crt")},
        link_rig_path(C, "key"), link_rig_path(C, "crt"), unused);
    cstd_hello_init(&stranger.hello, cases[_i].name, 4711);
    link_stranger_dial(&stranger, A, link_rig_path(C, "key"), link_rig_path(C, "crt"));
    if (cases[_i].words != NULL) {
        assert_refused(cases[_i].words);
    } else {
        link_rig_until(&stranger.is_welcome);
        ck_assert_uint_eq(machine->n_up, 1);
        machine->n_up = 0; /* For teardown. */
    }
    ck_assert_int_eq(cstd_links_drop(machine->links, "c", &err), CST_OK);
}
END_TEST

/* A machine that this one dials, and that has the certificate of another machine of the list. */
START_TEST(an_address_of_another_node)
{
    struct cstd_machine *machine;

    link_rig_start(C, 13);
    link_rig_trust(A, C);
    ck_assert_int_eq(cstd_links_add(link_rig.machines[A].links, "b",
                                    link_rig.machines[C].config.listen,
                                    link_rig.machines[B].fingerprint, &err),
                     CST_OK);
    machine = link_rig_find(A, B);
    while (strstr(machine->why.text, "is that of node 'c'") == NULL) {
        link_rig_turn();
    }
    ck_assert_int_eq(cstd_links_drop(link_rig.machines[A].links, "c", &err), CST_OK);
    link_rig_trust(A, B);
}
END_TEST

/* -- a machine that does not fit --------------------------------------------------------------- */

/* Another version of the protocol, another name, other bits: refused, with words on both sides. */
START_TEST(a_node_that_does_not_fit)
{
    static const char *const words[] = {"speaks versions 2 to 3", "calls itself 'x'",
                                        "compute different bits", "two nodes have the name 'a'"};

    pose_as_b();
    switch (_i) {
    case 0:
        stranger.hello.min_version = 2;
        stranger.hello.max_version = 3;
        break;
    case 1:
        (void)strcpy(stranger.hello.name, "x");
        break;
    case 2:
        stranger.hello.digest[3] ^= 1;
        break;
    default:
        (void)strcpy(stranger.hello.name, "a");
        break;
    }
    link_stranger_pose(&stranger, A, B);
    assert_refused(words[_i]);
    ck_assert_ptr_nonnull(strstr(link_rig_find(A, B)->why.text, words[_i]));
    back_to_b();
}
END_TEST

/* A machine that has proved who it is, and then sends something else than a Hello: nothing,
 * garbage, a long frame, or a message of a link that is up. */
START_TEST(a_wrong_begin)
{
    static uint8_t body[CSTD_HELLO_MAX_BYTES + 1];
    static const struct {
        uint16_t type;
        size_t n;
    } cases[] = {{1, 0}, {1, 100}, {1, sizeof body}, {4, 9}, {2, 0}, {LINK_RIG_TYPE, 8}};

    pose_as_b();
    stranger.hello.instance = 0; /* Nothing is said at first. */
    link_stranger_dial(&stranger, A, link_rig.machines[B].config.key,
                       link_rig.machines[B].config.certificate);
    link_rig_until(&stranger.is_secure);
    ck_assert_int_eq(
        cstd_connection_send(stranger.connection, cases[_i].type, body, cases[_i].n, &err), CST_OK);
    link_rig_wait(has_ended, &stranger);
    ck_assert_uint_eq(link_rig.machines[A].n_up, 0);
    back_to_b();
}
END_TEST

/* -- the port ------------------------------------------------------------------------------- */

static int raw_connect(unsigned i)
{
    struct cstd_machine_address address;
    struct sockaddr_storage at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(cstd_machine_address_read(&address, link_rig.machines[i].config.listen, &err),
                     CST_OK);
    ck_assert(cstd_machine_address_number(&address, &at));
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof(struct sockaddr_in)), 0);
    ck_assert_int_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

/* True if the daemon has closed the connection. What it sends is read. */
static bool is_over(void *arg)
{
    uint8_t bytes[4096];
    ssize_t n;

    while ((n = recv(*(const int *)arg, bytes, sizeof bytes, 0)) > 0) {
    }
    return n == 0 || errno != EAGAIN;
}

static bool is_quiet(void *arg)
{
    (void)arg;
    return TAILQ_EMPTY(&link_rig.machines[A].links->connections);
}

/* Bytes that are no TLS, or a frame without TLS. */
START_TEST(garbage)
{
    uint64_t seed = suite_seed();
    uint8_t bytes[2000];
    int fd = raw_connect(A);

    for (size_t i = 0; i < sizeof bytes; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1;
        bytes[i] = (uint8_t)(seed >> 56);
    }
    if (_i == 0) {
        const struct cst_frame frame = {.type = 1, .body_bytes = 500};

        cst_frame_header(&frame, bytes);
    }
    ck_assert_int_eq(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    link_rig_wait(is_over, &fd);
    (void)close(fd);
}
END_TEST

/* Try to connect by TLS until it has failed. Returns OpenSSL's reason; 0: the connection was
 * closed. */
static int fail_to_connect(SSL *ssl)
{
    const uint64_t until = patience_until(20000);
    uint8_t byte;
    int n, what;

    do {
        link_rig_turn();
        ERR_clear_error();
        n = SSL_read(ssl, &byte, 1);
        what = SSL_get_error(ssl, n);
        ck_assert_msg(n <= 0, "the daemon has said something");
        ck_assert(!patience_over(until));
    } while (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE);
    return what == SSL_ERROR_SSL ? ERR_GET_REASON(ERR_peek_error()) : 0;
}

/* TLS without a certificate, and an earlier version of TLS. */
START_TEST(other_tls)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *ssl;
    int fd = raw_connect(A), reason;

    (void)SSL_CTX_set_max_proto_version(context, _i == 0 ? TLS1_3_VERSION : TLS1_2_VERSION);
    ssl = SSL_new(context);
    ck_assert_int_eq(SSL_set_fd(ssl, fd), 1);
    SSL_set_connect_state(ssl);
    reason = fail_to_connect(ssl);
    ck_assert_int_eq(reason, SSL_AD_REASON_OFFSET +
                                 (_i == 0 ? SSL_AD_CERTIFICATE_REQUIRED : SSL_AD_PROTOCOL_VERSION));
    SSL_free(ssl);
    SSL_CTX_free(context);
    (void)close(fd);
}
END_TEST

/* The bytes with which a machine has got its link, recorded. */
static uint8_t recorded[65536];
static size_t n_recorded;
static const uv_stream_t *recorded_of;

int __real_uv_try_write(uv_stream_t *stream, const uv_buf_t *bufs, unsigned n);
int __wrap_uv_try_write(uv_stream_t *stream, const uv_buf_t *bufs, unsigned n);

int __wrap_uv_try_write(uv_stream_t *stream, const uv_buf_t *bufs, unsigned n)
{
    if (stream == recorded_of && n_recorded + bufs[0].len <= sizeof recorded) {
        memcpy(recorded + n_recorded, bufs[0].base, bufs[0].len);
        n_recorded += bufs[0].len;
    }
    return __real_uv_try_write(stream, bufs, n);
}

/* What somebody has recorded of a machine's connection is of no use to him. */
START_TEST(replayed_bytes)
{
    int fd;

    pose_as_b();
    link_stranger_pose(&stranger, A, B);
    recorded_of = (uv_stream_t *)&stranger.connection->tcp;
    link_rig_until(&stranger.is_welcome);
    ck_assert_uint_gt(n_recorded, 500); /* A ClientHello, a certificate and a Hello. */
    link_stranger_close(&stranger);
    link_rig_wait(is_quiet, NULL);
    ck_assert_uint_eq(link_rig.machines[A].n_up, 1);
    fd = raw_connect(A);
    ck_assert_int_eq(send(fd, recorded, n_recorded, MSG_NOSIGNAL), (ssize_t)n_recorded);
    link_rig_wait(is_over, &fd);
    ck_assert_uint_eq(link_rig.machines[A].n_up, 1);
    link_rig.machines[A].n_up = 0; /* For teardown. */
    (void)close(fd);
    back_to_b();
}
END_TEST

/* Somebody who connects and says nothing, or one byte of a handshake now and then, has a limited
 * time. */
START_TEST(a_slow_stranger)
{
    int fd = raw_connect(A);

    for (unsigned ms = 0; !is_over(&fd); ms += 500) {
        ck_assert_uint_lt(ms, 4 * CSTD_LINK_GREET_MS);
        if (_i == 1) {
            const uint8_t byte = ms == 0 ? 22 : 3; /* A handshake record begins so. */

            (void)send(fd, &byte, ms < 1000, MSG_NOSIGNAL);
        }
        link_rig_pass(A, 500);
    }
    (void)close(fd);
}
END_TEST

/* Of many who connect and say nothing, few are let in at a time, and a machine gets in
 * nevertheless.
 */
START_TEST(a_crowd)
{
    enum { CROWD = 60 }; /* Less than the kernel's queue, for connect() below not to wait. */
    int fds[CROWD];

    pose_as_b();
    for (unsigned i = 0; i < CROWD; i++) {
        fds[i] = raw_connect(A);
        (void)uv_run(&link_rig.loop, UV_RUN_NOWAIT);
        ck_assert_uint_le(link_rig.machines[A].links->n_unproven, CSTD_LINK_UNPROVEN + 1);
    }
    link_stranger_pose(&stranger, A, B);
    link_rig_until(&stranger.is_welcome);
    link_rig.machines[A].n_up = 0; /* For teardown. */
    for (unsigned i = 0; i < CROWD; i++) {
        (void)close(fds[i]);
    }
    link_stranger_close(&stranger);
    link_rig_wait(is_quiet, NULL);
    back_to_b();
}
END_TEST

/* A machine that connects again and again, and says nothing, has one connection. */
START_TEST(many_connections_of_a_machine)
{
    struct link_stranger *again = calloc(4, sizeof *again);

    ck_assert_ptr_nonnull(again);
    pose_as_b();
    for (unsigned i = 0; i < 4; i++) {
        link_stranger_dial(&again[i], A, link_rig.machines[B].config.key,
                           link_rig.machines[B].config.certificate);
        link_rig_until(&again[i].is_secure);
        if (i > 0) {
            link_rig_wait(has_ended, &again[i - 1]);
        }
    }
    ck_assert_ptr_nonnull(again[3].connection);
    for (unsigned i = 0; i < 4; i++) {
        link_stranger_close(&again[i]);
    }
    /* What has ended is freed in the loop. */
    link_rig_turn();
    link_rig_turn();
    back_to_b();
    free(again);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("link strangers");
    TCase *tc = suite_case(suite, "certificates", setup, teardown);

    tcase_add_test(tc, another_certificate);
    tcase_add_test(tc, a_certificate_without_its_key);
    tcase_add_test(tc, the_own_certificate);
    tcase_add_loop_test(tc, a_certificate_out_of_its_time, 0, 2);
    tcase_add_loop_test(tc, certificates_of_an_authority, 0, 4);
    tcase_add_test(tc, an_address_of_another_node);
    tc = suite_case(suite, "nodes", setup, teardown);
    tcase_add_loop_test(tc, a_node_that_does_not_fit, 0, 4);
    tcase_add_loop_test(tc, a_wrong_begin, 0, 6);
    tc = suite_case(suite, "port", setup, teardown);
    tcase_add_loop_test(tc, garbage, 0, 2);
    tcase_add_loop_test(tc, other_tls, 0, 2);
    tcase_add_test(tc, replayed_bytes);
    tcase_add_loop_test(tc, a_slow_stranger, 0, 2);
    tcase_add_test(tc, a_crowd);
    tcase_add_test(tc, many_connections_of_a_machine);
    return suite_run(suite);
}
