/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the parts of daemon/links that need no network: addresses, the list of machines, [node]
 * of the configuration, the digest of kernels, Hello, and frames in a stream. */
#include "daemon/links/frame_stream.h"
#include "daemon/links/hello.h"
#include "daemon/links/links_config.h"
#include "daemon/links/machine_list.h"
#include "kernels/math/kernels.h"
#include "tests/lib/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ID_1 "sha256:1111111111111111111111111111111111111111111111111111111111111111"
#define ID_2 "sha256:2222222222222222222222222222222222222222222222222222222222222222"

static struct cst_err err;
static char path[64];

static void setup(void)
{
    int fd;

    err = (struct cst_err){0};
    (void)strcpy(path, "/tmp/cistern-nodes-XXXXXX");
    fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(close(fd), 0);
}

static void teardown(void)
{
    (void)unlink(path);
}

/* -- addresses ------------------------------------------------------------------------------ */

/* Hosts and ports as people write them. */
START_TEST(addresses_are_read)
{
    static const struct {
        const char *text, *host;
        unsigned port;
    } cases[] = {{"node1", "node1", CST_NODE_PORT},       {"node1:80", "node1", 80},
                 {"10.0.0.1", "10.0.0.1", CST_NODE_PORT}, {"10.0.0.1:0", "10.0.0.1", 0},
                 {"fd00::1", "fd00::1", CST_NODE_PORT},   {"[fd00::1]", "fd00::1", CST_NODE_PORT},
                 {"[fd00::1]:9", "fd00::1", 9},           {"ib0:65535", "ib0", 65535}};
    struct cstd_machine_address address;

    ck_assert_msg(cstd_machine_address_read(&address, cases[_i].text, &err) == CST_OK, "%s",
                  err.text);
    ck_assert_str_eq(address.host, cases[_i].host);
    ck_assert_uint_eq(address.port, cases[_i].port);
}
END_TEST

/* What is none is quoted in the error. */
START_TEST(wrong_addresses)
{
    static const char *const cases[] = {"",     ":80",     "h:",   "h:65536", "h:-1", "h:x",
                                        "[::1", "[::1]80", "[]:1", "a b",     "a/b",  "a,b"};
    char longest[200];
    struct cstd_machine_address address;

    ck_assert_int_eq(cstd_machine_address_read(&address, cases[_i], &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, cases[_i]));
    memset(longest, 'x', sizeof longest);
    longest[CSTD_MACHINE_ADDRESS_BYTES] = '\0';
    ck_assert_int_eq(cstd_machine_address_read(&address, longest, &err), CST_EINVAL);
    longest[CSTD_MACHINE_ADDRESS_BYTES - 1] = '\0';
    ck_assert_int_eq(cstd_machine_address_read(&address, longest, &err), CST_OK);
}
END_TEST

/* A machine listens at an address or an interface, and not at all of them. */
START_TEST(where_a_node_listens)
{
    struct cstd_machine_address address = {.host = "lo", .port = 99};
    char text[CSTD_MACHINE_ADDRESS_BYTES];
    struct sockaddr_storage at;

    ck_assert_msg(cstd_machine_address_own(&address, &at, &err) == CST_OK, "%s", err.text);
    ck_assert_str_eq(cstd_machine_address_text((struct sockaddr *)&at, text), "127.0.0.1:99");
    (void)strcpy(address.host, "fd00::7");
    ck_assert_int_eq(cstd_machine_address_own(&address, &at, &err), CST_OK);
    ck_assert_str_eq(cstd_machine_address_text((struct sockaddr *)&at, text), "[fd00::7]:99");
    (void)strcpy(address.host, "0.0.0.0");
    ck_assert_int_eq(cstd_machine_address_own(&address, &at, &err), CST_EINVAL);
    (void)strcpy(address.host, "::");
    ck_assert_int_eq(cstd_machine_address_own(&address, &at, &err), CST_EINVAL);
    (void)strcpy(address.host, "nowhere0");
    ck_assert_int_eq(cstd_machine_address_own(&address, &at, &err), CST_ENOTFOUND);
}
END_TEST

/* -- the list ------------------------------------------------------------------------------- */

