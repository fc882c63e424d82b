/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/waits: commands that wait for tickets of other engines. */
#include "daemon/waits.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>

static struct cstd_waits waits;
static struct cst_command out;
static struct cst_err err;

static void setup(void)
{
    cstd_waits_init(&waits);
    err = (struct cst_err){0};
}

static void teardown(void)
{
    cstd_waits_close(&waits);
}

static void hold(uint64_t ticket, uint32_t n, const uint64_t *tickets)
{
    struct cst_command command = {
        .kind = CST_COMMAND_COPY, .ticket = ticket, .node = 3, .bytes = 10 * ticket, .n_after = n};

    memcpy(command.after, tickets, n * sizeof *tickets);
    ck_assert_int_eq(cstd_waits_add(&waits, &command, tickets, n, &err), CST_OK);
}

#define HOLD(ticket, ...)                                                                          \
    hold(ticket, sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), (uint64_t[]){__VA_ARGS__})

static void expect_none(void)
{
    ck_assert(!cstd_waits_take(&waits, &out, &err));
}

static void expect(uint64_t ticket, int status)
{
    ck_assert(cstd_waits_take(&waits, &out, &err));
    ck_assert_uint_eq(out.ticket, ticket);
    ck_assert_int_eq(err.status, status);
}

/* A command is released whole, without `after`, when its only ticket is done, and not before. */
START_TEST(one)
{
    HOLD(5, 2);
    expect_none();
    cstd_waits_done(&waits, 3, CST_OK, NULL);
    expect_none();
    ck_assert(cstd_waits_holds(&waits, 5));
    cstd_waits_done(&waits, 2, CST_OK, NULL);
    expect(5, CST_OK);
    ck_assert_uint_eq(out.n_after, 0);
    ck_assert_uint_eq(out.node, 3);
    ck_assert_uint_eq(out.bytes, 50);
    ck_assert(!cstd_waits_holds(&waits, 5));
    ck_assert_uint_eq(waits.n, 0);
    expect_none();
}
END_TEST

/* A command waits for the last of its tickets, in whatever order they end. */
START_TEST(several)
{
    HOLD(9, 2, 258, 514); /* all in one bucket */
    cstd_waits_done(&waits, 258, CST_OK, NULL);
    expect_none();
    cstd_waits_done(&waits, 514, CST_OK, NULL);
    expect_none();
    cstd_waits_done(&waits, 2, CST_OK, NULL);
    expect(9, CST_OK);
}
END_TEST

/* One ticket releases many commands in the order of their submission. Others stay. */
START_TEST(many)
{
    for (uint64_t t = 300; t < 310; t++) {
        HOLD(t, 7);
    }
    HOLD(310, 8);
    cstd_waits_done(&waits, 7, CST_OK, NULL);
    for (unsigned i = 0; i < 10; i++) {
        ck_assert(cstd_waits_take(&waits, &out, &err));
        ck_assert_uint_ge(out.ticket, 300);
        ck_assert_uint_lt(out.ticket, 310);
    }
    expect_none();
    ck_assert_uint_eq(waits.n, 1);
}
END_TEST

/* A failure cancels the command, with the failure's message, when its other tickets have ended. The
 * message of the first failure stays. */
START_TEST(failure)
{
    HOLD(4, 1, 2, 3);
    cstd_waits_done(&waits, 1, CST_EENGINE, "engine 0: 6 deaths");
    expect_none();
    cstd_waits_done(&waits, 2, CST_EIO, "another one");
    cstd_waits_done(&waits, 3, CST_OK, NULL);
    expect(4, CST_ECANCELLED);
    ck_assert_ptr_nonnull(strstr(err.text, "engine 0: 6 deaths"));
    HOLD(5, 6);
    cstd_waits_done(&waits, 6, CST_EIO, NULL);
    expect(5, CST_ECANCELLED);
    ck_assert_ptr_nonnull(strstr(err.text, cst_status_words(CST_EIO)));
}
END_TEST

/* A command that waits can be waited for. The caller reports how it ended. */
START_TEST(chain)
{
    HOLD(2, 1);
    HOLD(3, 2);
    HOLD(4, 3);
    cstd_waits_done(&waits, 1, CST_EIO, "gone");
    for (uint64_t t = 2; t <= 4; t++) {
        expect(t, CST_ECANCELLED);
        expect_none();
        cstd_waits_done(&waits, t, err.status, err.text);
    }
    expect_none();
    ck_assert_uint_eq(waits.n, 0);
}
END_TEST

/* Commands that wait for a ticket which is replaced wait for its replacement and their other
 * tickets. The end of the replaced ticket does not affect them. */
START_TEST(renamed)
{
    HOLD(10, 2);
    HOLD(11, 2, 258, 3);
    HOLD(12, 258); /* in the same bucket */
    cstd_waits_rename(&waits, 2, 9);
    cstd_waits_done(&waits, 2, CST_EIO, "failed");
    expect_none();
    cstd_waits_done(&waits, 9, CST_OK, NULL);
    expect(10, CST_OK);
    expect_none();
    cstd_waits_done(&waits, 258, CST_OK, NULL);
    expect(12, CST_OK);
    cstd_waits_done(&waits, 3, CST_OK, NULL);
    expect(11, CST_OK);
    HOLD(13, 5, 6);
    cstd_waits_rename(&waits, 5, 6); /* the ticket occurs twice */
    cstd_waits_done(&waits, 6, CST_OK, NULL);
    expect(13, CST_OK);
}
END_TEST

/* When a job ends, its commands are forgotten, whether they wait or are released, and nothing is
 * left of their tickets. */
START_TEST(forget)
{
    HOLD(1 << 8 | 1, 1 << 8 | 7, 1 << 8 | 8);
    HOLD(1 << 8 | 2, 1 << 8 | 7);
    HOLD(2 << 8 | 1, 2 << 8 | 7);
    cstd_waits_done(&waits, 1 << 8 | 7, CST_OK, NULL);
    cstd_waits_forget(&waits, 8, 1);
    ck_assert_uint_eq(waits.n, 1);
    cstd_waits_done(&waits, 1 << 8 | 8, CST_OK, NULL);
    expect_none();
    cstd_waits_done(&waits, 2 << 8 | 7, CST_OK, NULL);
    expect(2 << 8 | 1, CST_OK);
}
END_TEST

/* Closing frees the commands that wait or are released; leak checkers verify this. */
START_TEST(closed)
{
    HOLD(2, 1);
    HOLD(3, 1, 7);
    cstd_waits_done(&waits, 1, CST_OK, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("waits");
    TCase *tcase = tcase_create("waits");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, one);
    tcase_add_test(tcase, several);
    tcase_add_test(tcase, many);
    tcase_add_test(tcase, failure);
    tcase_add_test(tcase, chain);
    tcase_add_test(tcase, renamed);
    tcase_add_test(tcase, forget);
    tcase_add_test(tcase, closed);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
