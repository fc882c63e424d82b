/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of kernels/engine/rate_limit, the simulated time of work, with the test's own clock. */
#include "kernels/engine/rate_limit.h"

#include "tests/lib/suite.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SECOND UINT64_C(1000000000)
#define RATE 1000000 /* units per second: each takes 1 us */

static struct cste_rate_limit pace;
static const uint64_t t0 = 5 * SECOND;

static void setup(void)
{
    cste_rate_limit_init(&pace, RATE);
}

static void teardown(void)
{
    cste_rate_limit_close(&pace);
}

/* Do a piece of @units, alone, from @now on. Returns its end. */
static uint64_t alone(uint64_t units, uint64_t now)
{
    uint64_t end;

    cste_rate_limit_enter(&pace, now);
    end = cste_rate_limit_take(&pace, units);
    cste_rate_limit_leave(&pace);
    return end;
}

/* A piece that begins when nothing is under way takes units / rate. Idle time before it is not
 * saved. */
START_TEST(rest_is_not_saved_up)
{
    ck_assert_uint_eq(alone(500000, t0), t0 + SECOND / 2);
    ck_assert_uint_eq(alone(1000, t0 + 90 * SECOND), t0 + 90 * SECOND + SECOND / 1000);
    ck_assert_uint_eq(alone(0, t0 + 91 * SECOND), t0 + 91 * SECOND);
}
END_TEST

/* Several threads share the rate: a piece that begins while another is under way takes its time
 * after it. */
START_TEST(threads_share_the_rate)
{
    cste_rate_limit_enter(&pace, t0);
    cste_rate_limit_enter(&pace, t0 + 10);
    ck_assert_uint_eq(cste_rate_limit_take(&pace, 1000), t0 + 1000000);
    cste_rate_limit_enter(&pace, t0 + 5);
    ck_assert_uint_eq(cste_rate_limit_take(&pace, 2000), t0 + 3000000);
    ck_assert_uint_eq(cste_rate_limit_take(&pace, 500), t0 + 3500000);
    cste_rate_limit_leave(&pace);
    cste_rate_limit_leave(&pace);
    cste_rate_limit_leave(&pace);
    ck_assert_uint_eq(alone(500, t0 + 3400000), t0 + 4000000);
}
END_TEST

/* A thread that is alone, wakes up slightly late and goes on at once loses no time. A thread that
 * comes much later begins anew. */
START_TEST(late_is_not_idle)
{
    uint64_t end = alone(1000, t0);
    uint64_t next = alone(1000, end + CSTE_RATE_LIMIT_LATE_NS);

    ck_assert_uint_eq(next, end + 1000000);
    ck_assert_uint_eq(alone(1000, next + CSTE_RATE_LIMIT_LATE_NS + 1),
                      next + CSTE_RATE_LIMIT_LATE_NS + 1 + 1000000);
}
END_TEST

/* While another thread has work under way, even a long delay is made up for, as far as possible. A
 * link without any thread was idle. */
START_TEST(lateness_is_made_up_for)
{
    uint64_t end, late;

    cste_rate_limit_enter(&pace, t0);
    cste_rate_limit_enter(&pace, t0);
    end = cste_rate_limit_take(&pace, 1000);
    cste_rate_limit_leave(&pace); /* the other thread still sleeps */
    late = end + 50 * CSTE_RATE_LIMIT_LATE_NS;
    cste_rate_limit_enter(&pace, late);
    ck_assert_uint_eq(cste_rate_limit_take(&pace, 1000), end + 1000000);
    cste_rate_limit_leave(&pace);
    late = end + 1000000 + CSTE_RATE_LIMIT_LAG_NS + 777;
    cste_rate_limit_enter(&pace, late);
    ck_assert_uint_eq(cste_rate_limit_take(&pace, 1000), late - CSTE_RATE_LIMIT_LAG_NS + 1000000);
    cste_rate_limit_leave(&pace);
    cste_rate_limit_leave(&pace);
    ck_assert_uint_eq(alone(1000, late), late + 1000000);
}
END_TEST

/* Ten million pieces of one unit take as long as one piece of ten million units: rounding to
 * nanoseconds loses nothing. */
