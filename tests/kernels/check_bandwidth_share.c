/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of kernels/engine/bandwidth_share: how long threads pause for copies. */
#include "kernels/engine/bandwidth_share.h"
#include "kernels/engine/thread_pool.h"
#include "proto/clock.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>

#define MS 1000000u
#define HOUR_NS (3600u * UINT64_C(1000000000))

static struct cste_bandwidth_share budget;

static void open_budget(double share)
{
    struct cst_err err;

    ck_assert_int_eq(cste_bandwidth_share_open(&budget, share, 2, &err), CST_OK);
}

static void close_budget(void)
{
    cste_bandwidth_share_close(&budget);
}

/* @thread was busy during the whole piece. */
static void spend(unsigned thread, uint64_t began, uint64_t ended)
{
    cste_bandwidth_share_spend(&budget, thread, began, ended, ended - began);
}

/* A thread that computed for t during a copy has to pause for t x share / (1 - share). A thread
 * that computed without a copy need not pause. */
START_TEST(test_due)
{
    open_budget(0.25);
    spend(0, 1 * MS, 10 * MS);
    cste_bandwidth_share_begin(&budget, 10 * MS);
    ck_assert_uint_eq(cste_bandwidth_share_due(&budget, 0, 10 * MS), 0);
    spend(0, 10 * MS, 16 * MS);
    ck_assert_uint_eq(cste_bandwidth_share_due(&budget, 0, 16 * MS), 18 * MS);
    ck_assert_uint_eq(cste_bandwidth_share_due(&budget, 1, 16 * MS), 0);
    ck_assert_uint_eq(cste_bandwidth_share_due(&budget, 0, 17 * MS), 18 * MS);
    ck_assert_uint_eq(cste_bandwidth_share_due(&budget, 0, 18 * MS), 0);
    close_budget();
}
END_TEST

/* If a piece began before the copy, only the time since the copy's begin counts. */
START_TEST(test_copy_comes_later)
{
    open_budget(0.5);
    cste_bandwidth_share_begin(&budget, 7 * MS);
    spend(0, 1 * MS, 9 * MS);
    ck_assert_uint_eq(cste_bandwidth_share_due(&budget, 0, 9 * MS), 11 * MS);
    close_budget();
}
END_TEST

/* Time in which a thread waits for a processor counts as pause, because it uses no memory then. */
START_TEST(test_without_processor)
{
    open_budget(0.5);
    cste_bandwidth_share_begin(&budget, 0);
    spend(0, 0, 10 * MS);
    ck_assert_uint_eq(cste_bandwidth_share_due(&budget, 0, 10 * MS), 20 * MS);
    cste_bandwidth_share_spend(&budget, 0, 10 * MS, 20 * MS, 2 * MS);
    ck_assert_uint_eq(cste_bandwidth_share_due(&budget, 0, 20 * MS), 24 * MS);
    close_budget();
}
END_TEST

/* Over many pieces a thread is busy for the part 1 - share of the time, however long the pieces
 * are, however long it waits for work between them, and although it oversleeps. Pieces of 1 to 21
 * us need pauses of 1/2 ms each. */
START_TEST(test_share)
{
    static const double shares[] = {0.0, 0.1, 0.25, 0.5, 0.9};
    static const uint64_t pieces[] = {1000, 1000000};
    double share = shares[_i % 5];
    uint64_t now = 0, busy = 0, shortest = pieces[_i / 5], n_pauses = 0;

    open_budget(share);
    cste_bandwidth_share_begin(&budget, 0);
    for (uint64_t i = 0; i < 100000; i++) {
        uint64_t due = cste_bandwidth_share_due(&budget, 1, now),
                 took = shortest * (1 + i * 7919 % 21);

        if (due > now) {
            now = due + 60000;
            n_pauses++;
        }
        spend(1, now, now + took);
        now += took;
        busy += took;
    }
    ck_assert_msg(fabs((double)busy / (double)now - (1.0 - share)) < 0.02, "%g of %g",
                  (double)busy / (double)now, 1.0 - share);
    ck_assert_uint_le(n_pauses, (now - busy) / CSTE_BANDWIDTH_SHARE_LEAST_NS);
    close_budget();
}
END_TEST

/* The end of the last copy ends all pauses at once; the end of one of several does not. A later
 * copy inherits at most one pause. */
