/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/contributions.h"

#include "proto/table.h"

#include <math.h>

/* Run @kernels and the reference on equal sources, each into a row of its own, and compare. */
static void compare(const struct cst_kernels *kernels, size_t n, uint32_t n_src,
                    uint16_t *const src[MAX_SRC])
{
    uint16_t *got = hostile_buffer(n * sizeof *got);
    uint16_t *want = calloc(n + 1, sizeof *want);
    double sum = kernels->reduce(n, n_src, in(src), got);
    double want_sum = cst_reduce_ref(n, n_src, in(src), want);

    ck_assert_mem_eq(got, want, n * sizeof *got);
    ck_assert_msg(memcmp(&sum, &want_sum, sizeof sum) == 0, "%s: n %zu, n_src %u: %a, not %a",
                  kernels->isa, n, n_src, sum, want_sum);
    free(want);
}

/* Every variant has the reference's bits, including sums of squares, with any length, number of
 * sources, alignment, and hostile values. */
START_TEST(test_variants_agree)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t state = hostile_seed();
    uint16_t *src[MAX_SRC];

    if (kernels == NULL) {
        return;
    }
    for (size_t l = 0; l < N_LENGTHS; l++) {
        for (int fill = 0; fill < N_FILL; fill++) {
            fill_sources(src, lengths[l], (enum fill)fill, &state);
            for (uint32_t n_src = 0; n_src <= MAX_SRC; n_src++) {
                compare(kernels, lengths[l], n_src, src);
            }
        }
    }
}
END_TEST

/* The result may be written to any of the sources. */
START_TEST(test_in_place)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t state = hostile_seed();
    const size_t n = 1003;
    uint16_t *src[MAX_SRC];
    uint16_t want[1003];

    if (kernels == NULL) {
        return;
    }
    for (int target = 0; target < 3; target++) {
        double sum;
        double want_sum;

        fill_sources(src, n, HOSTILE, &state);
        want_sum = cst_reduce_ref(n, 3, in(src), want);
        sum = kernels->reduce(n, 3, in(src), src[target]);
        ck_assert_mem_eq(src[target], want, sizeof want);
        ck_assert_mem_eq(&sum, &want_sum, sizeof sum);
    }
}
END_TEST

/* Contributions are added in the order of ranks in fp32: 2^24 + 1 - 2^24 is 0, and 2^24 - 2^24 + 1
 * is 1. A sum is rounded once, to bf16. */
START_TEST(test_rank_order)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    const uint16_t big[17] = {[0 ... 16] = 0x4b80};
    const uint16_t one[17] = {[0 ... 16] = 0x3f80};
    const uint16_t minus_big[17] = {[0 ... 16] = 0xcb80};
    uint16_t dst[17];

    if (kernels == NULL) {
        return;
    }
    kernels->reduce(17, 3, (const uint16_t *const[]){big, one, minus_big}, dst);
    ck_assert_uint_eq(dst[0], 0);
    ck_assert_uint_eq(dst[16], 0);
    kernels->reduce(17, 3, (const uint16_t *const[]){big, minus_big, one}, dst);
    ck_assert_uint_eq(dst[0], 0x3f80);
    ck_assert_uint_eq(dst[16], 0x3f80);
}
END_TEST

/* Without sources the result is zeros. A single source keeps its bits, including minus zero.
 * Infinity minus infinity is CST_REDUCE_NAN. The sum of squares is finite exactly if all gradients
 * are. */
