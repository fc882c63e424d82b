/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the formats of moments. */
#include "kernels/math/moments.h"
#include "tests/kernels/update_rows.h"

#define N 64

/* A row of two mx8 blocks. */
struct row {
    uint8_t bytes[N + 2];
    struct cst_update_moment moment;
};

static void open_row(struct row *row)
{
    memset(row, 0, sizeof *row);
    row->moment = (struct cst_update_moment){.values = row->bytes, .exponents = row->bytes + N};
}

/* Every value of a block is unchanged by encoding, whatever else is in the block. First all codes
 * with every exponent are decoded as the definition says. */
START_TEST(test_mx8_round_trip)
{
    const unsigned which = (unsigned)_i;
    const int most = which == 0 ? 256 : 248;
    struct row row, again;
    float x[N], y[N];

    open_row(&row);
    open_row(&again);
    for (int exponent = which == 0 ? 7 : 15; exponent <= (which == 0 ? 246 : 239); exponent++) {
        for (int code = 0; code < most; code++) {
            for (int i = 0; i < N; i++) {
                row.bytes[i] = (uint8_t)((code + i * 7) % most);
            }
            row.bytes[0] = row.bytes[32] = (uint8_t)code;
            row.bytes[N] = row.bytes[N + 1] = (uint8_t)exponent;
            cst_moments_decode(CST_MOMENTS_MX8, which, 0, N, &row.moment, x);
            ck_assert_uint_eq(truth_bits(x[0]), truth_bits(truth_mx8_decode(which, (uint8_t)code,
                                                                            (uint8_t)exponent)));
            cst_moments_encode(CST_MOMENTS_MX8, which, 0, N, x, &again.moment);
            cst_moments_decode(CST_MOMENTS_MX8, which, 0, N, &again.moment, y);
            ck_assert_mem_eq(x, y, sizeof x);
        }
    }
}
END_TEST

/* Encoding rounds to the nearest value, to even in a tie. An exp_avg_sq between zero and code 1
 * becomes code 1. The exponent is the smallest sufficient one. Except within 2^-21 of a unit around
 * the middle, the result is the definition's in double precision. */
START_TEST(test_mx8_nearest)
{
    const unsigned which = (unsigned)_i;
    uint64_t state = hostile_seed();
    struct row row;
    float x[N], y[N];

    open_row(&row);
    for (int round = 0; round < 1000; round++) {
        int range = (int)(hostile_next(&state) % 60);

        for (int i = 0; i < N; i++) {
            int e = (int)(hostile_next(&state) % (unsigned)(range + 1)) + round % 140 - 100;

            x[i] = ldexpf(hostile_unit(&state), e);
            x[i] = which == 0 ? x[i] : fabsf(x[i]);
        }
        cst_moments_encode(CST_MOMENTS_MX8, which, 0, N, x, &row.moment);
        cst_moments_decode(CST_MOMENTS_MX8, which, 0, N, &row.moment, y);
        for (int i = 0; i < N; i++) {
            const float *block = x + i / 32 * 32;
            uint8_t exponent = row.moment.exponents[i / 32];
            double unit = ldexp(1.0, (which == 0 ? -9 : -17) + exponent - 127);
            double off = fabs((double)x[i] - (double)y[i]);

            ck_assert_uint_eq(exponent, truth_mx8_exponent(which, block, 32));
            ck_assert_uint_eq(row.bytes[i], truth_mx8_encode(which, x[i], exponent, -1));
            if (which == 1 && row.bytes[i] == 1) {
                ck_assert(off < unit); /* A number that is not zero is not stored as zero. */
            } else {
                ck_assert(off <= fmax(unit / 2 * (1 + 0x1p-19), fabs((double)x[i]) / 16));
            }
        }
    }
}
END_TEST

/* A row of zero bytes is zeros, and zeros are encoded as such a row, whatever the row held. A block
 * with a NaN, an infinity or a number that is too large is NaN as a whole, and its neighbour is not
 * affected. */
