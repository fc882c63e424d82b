/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/links: machines that find each other, messages between them, and links that go
 * down and come back. tests/unit/check_link_strangers has those that try to break in. */
#include "tests/lib/link_rig.h"
#include "tests/lib/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { A, B, C };

static struct cst_err err;

static void setup(void)
{
    err = (struct cst_err){0};
    link_rig_open();
    link_rig_start(A, 11);
    link_rig_start(B, 12);
}

static void connect_two(void)
{
    link_rig_trust(A, B);
    link_rig_trust(B, A);
    link_rig_connect(A, B);
}

static unsigned n_connections(unsigned i)
{
    const struct cstd_connection *connection;
    unsigned n = 0;

    TAILQ_FOREACH(connection, &link_rig.machines[i].links->connections, link)
    {
        n++;
    }
    return n;
}

static bool has_one_connection(void *arg)
{
    (void)arg;
    return n_connections(A) == 1 && n_connections(B) == 1;
}

static bool is_down(void *arg)
{
    const unsigned *both = arg;

    return !link_rig_is_up(both[0], both[1]);
}

static void wait_down(unsigned i, unsigned j)
{
    unsigned both[] = {i, j};

    link_rig_wait(is_down, both);
}

static void send_number(unsigned i, unsigned j, uint64_t number)
{
    uint8_t body[1000];

    memset(body, (int)number, sizeof body);
    memcpy(body, &number, sizeof number);
    ck_assert_int_eq(cstd_machine_send_bytes(link_rig_find(i, j), LINK_RIG_TYPE, body,
                                             sizeof number + number % (sizeof body - sizeof number),
                                             &err),
                     CST_OK);
}

static bool has_all(void *arg)
{
    const uint64_t *n = arg;

    return link_rig.machines[A].n_got >= *n && link_rig.machines[B].n_got >= *n;
}

/* Exchange @n messages in both directions, of which all must arrive in order. */
static void exchange(uint64_t n)
{
    link_rig.machines[A].n_got = link_rig.machines[B].n_got = 0;
    for (uint64_t i = 0; i < n; i++) {
        send_number(A, B, i);
        send_number(B, A, i);
        if (i % 16 == 0) {
            link_rig_turn();
        }
    }
    link_rig_wait(has_all, &n);
    ck_assert(!link_rig.machines[A].is_wrong && !link_rig.machines[B].is_wrong);
}

/* -- up ------------------------------------------------------------------------------------- */

/* Two machines that dial each other at once have one connection in the end, have been told of it
 * once, and messages pass in order. */
START_TEST(two_nodes_have_one_link)
{
    connect_two();
    link_rig_wait(has_one_connection, NULL);
    ck_assert_uint_eq(link_rig.machines[A].n_up, 1);
    ck_assert_uint_eq(link_rig.machines[B].n_up, 1);
    ck_assert_uint_eq(link_rig.machines[A].n_down + link_rig.machines[B].n_down, 0);
    ck_assert_uint_eq(link_rig_find(A, B)->hello.instance, 12);
    exchange(3000);
}
END_TEST

/* It is enough if one of the two knows the address of the other one, whichever that is. */
START_TEST(one_address_is_enough)
{
    const unsigned knows = (unsigned)_i, other = 1 - knows;
    struct link_machine *machine = &link_rig.machines[knows];

    ck_assert_msg(cstd_links_add(link_rig.machines[other].links, machine->config.name,
                                 "127.0.0.1:9", machine->fingerprint, &err) == CST_OK,
                  "%s", err.text);
    link_rig_trust(knows, other);
    link_rig_connect(A, B);
    exchange(10);
}
END_TEST

/* Three machines have a link for each pair. */
START_TEST(three_nodes)
{
    link_rig_start(C, 13);
    for (unsigned i = A; i <= C; i++) {
        for (unsigned j = A; j <= C; j++) {
            if (i != j) {
                link_rig_trust(i, j);
            }
        }
    }
    link_rig_connect(A, B);
    link_rig_connect(B, C);
    link_rig_connect(A, C);
}
END_TEST

