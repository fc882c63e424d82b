/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/ticket_graph: dependencies between commands. */
#include "proto/ticket_graph.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>

static struct cst_ticket_graph tickets;
static struct cst_ticket t[10];
static struct cst_ticket_edge edges[10][4];

static void set_up(void)
{
    struct cst_err err;

    ck_assert_int_eq(cst_ticket_graph_open(&tickets, &err), CST_OK);
}

static void tear_down(void)
{
    cst_ticket_graph_close(&tickets);
}

static void add(unsigned i, uint64_t number, const uint64_t *after, size_t n_after)
{
    struct cst_err err;

    t[i] = (struct cst_ticket){.number = number, .edges = edges[i]};
    ck_assert_int_eq(cst_ticket_graph_add(&tickets, &t[i], after, n_after, &err), CST_OK);
}

static void done(unsigned i, int status)
{
    cst_ticket_graph_done(&tickets, &t[i], status);
}

#define AFTER(...) ((uint64_t[]){__VA_ARGS__}), sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)

/* Tickets without dependencies are ready in the order in which they were added. */
START_TEST(test_order)
{
    add(0, 30, NULL, 0);
    add(1, 20, NULL, 0);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[0]);
    add(2, 10, NULL, 0);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[1]);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[2]);
    ck_assert_ptr_null(cst_ticket_graph_take(&tickets));
    ck_assert_uint_eq(tickets.n, 3);
    done(0, CST_OK);
    done(1, CST_OK);
    done(2, CST_OK);
    ck_assert_uint_eq(tickets.n, 0);
}
END_TEST

/* A ticket becomes ready when the last of its dependencies is done, however often it names them. */
START_TEST(test_after)
{
    add(0, 1, NULL, 0);
    add(1, 2, NULL, 0);
    add(2, 3, AFTER(1, 2, 1));
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[0]);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[1]);
    done(1, CST_OK);
    ck_assert_ptr_null(cst_ticket_graph_take(&tickets));
    done(0, CST_OK);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[2]);
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
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[0]);
    done(0, CST_OK);
    for (unsigned i = 1; i < 5; i++) {
        ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[i]);
        done(i, CST_OK);
    }
}
END_TEST

/* A dependency that is not pending counts as complete: it is over, belongs to another engine, or is
 * the ticket itself. */
START_TEST(test_unknown)
{
    add(0, 7, AFTER(5, 6, 7, 1000000));
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[0]);
    ck_assert(!t[0].doomed);
    done(0, CST_OK);
    add(1, 8, AFTER(7));
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[1]);
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
    (void)cst_ticket_graph_take(&tickets);
    (void)cst_ticket_graph_take(&tickets);
    done(0, CST_EINVAL);
    /* Not before its other dependency is over, too. */
    ck_assert_ptr_null(cst_ticket_graph_take(&tickets));
    done(1, CST_OK);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[2]);
    ck_assert(t[2].doomed);
    ck_assert_uint_eq(t[2].culprit, 1);
    done(2, CST_ECANCELLED);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[3]);
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
    (void)cst_ticket_graph_take(&tickets);
    (void)cst_ticket_graph_take(&tickets);
    done(0, CST_EINVAL);
    done(1, CST_OK);
    add(2, 3, AFTER(1));
    add(3, 4, AFTER(2));
    ck_assert(cst_ticket_graph_take(&tickets)->doomed);
    ck_assert(!cst_ticket_graph_take(&tickets)->doomed);
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
    t[1] = (struct cst_ticket){.number = 1};
    ck_assert_int_eq(cst_ticket_graph_add(&tickets, &t[1], NULL, 0, &err), CST_EEXIST);
    ck_assert_uint_eq(tickets.n, 1);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[0]);
    ck_assert_ptr_null(cst_ticket_graph_take(&tickets));
    done(0, CST_OK);
    add(1, 1, NULL, 0);
    done((cst_ticket_graph_take(&tickets) == &t[1]) ? 1 : 0, CST_OK);
}
END_TEST

/* Numbers that share a bucket are independent. */
#define SAME_BUCKET 4096
START_TEST(test_buckets)
{
    for (unsigned i = 0; i < 4; i++) {
        add(i, 5 + i * SAME_BUCKET, NULL, 0);
    }
    add(4, 6, AFTER(5 + 2 * SAME_BUCKET));
    for (unsigned i = 0; i < 4; i++) {
        (void)cst_ticket_graph_take(&tickets);
    }
    done(1, CST_OK);
    done(3, CST_OK);
    done(0, CST_OK);
    ck_assert_ptr_null(cst_ticket_graph_take(&tickets));
    done(2, CST_OK);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[4]);
    done(4, CST_OK);
    ck_assert_uint_eq(tickets.n, 0);
}
END_TEST

/* A ticket also waits for the releases of its owner. */
START_TEST(test_release)
{
    struct cst_err err;

    add(0, 1, NULL, 0);
    t[1] = (struct cst_ticket){.number = 2, .edges = edges[1], .n_waits = 1};
    ck_assert_int_eq(cst_ticket_graph_add(&tickets, &t[1], AFTER(1), &err), CST_OK);
    (void)cst_ticket_graph_take(&tickets);
    done(0, CST_OK);
    ck_assert_ptr_null(cst_ticket_graph_take(&tickets));
    cst_ticket_graph_release(&tickets, &t[1]);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[1]);
    done(1, CST_OK);
}
END_TEST