START_TEST(test_mx8_special)
{
    const unsigned which = (unsigned)_i;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY, 0x1.fp127f, -0x1.fp127f};
    struct row row, zero;
    float x[N], y[N];

    open_row(&row);
    open_row(&zero);
    cst_moments_decode(CST_MOMENTS_MX8, which, 0, N, &zero.moment, y);
    for (int i = 0; i < N; i++) {
        ck_assert_uint_eq(truth_bits(y[i]), 0);
    }
    for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
        for (int i = 0; i < N; i++) {
            x[i] = 1.0f;
        }
        x[5] = b < 4 ? bad[b] : nextafterf(bad[b], bad[b] * INFINITY);
        cst_moments_encode(CST_MOMENTS_MX8, which, 0, N, x, &row.moment);
        cst_moments_decode(CST_MOMENTS_MX8, which, 0, N, &row.moment, y);
        for (int i = 0; i < N; i++) {
            ck_assert_uint_eq(truth_bits(y[i]), i < 32 ? CST_UPDATE_NAN : truth_bits(1.0f));
        }
    }
    x[5] = 0x1.ep127f;
    cst_moments_encode(CST_MOMENTS_MX8, which, 0, N, x, &row.moment);
    cst_moments_decode(CST_MOMENTS_MX8, which, 0, N, &row.moment, y);
    ck_assert(y[5] == 0x1.ep127f);
    cst_moments_clear(CST_MOMENTS_MX8, which, 0, N, &row.moment);
    ck_assert_mem_eq(row.bytes, zero.bytes, sizeof row.bytes);
}
END_TEST

/* Writing a part of a row does not change the rest, in all formats. Reading a part returns that
 * part. */
START_TEST(test_parts)
{
    const enum cst_moments moments = (enum cst_moments)(_i / 2);
    const unsigned which = (unsigned)_i % 2;
    uint64_t state = hostile_seed();
    float memory[N], x[N], want[N], got[N];
    struct cst_update_moment row = {.values = memory, .exponents = (uint8_t *)memory + N};

    memset(memory, 0, sizeof memory);
    memset(want, 0, sizeof want);
    for (int round = 0; round < 2000; round++) {
        size_t first = hostile_next(&state) % N, n = hostile_next(&state) % (N - first + 1);

        for (size_t i = 0; i < n; i++) {
            /* Numbers that all formats can represent. */
            x[i] = (float)(hostile_next(&state) % 9) * 0.125f;
            want[first + i] = x[i];
        }
        if (round % 5 == 0) {
            memset(want + first, 0, n * sizeof *want);
            cst_moments_clear(moments, which, first, n, &row);
        } else {
            cst_moments_encode(moments, which, first, n, x, &row);
        }
        cst_moments_decode(moments, which, 0, N, &row, got);
        ck_assert_mem_eq(got, want, sizeof got);
        cst_moments_decode(moments, which, first, n, &row, got);
        ck_assert_mem_eq(got, want + first, n * sizeof *got);
    }
}
END_TEST

/* Stochastic rounding keeps the mean: SGD with beta1 = 1 stores m + g n times from an equal m, with
 * the random numbers of n steps. Each result is one of the two neighbours. Their mean is within
 * five standard deviations, where one deviation is at most half the distance of the neighbours. */
