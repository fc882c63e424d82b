/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the choice of the block to evict, and of the count of blocks that are used before an
 * edge. */
#include "offload/books/trace.h"
#include "offload/books/victim.h"
#include "tests/lib/suite.h"

#include <check.h>

#define IDS 40
#define NONE UINT32_MAX

static struct cst_victims victims;

static void setup(void)
{
    ck_assert_int_eq(cst_victims_init(&victims, IDS), CST_OK);
}

static void teardown(void)
{
    cst_victims_close(&victims);
}

static void put(uint32_t id, enum cst_victim_cost cost, uint64_t next, uint64_t last_use)
{
    struct cst_victim victim = {.cost = cost, .next = next, .last_use = last_use};

    cst_victims_put(&victims, id, &victim);
    ck_assert_ptr_null(cst_victims_check(&victims, IDS));
}

static uint32_t choose(uint64_t limit)
{
    return cst_victims_choose(&victims, 100, limit);
}

/* The block whose next use is farthest is chosen, and of those without a next use the one used
 * longest ago. */
START_TEST(farthest_goes_first)
{
    ck_assert_uint_eq(choose(CST_VICTIM_ANY), NONE);
    put(0, CST_VICTIM_DEAR, 110, 1);
    put(1, CST_VICTIM_DEAR, 130, 2);
    put(2, CST_VICTIM_DEAR, 120, 3);
    ck_assert_uint_eq(choose(CST_VICTIM_ANY), 1);
    put(3, CST_VICTIM_DEAR, CST_TRACE_NEVER, 9);
    put(4, CST_VICTIM_DEAR, CST_TRACE_NEVER, 8);
    ck_assert_uint_eq(choose(CST_VICTIM_ANY), 4);
    cst_victims_remove(&victims, 4);
    cst_victims_remove(&victims, 4);
    ck_assert_uint_eq(choose(CST_VICTIM_ANY), 3);
    put(3, CST_VICTIM_DEAR, 101, 9);
    ck_assert_uint_eq(choose(CST_VICTIM_ANY), 1);
}
END_TEST

/* A block with half as many bytes to load again is chosen like one whose next use is twice as
 * late. */
START_TEST(bytes_weigh)
{
    put(0, CST_VICTIM_DEAR, 100 + 50, 1);
    put(1, CST_VICTIM_CHEAP, 100 + 24, 1);
    ck_assert_uint_eq(choose(CST_VICTIM_ANY), 0);
    put(1, CST_VICTIM_CHEAP, 100 + 26, 1);
    ck_assert_uint_eq(choose(CST_VICTIM_ANY), 1);
}
END_TEST

/* Blocks of patterns that stay are evicted last, and never for a prefetch. Nor is a block evicted
 * for a prefetch that is used later than the block. */
START_TEST(limits)
{
    put(0, CST_VICTIM_STAYS, CST_TRACE_NEVER, 1);
    ck_assert_uint_eq(choose(0), NONE);
    ck_assert_uint_eq(choose(CST_VICTIM_ANY), 0);
    put(1, CST_VICTIM_DEAR, 120, 1);
    ck_assert_uint_eq(choose(CST_VICTIM_ANY), 1);
    ck_assert_uint_eq(choose(119), 1);
    ck_assert_uint_eq(choose(120), NONE);
}
END_TEST

/* Blocks whose next use is before the horizon are inside, whether they came before the horizon
 * moved or after. The horizon moves back if no block is behind it. */
START_TEST(horizon)
{
    cst_victims_reset_horizon(&victims, 100);
    put(0, CST_VICTIM_DEAR, 100, 1);
    put(1, CST_VICTIM_DEAR, 102, 1);
    put(2, CST_VICTIM_STAYS, 101, 1);
    ck_assert_uint_eq(victims.n_inside, 0);
    cst_victims_pass(&victims, 0);
    cst_victims_pass(&victims, 2);
    cst_victims_pass(&victims, 1);
    ck_assert_uint_eq(victims.horizon, 103);
    ck_assert_uint_eq(victims.n_inside, 2);
    ck_assert_uint_eq(victims.n, 2);
    put(3, CST_VICTIM_CHEAP, 101, 1);
    ck_assert_uint_eq(victims.n_inside, 3);
    ck_assert(!cst_victims_retreat(&victims, 102));
    cst_victims_remove(&victims, 1);
    ck_assert(cst_victims_retreat(&victims, 102));
    ck_assert_uint_eq(victims.n_inside, 2);
    put(0, CST_VICTIM_DEAR, 110, 1); /* the block was used */
    ck_assert_uint_eq(victims.n_inside, 1);
    cst_victims_reset_horizon(&victims, 102);
    ck_assert_uint_eq(victims.n_inside, 0);
    ck_assert_ptr_null(cst_victims_check(&victims, IDS));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("victim");
    TCase *tc = suite_case(s, "victim", setup, teardown);

    tcase_add_test(tc, farthest_goes_first);
    tcase_add_test(tc, bytes_weigh);
    tcase_add_test(tc, limits);
    tcase_add_test(tc, horizon);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
