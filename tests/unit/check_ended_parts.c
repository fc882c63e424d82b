/* SPDX-License-Identifier: Apache-2.0 */
/* Tests which nodes are told that parts of jobs have ended here, and until when. The links are
 * those of this file: what is sent is counted. */
#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/job/ended_parts.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

enum { NODES = 2 };

static struct cstd_daemon node_daemon;
static struct cstd_ended_parts parts;
static struct cstd_machine machines[NODES];
static bool is_trusted[NODES];
static struct cstd_links_watch *watch;
static cstd_link_fn on_seen;
static unsigned n_sent[NODES], n_warnings;
static uint64_t last_life; /* Of the last Gone that was sent. */

/* -- links ------------------------------------------------------------------------------------ */

struct cstd_machine *cstd_links_find(struct cstd_links *links, const char *name)
{
    (void)links;
    for (unsigned i = 0; i < NODES; i++) {
        if (is_trusted[i] && strcmp(machines[i].entry.name, name) == 0) {
            return &machines[i];
        }
    }
    return NULL;
}

void cstd_links_watch(struct cstd_links *links, struct cstd_links_watch *what)
{
    (void)links;
    watch = what;
}

void cstd_links_handle(struct cstd_links *links, uint16_t type, cstd_link_fn fn, void *arg)
{
    (void)links;
    ck_assert_uint_eq(type, SPAN__MSG_TYPE__SPAN_GONE_SEEN);
    ck_assert_ptr_eq(arg, &node_daemon);
    on_seen = fn;
}

int cstd_machine_send_bytes(struct cstd_machine *machine, uint16_t type, const uint8_t *body,
                            size_t n, struct cst_err *err)
{
    Span__Gone *gone = span__gone__unpack(NULL, n, body);

    ck_assert_uint_eq(type, SPAN__MSG_TYPE__SPAN_GONE);
    ck_assert_ptr_nonnull(gone);
    last_life = gone->from->life;
    span__gone__free_unpacked(gone, NULL);
    if (machine->up == NULL) {
        return cst_err_set(err, CST_ECONN, "down");
    }
    n_sent[machine - machines]++;
    return CST_OK;
}

int cstd_machine_send(struct cstd_machine *machine, uint16_t type, const ProtobufCMessage *message,
                      struct cst_err *err)
{
    (void)machine;
    (void)message;
    (void)err;
    ck_assert_uint_eq(type, SPAN__MSG_TYPE__SPAN_GONE_SEEN);
    return CST_OK;
}

void cstd_log(enum cstd_log_level level, const char *fmt, ...)
{
    (void)fmt;
    n_warnings += level == CSTD_LOG_WARNING;
}

/* -- the rig ---------------------------------------------------------------------------------- */

static void setup(void)
{
    memset(&node_daemon, 0, sizeof node_daemon);
    memset(machines, 0, sizeof machines);
    memset(n_sent, 0, sizeof n_sent);
    n_warnings = 0;
    for (unsigned i = 0; i < NODES; i++) {
        (void)snprintf(machines[i].entry.name, sizeof machines[i].entry.name, "node%u", i);
        is_trusted[i] = true;
    }
    node_daemon.ended_parts = &parts;
    cstd_ended_parts_init(&node_daemon);
    cstd_ended_parts_handle(&node_daemon);
}

static void teardown(void)
{
    cstd_ended_parts_close(&node_daemon);
}

static void set_link(unsigned node, bool up)
{
    machines[node].up = up ? (struct cstd_connection *)&machines[node] : NULL;
    if (up) {
        watch->on_up(watch, &machines[node]);
    }
}

static void end_part(unsigned node, const char *name, uint64_t life)
{
    Span__Gone gone = SPAN__GONE__INIT;
    Span__Key key = SPAN__KEY__INIT;

    key.uid = 7;
    key.name = (char *)(uintptr_t)name;
    key.life = life;
    gone.from = &key;
    gone.status = CST_ECANCELLED;
    gone.why = (char *)(uintptr_t) "removed";
    cstd_ended_parts_tell(&node_daemon, &machines[node], &gone);
}

