/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of kernels/math/accumulate.h: sums into an fp32 gradient. */
#include "tests/kernels/contributions.h"

#include "proto/table.h"

#include <math.h>

static float fill_fp32(enum fill fill, uint64_t *state)
{
    uint64_t r = hostile_next(state);

    return fill == ORDINARY ? hostile_unit(state)
           : fill == WIDE   ? hostile_from_bits(
                                  (uint32_t)((r & 0x807fffffu) | (127 - 20 + (r >> 32) % 40) << 23))
                          : hostile_fp32(state);
}

static float *fill_row(size_t n, enum fill fill, uint64_t *state)
{
    float *row = hostile_buffer((n + 1) * sizeof *row);

    row += hostile_next(state) % 2;
    for (size_t i = 0; i < n; i++) {
        row[i] = fill_fp32(fill, state);
    }
    return row;
}

/* Compute the header's formula one element after the other, with long lanes of the test's own for
 * the sum of squares. */
static double formula(size_t n, uint32_t n_src, uint16_t *const src[MAX_SRC], bool accumulate,
                      float *dst)
{
    const uint32_t nan = CST_ACCUMULATE_NAN;
    double l[16] = {0};

    for (size_t i = 0; i < n; i++) {
        for (uint32_t r = 0; r < n_src; r++) {
            float x = cst_bf16_to_fp32(src[r][i]);

            dst[i] = r == 0 && !accumulate ? x : dst[i] + x;
        }
        dst[i] = n_src == 0 && !accumulate ? 0.0f : dst[i];
        if (isnan(dst[i])) {
            memcpy(&dst[i], &nan, sizeof nan);
        }
        l[i % 16] = fma((double)dst[i], (double)dst[i], l[i % 16]);
    }
    for (int half = 8; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) {
            l[j] += l[j + half];
        }
    }
    return isnan(l[0]) ? (double)NAN : l[0];
}

/* Compare a reduction with @kernels with the formula, and with a reduction from a sum that was made
 * before, and one in two calls. */
static void compare(const struct cst_kernels *kernels, size_t n, uint32_t n_src,
                    uint16_t *const src[MAX_SRC], bool accumulate, const float *row)
{
    float *got = hostile_buffer(n * sizeof *got), *sum = hostile_buffer(n * sizeof *sum);
    float *want = calloc(n + 1, sizeof *want);
    double squares[2], want_squares;

    memcpy(want, row, n * sizeof *want);
    want_squares = formula(n, n_src, src, accumulate, want);
    for (int summed = 0; summed < 2; summed++) {
        memcpy(got, row, n * sizeof *got);
        if (summed && !accumulate) {
            (void)formula(n, n_src, src, false, sum);
            squares[1] = kernels->accumulate_fp32(n, 1, &(const float *){sum}, false, got);
        } else if (summed) {
            (void)kernels->accumulate(n, n_src / 2, in(src), true, got);
            squares[1] = kernels->accumulate(n, n_src - n_src / 2, in(src + n_src / 2), true, got);
        } else {
            squares[0] = kernels->accumulate(n, n_src, in(src), accumulate, got);
        }
        ck_assert_mem_eq(got, want, n * sizeof *got);
        ck_assert_msg(memcmp(&squares[summed], &want_squares, sizeof want_squares) == 0,
                      "%s: n %zu, n_src %u, %d: %a, not %a", kernels->isa, n, n_src, summed,
                      squares[summed], want_squares);
    }
    free(want);
}

/* Every variant has the bits of the formula, including sums of squares, for any length, number of
 * sources, alignment and hostile values, stored or added. So have a sum that was made elsewhere,
 * and one made by two calls. */
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
            float *row = fill_row(lengths[l], (enum fill)fill, &state);

            fill_sources(src, lengths[l], (enum fill)fill, &state);
            for (uint32_t k = 0; k < 2 * (MAX_SRC + 1); k++) {
                compare(kernels, lengths[l], k / 2, src, k % 2 == 1, row);
            }
        }
    }
}
END_TEST

/* Compute the header's formula for fp32 contributions. */
static double formula_fp32(size_t n, uint32_t n_src, float *const src[MAX_SRC], bool accumulate,
                           float *dst)
{
    double lanes[16] = {0};

    for (size_t i = 0; i < n; i++) {
        float x = accumulate || n_src == 0 ? (accumulate ? dst[i] : 0.0f) : src[0][i];

        for (uint32_t r = accumulate ? 0 : 1; r < n_src; r++) {
            x += src[r][i];
        }
        dst[i] = isnan(x) ? hostile_from_bits(CST_ACCUMULATE_NAN) : x;
        lanes[i % 16] = fma((double)dst[i], (double)dst[i], lanes[i % 16]);
    }
    for (int half = 8; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) {
            lanes[j] += lanes[j + half];
        }
    }
    return isnan(lanes[0]) ? (double)NAN : lanes[0];
}

/* Compare a reduction of fp32 contributions with the formula. The row is source number @place; a
 * @place of n_src: it is none of them. */
static void compare_fp32(const struct cst_kernels *kernels, size_t n, uint32_t n_src,
                         float *const src[MAX_SRC], bool accumulate, const float *row,
                         uint32_t place)
{
    float *got = hostile_buffer(n * sizeof *got), *want = calloc(n + 1, sizeof *want);
    const float *from[MAX_SRC];
    double squares[2];

    memcpy(got, place < n_src ? src[place] : row, n * sizeof *got);
    memcpy(want, got, n * sizeof *want);
    for (uint32_t r = 0; r < n_src; r++) {
        from[r] = r == place ? got : src[r];
    }
    squares[0] = formula_fp32(n, n_src, src, accumulate, want);
    squares[1] = kernels->accumulate_fp32(n, n_src, from, accumulate, got);
    ck_assert_mem_eq(got, want, n * sizeof *want);
    ck_assert_mem_eq(&squares[0], &squares[1], sizeof squares[0]);
    free(want);
}