/* The names of hosts are looked up. */
START_TEST(a_name_is_looked_up)
{
    const char *port = strchr(link_rig.machines[B].config.listen, ':');
    char address[64];

    (void)snprintf(address, sizeof address, "localhost%s", port);
    link_rig_trust(B, A);
    ck_assert_msg(cstd_links_add(link_rig.machines[A].links, "b", address,
                                 link_rig.machines[B].fingerprint, &err) == CST_OK,
                  "%s", err.text);
    link_rig_connect(A, B);
}
END_TEST

/* -- down ----------------------------------------------------------------------------------- */

/* A machine that stops says so, and another start of its daemon is another instance. */
START_TEST(a_node_that_stops_comes_back)
{
    connect_two();
    link_rig_stop(B);
    wait_down(A, B);
    ck_assert_ptr_nonnull(strstr(link_rig.machines[A].why.text, "the test stops the node"));
    link_rig_start(B, 99);
    link_rig_connect(A, B);
    ck_assert_uint_eq(link_rig_find(A, B)->hello.instance, 99);
    ck_assert_uint_eq(link_rig.machines[A].n_down, 1);
    ck_assert_uint_eq(link_rig.machines[A].n_up, 2);
    exchange(10);
}
END_TEST

/* Machines stop and start at random moments: up and down alternate, and in the end all have links.
 */
START_TEST(restarts_at_random)
{
    uint64_t random = suite_seed(), instance = 100;

    link_rig_start(C, 13);
    for (unsigned i = A; i <= C; i++) {
        for (unsigned j = A; j <= C; j++) {
            if (i != j) {
                link_rig_trust(i, j);
            }
        }
    }
    for (unsigned round = 0; round < 12; round++) {
        const unsigned i =
            (unsigned)((random = random * UINT64_C(6364136223846793005) + 1) >> 40) % 3;

        for (unsigned turns = (unsigned)(random >> 56) % 16; turns > 0; turns--) {
            link_rig_turn();
        }
        link_rig_stop(i);
        link_rig_start(i, instance++);
    }
    link_rig_connect(A, B);
    link_rig_connect(B, C);
    link_rig_connect(A, C);
    for (unsigned i = A; i <= C; i++) {
        for (unsigned j = A; j <= C; j++) {
            ck_assert(i == j || link_rig.machines[i].is_up[j]);
        }
    }
    exchange(10);
}
END_TEST

/* A machine that is silent is down within the stated time, whatever TCP knows. */
START_TEST(a_silent_node_is_down)
{
    struct link_stranger b = {.context = NULL};
    unsigned steps = 0;

    link_rig_stop(B);
    ck_assert_int_eq(cstd_links_add(link_rig.machines[A].links, "b", "127.0.0.1:9",
                                    link_rig.machines[B].fingerprint, &err),
                     CST_OK);
    link_stranger_pose(&b, A, B); /* It greets as b would, and then only reads. */
    link_rig_until(&b.is_welcome);
    ck_assert(link_rig_is_up(A, B));
    for (; link_rig_is_up(A, B); steps++) {
        ck_assert_uint_lt(steps, 100);
        link_rig_pass(A, 750); /* And a tick. */
    }
    ck_assert_uint_ge(steps, CSTD_LINK_SILENCE_MS / 1100);
    ck_assert_uint_le(steps, CSTD_LINK_SILENCE_MS / 750 + 2);
    ck_assert_ptr_nonnull(strstr(link_rig.machines[A].why.text, "nothing has come for"));
    link_stranger_close(&b);
}
END_TEST

/* Heartbeats keep a link up that has nothing else to do. */
START_TEST(heartbeats_keep_a_link_up)
{
    connect_two();
    for (unsigned i = 0; i < 20; i++) {
        link_rig_pass(A, 1000);
    }
    ck_assert_uint_eq(link_rig.machines[A].n_down + link_rig.machines[B].n_down, 0);
    ck_assert_uint_gt(link_rig_find(A, B)->round_trip_ns, 0);
}
END_TEST

/* A daemon that was stopped itself for longer than the limit does not blame the others. */
START_TEST(a_late_tick_says_nothing)
{
    connect_two();
    link_rig_advance(60000);
    for (unsigned i = 0; i < 8; i++) {
        link_rig_turn();
    }
    ck_assert_uint_eq(link_rig.machines[A].n_down + link_rig.machines[B].n_down, 0);
}
END_TEST