START_TEST(small_pieces_add_up)
{
    struct cste_rate_limit fast;
    uint64_t end = t0;

    cste_rate_limit_init(&fast, UINT64_C(3000000007));
    cste_rate_limit_enter(&fast, t0);
    for (int i = 0; i < 10000000; i++) {
        end = cste_rate_limit_take(&fast, 1);
    }
    cste_rate_limit_leave(&fast);
    ck_assert_uint_eq(end, t0 + (uint64_t)(1e7 * 1e9 / 3000000007.0));
    cste_rate_limit_close(&fast);
}
END_TEST

static uint64_t random_state;

static uint64_t random_below(uint64_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % n;
}

/* Two threads that always have work, and wake up late as on a busy machine, need exactly the time
 * of their units, up to the last late wake-up. */
START_TEST(the_rate_is_kept)
{
    uint64_t seed = (uint64_t)time(NULL), sum = 0, end = t0, free_at[2];

    printf("seed %" PRIu64 "\n", seed);
    random_state = seed * 2 + 1;
    for (int k = 0; k < 2; k++) {
        cste_rate_limit_enter(&pace, t0);
        free_at[k] = cste_rate_limit_take(&pace, 1000);
        sum += 1000;
    }
    for (int i = 0; i < 10000; i++) {
        int k = free_at[0] < free_at[1] ? 0 : 1; /* the thread that wakes up first */
        uint64_t units = random_below(5000), now = free_at[k];

        cste_rate_limit_leave(&pace);
        cste_rate_limit_enter(&pace, now);
        end = cste_rate_limit_take(&pace, units);
        sum += units;
        now = end > now ? end : now;
        free_at[k] = now + random_below(20) * random_below(CSTE_RATE_LIMIT_LATE_NS);
    }
    ck_assert_uint_eq(end, t0 + sum * (SECOND / RATE));
}
END_TEST

/* Rate 0 means that no time passes. */
START_TEST(no_rate_takes_no_time)
{
    struct cste_rate_limit none;

    cste_rate_limit_init(&none, 0);
    cste_rate_limit_enter(&none, t0);
    ck_assert_uint_eq(cste_rate_limit_take(&none, UINT64_MAX), 0);
    cste_rate_limit_wait(&none, UINT64_MAX);
    cste_rate_limit_close(&none);
}
END_TEST

/* The option's value contains any of the four rates in any order, and nothing else. */
START_TEST(proportions_are_read)
{
    static const char *const wrong[] = {
        "up",     "up=",   "up=x",        "up=1k", "up=-1",
        "fast=1", "up=1 ", "up=1;down=2", "=1",    "up=99999999999999999999"};
    struct cste_rate_limit_spec spec;
    struct cst_err err;

    ck_assert_int_eq(cste_rate_limit_parse("memory=4096,down=2,up=55000000000", &spec, &err),
                     CST_OK);
    ck_assert_uint_eq(spec.up, UINT64_C(55000000000));
    ck_assert_uint_eq(spec.down, 2);
    ck_assert_uint_eq(spec.update, 0);
    ck_assert_uint_eq(spec.memory, 4096);
    ck_assert_int_eq(cste_rate_limit_parse("update=7", &spec, &err), CST_OK);
    ck_assert_uint_eq(spec.up, 0);
    ck_assert_uint_eq(spec.update, 7);
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_msg(cste_rate_limit_parse(wrong[i], &spec, &err) == CST_EINVAL, "'%s'", wrong[i]);
        ck_assert_ptr_nonnull(strstr(err.text, wrong[i]));
    }
    ck_assert_uint_eq(spec.update, 7);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rate_limit");
    TCase *tc = suite_case(suite, "pace", setup, teardown);

    tcase_add_test(tc, rest_is_not_saved_up);
    tcase_add_test(tc, threads_share_the_rate);
    tcase_add_test(tc, late_is_not_idle);
    tcase_add_test(tc, lateness_is_made_up_for);
    tcase_add_test(tc, small_pieces_add_up);
    tcase_add_test(tc, the_rate_is_kept);
    tcase_add_test(tc, no_rate_takes_no_time);
    tcase_add_test(tc, proportions_are_read);
    return suite_run(suite);
}