/* The same for fp32 contributions, also if the row is the first, or the last, of them. */
START_TEST(test_fp32_sources)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t state = hostile_seed();

    for (size_t l = 0; kernels != NULL && l < N_LENGTHS; l++) {
        for (int fill = 0; fill < N_FILL; fill++) {
            float *row = fill_row(lengths[l], (enum fill)fill, &state), *src[MAX_SRC];

            for (uint32_t r = 0; r < MAX_SRC; r++) {
                src[r] = fill_row(lengths[l], (enum fill)fill, &state);
            }
            for (uint32_t n_src = 0; n_src <= MAX_SRC; n_src++) {
                compare_fp32(kernels, lengths[l], n_src, src, true, row, n_src);
                compare_fp32(kernels, lengths[l], n_src, src, false, row, n_src);
                compare_fp32(kernels, lengths[l], n_src, src, false, row, 0);
                compare_fp32(kernels, lengths[l], n_src, src, false, row,
                             n_src > 0 ? n_src - 1 : 0);
            }
        }
    }
}
END_TEST

/* Contributions are added to the row one by one: (2^24 + 1) + 1 is 2^24, whereas 2^24 + (1 + 1)
 * would be 2^24 + 2. */
START_TEST(test_order)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    const uint16_t one[17] = {[0 ... 16] = 0x3f80};
    float row[17] = {[0 ... 16] = 0x1p24f};

    if (kernels == NULL) {
        return;
    }
    (void)kernels->accumulate(17, 2, (const uint16_t *const[]){one, one}, true, row);
    ck_assert(row[0] == 0x1p24f);
    ck_assert(row[16] == 0x1p24f);
}
END_TEST

/* A stored sum does not depend on the row's old contents. NaN is canonical, also with one source.
 * The sum of squares of the largest and the smallest numbers is finite and not zero. */
START_TEST(test_special_values)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    const uint16_t a[4] = {0x8000, 0x7f80, 0xff81, 0x7f7f};
    const uint32_t want[4] = {0x80000000u, 0x7f800000u, CST_ACCUMULATE_NAN, 0x7f7f0000u};
    const uint16_t tiny[2] = {0x0001, 0x8001};
    float row[4] = {NAN, NAN, NAN, NAN};
    double sum;

    if (kernels == NULL) {
        return;
    }
    ck_assert(isnan(kernels->accumulate(4, 1, (const uint16_t *const[]){a}, false, row)));
    ck_assert_mem_eq(row, want, sizeof row);
    ck_assert(isinf(kernels->accumulate(2, 1, (const uint16_t *const[]){a}, false, row)));
    sum = kernels->accumulate(1, 1, (const uint16_t *const[]){a + 3}, false, row);
    ck_assert(isfinite(sum) && sum > 1e76);
    sum = kernels->accumulate(2, 1, (const uint16_t *const[]){tiny}, false, row);
    ck_assert(sum > 0.0);
    ck_assert(kernels->accumulate(4, 0, NULL, false, row) == 0.0);
    ck_assert_mem_eq(row, ((float[]){0.0f, 0.0f, 0.0f, 0.0f}), sizeof row);
}
END_TEST

/* fp32 keeps sums of micro-batches that bf16 would lose: 1 plus 64 sums of 1/512 is 1.125. */
START_TEST(test_micro_batches)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    const uint16_t one[1] = {0x3f80}, small[1] = {0x3b00};
    float row[1];

    if (kernels == NULL) {
        return;
    }
    (void)kernels->accumulate(1, 1, (const uint16_t *const[]){one}, false, row);
    for (int m = 0; m < 64; m++) {
        (void)kernels->accumulate(1, 1, (const uint16_t *const[]){small}, true, row);
    }
    ck_assert(row[0] == 1.125f);
}
END_TEST

/* The results have fixed bits, which are part of the format. */
START_TEST(test_golden_bits)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t hash = HOSTILE_HASH_START;
    uint64_t state = 1;
    uint16_t *src[MAX_SRC];

    if (kernels == NULL) {
        return;
    }
    for (int fill = 0; fill < N_FILL; fill++) {
        float *row = fill_row(1003, (enum fill)fill, &state);
        double sum;

        fill_sources(src, 1003, (enum fill)fill, &state);
        for (int m = 0; m < 3; m++) {
            sum = kernels->accumulate(1003, 3, in(src + 3 * m), m > 0, row);
            hash = hostile_hash(hash, row, 1003 * sizeof *row);
            hash = hostile_hash(hash, &sum, sizeof sum);
        }
    }
    ck_assert_msg(hash == 0xa4fcb22175ec74ecull, "%s: %#llx", kernels->isa,
                  (unsigned long long)hash);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("accumulate");
    TCase *accumulate = suite_case(suite, "accumulate", NULL, NULL);

    tcase_add_loop_test(accumulate, test_fp32_sources, 0, (int)hostile_n_rows());
    tcase_add_loop_test(accumulate, test_variants_agree, 0, hostile_n_rows());
    tcase_add_loop_test(accumulate, test_order, 0, hostile_n_rows());
    tcase_add_loop_test(accumulate, test_special_values, 0, hostile_n_rows());
    tcase_add_loop_test(accumulate, test_micro_batches, 0, hostile_n_rows());
    tcase_add_loop_test(accumulate, test_golden_bits, 0, hostile_n_rows());
    return hostile_main(suite);
}
