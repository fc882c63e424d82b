/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/memory/pools: the division of a pool's bytes between size classes. */
#include "daemon/memory/pools.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>

enum { KB = 1024, MB = 1024 * 1024 };

static struct cst_layout_operator operators[] = {{.name = "small"}, {.name = "large"}};
static const struct cst_model model = {
    .operators = operators, .n_operators = 2, .weight_bytes = 2 << 20};

/* A layout with blocks of 16 KiB and of 1 MiB. Rank 1 uses none of the latter. */
static struct cst_layout_need needs[] = {
    {.min_blocks = {3, 2}, .min_operator = {0, 1}, .max_blocks = {10, 4}},
    {.min_blocks = {2, 0}, .max_blocks = {6, 0}}};

static const struct cst_layout layout = {
    .n_classes = 2, .classes = {{.capacity = 8 * KB}, {.capacity = 512 * KB}}, .needs = needs};

static const uint64_t least = 3 * 16 * KB + 2 * MB;

static void assert_blocks(uint64_t bytes, uint64_t grain, uint32_t first, uint32_t second)
{
    struct cstd_pools_blocks blocks;
    struct cst_err err = {0};

    ck_assert_msg(cstd_pools_divide(&layout, &model, 0, bytes, grain, NULL, &blocks, &err) ==
                      CST_OK,
                  "%s", err.text);
    ck_assert_uint_eq(blocks.n[0], first);
    ck_assert_uint_eq(blocks.n[1], second);
    ck_assert_uint_le(cstd_pools_bytes(&layout, &blocks, grain), bytes);
}

/* Every class gets its minimum; then the first class gets all that it can use, then the next. */
START_TEST(the_first_class_comes_first)
{
    assert_blocks(least, 1, 3, 2);
    assert_blocks(least + 16 * KB - 1, 1, 3, 2);
    assert_blocks(least + 16 * KB, 1, 4, 2);
    assert_blocks(least + 7 * 16 * KB, 1, 10, 2);
    assert_blocks(least + 7 * 16 * KB + MB - 1, 1, 10, 2);
    assert_blocks(least + 7 * 16 * KB + MB, 1, 10, 3);
    assert_blocks(UINT64_MAX / 4, 1, 10, 4);
}
END_TEST

/* If one byte of the minimum is missing, the error names the class that does not fit, its operator
 * and the missing bytes. */
START_TEST(too_small_is_named)
{
    struct cstd_pools_blocks blocks = {{7}};
    struct cst_err err = {0};

    ck_assert_int_eq(cstd_pools_divide(&layout, &model, 0, least - 1, 1, NULL, &blocks, &err),
                     CST_EPOOL);
    ck_assert_str_eq(err.text,
                     "pool of 2.0 MiB (2146303 bytes): operator 'large' needs 2 blocks of "
                     "1.0 MiB (size class 2 of 2): 1 bytes short; a pool of 2.0 MiB "
                     "(2146304 bytes), 103% of the job's weights, is enough");
    ck_assert_int_eq(cstd_pools_divide(&layout, &model, 0, 16 * KB, 1, NULL, &blocks, &err),
                     CST_EPOOL);
    ck_assert_str_eq(err.text,
                     "pool of 16.0 KiB (16384 bytes): operator 'small' needs 3 blocks of 16.0 KiB "
                     "(size class 1 of 2): 2.0 MiB (2129920 bytes) short; a pool of 2.0 MiB "
                     "(2146304 bytes), 103% of the job's weights, is enough");
    ck_assert_uint_eq(blocks.n[0], 7);
}
END_TEST

/* Each rank has the blocks that it needs. */
START_TEST(ranks_differ)
{
    struct cstd_pools_blocks blocks;

    ck_assert_int_eq(cstd_pools_divide(&layout, &model, 1, 4 * 16 * KB, 1, NULL, &blocks, NULL),
                     CST_OK);
    ck_assert_uint_eq(blocks.n[0], 4);
    ck_assert_int_eq(cstd_pools_divide(&layout, &model, 1, 100 * MB, 1, NULL, &blocks, NULL),
                     CST_OK);
    ck_assert_uint_eq(blocks.n[0], 6);
    ck_assert_uint_eq(blocks.n[1], 0);
}
END_TEST

/* If slabs are multiples of 2 MiB, their rounded size counts, and blocks fill it. */
START_TEST(slabs_are_rounded_up)
{
    struct cstd_pools_blocks blocks;

    ck_assert_int_eq(cstd_pools_divide(&layout, &model, 0, 4 * MB - 1, 2 * MB, NULL, &blocks, NULL),
                     CST_EPOOL);
    assert_blocks(4 * MB, 2 * MB, 10, 2);
    assert_blocks(6 * MB, 2 * MB, 10, 4);
}
END_TEST

/* A slab has at most the size of an arena segment. A larger block has a slab of its own. */
START_TEST(slabs_hold_blocks_of_one_class)
{
    const struct cst_layout wide = {
        .n_classes = 2, .classes = {{.capacity = 48ull * MB}, {.capacity = 256ull * MB}}};

    ck_assert_uint_eq(cstd_pools_per_slab(&layout, 0), 256 * MB / (16 * KB));
    ck_assert_uint_eq(cstd_pools_per_slab(&wide, 0), 2);
    ck_assert_uint_eq(cstd_pools_per_slab(&wide, 1), 1);
    ck_assert_uint_eq(cstd_pools_slabs(&wide, 0, 5), 3);
    ck_assert_uint_eq(cstd_pools_slabs(&wide, 1, 5), 5);
    ck_assert_uint_eq(cstd_pools_slabs(&wide, 1, 0), 0);
    ck_assert_uint_eq(cstd_pools_slab_bytes(&wide, 0, 1, 64 * MB), 128ull * MB);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pools");
    TCase *tcase = suite_case(suite, "pools", NULL, NULL);

    tcase_add_test(tcase, the_first_class_comes_first);
    tcase_add_test(tcase, too_small_is_named);
    tcase_add_test(tcase, ranks_differ);
    tcase_add_test(tcase, slabs_are_rounded_up);
    tcase_add_test(tcase, slabs_hold_blocks_of_one_class);
    return suite_run(suite);
}