/* What waits for a machine that does not read is bounded: then its link goes down. */
START_TEST(a_node_that_does_not_read_is_down)
{
    struct link_stranger b = {.context = NULL};
    uint8_t body[32768] = {0};
    uint64_t n = 0;

    link_rig_stop(B);
    ck_assert_int_eq(cstd_links_add(link_rig.machines[A].links, "b", "127.0.0.1:9",
                                    link_rig.machines[B].fingerprint, &err),
                     CST_OK);
    link_stranger_pose(&b, A, B);
    link_rig_until(&b.is_welcome);
    (void)uv_read_stop((uv_stream_t *)&b.connection->tcp);
    while (link_rig_is_up(A, B) && cstd_machine_send_bytes(link_rig_find(A, B), LINK_RIG_TYPE, body,
                                                           sizeof body, &err) == CST_OK) {
        ck_assert_uint_le(cstd_connection_waiting(link_rig_find(A, B)->up),
                          CSTD_CONNECTION_MAX_WAITING);
        n += sizeof body;
        ck_assert_uint_lt(n, 256u << 20);
        if (n % (1 << 20) == 0) {
            (void)uv_run(&link_rig.loop, UV_RUN_NOWAIT);
        }
    }
    ck_assert_uint_ge(n, CSTD_CONNECTION_MAX_WAITING - sizeof body);
    wait_down(A, B);
    ck_assert_ptr_nonnull(strstr(link_rig.machines[A].why.text, "does not read"));
    link_stranger_close(&b);
}
END_TEST

/* A message that nobody handles, or that its handler refuses, takes the link down, which comes
 * back. */
START_TEST(a_strange_message_takes_the_link_down)
{
    const uint16_t type = _i == 0 ? LINK_RIG_TYPE + 1 : LINK_RIG_TYPE;

    connect_two();
    ck_assert_int_eq(
        cstd_machine_send_bytes(link_rig_find(B, A), type, (const uint8_t *)"x", 1, &err), CST_OK);
    wait_down(A, B);
    ck_assert_ptr_nonnull(
        strstr(link_rig.machines[A].why.text, _i == 0 ? "does not know" : "a number of 1 bytes"));
    link_rig_connect(A, B);
    exchange(10);
}
END_TEST

/* Nothing is sent while the link is down, nor a message that is longer than a frame. */
START_TEST(what_cannot_be_sent)
{
    static uint8_t large[CST_FRAME_MAX_BODY + 1];

    link_rig_trust(A, B);
    ck_assert_int_eq(cstd_machine_send_bytes(link_rig_find(A, B), LINK_RIG_TYPE, large, 1, &err),
                     CST_ECONN);
    link_rig_trust(B, A);
    link_rig_connect(A, B);
    ck_assert_int_eq(
        cstd_machine_send_bytes(link_rig_find(A, B), LINK_RIG_TYPE, large, sizeof large, &err),
        CST_EINVAL);
    ck_assert(link_rig_is_up(A, B));
}
END_TEST

/* -- managers ------------------------------------------------------------------------------- */

/* A machine that is dropped is down on both sides, and does not come back until it is added again.
 */
START_TEST(a_dropped_node_stays_away)
{
    connect_two();
    ck_assert_int_eq(cstd_links_drop(link_rig.machines[A].links, "b", &err), CST_OK);
    wait_down(B, A);
    ck_assert_ptr_null(link_rig_find(A, B));
    ck_assert_ptr_nonnull(strstr(link_rig.machines[B].why.text, "no longer trusts"));
    for (unsigned i = 0; i < 8; i++) {
        link_rig_turn();
    }
    ck_assert_uint_eq(link_rig.machines[B].n_up, 1);
    ck_assert_int_eq(cstd_links_drop(link_rig.machines[A].links, "b", &err), CST_ENOTFOUND);
    link_rig_trust(A, B);
    link_rig_connect(A, B);
}
END_TEST

/* The link to a drained machine ends when nobody holds the machine any more; then it stays down
 * until the machine is added again, also over a restart. */