START_TEST(test_stochastic_mean)
{
    const struct cst_kernels *kernels = hostile_row(_i / 2);
    const enum cst_moments moments = _i % 2 == 0 ? CST_MOMENTS_BF16 : CST_MOMENTS_MX8;
    const int n = 4000;
    struct cst_update_scalars scalars;
    float grad[N] = {0}, master[N] = {0}, x[N];
    uint16_t weight[N];
    double sum[N] = {0}, low[N], high[N];
    uint8_t in[2 * N + 2] = {0}, out[2 * N + 2];
    struct cst_update_rows rows = {.grad_fp32 = grad,
                                   .master_in = master,
                                   .moments_in = {{.values = in, .exponents = in + N}},
                                   .master = master,
                                   .moments = {{.values = out, .exponents = out + N}},
                                   .weight = weight};
    uint64_t state = hostile_seed();

    if (kernels == NULL) {
        return;
    }
    cst_update_prepare(&scalars, 0.0, 1.0, 1.0, 1e-8, 0.0, 1.0f, 1);
    for (int i = 0; i < N; i++) {
        grad[i] = ldexpf(hostile_unit(&state), -(int)(hostile_next(&state) % 16));
        low[i] = INFINITY;
        high[i] = -INFINITY;
    }
    for (int t = 0; t < n; t++) {
        const struct cst_update_random random = {.seed = 11, .t = (uint64_t)t, .element = 32};

        kernels->update->v[CST_OPTIMIZER_SGD][moments][CST_ROUNDING_STOCHASTIC](&scalars, &random,
                                                                                N, &rows, NULL);
        cst_moments_decode(moments, 0, 0, N, &rows.moments[0], x);
        for (int i = 0; i < N; i++) {
            sum[i] += (double)x[i];
            low[i] = fmin(low[i], (double)x[i]);
            high[i] = fmax(high[i], (double)x[i]);
        }
    }
    for (int i = 0; i < N; i++) {
        double g = (double)grad[i];

        ck_assert_msg(low[i] <= g && g <= high[i], "%g is not in %g to %g", g, low[i], high[i]);
        ck_assert_msg(fabs(sum[i] / n - g) <= 5 * (high[i] - low[i]) / 2 / sqrt(n),
                      "mean %g of %g, between %g and %g", sum[i] / n, g, low[i], high[i]);
    }
}
END_TEST

/* An exp_avg_sq that is not zero is not stored as zero, however small it is compared with its
 * block's largest number, with either rounding. One that is zero is stored as zero. beta2 is 0
 * here, so an exp_avg_sq is the square of the gradient. */
START_TEST(test_second_moment_is_kept)
{
    const struct cst_kernels *kernels = hostile_row(_i / 2);
    const enum cst_rounding rounding = _i % 2 == 0 ? CST_ROUNDING_NEAREST : CST_ROUNDING_STOCHASTIC;
    struct cst_update_scalars scalars;
    float grad[N] = {0}, master[N] = {0};
    uint16_t weight[N];
    uint8_t m[N + 2] = {0}, v[N + 2] = {0};
    struct cst_update_rows rows = {
        .grad_fp32 = grad,
        .master_in = master,
        .moments_in = {{.values = m, .exponents = m + N}, {.values = v, .exponents = v + N}},
        .master = master,
        .moments = {{.values = m, .exponents = m + N}, {.values = v, .exponents = v + N}},
        .weight = weight};

    if (kernels == NULL) {
        return;
    }
    cst_update_prepare(&scalars, 1e-3, 0.9, 0.0, 1e-8, 0.0, 1.0f, 1);
    for (int i = 0; i < N; i++) {
        grad[i] = i % 32 == 0 ? 1.0f : i % 4 == 0 ? 0.0f : ldexpf(i % 8 < 4 ? 1.0f : -1.0f, -i);
    }
    for (uint64_t t = 1; t <= 20; t++) {
        const struct cst_update_random random = {.seed = 3, .t = t};

        kernels->update->v[CST_OPTIMIZER_ADAMW][CST_MOMENTS_MX8][rounding](&scalars, &random, N,
                                                                           &rows, NULL);
        for (int i = 0; i < N; i++) {
            ck_assert_msg((v[i] == 0) == (grad[i] == 0.0f), "%s: element %d, gradient %g, code %u",
                          kernels->isa, i, (double)grad[i], v[i]);
        }
    }
}
END_TEST

/* The factor by which an element's gradient changes from one step to the next. */
static float course(int kind, uint64_t *state)
{
    float unit = hostile_unit(state);

    switch (kind) {
    case 0: /* constant */
        return 1.0f;
    case 1: /* only the sign changes */
        return unit < 0.0f ? -1.0f : 1.0f;
    case 2: /* noise */
        return unit;
    case 3: /* constant with noise */
        return 1.0f + 0.1f * unit;
    default: /* rarely not zero, and then large */
        return hostile_next(state) % 50 == 0 ? 30.0f * unit : 0.1f * unit;
    }
}

#define N_COURSES 5
#define STEP_BLOCKS 8 /* blocks of elements in the test below */

