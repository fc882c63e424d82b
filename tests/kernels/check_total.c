/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/contributions.h"

/* Every variant has the reference's bits with any length, number of sources, alignment, and hostile
 * values, for bf16 and for fp32. */
START_TEST(test_variants_agree)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t state = hostile_seed();
    uint16_t *src[MAX_SRC];

    if (kernels == NULL) {
        return;
    }
    for (size_t l = 0; l < N_LENGTHS; l++) {
        const size_t n = lengths[l];
        uint16_t *got = hostile_buffer(n * sizeof *got), *want = calloc(n + 1, sizeof *want);
        float *got32 = hostile_buffer(n / 2 * sizeof *got32);
        float *want32 = calloc(n + 1, sizeof *want32);

        for (int fill = 0; fill < N_FILL; fill++) {
            const float *src32[MAX_SRC];

            fill_sources(src, n, (enum fill)fill, &state);
            for (uint32_t n_src = 1; n_src <= MAX_SRC; n_src++) {
                kernels->total_bf16(n, n_src, in(src), got);
                cst_total_bf16_ref(n, n_src, in(src), want);
                ck_assert_mem_eq(got, want, n * sizeof *got);
                /* Any bits are fp32 numbers, too. */
                for (uint32_t r = 0; r < n_src; r++) {
                    float *row = hostile_buffer(n / 2 * sizeof *row);

                    memcpy(row, src[r], n / 2 * sizeof *row);
                    src32[r] = row;
                }
                kernels->total_fp32(n / 2, n_src, src32, got32);
                cst_total_fp32_ref(n / 2, n_src, src32, want32);
                ck_assert_mem_eq(got32, want32, n / 2 * sizeof *got32);
            }
        }
        free(want);
        free(want32);
    }
}
END_TEST

/* Contributions are added in the order of ranks in fp32, and a sum is rounded once. The result may
 * be written to a source. */
START_TEST(test_rank_order)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    float big[33], one[33], minus_big[33];
    const uint16_t big16[17] = {[0 ... 16] = 0x4b80}, one16[17] = {[0 ... 16] = 0x3f80};
    uint16_t minus_big16[17] = {[0 ... 16] = 0xcb80};

    if (kernels == NULL) {
        return;
    }
    for (int i = 0; i < 33; i++) {
        big[i] = 16777216.0f;
        one[i] = 1.0f;
        minus_big[i] = -16777216.0f;
    }
    kernels->total_fp32(33, 3, (const float *const[]){big, minus_big, one}, one);
    ck_assert(one[0] == 1.0f && one[32] == 1.0f);
    kernels->total_fp32(33, 3, (const float *const[]){big, one, minus_big}, big);
    ck_assert(big[0] == 0.0f && big[32] == 0.0f);
    kernels->total_bf16(17, 3, (const uint16_t *const[]){big16, one16, minus_big16}, minus_big16);
    ck_assert_uint_eq(minus_big16[0], 0);
    ck_assert_uint_eq(minus_big16[16], 0);
}
END_TEST

/* Every NaN has the same bits, whatever its operands were. */
START_TEST(test_nan)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    const uint32_t nan = CST_TOTAL_NAN;
    const uint16_t a[2] = {0x7f80, 0xff81}, b[2] = {0xff80, 0x3f80};
    uint16_t dst[2];
    float inf[40], minus_inf[40], dst32[40];

    if (kernels == NULL) {
        return;
    }
    for (int i = 0; i < 40; i++) {
        inf[i] = (float)INFINITY;
        minus_inf[i] = -(float)INFINITY;
    }
    kernels->total_bf16(2, 2, (const uint16_t *const[]){a, b}, dst);
    ck_assert_uint_eq(dst[0], 0x7fc0);
    ck_assert_uint_eq(dst[1], 0x7fc0);
    kernels->total_fp32(40, 2, (const float *const[]){inf, minus_inf}, dst32);
    ck_assert_mem_eq(&dst32[0], &nan, sizeof nan);
    ck_assert_mem_eq(&dst32[39], &nan, sizeof nan);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("total");
    TCase *total = suite_case(suite, "total", NULL, NULL);

    tcase_add_loop_test(total, test_variants_agree, 0, hostile_n_rows());
    tcase_add_loop_test(total, test_rank_order, 0, hostile_n_rows());
    tcase_add_loop_test(total, test_nan, 0, hostile_n_rows());
    return hostile_main(suite);
}