START_TEST(a_drained_node_is_released)
{
    struct cstd_machine *machine;

    connect_two();
    machine = link_rig_find(A, B);
    ck_assert_int_eq(cstd_machine_hold(machine, &err), CST_OK);
    ck_assert_int_eq(cstd_links_drain(link_rig.machines[A].links, "b", &err), CST_OK);
    ck_assert_uint_eq(link_rig.machines[A].n_drain, 1);
    ck_assert_int_eq(cstd_machine_hold(machine, &err), CST_EDRAINING);
    exchange(10);
    cstd_machine_release(machine);
    wait_down(B, A);
    ck_assert_ptr_nonnull(strstr(link_rig.machines[B].why.text, "has drained its link"));
    link_rig_stop(A);
    link_rig_start(A, 21);
    for (unsigned i = 0; i < 8; i++) {
        link_rig_turn();
    }
    ck_assert_uint_eq(link_rig.machines[B].n_up, 1);
    ck_assert(link_rig_find(A, B)->entry.drained);
    link_rig_trust(A, B);
    link_rig_connect(A, B);
}
END_TEST

/* A machine that is held while it is dropped can be released later. */
START_TEST(a_held_node_outlives_its_entry)
{
    struct cstd_machine *machine;

    connect_two();
    machine = link_rig_find(A, B);
    ck_assert_int_eq(cstd_machine_hold(machine, &err), CST_OK);
    ck_assert_int_eq(cstd_links_drop(link_rig.machines[A].links, "b", &err), CST_OK);
    wait_down(B, A);
    ck_assert_int_eq(cstd_machine_send_bytes(machine, LINK_RIG_TYPE, NULL, 0, &err), CST_ECONN);
    cstd_machine_release(machine);
}
END_TEST

/* True if A has been told *n times that a link is up. */
static bool has_come_up(void *arg)
{
    const unsigned *n = arg;

    return link_rig.machines[A].n_up == *n;
}

/* A machine that is held, dropped and added again is the same object: the job that holds it has a
 * link again, also if the machine has another key now. Released, it is forgotten. */
START_TEST(a_held_node_is_found_again)
{
    struct cstd_machine *machine;

    connect_two();
    machine = link_rig_find(A, B);
    ck_assert_int_eq(cstd_machine_hold(machine, &err), CST_OK);
    for (unsigned n_up = 2; n_up < 5; n_up++) {
        ck_assert_int_eq(cstd_links_drop(link_rig.machines[A].links, "b", &err), CST_OK);
        ck_assert(machine->is_dropped);
        if (n_up > 2) { /* Otherwise it is added before the connection has ended. */
            wait_down(B, A);
        }
        link_rig_trust(A, B);
        ck_assert_ptr_eq(link_rig_find(A, B), machine);
        ck_assert(!machine->is_dropped);
        link_rig_wait(has_come_up, &n_up);
        link_rig_connect(A, B);
    }
    ck_assert_int_eq(cstd_links_add(link_rig.machines[A].links, "b", "127.0.0.1:10",
                                    link_rig.machines[C].fingerprint, &err),
                     CST_OK);
    ck_assert_ptr_eq(link_rig_find(A, B), machine);
    wait_down(B, A);
    ck_assert_ptr_nonnull(strstr(link_rig.machines[B].why.text, "the former certificate"));
    ck_assert_int_eq(cstd_links_drop(link_rig.machines[A].links, "b", &err), CST_OK);
    cstd_machine_release(machine);
    ck_assert(TAILQ_EMPTY(&link_rig.machines[A].links->dropped));
    link_rig_trust(A, B);
    link_rig_connect(A, B);
}
END_TEST

