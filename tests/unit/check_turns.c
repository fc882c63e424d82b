/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the order in which the daemon reads the requests of its users. */
#include "daemon/base/turns.h"
#include "tests/lib/suite.h"

#include <check.h>

enum { N = 8 };

static struct cstd_turns line;
static struct cstd_turn_user alice, bob;
static struct cstd_turn hers[N], his[N];

static void setup(void)
{
    static const struct cstd_turn none;

    cstd_turns_init(&line);
    cstd_turns_init_user(&alice);
    cstd_turns_init_user(&bob);
    for (unsigned i = 0; i < N; i++) {
        hers[i] = his[i] = none;
    }
}

static void add_hers(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        cstd_turns_add(&line, &alice, &hers[i]);
    }
}

/* One request of each user is read in turn, and a user's own sessions keep their order. */
START_TEST(users_take_turns)
{
    add_hers(3);
    cstd_turns_add(&line, &bob, &his[0]);
    cstd_turns_add(&line, &bob, &his[1]);
    ck_assert_ptr_eq(cstd_turns_next(&line), &hers[0]);
    ck_assert_ptr_eq(cstd_turns_next(&line), &his[0]);
    ck_assert_ptr_eq(cstd_turns_next(&line), &hers[1]);
    ck_assert_ptr_eq(cstd_turns_next(&line), &his[1]);
    ck_assert_ptr_eq(cstd_turns_next(&line), &hers[2]);
    ck_assert_ptr_null(cstd_turns_next(&line));
}
END_TEST

/* A user who arrives while another user's many sessions wait is served after one of them. */
START_TEST(a_late_user_waits_for_one_request)
{
    add_hers(N);
    ck_assert_ptr_eq(cstd_turns_next(&line), &hers[0]);
    cstd_turns_add(&line, &bob, &his[0]);
    ck_assert_ptr_eq(cstd_turns_next(&line), &hers[1]);
    ck_assert_ptr_eq(cstd_turns_next(&line), &his[0]);
    ck_assert_ptr_eq(cstd_turns_next(&line), &hers[2]);
}
END_TEST

/* A session that is reported readable again has only one place in the queue, and returns to it
 * after its turn. */
START_TEST(a_session_is_in_line_once)
{
    add_hers(1);
    add_hers(1);
    ck_assert_ptr_eq(cstd_turns_next(&line), &hers[0]);
    ck_assert_ptr_null(cstd_turns_next(&line));
    add_hers(1);
    ck_assert_ptr_eq(cstd_turns_next(&line), &hers[0]);
}
END_TEST

/* A session that ends leaves the queue. Its user leaves too if it was the user's only one. */
START_TEST(a_session_leaves_the_line)
{
    add_hers(2);
    cstd_turns_add(&line, &bob, &his[0]);
    cstd_turns_remove(&line, &hers[0]);
    cstd_turns_remove(&line, &his[0]);
    cstd_turns_remove(&line, &his[1]); /* this session never was in the queue */
    ck_assert_ptr_eq(cstd_turns_next(&line), &hers[1]);
    ck_assert_ptr_null(cstd_turns_next(&line));
    cstd_turns_remove(&line, &hers[1]);
    ck_assert_ptr_null(cstd_turns_next(&line));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("turns");
    TCase *tc = suite_case(suite, "order", setup, NULL);

    tcase_add_test(tc, users_take_turns);
    tcase_add_test(tc, a_late_user_waits_for_one_request);
    tcase_add_test(tc, a_session_is_in_line_once);
    tcase_add_test(tc, a_session_leaves_the_line);
    return suite_run(suite);
}
