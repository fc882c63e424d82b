/* kernels/budget: how long threads stand back for copies. */
#include "kernels/budget.h"
#include "kernels/crew.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>

#define MS 1000000u
#define HOUR_NS (3600u * UINT64_C(1000000000))

static struct cst_budget budget;

static void open_budget(double share)
{
    struct cst_err err;

    ck_assert_int_eq(cst_budget_open(&budget, share, 2, &err), CST_OK);
}

static void close_budget(void)
{
    cst_budget_close(&budget);
}

/* A thread that computed for t beside a copy stands back for t x share / (1 - share); who computed
 * while there was none does not. */
START_TEST(test_due)
{
    open_budget(0.25);
    cst_budget_spend(&budget, 0, 0, 9 * MS);
    cst_budget_begin(&budget, 10 * MS);
    ck_assert_uint_eq(cst_budget_due(&budget, 0, 10 * MS), 0);
    cst_budget_spend(&budget, 0, 10 * MS, 16 * MS);
    ck_assert_uint_eq(cst_budget_due(&budget, 0, 16 * MS), 18 * MS);
    ck_assert_uint_eq(cst_budget_due(&budget, 1, 16 * MS), 0);
    ck_assert_uint_eq(cst_budget_due(&budget, 0, 17 * MS), 18 * MS);
    ck_assert_uint_eq(cst_budget_due(&budget, 0, 18 * MS), 0);
    close_budget();
}
END_TEST

/* Of a piece that began before the copy, what came before does not count. */
START_TEST(test_copy_comes_later)
{
    open_budget(0.5);
    cst_budget_begin(&budget, 7 * MS);
    cst_budget_spend(&budget, 0, 1 * MS, 9 * MS);
    ck_assert_uint_eq(cst_budget_due(&budget, 0, 9 * MS), 11 * MS);
    close_budget();
}
END_TEST

/* Over many pieces a thread is busy for 1 - share of the time, however long they are and however
 * long it waits for work in between. */
START_TEST(test_share)
{
    static const double shares[] = {0.0, 0.1, 0.25, 0.5, 0.9};
    double share = shares[_i];
    uint64_t now = 0, busy = 0;

    open_budget(share);
    cst_budget_begin(&budget, 0);
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t due = cst_budget_due(&budget, 1, now), took = MS + i * 7919 % (5 * MS);

        now = due > now ? due : now;
        cst_budget_spend(&budget, 1, now, now + took);
        now += took;
        busy += took;
    }
    ck_assert(fabs((double)busy / (double)now - (1.0 - share)) < 0.01);
    close_budget();
}
END_TEST

/* The last copy's end frees everybody at once; not the end of one of several. */
START_TEST(test_copies_end)
{
    open_budget(0.5);
    cst_budget_begin(&budget, 0);
    cst_budget_begin(&budget, 1 * MS);
    cst_budget_spend(&budget, 0, 0, 10 * MS);
    cst_budget_end(&budget);
    ck_assert_uint_eq(cst_budget_due(&budget, 0, 11 * MS), 20 * MS);
    cst_budget_end(&budget);
    ck_assert_uint_eq(cst_budget_due(&budget, 0, 11 * MS), 0);
    close_budget();
}
END_TEST

static void *hold(void *arg)
{
    cst_budget_hold(&budget, 0);
    return arg;
}

/* A thread that has hours to stand back is woken by the end of the copy, and what it stood back is
 * counted. */
START_TEST(test_hold_is_interrupted)
{
    uint64_t now = cst_crew_now();
    pthread_t thread;

    open_budget(0.9);
    cst_budget_begin(&budget, now - HOUR_NS);
    cst_budget_spend(&budget, 0, now - HOUR_NS, now);
    ck_assert_uint_gt(cst_budget_due(&budget, 0, cst_crew_now()), now + HOUR_NS);
    ck_assert_int_eq(pthread_create(&thread, NULL, hold, NULL), 0);
    cst_budget_end(&budget);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    close_budget();
}
END_TEST

/* What is due is stood back, and counted; without copies it is nothing, to the nanosecond. */
START_TEST(test_held)
{
    uint64_t now = cst_crew_now();

    open_budget(0.5);
    cst_budget_spend(&budget, 0, now - HOUR_NS, now);
    cst_budget_hold(&budget, 0);
    ck_assert_uint_eq(cst_budget_held_ns(&budget), 0);
    cst_budget_begin(&budget, now);
    cst_budget_spend(&budget, 0, now, now + 5 * MS);
    cst_budget_hold(&budget, 0);
    ck_assert_uint_ge(cst_crew_now(), now + 10 * MS);
    ck_assert_uint_gt(cst_budget_held_ns(&budget), 0);
    close_budget();
}
END_TEST

/* Copies of others count like its own, for the whole of a piece, for nobody says when they began;
 * and when the last one is done nobody stands back any more. */
START_TEST(test_others)
{
    static struct cst_traffic slots[3];
    uint64_t now = cst_crew_now();
    pthread_t thread;

    open_budget(0.5);
    cst_budget_watch(&budget, slots, 3);
    cst_budget_spend(&budget, 0, 1 * MS, 5 * MS);
    ck_assert_uint_eq(cst_budget_due(&budget, 0, 5 * MS), 0);
    cst_traffic_add(&slots[2], 2);
    cst_budget_spend(&budget, 0, 5 * MS, 8 * MS);
    ck_assert_uint_eq(cst_budget_due(&budget, 0, 8 * MS), 11 * MS);
    cst_traffic_add(&slots[2], -1);
    ck_assert_uint_eq(cst_budget_due(&budget, 0, 8 * MS), 11 * MS);
    cst_budget_spend(&budget, 0, now - HOUR_NS, now);
    ck_assert_int_eq(pthread_create(&thread, NULL, hold, NULL), 0);
    cst_traffic_add(&slots[2], -1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_eq(cst_budget_due(&budget, 0, now), 0);
    close_budget();
}
END_TEST

/* A share that leaves nothing for computing is refused, as is one that is no number. */
START_TEST(test_shares_that_cannot_be)
{
    static const double shares[] = {-0.1, 0.91, 1.0, NAN, INFINITY};
    struct cst_err err;

    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        ck_assert_int_eq(cst_budget_open(&budget, shares[i], 1, &err), CST_EINVAL);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("budget");
    TCase *tcase = tcase_create("budget");

    tcase_add_test(tcase, test_due);
    tcase_add_test(tcase, test_copy_comes_later);
    tcase_add_loop_test(tcase, test_share, 0, 5);
    tcase_add_test(tcase, test_copies_end);
    tcase_add_test(tcase, test_hold_is_interrupted);
    tcase_add_test(tcase, test_held);
    tcase_add_test(tcase, test_others);
    tcase_add_test(tcase, test_shares_that_cannot_be);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