/* Tickets that wait for one that is replaced wait for its replacement and their other tickets,
 * except the replacement itself. The failure of the replaced ticket does not affect the others. */
START_TEST(test_replaced)
{
    add(0, 2, NULL, 0);
    add(1, 3, NULL, 0);
    (void)cst_ticket_graph_take(&tickets);
    (void)cst_ticket_graph_take(&tickets);
    add(2, 10, AFTER(2));
    add(3, 11, AFTER(2, 3, 2));
    add(4, 9, AFTER(2));
    cst_ticket_graph_replace(&t[0], &t[4]);
    done(0, CST_EIO);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[4]);
    ck_assert(t[4].doomed);
    ck_assert_ptr_null(cst_ticket_graph_take(&tickets));
    done(4, CST_OK);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[2]);
    ck_assert(!t[2].doomed);
    ck_assert_ptr_null(cst_ticket_graph_take(&tickets));
    done(1, CST_OK);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[3]);
    ck_assert(!t[3].doomed);
}
END_TEST

/* Tickets that wait, are ready or run can be dropped together, in any order. Nothing is left of
 * them, and other tickets are not affected. */
START_TEST(test_drop)
{
    add(0, 1, NULL, 0);
    add(1, 2, NULL, 0);
    add(2, 3, AFTER(1));
    add(3, 4, AFTER(2, 3));
    add(4, 5, AFTER(2));
    add(5, 6, NULL, 0);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[0]);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[1]);
    cst_ticket_graph_drop(&tickets, &t[0]);
    cst_ticket_graph_drop(&tickets, &t[3]);
    cst_ticket_graph_drop(&tickets, &t[2]);
    cst_ticket_graph_drop(&tickets, &t[5]);
    ck_assert_ptr_null(cst_ticket_graph_find(&tickets, 4));
    ck_assert_uint_eq(tickets.n, 2);
    ck_assert_ptr_null(cst_ticket_graph_take(&tickets));
    memset(&t[2], 0xff, sizeof t[2]);
    memset(edges[3], 0xff, sizeof edges[3]);
    done(1, CST_OK);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[4]);
    ck_assert_ptr_null(cst_ticket_graph_take(&tickets));
    add(6, 7, NULL, 0);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[6]);
}
END_TEST

/* A ticket that is recalled is ready at once, and doomed. What it waited for, and what waits for
 * it, ends as if it had failed by itself. */
START_TEST(test_recall)
{
    add(0, 1, NULL, 0);
    add(1, 2, AFTER(1));
    add(2, 3, AFTER(1, 2));
    add(3, 4, AFTER(1));
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[0]);
    cst_ticket_graph_recall(&tickets, &t[1]);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[1]);
    ck_assert(t[1].doomed);
    done(1, CST_ECANCELLED);
    ck_assert_ptr_null(cst_ticket_graph_take(&tickets));
    done(0, CST_OK);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[2]);
    ck_assert(t[2].doomed);
    ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &t[3]);
    ck_assert(!t[3].doomed);
    done(2, CST_ECANCELLED);
    done(3, CST_OK);
    ck_assert_uint_eq(tickets.n, 0);
}
END_TEST

/* Any number of tickets can be pending. */
START_TEST(test_growth)
{
    enum { N = 5000 };
    static struct cst_ticket many[N];
    static struct cst_ticket_edge edge[N];
    struct cst_err err;

    for (uint64_t i = 0; i < N; i++) {
        many[i] = (struct cst_ticket){.number = (i % 3) << 40 | i, .edges = &edge[i]};
        ck_assert_int_eq(cst_ticket_graph_add(&tickets, &many[i],
                                              i > 0 ? &many[i - 1].number : NULL, i > 0, &err),
                         CST_OK);
    }
    for (uint64_t i = 0; i < N; i++) {
        ck_assert_ptr_eq(cst_ticket_graph_find(&tickets, many[i].number), &many[i]);
        ck_assert_ptr_eq(cst_ticket_graph_take(&tickets), &many[i]);
        ck_assert_ptr_null(cst_ticket_graph_take(&tickets));
        cst_ticket_graph_done(&tickets, &many[i], CST_OK);
    }
    ck_assert_uint_eq(tickets.n, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ticket_graph");
    TCase *tcase = suite_case(suite, "ticket_graph", set_up, tear_down);

    tcase_add_test(tcase, test_order);
    tcase_add_test(tcase, test_after);
    tcase_add_test(tcase, test_fan_out);
    tcase_add_test(tcase, test_unknown);
    tcase_add_test(tcase, test_doomed);
    tcase_add_test(tcase, test_failed_before);
    tcase_add_test(tcase, test_same_number);
    tcase_add_test(tcase, test_buckets);
    tcase_add_test(tcase, test_release);
    tcase_add_test(tcase, test_replaced);
    tcase_add_test(tcase, test_drop);
    tcase_add_test(tcase, test_recall);
    tcase_add_test(tcase, test_growth);
    return suite_run(suite);
}