START_TEST(test_copies_end)
{
    open_budget(0.5);
    cste_bandwidth_share_begin(&budget, 0);
    cste_bandwidth_share_begin(&budget, 1 * MS);
    spend(0, 0, 10 * MS);
    cste_bandwidth_share_end(&budget);
    ck_assert_uint_eq(cste_bandwidth_share_due(&budget, 0, 11 * MS), 20 * MS);
    cste_bandwidth_share_end(&budget);
    ck_assert_uint_eq(cste_bandwidth_share_due(&budget, 0, 11 * MS), 0);
    spend(0, 10 * MS, 12 * MS);
    cste_bandwidth_share_begin(&budget, 12 * MS);
    ck_assert_uint_eq(cste_bandwidth_share_due(&budget, 0, 12 * MS),
                      12 * MS + CSTE_BANDWIDTH_SHARE_LEAST_NS);
    close_budget();
}
END_TEST

static void *hold(void *arg)
{
    cste_bandwidth_share_hold(&budget, 0);
    return arg;
}

/* A thread that has to pause for hours is woken by the end of the copy, and the time of its pause
 * is counted. */
START_TEST(test_hold_is_interrupted)
{
    uint64_t now = cst_clock_ns();
    pthread_t thread;

    open_budget(0.9);
    cste_bandwidth_share_begin(&budget, now);
    spend(0, now, now + HOUR_NS);
    ck_assert_uint_gt(cste_bandwidth_share_due(&budget, 0, cst_clock_ns()), now + 2 * HOUR_NS);
    ck_assert_int_eq(pthread_create(&thread, NULL, hold, NULL), 0);
    cste_bandwidth_share_end(&budget);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    close_budget();
}
END_TEST

/* The due pause is made and counted. Without copies it is exactly zero. */
START_TEST(test_held)
{
    uint64_t now = cst_clock_ns();

    open_budget(0.5);
    spend(0, now, now + HOUR_NS);
    cste_bandwidth_share_hold(&budget, 0);
    ck_assert_uint_eq(cste_bandwidth_share_held_ns(&budget), 0);
    cste_bandwidth_share_begin(&budget, now);
    spend(1, now, now + 100 * MS);
    cste_bandwidth_share_hold(&budget, 1);
    ck_assert_uint_ge(cst_clock_ns(), now + 200 * MS);
    ck_assert_uint_gt(cste_bandwidth_share_held_ns(&budget), 0);
    close_budget();
}
END_TEST

/* Copies of other engines count for the whole of a piece, because their begin is unknown. When the
 * last one ends, no thread pauses any more. */
START_TEST(test_others)
{
    static struct cst_traffic slots[3];
    uint64_t now = cst_clock_ns();
    pthread_t thread;

    open_budget(0.5);
    cste_bandwidth_share_watch(&budget, slots, 3);
    spend(0, 1 * MS, 5 * MS);
    ck_assert_uint_eq(cste_bandwidth_share_due(&budget, 0, 5 * MS), 0);
    cst_traffic_add(&slots[2], 2);
    spend(0, 5 * MS, 8 * MS);
    ck_assert_uint_eq(cste_bandwidth_share_due(&budget, 0, 8 * MS), 11 * MS);
    cst_traffic_add(&slots[2], -1);
    ck_assert_uint_eq(cste_bandwidth_share_due(&budget, 0, 8 * MS), 11 * MS);
    spend(0, now, now + HOUR_NS);
    ck_assert_uint_gt(cste_bandwidth_share_due(&budget, 0, cst_clock_ns()), now + HOUR_NS);
    ck_assert_int_eq(pthread_create(&thread, NULL, hold, NULL), 0);
    cst_traffic_add(&slots[2], -1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_eq(cste_bandwidth_share_due(&budget, 0, now), 0);
    close_budget();
}
END_TEST

/* A share that leaves no time for computing, or is not a number, is refused. */
START_TEST(test_shares_that_cannot_be)
{
    static const double shares[] = {-0.1, 0.91, 1.0, NAN, INFINITY};
    struct cst_err err;

    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        ck_assert_int_eq(cste_bandwidth_share_open(&budget, shares[i], 1, &err), CST_EINVAL);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bandwidth_share");
    TCase *tcase = suite_case(suite, "bandwidth_share", NULL, NULL);

    tcase_add_test(tcase, test_due);
    tcase_add_test(tcase, test_copy_comes_later);
    tcase_add_test(tcase, test_without_processor);
    tcase_add_loop_test(tcase, test_share, 0, 10);
    tcase_add_test(tcase, test_copies_end);
    tcase_add_test(tcase, test_hold_is_interrupted);
    tcase_add_test(tcase, test_held);
    tcase_add_test(tcase, test_others);
    tcase_add_test(tcase, test_shares_that_cannot_be);
    return suite_run(suite);
}