/* The longest step, in units of lr, of one optimizer with gradients of one kind, with moments in
 * fp32 and in mx8. p begins every step at 0 without decay, so its value is the step. */
static void longest_steps(const struct cst_kernels *kernels, int kind, bool decoupled,
                          enum cst_rounding rounding, double longest[2])
{
    enum { n = STEP_BLOCKS * 32, steps = 1200 };
    const struct how how = {.optimizer = decoupled ? CST_OPTIMIZER_ADAMW : CST_OPTIMIZER_ADAM,
                            .wide = true};
    uint64_t state = hostile_seed();
    float scale[n];
    struct rows rows[2];

    allocate(&rows[0], CST_MOMENTS_FP32, n);
    allocate(&rows[1], CST_MOMENTS_MX8, n);
    for (int i = 0; i < n; i++) {
        scale[i] = powf(10.0f, -4.0f * (1.0f + hostile_unit(&state)));
    }
    longest[0] = longest[1] = 0.0;
    for (uint64_t t = 1; t <= steps; t++) {
        const struct cst_update_random random = {.seed = 17, .t = t};
        struct cst_update_scalars scalars;

        cst_update_prepare(&scalars, 1.0, 0.9, 0.999, 1e-20, 0.0, 1.0f, t);
        for (int i = 0; i < n; i++) {
            rows[0].grad_fp32[i] = rows[1].grad_fp32[i] = scale[i] * course(kind, &state);
        }
        for (int k = 0; k < 2; k++) {
            struct cst_update_rows at = rows_from(how, &rows[k], &rows[k], 0);

            memset(rows[k].master, 0, n * sizeof *rows[k].master);
            kernels->update->v[how.optimizer][rows[k].format][rounding](&scalars, &random, n, &at,
                                                                        NULL);
            for (int i = 0; i < n; i++) {
                const double length = fabs((double)rows[k].master[i]);

                /* Not fmax: GCC 12 for AArch64 cannot compile that. */
                longest[k] = length > longest[k] ? length : longest[k];
            }
        }
    }
}

/* In blocks whose elements differ by eight decades, no step with mx8 moments is longer than 1.1
 * times the longest one with fp32 moments. Neither the rounding of exp_avg to the unit of the
 * block's largest element, nor that of exp_avg_sq, makes a small element diverge. */
START_TEST(test_longest_step)
{
    const struct cst_kernels *kernels = hostile_row(_i / (2 * 2 * N_COURSES));
    const int kind = _i % N_COURSES;
    const bool decoupled = _i / N_COURSES % 2 == 0;
    const enum cst_rounding rounding =
        _i / N_COURSES / 2 % 2 == 0 ? CST_ROUNDING_NEAREST : CST_ROUNDING_STOCHASTIC;
    double longest[2];

    if (kernels == NULL) {
        return;
    }
    longest_steps(kernels, kind, decoupled, rounding, longest);
    ck_assert_msg(
        longest[1] <= 1.1 * longest[0] && longest[1] > 0.5 * fmin(longest[0], 1.0),
        "%s, gradients of kind %d: the longest step is %g lr with mx8 moments, %g lr with "
        "fp32 moments",
        kernels->isa, kind, longest[1], longest[0]);
}
END_TEST

/* The bits of a number whose exponent is @e, next to one at which rounding or the exponent of a
 * block changes. */
static uint32_t edge_bits(uint32_t e, uint64_t *state)
{
    static const uint32_t upper[] = {0x000000, 0x010000, 0x6f0000, 0x700000, 0x710000, 0x7f0000};
    static const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    uint64_t r = hostile_next(state);

    return e << 23 | upper[r % 6] | lower[r / 6 % 6];
}

/* Set gradients, master weights and the factor of squares so that the update stores exp_avg (@which
 * is 0) or exp_avg_sq of blocks whose largest magnitude is @largest, and master weights at edges.
 * exp_avg is the gradient, and exp_avg_sq is its square times one_minus_beta2. */
