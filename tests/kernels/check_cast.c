/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/isa.h"
#include "tests/kernels/hostile.h"

#include <math.h>

static const uint32_t low_halves[] = {0x0000, 0x0001, 0x1234, 0x7fff,
                                      0x8000, 0x8001, 0xc000, 0xffff};

#define N_LOW (sizeof low_halves / sizeof low_halves[0])
#define N_ALL (65536 * N_LOW)

/* The bf16 of @bits by definition: the nearer of the two neighbours, the even one in a tie. Beyond
 * the largest number 2^128 takes the place of infinity. @bits must not be NaN. */
static uint16_t nearest(uint32_t bits)
{
    uint32_t sign = bits & 0x80000000u;
    uint32_t down = (bits & 0x7fff0000u) >> 16;
    double x = (double)hostile_from_bits(bits & 0x7fffffffu);
    double a = (double)hostile_from_bits(down << 16);
    double b = down + 1 == 0x7f80 ? 0x1p128 : (double)hostile_from_bits((down + 1) << 16);

    if (isinf(x)) {
        return (uint16_t)(bits >> 16);
    }
    if (b - x < x - a || (b - x == x - a && (down & 1) != 0)) {
        down++;
    }
    return (uint16_t)((sign >> 16) | down);
}

/* Every bf16 and the numbers around it are rounded to nearest even in every variant. NaN becomes
 * quiet and keeps its sign and upper payload. */
START_TEST(test_cast_rounds_to_nearest_even)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    float *src = hostile_buffer(N_ALL * sizeof *src);
    uint16_t *dst = hostile_buffer(N_ALL * sizeof *dst);

    if (kernels == NULL) {
        return;
    }
    for (uint32_t i = 0; i < N_ALL; i++) {
        uint32_t bits = (uint32_t)(i / N_LOW) << 16 | low_halves[i % N_LOW];

        memcpy(&src[i], &bits, sizeof bits);
    }
    kernels->cast(N_ALL, src, dst);
    for (uint32_t i = 0; i < N_ALL; i++) {
        uint32_t bits = (uint32_t)(i / N_LOW) << 16 | low_halves[i % N_LOW];
        bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
        uint16_t want = is_nan ? (uint16_t)((bits >> 16) | 0x40u) : nearest(bits);

        suite_must(dst[i] == want, "%s: %08x became %04x, not %04x", kernels->isa, bits, dst[i],
                   want);
    }
}
END_TEST

/* Conversion to fp32 and back gives every bf16 again; a signalling NaN becomes quiet. */
START_TEST(test_upcast_is_exact)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint16_t *src = hostile_buffer(65536 * sizeof *src);
    float *mid = hostile_buffer(65536 * sizeof *mid);

    if (kernels == NULL) {
        return;
    }
    for (uint32_t i = 0; i < 65536; i++) {
        src[i] = (uint16_t)i;
    }
    kernels->upcast(65536, src, mid);
    for (uint32_t i = 0; i < 65536; i++) {
        uint32_t bits;

        memcpy(&bits, &mid[i], sizeof bits);
        suite_must(bits == i << 16, "%s: %04x became %08x", kernels->isa, i, bits);
    }
}
END_TEST

/* With any length and alignment of whole elements, variants have the reference's bits and write no
 * other element. */
START_TEST(test_variants_agree)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t state = hostile_seed();

    if (kernels == NULL) {
        return;
    }
    for (size_t n = 0; n < 150; n++) {
        size_t before = hostile_next(&state) % 40;
        float *fp32 = hostile_buffer((before + n) * sizeof *fp32);
        uint16_t *bf16 = hostile_buffer((before + n) * sizeof *bf16);
        uint16_t *want16 = calloc(before + n + 1, sizeof *want16);
        float *up = hostile_buffer((before + n) * sizeof *up);
        float *want = calloc(before + n + 1, sizeof *want);

        for (size_t i = 0; i < before + n; i++) {
            fp32[i] = hostile_fp32(&state);
        }
        kernels->cast(n, fp32 + before, bf16 + before);
        cst_cast_ref(n, fp32 + before, want16 + before);
        ck_assert_mem_eq(bf16, want16, (before + n) * sizeof *bf16);
        kernels->upcast(n, bf16 + before, up + before);
        cst_upcast_ref(n, bf16 + before, want + before);
        ck_assert_mem_eq(up, want, (before + n) * sizeof *up);
        free(want16);
        free(want);
    }
}
END_TEST

/* Expansion gives every bf16 its fp32 value, and the bf16 that this is rounded to, with any length
 * and alignment, and writes no other element. */
