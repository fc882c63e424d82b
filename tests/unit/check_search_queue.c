/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the order of plan searches. */
#include "daemon/job/search_queue.h"
#include "tests/lib/suite.h"

#include <check.h>

enum { LARGE = CSTD_SEARCH_SMALL_WORK + 1, MALLORY = 1000, ALICE = 1001, BOB = 1002 };

static struct cstd_search_queue queue;
static struct cstd_search_turn turns[64];

static void setup(void)
{
    cstd_search_queue_init(&queue);
}

static void teardown(void)
{
    cstd_search_queue_close(&queue);
}

static struct cstd_search_turn *add(unsigned i, uid_t uid, uint64_t work)
{
    struct cst_err err;

    ck_assert_int_eq(cstd_search_queue_add(&queue, &turns[i], uid, work, &err), CST_OK);
    return &turns[i];
}

static struct cstd_search_turn *next(void)
{
    return cstd_search_queue_next(&queue);
}

static void done(struct cstd_search_turn *turn, uint64_t ns)
{
    cstd_search_queue_done(&queue, turn, ns);
}

/* Of one user's searches the smallest one runs first, and of equal ones the oldest. */
START_TEST(smallest_first)
{
    struct cstd_search_turn *c = add(0, ALICE, 30), *a = add(1, ALICE, 10), *b = add(2, ALICE, 10);

    ck_assert_ptr_eq(next(), a);
    done(a, 1);
    ck_assert_ptr_eq(next(), b);
    done(b, 1);
    ck_assert_ptr_eq(next(), c);
    done(c, 1);
    ck_assert_ptr_null(next());
}
END_TEST

/* A user's search begins at once, large or small, however many large searches another user has. */
START_TEST(nobody_takes_all_threads)
{
    struct cstd_search_turn *first, *small, *large;

    for (unsigned i = 0; i < 40; i++) {
        (void)add(i, MALLORY, LARGE + i);
    }
    first = next();
    ck_assert_ptr_eq(first, &turns[0]);
    ck_assert_ptr_null(next());
    small = add(40, ALICE, 1);
    ck_assert_ptr_eq(next(), small);
    large = add(41, ALICE, 100 * (uint64_t)LARGE);
    ck_assert_ptr_eq(next(), large);
    ck_assert_ptr_null(next());
    done(large, 1);
    ck_assert_ptr_null(next()); /* the free thread is not for the user who already has one */
    done(first, 1);
    ck_assert_ptr_eq(next(), &turns[1]);
}
END_TEST

/* A small search does not wait for large ones, even of its own user. */
START_TEST(small_ones_have_threads_of_their_own)
{
    struct cstd_search_turn *small;

    (void)add(0, ALICE, LARGE);
    (void)add(1, BOB, LARGE);
    ck_assert_ptr_nonnull(next());
    ck_assert_ptr_nonnull(next());
    (void)add(2, MALLORY, LARGE);
    ck_assert_ptr_null(next());
    small = add(3, MALLORY, CSTD_SEARCH_SMALL_WORK);
    ck_assert_ptr_eq(next(), small);
    small = add(4, ALICE, 1);
    ck_assert_ptr_eq(next(), small);
}
END_TEST

/* If more users wait than there are threads, the user whose searches took the least time is next.
 * Over a long time all users get equal time. */
START_TEST(least_time_first)
{
    const uint64_t cost[] = {90, 30, 10}; /* time of one search of each user */
    uint64_t spent[3] = {0}, now = 0, ends[CSTD_SEARCH_THREADS] = {0};
    struct cstd_search_turn *running[CSTD_SEARCH_THREADS] = {NULL};

    for (unsigned i = 0; i < 3; i++) {
        (void)add(i, MALLORY + i, LARGE);
    }
    for (unsigned n = 0; n < 3000; n++) {
        unsigned thread = ends[1] < ends[0] ? 1 : 0, user;

        now = ends[thread];
        if (running[thread] != NULL) {
            user = (unsigned)(running[thread] - turns);
            done(running[thread], cost[user]);
            spent[user] += cost[user];
            (void)add(user, MALLORY + user, LARGE);
        }
        running[thread] = next();
        ck_assert_ptr_nonnull(running[thread]);
        ends[thread] = now + cost[running[thread] - turns];
    }
    for (unsigned i = 1; i < 3; i++) {
        ck_assert_uint_le(spent[i], spent[0] + 2 * cost[0]);
        ck_assert_uint_ge(spent[i] + 2 * cost[0], spent[0]);
    }
}
END_TEST

/* A user who comes late has neither credit nor debt: no user is passed over because of the time
 * that others used before, and no user can reset the account by waiting for a moment without
 * searches. */
START_TEST(accounts)
{
    struct cstd_search_turn *a = add(0, ALICE, LARGE), *b, *c;

    ck_assert_ptr_eq(next(), a);
    b = add(1, BOB, LARGE);
    ck_assert_ptr_eq(next(), b);
    done(a, 1000); /* user a has nothing that waits now */
    a = add(0, ALICE, LARGE);
    c = add(2, MALLORY, LARGE);
    ck_assert_ptr_eq(next(), c); /* the account of c begins where that of b was when b was chosen */
    done(b, 10);
    ck_assert_ptr_eq(next(), a);
}
END_TEST

/* A search that was cancelled is not run, and nothing waits for it. */
START_TEST(removed)
{
    struct cstd_search_turn *a = add(0, ALICE, 10), *b = add(1, ALICE, 20);

    cstd_search_queue_remove(&queue, a);
    ck_assert_ptr_eq(next(), b);
    done(b, 1);
    ck_assert_uint_eq(queue.n_waiting, 0);
    ck_assert(LIST_EMPTY(&queue.users)); /* an idle queue remembers no users */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("search_queue");
    TCase *tc = suite_case(suite, "queue", setup, teardown);

    tcase_add_test(tc, smallest_first);
    tcase_add_test(tc, nobody_takes_all_threads);
    tcase_add_test(tc, small_ones_have_threads_of_their_own);
    tcase_add_test(tc, least_time_first);
    tcase_add_test(tc, accounts);
    tcase_add_test(tc, removed);
    return suite_run(suite);
}
