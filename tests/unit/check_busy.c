/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/busy_time: the time during which something was busy that does several things at a
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
 * those that are not kept apart any more, the total lacks the gaps between these, until a period
 * contains all of them. */
START_TEST(many_periods)
{
    const uint64_t n_gaps =
        100 - (CST_BUSY_TIME_KEPT - 1) - 50; /* between 500 and the last merged */
    struct cst_busy_time busy = {0};

    for (uint64_t i = 1; i <= 100; i++) {
        cst_busy_time_add(&busy, 10 * i, 10 * i + 4);
    }
    ck_assert_uint_eq(busy.ns, 400);
    cst_busy_time_add(&busy, 500, 1010);
    ck_assert_uint_eq(busy.ns, 490 / 10 * 4 + 510 - 6 * n_gaps);
    cst_busy_time_add(&busy, 5, 1015);
    ck_assert_uint_eq(busy.ns, 1010);
}
END_TEST

/* The moments at which something was busy. */
struct moments {
    bool busy[SPAN];
};

static uint64_t count_idle(const struct moments *m, uint64_t from, uint64_t to)
{
    uint64_t n = 0;

    for (uint64_t t = from; t < to; t++) {
        n += !m->busy[t];
    }
    return n;
}

/* Add a period of up to @longest moments that ends at @end. Returns what the total lacks after it,
 * if it lacked @lost before: it can only lack gaps of the oldest entry. */
static uint64_t add_at_random(struct moments *m, struct cst_busy_time *busy, uint64_t end,
                              uint64_t longest, uint64_t lost)
{
    uint64_t began = end - (uint64_t)rand() % (end < longest ? end + 1 : longest);

    if (busy->n > 0 && began <= busy->last[0].began) {
        lost = 0;
    } else if (busy->n > 0) {
        lost += count_idle(m, began, busy->last[0].ended);
    }
    cst_busy_time_add(busy, began, end);
    memset(&m->busy[began], true, end - began);
    return lost;
}

/* Random periods, reported in the order of their ends, count as in a bitmap of moments. A long
 * period may contain kept ones. Even rounds have periods that are too long for all those inside of
 * them to be kept apart; then the total lacks the gaps that the header names. */
START_TEST(at_random)
{
    uint64_t n_lost = 0;

    for (int round = 0; round < 200; round++) {
        struct moments m = {0};
        struct cst_busy_time busy = {0};
        uint64_t end = 0, lost = 0;

        while (end + 100 < SPAN) {
            bool is_long = round % 2 == 0 && rand() % 50 == 0;

            end += (uint64_t)rand() % 60;
            lost = add_at_random(&m, &busy, end, is_long ? SPAN : round % 2 == 0 ? 30 : 200, lost);
            ck_assert_uint_eq(busy.ns, SPAN - count_idle(&m, 0, SPAN) - lost);
            n_lost += lost;
        }
    }
    ck_assert_uint_gt(n_lost, 0);
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
