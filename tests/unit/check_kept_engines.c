/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/ledger/revive_engines: a daemon that adopts the undo slots of an earlier one with
 * fewer nodes sends its new ones to the service manager's store, and lists nothing twice. */
#include "daemon/ledger/revive_engines.h"

#include "daemon/base/daemon_state.h"
#include "tests/lib/suite.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/engines.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NODES = 3, BYTES = 4096, MOST = 8 };

/* With --wrap the linker redirects all calls. */
int __wrap_cstd_notify_store(struct cstd_notify *notify, const char *name, const int *fds,
                             uint32_t n, struct cst_err *err);

static struct cstd_daemon later;
static struct cstd_engines engines_of_later;
static char sent[MOST][CSTD_KEPT_NAME_BYTES]; /* What the service manager was sent. */
static uint32_t n_sent, fail_at;              /* The message that fails; MOST: none. */
static struct cst_err err;

int __wrap_cstd_notify_store(struct cstd_notify *notify, const char *name, const int *fds,
                             uint32_t n, struct cst_err *why)
{
    (void)notify;
    (void)fds;
    ck_assert_uint_eq(n, 1);
    if (n_sent == fail_at) {
        fail_at = MOST;
        return cst_err_set(why, CST_ENOMEM, "as asked");
    }
    ck_assert_uint_lt(n_sent, MOST);
    (void)snprintf(sent[n_sent++], sizeof sent[0], "%s", name);
    return CST_OK;
}

static struct cstd_segment *make_segment(uint32_t id)
{
    struct cstd_segment *segment;

    ck_assert_int_eq(cstd_segment_open(&segment, id, BYTES, NULL, NULL, "a test", &err), CST_OK);
    return segment;
}

/* The earlier daemon has stored a segment under @name, whose id is name.k. */
static void inherit(struct cstd_kept_name name)
{
    struct cstd_segment *segment = make_segment(name.k);
    char text[CSTD_KEPT_NAME_BYTES];

    ck_assert_int_eq(cstd_keeper_inherit(&later.keeper, cstd_kept_name_write(&name, false, text),
                                         dup(segment->fd), &err),
                     CST_OK);
    cstd_segment_unref(segment);
}

/* Adopt what was inherited, and make what is missing, as a start of the engines does. */
static void start(void)
{
    struct cstd_engines *engines = later.engines;

    ck_assert_int_eq(cstd_revive_adopt_engines(&later, &err), CST_OK);
    if (engines->traffic_memory == NULL) {
        engines->traffic_memory = make_segment(cstd_engines_segment_id(engines));
    }
    for (unsigned i = 0; i < NODES; i++) {
        if (engines->v[i].undo == NULL) {
            engines->v[i].undo = make_segment(cstd_engines_segment_id(engines));
        }
    }
}

static void setup(void)
{
    memset(&later, 0, sizeof later);
    memset(&engines_of_later, 0, sizeof engines_of_later);
    later.engines = &engines_of_later;
    later.engines->n_nodes = NODES;
    later.engines->next_segment = 1;
    n_sent = 0;
    fail_at = MOST;
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", "@none", 1), 0);
    ck_assert_int_eq(setenv("FDSTORE", "64", 1), 0);
    cstd_keeper_init(&later.keeper, &later.notify);
}

static void teardown(void)
{
    cstd_segment_unref(later.engines->traffic_memory);
    for (unsigned i = 0; i < NODES; i++) {
        cstd_segment_unref(later.engines->v[i].undo);
    }
    cstd_keeper_close(&later.keeper);
    free(later.keeper.stored);
    free(later.keeper.fds);
    free(later.keeper.kept);
}

/* All of the engines is stored, each once, and of that @n was sent by this daemon. */
static void assert_stored(uint32_t n)
{
    const struct cstd_keeper *keeper = &later.keeper;
    uint32_t n_traffic = 0, n_undo[NODES] = {0};

    ck_assert(keeper->engines_stored);
    ck_assert_uint_eq(n_sent, n);
    ck_assert_uint_eq(keeper->n_stored, NODES + 1);
    ck_assert_uint_eq(keeper->n_used, NODES + 1);
    for (uint32_t i = 0; i < keeper->n_stored; i++) {
        const struct cstd_stored *stored = &keeper->stored[i];
        const bool undo = stored->name.kind == CSTD_KEPT_UNDO;
        const struct cstd_segment *segment =
            undo ? later.engines->v[stored->name.i].undo : later.engines->traffic_memory;

        ck_assert_int_eq(stored->fd, segment->fd);
        ck_assert_uint_eq(stored->name.k, segment->id);
        (*(undo ? &n_undo[stored->name.i] : &n_traffic))++;
    }
    ck_assert_uint_eq(n_traffic, 1);
    for (unsigned i = 0; i < NODES; i++) {
        ck_assert_uint_eq(n_undo[i], 1);
    }
}

/* _i, by its bits: which nodes the earlier daemon had. */
START_TEST(some_are_adopted)
{
    uint32_t n_new = 0;

    inherit((struct cstd_kept_name){.kind = CSTD_KEPT_TRAFFIC, .k = 5});
    for (unsigned i = 0; i < NODES; i++) {
        if ((_i >> i & 1) != 0) {
            inherit((struct cstd_kept_name){.kind = CSTD_KEPT_UNDO, .i = i, .k = 20 - i});
        }
    }
    start();
    for (unsigned repeated = 0; repeated < 2; repeated++) { /* For each of two jobs. */
        ck_assert_int_eq(cstd_ledger_store_engines(&later, &err), CST_OK);
    }
    for (unsigned i = 0; i < NODES; i++) {
        struct cstd_kept_name name = {
            .kind = CSTD_KEPT_UNDO, .i = i, .k = later.engines->v[i].undo->id};
        char text[CSTD_KEPT_NAME_BYTES];

        if ((_i >> i & 1) == 0) {
            ck_assert_uint_lt(n_new, n_sent);
            ck_assert_str_eq(sent[n_new++], cstd_kept_name_write(&name, false, text));
        }
    }
    assert_stored(n_new);
}
END_TEST

/* Without an earlier daemon all are sent. After an error, the rest is. */
START_TEST(an_error_is_made_good)
{
    start();
    fail_at = 2;
    ck_assert_int_eq(cstd_ledger_store_engines(&later, &err), CST_ENOMEM);
    ck_assert(!later.keeper.engines_stored);
    ck_assert_int_eq(cstd_ledger_store_engines(&later, &err), CST_OK);
    assert_stored(NODES + 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kept_engines");
    TCase *tc = suite_case(s, "engines", setup, teardown);

    tcase_add_loop_test(tc, some_are_adopted, 0, 1 << NODES);
    tcase_add_test(tc, an_error_is_made_good);
    return suite_run(s);
}