START_TEST(test_expand)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    const size_t total = 65536 + 100;
    uint16_t *src = hostile_buffer(total * sizeof *src), *bf16 = calloc(total, sizeof *bf16);
    uint16_t *want16 = calloc(total, sizeof *want16);
    float *fp32 = calloc(total, sizeof *fp32), *want = calloc(total, sizeof *want);
    uint64_t state = hostile_seed();

    if (kernels == NULL) {
        return;
    }
    for (size_t i = 0; i < total; i++) {
        src[i] = (uint16_t)i;
    }
    for (int round = 0; round < 20; round++) {
        size_t from = hostile_next(&state) % 40, to = hostile_next(&state) % 40;
        size_t to16 = hostile_next(&state) % 40, n = total - 40 - hostile_next(&state) % 60;

        memset(fp32, 0, total * sizeof *fp32);
        memset(bf16, 0, total * sizeof *bf16);
        memset(want, 0, total * sizeof *want);
        memset(want16, 0, total * sizeof *want16);
        kernels->expand(n, src + from, fp32 + to, bf16 + to16);
        cst_upcast_ref(n, src + from, want + to);
        cst_cast_ref(n, want + to, want16 + to16);
        ck_assert_mem_eq(fp32, want, total * sizeof *fp32);
        ck_assert_mem_eq(bf16, want16, total * sizeof *bf16);
    }
    free(bf16);
    free(want16);
    free(fp32);
    free(want);
}
END_TEST

/* The table of kernels gives the best usable row, a row by its name, or NULL for an unknown name.
 */
START_TEST(test_get_finds_rows)
{
    unsigned n;
    const struct cst_kernels *rows = cst_kernels_all(&n);
    const struct cst_kernels *best = cst_kernels_get(NULL);

    ck_assert_uint_ge(n, 1);
    ck_assert_ptr_nonnull(best);
    ck_assert(best->usable());
    for (unsigned i = 0; i < n; i++) {
        ck_assert_ptr_eq(cst_kernels_get(rows[i].isa), rows[i].usable() ? &rows[i] : NULL);
        ck_assert(!rows[i].usable() || best >= &rows[i]);
    }
    ck_assert_str_eq(rows[0].isa, "ref");
    ck_assert_ptr_null(cst_kernels_get("z80"));
}
END_TEST

/* CISTERN_ISA excludes rows that are wider than its value, and no others. A program refuses an
 * unknown value, and an empty one means no limit. */
START_TEST(test_isa_is_limited)
{
    static const struct {
        const char *words, *best; /* for a processor that supports everything */
    } cases[] = {
        {"plain", "ref"},
#ifdef __aarch64__
        {"neon", "neon"},
#else
        {"avx2", "avx2"},
        {"avx512", "avx512"},
#endif
    };
    unsigned n;
    const struct cst_kernels *rows = cst_kernels_all(&n);

    (void)unsetenv("CISTERN_ISA");
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct cst_kernels *row = cst_kernels_get(cases[i].best);

        (void)setenv("CISTERN_ISA", cases[i].words, 1);
        ck_assert_ptr_null(cst_isa_refused());
        if (row != NULL) {
            ck_assert_ptr_eq(cst_kernels_get(NULL), row);
        }
        for (unsigned k = 0; k < n; k++) {
            ck_assert(k <= i || cst_kernels_get(rows[k].isa) == NULL);
        }
        (void)unsetenv("CISTERN_ISA");
    }
    (void)setenv("CISTERN_ISA", "", 1);
    ck_assert_ptr_null(cst_isa_refused());
    ck_assert_int_eq(cst_isa_limit(), CST_ISA_WIDEST);
    (void)setenv("CISTERN_ISA", "avx3", 1);
    ck_assert_str_eq(cst_isa_refused(), "avx3");
    (void)unsetenv("CISTERN_ISA");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cast");
    TCase *cast = suite_case(suite, "cast", NULL, NULL);
    TCase *kernels = suite_case(suite, "kernels", NULL, NULL);

    tcase_add_loop_test(cast, test_cast_rounds_to_nearest_even, 0, hostile_n_rows());
    tcase_add_loop_test(cast, test_upcast_is_exact, 0, hostile_n_rows());
    tcase_add_loop_test(cast, test_variants_agree, 0, hostile_n_rows());
    tcase_add_loop_test(cast, test_expand, 0, hostile_n_rows());
    tcase_add_test(kernels, test_get_finds_rows);
    tcase_add_test(kernels, test_isa_is_limited);
    return hostile_main(suite);
}