static void fill_edges(unsigned which, uint32_t largest, struct rows *rows,
                       struct cst_update_scalars *scalars, uint64_t *state)
{
    *scalars = (struct cst_update_scalars){.grad_scale = 1.0f,
                                           .one_minus_beta1 = 1.0f,
                                           .inv_sqrt_bias2 = 1.0f,
                                           .eps = 1e-8f,
                                           .decay = 1.0f,
                                           .ratio_limit = 1.0f};
    if (which == 1) {
        scalars->one_minus_beta2 = hostile_from_bits(largest);
    }
    for (size_t i = 0; i < rows->n; i++) {
        uint64_t r = hostile_next(state);
        uint32_t sign = (r & 1) != 0 ? 0x80000000u : 0;
        bool first = i % 32 == i / 32 % 32; /* The place of the largest differs by block. */

        rows->grad_fp32[i] =
            which == 1 ? ldexpf(r % 3 == 0 && !first ? 0.0f : 1.0f, first ? 0 : -(int)(r >> 8 & 31))
            : first || r % 5 == 0
                ? hostile_from_bits(largest | sign)
                : hostile_from_bits(((uint32_t)(r >> 32) % ((largest & 0x7fffffffu) + 1)) | sign);
        rows->master[i] = hostile_from_bits(edge_bits((uint32_t)(r >> 16) % 256, state) | sign);
    }
}

/* Every variant has the reference's bits for blocks whose largest magnitude is next to one where
 * the exponent changes, with all exponents of fp32, subnormals, infinities and NaNs, for either
 * sign of an exp_avg_sq, and for master weights next to ties. */
START_TEST(test_edges_agree)
{
    const struct cst_kernels *kernels = hostile_row(_i / 4);
    const unsigned which = (unsigned)_i / 2 % 2;
    const struct how how = {.optimizer = which == 0 ? CST_OPTIMIZER_SGD : CST_OPTIMIZER_ADAMW,
                            .moments = CST_MOMENTS_MX8,
                            .rounding =
                                _i % 2 == 0 ? CST_ROUNDING_NEAREST : CST_ROUNDING_STOCHASTIC,
                            .wide = true};
    const size_t n = 36 * 32;
    uint64_t state = hostile_seed() + (uint64_t)_i;
    struct rows got, want;

    if (kernels == NULL) {
        return;
    }
    allocate(&got, how.moments, n);
    allocate(&want, how.moments, n);
    for (uint32_t round = 0; round < 256 * 36; round++) {
        const struct cst_update_random random = {
            .seed = hostile_next(&state), .t = round, .element = round * 32};
        uint32_t sign = which == 1 && round % 5 == 0 ? 0x80000000u : 0;
        size_t length = round % 36 == 0 ? n : 32 + round % 64;
        struct cst_update_scalars scalars;
        struct cst_update_rows rows;

        fill_edges(which, edge_bits(round / 36, &state) | sign, &got, &scalars, &state);
        for (int k = 0; k < 2; k++) {
            memset(got.moments[k].values, 0, n);
            memset(got.moments[k].exponents, 0, n / 32);
        }
        copy_rows(&want, &got);
        rows = rows_from(how, &got, &got, 0);
        fn_of(kernels, how)(&scalars, &random, length, &rows, NULL);
        truth_update(how, &scalars, &random, &want, 0, length);
        assert_same(&got, &want);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("moments");
    TCase *moments = suite_case(suite, "moments", NULL, NULL);

    tcase_add_loop_test(moments, test_mx8_round_trip, 0, 2);
    tcase_add_loop_test(moments, test_mx8_nearest, 0, 2);
    tcase_add_loop_test(moments, test_mx8_special, 0, 2);
    tcase_add_loop_test(moments, test_parts, 0, 2 * CST_MOMENTS_COUNT);
    tcase_add_loop_test(moments, test_second_moment_is_kept, 0, 2 * hostile_n_rows());
    tcase_add_loop_test(moments, test_longest_step, 0, 2 * 2 * N_COURSES * hostile_n_rows());
    tcase_add_loop_test(moments, test_edges_agree, 0, 4 * hostile_n_rows());
    tcase_add_loop_test(moments, test_stochastic_mean, 0, 2 * hostile_n_rows());
    return hostile_main(suite);
}