static void answer(unsigned node, const char *name, uint64_t life)
{
    Span__GoneSeen seen = SPAN__GONE_SEEN__INIT;
    Span__Key key = SPAN__KEY__INIT;
    struct cst_err err;
    uint8_t body[128];

    key.uid = 7;
    key.name = (char *)(uintptr_t)name;
    key.life = life;
    seen.from = &key;
    ck_assert_int_eq(
        on_seen(&node_daemon, &machines[node], body, span__gone_seen__pack(&seen, body), &err),
        CST_OK);
}

static size_t untold(const char *name)
{
    char *names[NODES];

    return cstd_ended_parts_untold(&node_daemon, 7, name, names, NODES);
}

/* -- tests ------------------------------------------------------------------------------------ */

/* A node is told at once, and each time when its link comes up, until it has answered about this
 * life of the part. */
START_TEST(told_until_answered)
{
    set_link(0, true);
    end_part(0, "run", 100);
    ck_assert_uint_eq(n_sent[0], 1);
    ck_assert_uint_eq(untold("run"), 0); /* It is on its way. */
    set_link(0, false);
    ck_assert_uint_eq(untold("run"), 1);
    ck_assert_uint_eq(untold("walk"), 0);
    set_link(0, true);
    ck_assert_uint_eq(n_sent[0], 2);
    answer(0, "run", 99);
    answer(1, "run", 100);
    answer(0, "walk", 100);
    set_link(0, true);
    ck_assert_uint_eq(n_sent[0], 3);
    answer(0, "run", 100);
    set_link(0, true);
    ck_assert_uint_eq(n_sent[0], 3);
    set_link(0, false);
    ck_assert_uint_eq(untold("run"), 0);
}
END_TEST

/* Each node has an entry of its own, and is named once, however many lives of the job have ended.
 */
START_TEST(several)
{
    char *names[NODES];

    end_part(0, "run", 1);
    end_part(1, "run", 1);
    end_part(1, "run", 2);
    ck_assert_uint_eq(cstd_ended_parts_untold(&node_daemon, 7, "run", names, NODES), 2);
    ck_assert_str_eq(names[0], "node0");
    ck_assert_str_eq(names[1], "node1");
    ck_assert_uint_eq(cstd_ended_parts_untold(&node_daemon, 8, "run", names, NODES), 0);
    set_link(1, true);
    ck_assert_uint_eq(n_sent[0], 0);
    ck_assert_uint_eq(n_sent[1], 2);
    ck_assert_uint_eq(last_life, 2); /* In their order. */
}
END_TEST

/* The oldest part of a node is forgotten when there are too many, with a warning; another node's is
 * not. Those of a node that is no longer trusted are. */
START_TEST(limits)
{
    end_part(1, "run", 1);
    for (uint64_t life = 1; life <= CSTD_ENDED_PARTS_MAX; life++) {
        end_part(0, "run", life);
    }
    ck_assert_uint_eq(n_warnings, 0);
    end_part(0, "run", CSTD_ENDED_PARTS_MAX + 1);
    ck_assert_uint_eq(n_warnings, 1);
    set_link(0, true);
    ck_assert_uint_eq(n_sent[0], CSTD_ENDED_PARTS_MAX);
    set_link(1, true);
    ck_assert_uint_eq(n_sent[1], 1);
    is_trusted[1] = false;
    end_part(0, "walk", 1);
    set_link(1, true);
    ck_assert_uint_eq(n_sent[1], 1);
}
END_TEST

/* A daemon that ends keeps nothing, and an answer that is none takes the link down. */
START_TEST(ends)
{
    struct cst_err err = {0};

    node_daemon.draining = true;
    end_part(0, "run", 1);
    node_daemon.draining = false;
    set_link(0, true);
    ck_assert_uint_eq(n_sent[0], 0);
    ck_assert_int_eq(on_seen(&node_daemon, &machines[0], (const uint8_t *)"\xff", 1, &err),
                     CST_EPROTO);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ended_parts");
    TCase *tcase = suite_case(suite, "ended_parts", setup, teardown);

    tcase_add_test(tcase, told_until_answered);
    tcase_add_test(tcase, several);
    tcase_add_test(tcase, limits);
    tcase_add_test(tcase, ends);
    return suite_run(suite);
}
