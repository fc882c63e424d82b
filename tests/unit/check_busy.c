/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/busy: the time during which something was busy that does several things at a
 * time. */
#include "proto/busy_time.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SPAN 4000

/* Overlapping intervals count once, and so does an interval inside another one that is reported
 * later. */
START_TEST(each_moment_once)
{
    struct cst_busy_time busy = {0};

    cst_busy_time_add(&busy, 10, 20);
    cst_busy_time_add(&busy, 15, 25);
    ck_assert_uint_eq(busy.ns, 15);
    cst_busy_time_add(&busy, 40, 40);
    cst_busy_time_add(&busy, 90, 95);
    ck_assert_uint_eq(busy.ns, 20);
    cst_busy_time_add(&busy, 0, 100);
    ck_assert_uint_eq(busy.ns, 100);
    cst_busy_time_add(&busy, 200, 210);
    ck_assert_uint_eq(busy.ns, 110);
}
END_TEST

/* A period that contains many earlier ones counts once, however many they are. If it begins among
 * those that are not kept apart any more, no time counts twice. */
START_TEST(many_periods)
{
    struct cst_busy_time busy = {0};

    for (uint64_t i = 1; i <= 100; i++) {
        cst_busy_time_add(&busy, 10 * i, 10 * i + 4);
    }
    ck_assert_uint_eq(busy.ns, 400);
    cst_busy_time_add(&busy, 500, 1010);
    ck_assert_uint_ge(busy.ns, 400 + 6 * 15);
    ck_assert_uint_le(busy.ns, 490 / 10 * 4 + 510);
    cst_busy_time_add(&busy, 5, 1015);
    ck_assert_uint_eq(busy.ns, 1010);
}
END_TEST

/* Random intervals, reported in the order of their ends, count as in a bitmap of moments. At
 * most as many intervals are kept apart as there are places, and a long interval may enclose
 * kept ones. */
START_TEST(at_random)
{
    for (int round = 0; round < 200; round++) {
        static bool at_work[SPAN];
        struct cst_busy_time busy = {0};
        uint64_t end = 0, n = 0;

        memset(at_work, 0, sizeof at_work);
        while (end + 100 < SPAN) {
            uint64_t began;

            end += (uint64_t)rand() % 60;
            began = end - (uint64_t)rand() % (end < 200 ? end + 1 : 200);
            cst_busy_time_add(&busy, began, end);
            for (uint64_t t = began; t < end; t++) {
                at_work[t] = true;
            }
        }
        for (int t = 0; t < SPAN; t++) {
            n += at_work[t];
        }
        ck_assert_uint_eq(busy.ns, n);
    }
}
END_TEST

/* If more intervals must be kept apart than there are places, the oldest keep the value that they
 * had. */
START_TEST(what_is_too_old_stays)
{
    struct cst_busy_time busy = {0};

    for (uint64_t i = 0; i < CST_BUSY_TIME_KEPT + 5; i++) {
        cst_busy_time_add(&busy, 10 * i, 10 * i + 4);
    }
    ck_assert_uint_eq(busy.ns, 4 * (CST_BUSY_TIME_KEPT + 5));
    cst_busy_time_add(&busy, 10 * CST_BUSY_TIME_KEPT, 10 * (CST_BUSY_TIME_KEPT + 5));
    ck_assert_uint_eq(busy.ns, 4 * CST_BUSY_TIME_KEPT + 50);
}
END_TEST

int main(void)
{
    const char *text = getenv("CST_SEED");
    unsigned seed = text != NULL ? (unsigned)strtoul(text, NULL, 0) : (unsigned)time(NULL);
    Suite *suite = suite_create("busy");
    TCase *tcase = suite_case(suite, "busy", NULL, NULL);

    printf("seed: CST_SEED=%u\n", seed);
    srand(seed);
    tcase_add_test(tcase, each_moment_once);
    tcase_add_test(tcase, many_periods);
    tcase_add_test(tcase, at_random);
    tcase_add_test(tcase, what_is_too_old_stays);
    return suite_run(suite);
}
