/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the rates that the daemon observes, and of the detection that a job's steps have drifted
 * from their prediction. */
#include "daemon/engine/engine.h"
#include "daemon/engine/rates.h"
#include "tests/lib/suite.h"

/* The rate is the median of the last samples: neither a single outlier nor an old sample changes
 * it. */
START_TEST(test_median)
{
    struct cstd_rates_median median = {.n = 0};

    ck_assert_double_eq(cstd_rates_median_get(&median), 0);
    cstd_rates_median_add(&median, 1000, 999999); /* the window is too short */
    cstd_rates_median_add(&median, 0, 1000000000);
    ck_assert_double_eq(cstd_rates_median_get(&median), 0);
    cstd_rates_median_add(&median, 100, 1000000000);
    ck_assert_double_eq_tol(cstd_rates_median_get(&median), 100, 1e-9);
    cstd_rates_median_add(&median, 110, 1000000000);
    cstd_rates_median_add(&median, 100000, 1000000000);
    ck_assert_double_eq_tol(cstd_rates_median_get(&median), 110, 1e-9);
    for (int i = 0; i < CSTD_RATES_SAMPLES; i++) {
        cstd_rates_median_add(&median, 50, 500000000);
    }
    ck_assert_double_eq_tol(cstd_rates_median_get(&median), 100, 1e-9);
    cstd_rates_median_add(&median, 7, 1000000000);
    ck_assert_double_eq_tol(cstd_rates_median_get(&median), 100, 1e-9);
}
END_TEST

/* Rates come from growing counters. The counters of an engine that was restarted begin at 0. */
START_TEST(test_see)
{
    struct cstd_rates_seen seen = {.copy = {.n = 0}};
    struct cstd_engine_counters none = {0}, some = {.copy_bytes = 4000,
                                                    .copy_ns = 2000000000,
                                                    .update_elems = 30,
                                                    .update_bytes = 840,
                                                    .update_ns = 1000000000,
                                                    .product_flops = 6000,
                                                    .product_ns = 3000000000};
    struct cstd_engine_counters more = some;

    more.copy_bytes += 1000;
    more.copy_ns += 1000000000;
    cstd_rates_see(&seen, &none, &some);
    ck_assert_double_eq_tol(cstd_rates_median_get(&seen.copy), 2000, 1e-6);
    ck_assert_double_eq_tol(cstd_rates_median_get(&seen.update), 30, 1e-6);
    ck_assert_double_eq_tol(cstd_rates_median_get(&seen.update_bytes), 840, 1e-6);
    ck_assert_double_eq_tol(cstd_rates_median_get(&seen.products), 2000, 1e-6);
    ck_assert_double_eq(cstd_rates_median_get(&seen.reduce), 0);
    ck_assert_double_eq(cstd_rates_median_get(&seen.reduce_bytes), 0);
    cstd_rates_see(&seen, &some, &more);
    ck_assert_uint_eq(seen.copy.n, 2);
    ck_assert_uint_eq(seen.update.n, 1); /* no work since the last look */
    cstd_rates_see(&seen, &more, &none);
    ck_assert_uint_eq(seen.copy.n, 2);
}
END_TEST

static enum cstd_drift_news steps(struct cstd_drift *drift, unsigned n, double seconds)
{
    enum cstd_drift_news news = CSTD_DRIFT_NONE;

    for (unsigned i = 0; i < n; i++) {
        ck_assert_int_eq(news, CSTD_DRIFT_NONE); /* not later than the last step */
        news = cstd_drift_step(drift, seconds);
    }
    if (news != CSTD_DRIFT_NONE) {
        ck_assert_double_eq_tol(drift->mean_s, seconds, 1e-9);
    }
    return news;
}

/* Eight steps in a row that are 20 % off are reported once, and so is their end. */
START_TEST(test_drift)
{
    struct cstd_drift drift;

    cstd_drift_init(&drift, 1.0);
    /* The first steps are learned from. */
    ck_assert_int_eq(steps(&drift, CSTD_DRIFT_SKIP, 9), CSTD_DRIFT_NONE);
    ck_assert_int_eq(steps(&drift, 20, 1.15), CSTD_DRIFT_NONE);
    ck_assert_int_eq(steps(&drift, 7, 1.3), CSTD_DRIFT_NONE);
    ck_assert_int_eq(steps(&drift, 1, 1.0), CSTD_DRIFT_NONE);
    ck_assert_int_eq(steps(&drift, 8, 1.3), CSTD_DRIFT_OFF);
    ck_assert_int_eq(steps(&drift, 30, 1.3), CSTD_DRIFT_NONE);
    ck_assert_int_eq(steps(&drift, 8, 0.9), CSTD_DRIFT_BACK);
    ck_assert_int_eq(steps(&drift, 8, 0.5), CSTD_DRIFT_OFF);
}
END_TEST

/* Alternating slow and fast steps are no drift. */
START_TEST(test_sides)
{
    struct cstd_drift drift;

    cstd_drift_init(&drift, 1.0);
    ck_assert_int_eq(steps(&drift, CSTD_DRIFT_SKIP, 1), CSTD_DRIFT_NONE);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(steps(&drift, 1, i % 2 == 0 ? 2 : 0.5), CSTD_DRIFT_NONE);
    }
}
END_TEST

/* If there is no prediction, the steps after the first ones are the expectation. */
START_TEST(test_learn)
{
    struct cstd_drift drift;

    cstd_drift_init(&drift, 0);
    ck_assert_int_eq(steps(&drift, CSTD_DRIFT_SKIP, 50), CSTD_DRIFT_NONE);
    ck_assert_int_eq(steps(&drift, CSTD_DRIFT_LEARN, 2), CSTD_DRIFT_NONE);
    ck_assert(drift.learned);
    ck_assert_double_eq(drift.predicted_s, 2);
    ck_assert_int_eq(steps(&drift, 8, 3), CSTD_DRIFT_OFF);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon_rates");
    TCase *tcase = suite_case(suite, "daemon_rates", NULL, NULL);

    tcase_add_test(tcase, test_median);
    tcase_add_test(tcase, test_see);
    tcase_add_test(tcase, test_drift);
    tcase_add_test(tcase, test_sides);
    tcase_add_test(tcase, test_learn);
    return suite_run(suite);
}
