/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of kernels/tickets: dependencies between commands. */
#include "kernels/tickets.h"
#include "tests/lib/suite.h"

#include <check.h>

static struct cste_tickets tickets;
static struct cste_ticket t[10];

static void set_up(void)
{
    cste_tickets_init(&tickets);
}

static void add(unsigned i, uint64_t number, const uint64_t *after, size_t n_after)
{
    struct cst_err err;

    ck_assert_int_eq(cste_tickets_add(&tickets, &t[i], number, after, n_after, &err), CST_OK);
}

static void done(unsigned i, int status)
{
    cste_tickets_done(&tickets, &t[i], status);
}

#define AFTER(...) ((uint64_t[]){__VA_ARGS__}), sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)

/* Tickets without dependencies are ready in the order in which they were added. */
START_TEST(test_order)
{
    add(0, 30, NULL, 0);
    add(1, 20, NULL, 0);
    ck_assert_ptr_eq(cste_tickets_take(&tickets), &t[0]);
    add(2, 10, NULL, 0);
    ck_assert_ptr_eq(cste_tickets_take(&tickets), &t[1]);
    ck_assert_ptr_eq(cste_tickets_take(&tickets), &t[2]);
    ck_assert_ptr_null(cste_tickets_take(&tickets));
    ck_assert_uint_eq(tickets.n_pending, 3);
    done(0, CST_OK);
    done(1, CST_OK);
    done(2, CST_OK);
    ck_assert_uint_eq(tickets.n_pending, 0);
}
END_TEST

/* A ticket becomes ready when the last of its dependencies is done, however often it names them. */
START_TEST(test_after)
{
    add(0, 1, NULL, 0);
    add(1, 2, NULL, 0);
    add(2, 3, AFTER(1, 2, 1));
    ck_assert_ptr_eq(cste_tickets_take(&tickets), &t[0]);
    ck_assert_ptr_eq(cste_tickets_take(&tickets), &t[1]);
    done(1, CST_OK);
    ck_assert_ptr_null(cste_tickets_take(&tickets));
    done(0, CST_OK);
    ck_assert_ptr_eq(cste_tickets_take(&tickets), &t[2]);
    ck_assert(!t[2].doomed);
    done(2, CST_OK);
}
END_TEST

/* Tickets that wait for one ticket become ready in the order in which they were added. */
START_TEST(test_fan_out)
{
    add(0, 1, NULL, 0);
    for (unsigned i = 1; i < 5; i++) {
        add(i, 1 + i, AFTER(1));
    }
    ck_assert_ptr_eq(cste_tickets_take(&tickets), &t[0]);
    done(0, CST_OK);
    for (unsigned i = 1; i < 5; i++) {
        ck_assert_ptr_eq(cste_tickets_take(&tickets), &t[i]);
        done(i, CST_OK);
    }
}
END_TEST

/* A dependency that is not pending counts as complete: it is over, belongs to another engine, or is
 * the ticket itself. */
START_TEST(test_unknown)
{
    add(0, 7, AFTER(5, 6, 7, 1000000));
    ck_assert_ptr_eq(cste_tickets_take(&tickets), &t[0]);
    ck_assert(!t[0].doomed);
    done(0, CST_OK);
    add(1, 8, AFTER(7));
    ck_assert_ptr_eq(cste_tickets_take(&tickets), &t[1]);
    ck_assert(!t[1].doomed);
    done(1, CST_OK);
}
END_TEST

/* A failure dooms the tickets that wait for it, and transitively those that wait for them. Each is
 * told the failed ticket. */
START_TEST(test_doomed)
{
    add(0, 1, NULL, 0);
    add(1, 2, NULL, 0);
    add(2, 3, AFTER(1, 2));
    add(3, 4, AFTER(3));
    (void)cste_tickets_take(&tickets);
    (void)cste_tickets_take(&tickets);
    done(0, CST_EINVAL);
    /* Not before its other dependency is over, too. */
    ck_assert_ptr_null(cste_tickets_take(&tickets));
    done(1, CST_OK);
    ck_assert_ptr_eq(cste_tickets_take(&tickets), &t[2]);
    ck_assert(t[2].doomed);
    ck_assert_uint_eq(t[2].culprit, 1);
    done(2, CST_ECANCELLED);
    ck_assert_ptr_eq(cste_tickets_take(&tickets), &t[3]);
    ck_assert(t[3].doomed);
    ck_assert_uint_eq(t[3].culprit, 3);
    done(3, CST_ECANCELLED);
}
END_TEST

/* A ticket that is added after its dependency has failed is doomed as well. A ticket whose
 * dependency succeeded is not. */
START_TEST(test_failed_before)
{
    add(0, 1, NULL, 0);
    add(1, 2, NULL, 0);
    (void)cste_tickets_take(&tickets);
    (void)cste_tickets_take(&tickets);
    done(0, CST_EINVAL);
    done(1, CST_OK);
    add(2, 3, AFTER(1));
    add(3, 4, AFTER(2));
    ck_assert(cste_tickets_take(&tickets)->doomed);
    ck_assert(!cste_tickets_take(&tickets)->doomed);
    done(2, CST_ECANCELLED);
    done(3, CST_OK);
}
END_TEST

/* A number that is pending is refused, and nothing changes. When the ticket is done, the number is
 * free. */
START_TEST(test_same_number)
{
    struct cst_err err;

    add(0, 1, NULL, 0);
    ck_assert_int_eq(cste_tickets_add(&tickets, &t[1], 1, NULL, 0, &err), CST_EEXIST);
    ck_assert_uint_eq(tickets.n_pending, 1);
    ck_assert_ptr_eq(cste_tickets_take(&tickets), &t[0]);
    ck_assert_ptr_null(cste_tickets_take(&tickets));
    done(0, CST_OK);
    add(1, 1, NULL, 0);
    done((cste_tickets_take(&tickets) == &t[1]) ? 1 : 0, CST_OK);
}
END_TEST

/* Numbers that share a bucket are independent. */
START_TEST(test_buckets)
{
    for (unsigned i = 0; i < 4; i++) {
        add(i, 5 + i * CSTE_TICKETS_BUCKETS, NULL, 0);
    }
    add(4, 6, AFTER(5 + 2 * CSTE_TICKETS_BUCKETS));
    for (unsigned i = 0; i < 4; i++) {
        (void)cste_tickets_take(&tickets);
    }
    done(1, CST_OK);
    done(3, CST_OK);
    done(0, CST_OK);
    ck_assert_ptr_null(cste_tickets_take(&tickets));
    done(2, CST_OK);
    ck_assert_ptr_eq(cste_tickets_take(&tickets), &t[4]);
    done(4, CST_OK);
    ck_assert_uint_eq(tickets.n_pending, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tickets");
    TCase *tcase = tcase_create("tickets");

    tcase_add_checked_fixture(tcase, set_up, NULL);
    tcase_add_test(tcase, test_order);
    tcase_add_test(tcase, test_after);
    tcase_add_test(tcase, test_fan_out);
    tcase_add_test(tcase, test_unknown);
    tcase_add_test(tcase, test_doomed);
    tcase_add_test(tcase, test_failed_before);
    tcase_add_test(tcase, test_same_number);
    tcase_add_test(tcase, test_buckets);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