START_TEST(test_special_values)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    const uint16_t a[3] = {0x8000, 0x7f80, 0xff81};
    const uint16_t b[3] = {0x8000, 0xff80, 0x3f80};
    const uint16_t huge[3] = {0x7f7f, 0xff7f, 0x0001};
    uint16_t dst[3] = {1, 2, 3};
    double sum;

    if (kernels == NULL) {
        return;
    }
    ck_assert(kernels->reduce(3, 0, NULL, dst) == 0.0);
    ck_assert_mem_eq(dst, ((uint16_t[]){0, 0, 0}), sizeof dst);
    sum = kernels->reduce(3, 1, (const uint16_t *const[]){a}, dst);
    ck_assert_mem_eq(dst, ((uint16_t[]){0x8000, 0x7f80, 0xffc1}), sizeof dst);
    ck_assert(isnan(sum) && !signbit(sum));
    sum = kernels->reduce(2, 1, (const uint16_t *const[]){a}, dst);
    ck_assert(isinf(sum));
    sum = kernels->reduce(3, 2, (const uint16_t *const[]){a, b}, dst);
    ck_assert_mem_eq(dst, ((uint16_t[]){0x8000, CST_REDUCE_NAN, CST_REDUCE_NAN}), sizeof dst);
    ck_assert(isnan(sum) && !signbit(sum));
    sum = kernels->reduce(3, 1, (const uint16_t *const[]){huge}, dst);
    ck_assert_mem_eq(dst, huge, sizeof dst);
    ck_assert(isfinite(sum));
}
END_TEST

/* The sum of squares of a tile and the norm of many tiles are compared with long double. A sum of k
 * nonnegative terms in double has a relative error of at most k * 2^-53, and the square of a bf16
 * is exact. */
START_TEST(test_norm_against_long_double)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    struct cst_table_tile *tiles = calloc(200, sizeof *tiles);
    uint64_t state = hostile_seed();
    long double want = 0.0L;
    double got;

    if (kernels == NULL) {
        free(tiles);
        return;
    }
    for (int t = 0; t < 200; t++) {
        uint16_t grad[CST_TILE_ELEMS];
        uint16_t dst[CST_TILE_ELEMS];
        size_t n = t % 3 == 0 ? CST_TILE_ELEMS : hostile_next(&state) % CST_TILE_ELEMS;
        long double tile = 0.0L;

        for (size_t i = 0; i < n; i++) {
            grad[i] = cst_fp32_to_bf16(ldexpf(hostile_unit(&state), (int)(i % 30) - 20));
            tile += (long double)cst_bf16_to_fp32(grad[i]) * (long double)cst_bf16_to_fp32(grad[i]);
        }
        tiles[t].sum_squares = kernels->reduce(n, 1, (const uint16_t *const[]){grad}, dst);
        ck_assert(fabsl(tiles[t].sum_squares - tile) <= tile * CST_TILE_ELEMS * 0x1p-53L);
        want += tile;
    }
    got = cst_norm_sum(tiles, 200);
    ck_assert(fabsl(got - want) <= want * (CST_TILE_ELEMS + 200) * 0x1p-53L);
    ck_assert(cst_norm_sum(tiles, 0) == 0.0);
    tiles[100].sum_squares = (double)INFINITY;
    ck_assert(isinf(cst_norm_sum(tiles, 200)));
    free(tiles);
}
END_TEST

/* The results have fixed bits, which are part of the format: a sum by another compiler, machine or
 * version is equal. */
START_TEST(test_golden_bits)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t hash = HOSTILE_HASH_START;
    uint64_t state = 1;
    uint16_t *src[MAX_SRC];
    uint16_t dst[1003];

    if (kernels == NULL) {
        return;
    }
    for (int fill = 0; fill < N_FILL; fill++) {
        double sum;

        fill_sources(src, 1003, (enum fill)fill, &state);
        sum = kernels->reduce(1003, 5, in(src), dst);
        hash = hostile_hash(hash, dst, sizeof dst);
        hash = hostile_hash(hash, &sum, sizeof sum);
    }
    ck_assert_msg(hash == 0x794b29113c669e5cull, "%s: %#llx", kernels->isa,
                  (unsigned long long)hash);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reduce");
    TCase *reduce = suite_case(suite, "reduce", NULL, NULL);

    tcase_add_loop_test(reduce, test_variants_agree, 0, hostile_n_rows());
    tcase_add_loop_test(reduce, test_in_place, 0, hostile_n_rows());
    tcase_add_loop_test(reduce, test_rank_order, 0, hostile_n_rows());
    tcase_add_loop_test(reduce, test_special_values, 0, hostile_n_rows());
    tcase_add_loop_test(reduce, test_norm_against_long_double, 0, hostile_n_rows());
    tcase_add_loop_test(reduce, test_golden_bits, 0, hostile_n_rows());
    return hostile_main(suite);
}