static void write_machines(unsigned i, const char *text)
{
    FILE *file = fopen(link_rig.machines[i].config.trusted, "we");

    ck_assert_ptr_nonnull(file);
    (void)fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

/* The list is read again: unchanged machines keep their links, others go. A wrong list changes
 * nothing. */
START_TEST(the_list_is_read_again)
{
    char line[256];

    connect_two();
    write_machines(A, "# nobody knows b\nb nonsense\n");
    ck_assert_int_eq(cstd_links_reload(link_rig.machines[A].links, &err), CST_EINVAL);
    ck_assert_msg(strstr(err.text, "a.nodes:2") != NULL, "%s", err.text);
    ck_assert(link_rig_is_up(A, B));
    (void)snprintf(line, sizeof line, "# moved\nb 127.0.0.1:10 %s\n",
                   link_rig.machines[B].fingerprint);
    write_machines(A, line);
    ck_assert_msg(cstd_links_reload(link_rig.machines[A].links, &err) == CST_OK, "%s", err.text);
    ck_assert(link_rig_is_up(A, B));
    ck_assert_str_eq(link_rig_find(A, B)->entry.address, "127.0.0.1:10");
    (void)snprintf(line, sizeof line, "b 127.0.0.1:10 %s\n", link_rig.machines[C].fingerprint);
    write_machines(A, line);
    ck_assert_msg(cstd_links_reload(link_rig.machines[A].links, &err) == CST_OK, "%s", err.text);
    wait_down(B, A);
    ck_assert(!link_rig_is_up(A, B));
}
END_TEST

/* A machine cannot be its own peer, have the fingerprint of another one, or be one too many. */
START_TEST(what_cannot_be_added)
{
    struct cstd_links *links = link_rig.machines[A].links;
    char name[16], fingerprint[CST_FINGERPRINT_BYTES];

    ck_assert_int_eq(cstd_links_add(links, "a", "h", link_rig.machines[B].fingerprint, &err),
                     CST_EINVAL);
    ck_assert_int_eq(cstd_links_add(links, "x", "h", link_rig.machines[A].fingerprint, &err),
                     CST_EINVAL);
    ck_assert_int_eq(cstd_links_add(links, "b", "h:0", link_rig.machines[B].fingerprint, &err),
                     CST_EINVAL);
    link_rig_trust(A, B);
    ck_assert_int_eq(cstd_links_add(links, "x", "h", link_rig.machines[B].fingerprint, &err),
                     CST_EINVAL);
    for (unsigned i = 1; i < CSTD_MACHINES_MAX; i++) {
        (void)snprintf(name, sizeof name, "n%u", i);
        (void)snprintf(fingerprint, sizeof fingerprint, "sha256:%064u", i);
        ck_assert_msg(cstd_links_add(links, name, "127.0.0.1:9", fingerprint, &err) == CST_OK, "%s",
                      err.text);
    }
    ck_assert_int_eq(cstd_links_add(links, "one", "h", CSTD_MACHINE_CA, &err), CST_EBUDGET);
}
END_TEST

/* The file cannot be written: nothing changes. */
START_TEST(a_list_that_cannot_be_written)
{
    struct link_machine *machine = &link_rig.machines[A];

    (void)snprintf(machine->config.trusted, sizeof machine->config.trusted, "/nonexistent/nodes");
    ck_assert_int_eq(
        cstd_links_add(machine->links, "b", "h", link_rig.machines[B].fingerprint, &err), CST_EIO);
    ck_assert_ptr_null(link_rig_find(A, B));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("links");
    TCase *tc = suite_case(suite, "up", setup, link_rig_close);

    tcase_add_test(tc, two_nodes_have_one_link);
    tcase_add_loop_test(tc, one_address_is_enough, 0, 2);
    tcase_add_test(tc, three_nodes);
    tcase_add_test(tc, a_name_is_looked_up);
    tc = suite_case(suite, "down", setup, link_rig_close);
    tcase_add_test(tc, a_node_that_stops_comes_back);
    tcase_add_test(tc, restarts_at_random);
    tcase_add_test(tc, a_silent_node_is_down);
    tcase_add_test(tc, heartbeats_keep_a_link_up);
    tcase_add_test(tc, a_late_tick_says_nothing);
    tcase_add_test(tc, a_node_that_does_not_read_is_down);
    tcase_add_loop_test(tc, a_strange_message_takes_the_link_down, 0, 2);
    tcase_add_test(tc, what_cannot_be_sent);
    tc = suite_case(suite, "managers", setup, link_rig_close);
    tcase_add_test(tc, a_dropped_node_stays_away);
    tcase_add_test(tc, a_drained_node_is_released);
    tcase_add_test(tc, a_held_node_outlives_its_entry);
    tcase_add_test(tc, a_held_node_is_found_again);
    tcase_add_test(tc, the_list_is_read_again);
    tcase_add_test(tc, what_cannot_be_added);
    tcase_add_test(tc, a_list_that_cannot_be_written);
    return suite_run(suite);
}
