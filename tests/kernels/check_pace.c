/* Paces: the time that work takes, with a clock of the test's own. */
#include "kernels/pace.h"

#include "tests/lib/suite.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SECOND UINT64_C(1000000000)
#define RATE 1000000 /* units per second: 1 us each */

static struct cst_pace pace;
static const uint64_t t0 = 5 * SECOND;

static void setup(void)
{
    cst_pace_init(&pace, RATE);
}

static void teardown(void)
{
    cst_pace_close(&pace);
}

/* What is taken when nothing is under way takes units / rate from now on, however long there was
 * rest before: none of that is saved up. */
START_TEST(rest_is_not_saved_up)
{
    ck_assert_uint_eq(cst_pace_take(&pace, 500000, t0), t0 + SECOND / 2);
    ck_assert_uint_eq(cst_pace_take(&pace, 1000, t0 + 90 * SECOND),
                      t0 + 90 * SECOND + SECOND / 1000);
}
END_TEST

/* Several threads share the rate: what comes while something is under way takes its time after it,
 * in the order in which it came. */
START_TEST(takers_queue)
{
    ck_assert_uint_eq(cst_pace_take(&pace, 1000, t0), t0 + 1000000);
    ck_assert_uint_eq(cst_pace_take(&pace, 2000, t0 + 10), t0 + 3000000);
    ck_assert_uint_eq(cst_pace_take(&pace, 500, t0 + 5), t0 + 3500000);
    ck_assert_uint_eq(cst_pace_take(&pace, 500, t0 + 3400000), t0 + 4000000);
}
END_TEST

/* A thread that wakes up somewhat late and goes on at once loses nothing by it; one that comes
 * later than that begins anew. */
START_TEST(late_is_not_idle)
{
    uint64_t end = cst_pace_take(&pace, 1000, t0);
    uint64_t next = cst_pace_take(&pace, 1000, end + CST_PACE_LATE_NS);

    ck_assert_uint_eq(next, end + 1000000);
    ck_assert_uint_eq(cst_pace_take(&pace, 1000, next + CST_PACE_LATE_NS + 1),
                      next + CST_PACE_LATE_NS + 1 + 1000000);
}
END_TEST

/* Ten million pieces of one unit take what one piece of ten million does: nothing is lost by
 * rounding to nanoseconds. */
START_TEST(small_pieces_add_up)
{
    struct cst_pace fast;
    uint64_t end = t0;

    cst_pace_init(&fast, UINT64_C(3000000007));
    for (int i = 0; i < 10000000; i++) {
        end = cst_pace_take(&fast, 1, t0);
    }
    ck_assert_uint_eq(end, t0 + (uint64_t)(1e7 * 1e9 / 3000000007.0));
    cst_pace_close(&fast);
}
END_TEST

/* Takers at their own times, some early, some late: never faster than the rate over any stretch but
 * for what being late forgives, and never slower than it while somebody is always there. */
START_TEST(the_rate_is_kept)
{
    uint64_t seed = (uint64_t)time(NULL), random = seed * 2 + 1, now = t0, sum = 0, end = t0;

    printf("seed %" PRIu64 "\n", seed);
    for (int i = 0; i < 10000; i++) {
        uint64_t units, began;

        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        units = random % 5000;
        began = now;
        end = cst_pace_take(&pace, units, now);
        ck_assert_uint_ge(end + CST_PACE_LATE_NS, began + units * SECOND / RATE);
        sum += units;
        now = end + random % CST_PACE_LATE_NS; /* late to wake up */
    }
    ck_assert_uint_eq(end, t0 + sum * SECOND / RATE);
}
END_TEST

/* Rate 0 keeps nobody. */
START_TEST(no_rate_takes_no_time)
{
    struct cst_pace none;

    cst_pace_init(&none, 0);
    ck_assert_uint_eq(cst_pace_take(&none, UINT64_MAX, t0), 0);
    cst_pace_wait(0);
    cst_pace_wait(1); /* over long ago */
    cst_pace_close(&none);
}
END_TEST

/* What stands behind the engine's option: any of the four, in any order; nothing else. */
START_TEST(proportions_are_read)
{
    static const char *const wrong[] = {
        "up",     "up=",   "up=x",        "up=1k", "up=-1",
        "fast=1", "up=1 ", "up=1;down=2", "=1",    "up=99999999999999999999"};
    struct cst_pace_spec spec;
    struct cst_err err;

    ck_assert_int_eq(cst_pace_parse("memory=4096,down=2,up=55000000000", &spec, &err), CST_OK);
    ck_assert_uint_eq(spec.up, UINT64_C(55000000000));
    ck_assert_uint_eq(spec.down, 2);
    ck_assert_uint_eq(spec.update, 0);
    ck_assert_uint_eq(spec.memory, 4096);
    ck_assert_int_eq(cst_pace_parse("update=7", &spec, &err), CST_OK);
    ck_assert_uint_eq(spec.up, 0);
    ck_assert_uint_eq(spec.update, 7);
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_msg(cst_pace_parse(wrong[i], &spec, &err) == CST_EINVAL, "'%s'", wrong[i]);
        ck_assert_ptr_nonnull(strstr(err.text, wrong[i]));
    }
    ck_assert_uint_eq(spec.update, 7);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pace");
    TCase *tc = suite_case(suite, "pace", setup, teardown);

    tcase_add_test(tc, rest_is_not_saved_up);
    tcase_add_test(tc, takers_queue);
    tcase_add_test(tc, late_is_not_idle);
    tcase_add_test(tc, small_pieces_add_up);
    tcase_add_test(tc, the_rate_is_kept);
    tcase_add_test(tc, no_rate_takes_no_time);
    tcase_add_test(tc, proportions_are_read);
    return suite_run(suite);
}