static void write_list(const char *text)
{
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    (void)fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

static void assert_list(const char *text)
{
    char got[4096];
    FILE *file = fopen(path, "re");
    size_t n;

    ck_assert_ptr_nonnull(file);
    n = fread(got, 1, sizeof got - 1, file);
    got[n] = '\0';
    (void)fclose(file);
    ck_assert_str_eq(got, text);
}

/* Entries and comments are read; a file that is not there is empty. */
START_TEST(a_list_is_read)
{
    struct cstd_machine_list list;

    write_list("# ours\n\n b  10.0.0.2 " ID_1 "\nc\t[fd00::1]:9 ca drained\r\n");
    ck_assert_msg(cstd_machine_list_read(&list, path, &err) == CST_OK, "%s", err.text);
    ck_assert_uint_eq(list.n, 2);
    ck_assert_str_eq(list.v[0].name, "b");
    ck_assert_str_eq(list.v[0].identity, ID_1);
    ck_assert(!list.v[0].drained);
    ck_assert_str_eq(cstd_machine_list_find(&list, "c")->address, "[fd00::1]:9");
    ck_assert(list.v[1].drained);
    ck_assert_ptr_null(cstd_machine_list_find(&list, "d"));
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(cstd_machine_list_read(&list, path, &err), CST_OK);
    ck_assert_uint_eq(list.n, 0);
}
END_TEST

/* A wrong line is refused, with its number. */
START_TEST(a_wrong_line)
{
    static const char *const lines[] = {
        "b",
        "b 10.0.0.2",
        "b 10.0.0.2 sha256:12",
        "b 10.0.0.2 SHA256:1111111111111111111111111111111111111111111111111111111111111111",
        "b 10.0.0.2 " ID_1 "1",
        "b 10.0.0.2 " ID_1 " gone",
        "b 10.0.0.2 " ID_1 " drained drained",
        "-b 10.0.0.2 " ID_1,
        "b 10.0.0.2:x " ID_1,
        "b 10.0.0.2:0 " ID_1,
        "a 10.0.0.9 " ID_2,
        "x 10.0.0.9 " ID_1,
    };
    struct cstd_machine_list list;
    char text[512], where[96];

    (void)snprintf(text, sizeof text, "a 10.0.0.1 %s\n%s\n", ID_1, lines[_i]);
    write_list(text);
    ck_assert_int_eq(cstd_machine_list_read(&list, path, &err), CST_EINVAL);
    (void)snprintf(where, sizeof where, "%s:2: ", path);
    ck_assert_msg(strncmp(err.text, where, strlen(where)) == 0, "%s", err.text);
}
END_TEST

/* Adding, replacing and removing a line leaves the others as they are, and is atomic. */
START_TEST(a_line_is_changed)
{
    struct cstd_machine_entry entry;
    struct stat before, after;

    write_list("# ours\nb 10.0.0.2 " ID_1 "\nbb 10.0.0.3 ca");
    ck_assert_int_eq(stat(path, &before), 0);
    ck_assert_int_eq(cstd_machine_entry_make(&entry, "b", "h:1", ID_2, &err), CST_OK);
    ck_assert_msg(cstd_machine_list_change(path, "b", &entry, &err) == CST_OK, "%s", err.text);
    assert_list("# ours\nb h:1 " ID_2 "\nbb 10.0.0.3 ca\n");
    ck_assert_int_eq(stat(path, &after), 0);
    ck_assert_uint_ne(before.st_ino, after.st_ino); /* Another file has taken its place. */
    ck_assert_int_eq(cstd_machine_list_change(path, "bb", NULL, &err), CST_OK);
    (void)strcpy(entry.name, "c");
    entry.drained = true;
    ck_assert_int_eq(cstd_machine_list_change(path, "c", &entry, &err), CST_OK);
    assert_list("# ours\nb h:1 " ID_2 "\nc h:1 " ID_2 " drained\n");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(cstd_machine_list_change(path, "c", &entry, &err), CST_OK);
    assert_list("c h:1 " ID_2 " drained\n");
}
END_TEST

/* -- configuration -------------------------------------------------------------------------- */

/* Without a place to listen nothing is needed; with one, the network must be described, and the
 * name is that of the host. */
START_TEST(the_configuration_is_complete)
{
    struct cstd_links_config config;

    cstd_links_config_init(&config);
    ck_assert_int_eq(cstd_links_config_finish(&config, &err), CST_OK);
    ck_assert_int_eq(cstd_links_config_check(&config, &err), CST_OK);
    ck_assert_str_eq(config.name, "");
    (void)strcpy(config.listen, "127.0.0.1");
    ck_assert_int_eq(cstd_links_config_finish(&config, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "network = trusted"));
    config.network = CSTD_NETWORK_ENCRYPTED;
    ck_assert_msg(cstd_links_config_finish(&config, &err) == CST_OK, "%s", err.text);
    ck_assert_str_ne(config.name, "");
    (void)snprintf(config.key, sizeof config.key, "/nonexistent/key");
    ck_assert_int_eq(cstd_links_config_check(&config, &err), CST_EIO);
    ck_assert_msg(strstr(err.text, "cistern node key") != NULL, "%s", err.text);
    (void)snprintf(config.key, sizeof config.key, "%s", path);
    ck_assert_int_eq(chmod(path, 0644), 0);
    ck_assert_int_eq(cstd_links_config_check(&config, &err), CST_EDENIED);
    ck_assert_int_eq(chmod(path, 0600), 0);
    (void)snprintf(config.certificate, sizeof config.certificate, "%s", path);
    ck_assert_int_eq(cstd_links_config_check(&config, &err), CST_EINVAL);
}
END_TEST

/* -- hello ---------------------------------------------------------------------------------- */

/* The digest is the same on all processors: it changes only with what kernels compute. */
START_TEST(the_digest_is_known)
{
    static const char known[] = "15618861354ff7ad745d14dece4eb556";
    const struct cst_kernels *kernels;
    uint8_t digest[CSTD_KERNEL_DIGEST_BYTES];
    char text[2 * sizeof digest + 1];
    unsigned n, n_usable = 0;

    kernels = cst_kernels_all(&n);
    for (unsigned k = 0; k < n; k++) {
        if (cstd_kernel_digest(kernels[k].isa, digest) == NULL) {
            continue;
        }
        for (size_t i = 0; i < sizeof digest; i++) {
            (void)snprintf(text + 2 * i, 3, "%02x", digest[i]);
        }
        ck_assert_msg(strcmp(text, known) == 0, "%s computes %s", kernels[k].isa, text);
        n_usable++;
    }
    ck_assert_uint_gt(n_usable, 0);
    ck_assert_ptr_null(cstd_kernel_digest("no such set", digest));
}
END_TEST

/* A Hello is read as it was written, and fits. Cut off anywhere, or with a byte too many, it is
 * refused or is another Hello, and never more than it says. */
START_TEST(hello_is_read)
{
    uint8_t bytes[CSTD_HELLO_MAX_BYTES];
    struct cstd_hello hello, got;
    char name[CST_JOB_NAME_BYTES];
    size_t n;

    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    cstd_hello_init(&hello, name, UINT64_MAX);
    n = cstd_hello_write(&hello, bytes);
    ck_assert_uint_le(n, sizeof bytes);
    ck_assert_int_eq(cstd_hello_read(&got, bytes, n, &err), CST_OK);
    ck_assert_mem_eq(&got, &hello, sizeof got);
    ck_assert_int_eq(cstd_hello_check(&hello, &got, name, &err), CST_EMISMATCH); /* Itself. */
    for (size_t i = 0; i < n; i++) {
        ck_assert_int_eq(cstd_hello_read(&got, bytes, i, &err), CST_EPROTO);
    }
}
END_TEST

/* Names, versions and digests of other machines are checked before they are shown. */
START_TEST(a_wrong_hello)
{
    uint8_t bytes[CSTD_HELLO_MAX_BYTES];
    struct cstd_hello hello, got;

    cstd_hello_init(&hello, "b", 1);
    switch (_i) {
    case 0:
        (void)strcpy(hello.name, "../b");
        break;
    case 1:
        (void)strcpy(hello.program, "0.1\n0.2");
        break;
    default:
        (void)strcpy(hello.isa, "\x1b[31m");
        break;
    }
    ck_assert_int_eq(cstd_hello_read(&got, bytes, cstd_hello_write(&hello, bytes), &err),
                     CST_EPROTO);
}
END_TEST

/* -- frames --------------------------------------------------------------------------------- */

/* Frames are found in a stream wherever it is cut. */
START_TEST(a_stream_is_cut_into_frames)
{
    struct cstd_frame_stream stream = {.bytes = NULL};
    const struct cst_frame frames[] = {
        {.type = 7, .body = (const uint8_t *)"hello", .body_bytes = 5},
        {.type = 8, .body_bytes = 0},
        {.type = 9, .body = (const uint8_t *)"x", .body_bytes = 1}};
    uint8_t bytes[256];
    size_t n = 0, at = 0;
    unsigned n_frames = 0;

    for (unsigned i = 0; i < 3; i++) {
        cst_frame_header(&frames[i], bytes + n);
        n += CST_FRAME_HEADER_BYTES;
        if (frames[i].body_bytes > 0) {
            memcpy(bytes + n, frames[i].body, frames[i].body_bytes);
            n += frames[i].body_bytes;
        }
    }
    ck_assert_int_eq(cstd_frame_stream_admit(&stream, 5, &err), CST_OK);
    while (at < n) {
        struct cst_frame frame;
        size_t room, piece = 1 + (size_t)_i;
        uint8_t *to = cstd_frame_stream_next(&stream, &room);
        int rc;

        piece = piece < room ? piece : room;
        piece = piece < n - at ? piece : n - at;
        memcpy(to, bytes + at, piece);
        at += piece;
        rc = cstd_frame_stream_take(&stream, piece, &frame, &err);
        if (rc == CST_OK) {
            ck_assert_uint_eq(frame.type, frames[n_frames].type);
            ck_assert_uint_eq(frame.body_bytes, frames[n_frames].body_bytes);
            ck_assert_int_eq(memcmp(frame.body, n_frames == 0 ? "hello" : "x", frame.body_bytes),
                             0);
            n_frames++;
        } else {
            ck_assert_int_eq(rc, CST_EAGAIN);
        }
    }
    ck_assert_uint_eq(n_frames, 3);
    cstd_frame_stream_close(&stream);
}
END_TEST

/* A longer frame than is accepted is refused when its header is there, before its body. */
START_TEST(a_long_frame_is_refused)
{
    struct cstd_frame_stream stream = {.bytes = NULL};
    const struct cst_frame long_frame = {.type = 7, .body_bytes = 6};
    struct cst_frame frame;
    size_t room;

    ck_assert_int_eq(cstd_frame_stream_admit(&stream, 5, &err), CST_OK);
    cst_frame_header(&long_frame, cstd_frame_stream_next(&stream, &room));
    ck_assert_uint_eq(room, CST_FRAME_HEADER_BYTES);
    ck_assert_int_eq(cstd_frame_stream_take(&stream, room, &frame, &err), CST_EPROTO);
    ck_assert_ptr_nonnull(strstr(err.text, "limit 5"));
    cstd_frame_stream_close(&stream);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("link parts");
    TCase *tc = suite_case(suite, "addresses", setup, teardown);

    tcase_add_loop_test(tc, addresses_are_read, 0, 8);
    tcase_add_loop_test(tc, wrong_addresses, 0, 12);
    tcase_add_test(tc, where_a_node_listens);
    tc = suite_case(suite, "list", setup, teardown);
    tcase_add_test(tc, a_list_is_read);
    tcase_add_loop_test(tc, a_wrong_line, 0, 12);
    tcase_add_test(tc, a_line_is_changed);
    tc = suite_case(suite, "configuration", setup, teardown);
    tcase_add_test(tc, the_configuration_is_complete);
    tc = suite_case(suite, "hello", setup, teardown);
    tcase_add_test(tc, the_digest_is_known);
    tcase_add_test(tc, hello_is_read);
    tcase_add_loop_test(tc, a_wrong_hello, 0, 3);
    tc = suite_case(suite, "frames", setup, teardown);
    tcase_add_loop_test(tc, a_stream_is_cut_into_frames, 0, 30);
    tcase_add_test(tc, a_long_frame_is_refused);
    return suite_run(suite);
}
