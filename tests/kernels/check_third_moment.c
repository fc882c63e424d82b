/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer with three moments needs a row in proto/optimizers.h and its two formulas. This file
 * has both, in the place of AdamW, and the update of plain C that is made from them. Expected
 * values are computed element by element. */
#define CST_MAX_MOMENTS 3
#define CST_OPTIMIZERS(X) X(ADAMW, mixed, .n_moments = 3)

#include "kernels/math/vec_ref.h"

/* AdEMAMix (Pagliardini et al.: The AdEMAMix Optimizer, 2024) without its schedules: the third
 * moment is a slower mean of the gradients. */
struct cst_formula_scalars;
struct cst_formula_states;
static void cst_formula_mixed_moments(const struct cst_formula_scalars *s, struct cst_vec g,
                                      struct cst_formula_states *x);
static void cst_formula_mixed_weight(enum cst_moments moments, const struct cst_formula_scalars *s,
                                     struct cst_formula_states *x);

#define ISA third
#include "kernels/math/update_body.h"

#include "kernels/math/moments.h"
#include "proto/table.h"
#include "tests/kernels/hostile.h"

/* The tables for other master weights, to which this file's functions would pass rows. */
const struct cst_update_table cst_update_split_third, cst_update_alone_third;

static void cst_formula_mixed_moments(const struct cst_formula_scalars *s, struct cst_vec g,
                                      struct cst_formula_states *x)
{
    x->m[0] = cst_formula_towards(x->m[0], g, s->one_minus_beta1);
    x->m[1] = cst_vec_fma(s->one_minus_beta2, cst_vec_mul(g, g), cst_vec_mul(s->beta2, x->m[1]));
    x->m[2] = cst_formula_towards(x->m[2], g, s->one_minus_beta2);
    x->u = cst_vec_sqrt(x->m[1]);
}

static void cst_formula_mixed_weight(enum cst_moments moments, const struct cst_formula_scalars *s,
                                     struct cst_formula_states *x)
{
    struct cst_vec d = cst_vec_fma(x->u, s->inv_sqrt_bias2, s->eps);

    (void)moments;
    x->p = cst_vec_fnma(s->step_size, cst_vec_div(cst_vec_add(x->m[0], x->m[2]), d), x->p);
}

#define N 300 /* Not a multiple of a group. */
#define STEPS 4

/* The rows of a tensor. Of mx8, each has its exponents after 320 codes. */
struct rows {
    float grad[N], master[N];
    uint16_t weight[N];
    uint8_t moments[CST_MAX_MOMENTS][4 * 320];
};

static struct cst_update_moment moment_of(struct rows *rows, enum cst_moments format, unsigned k)
{
    return (struct cst_update_moment){
        .values = rows->moments[k],
        .exponents = format == CST_MOMENTS_MX8 ? rows->moments[k] + 320 : NULL};
}

static struct cst_update_rows all_of(struct rows *rows, enum cst_moments format)
{
    struct cst_update_rows all = {.grad_fp32 = rows->grad,
                                  .master_in = rows->master,
                                  .master = rows->master,
                                  .weight = rows->weight};

    for (unsigned k = 0; k < CST_MAX_MOMENTS; k++) {
        all.moments[k] = all.moments_in[k] = moment_of(rows, format, k);
    }
    return all;
}

/* The scalars of step @t. */
static struct cst_update_scalars scalars_of(uint64_t t)
{
    struct cst_update_scalars s;

    cst_update_prepare(&s, 1e-2, 0.9, 0.99, 1e-8, 0, 1.0f, t);
    return s;
}

/* Update one element, as the formulas above say. */
static void expect_one(const struct cst_update_scalars *s, float g, float *p,
                       float m[CST_MAX_MOMENTS])
{
    float d;

    m[0] = fmaf(s->one_minus_beta1, g - m[0], m[0]);
    m[1] = fmaf(s->one_minus_beta2, g * g, s->beta2 * m[1]);
    m[2] = fmaf(s->one_minus_beta2, g - m[2], m[2]);
    d = fmaf(sqrtf(m[1]), s->inv_sqrt_bias2, s->eps);
    *p = fmaf(-s->step_size, (m[0] + m[2]) / d, *p);
}

/* Update @want, whose moments are rounded to nearest. */
static void expect(struct rows *want, enum cst_moments format, const struct cst_update_scalars *s)
{
    static float m[CST_MAX_MOMENTS][N];

    for (unsigned k = 0; k < CST_MAX_MOMENTS; k++) {
        struct cst_update_moment row = moment_of(want, format, k);

        cst_moments_decode(format, k, 0, N, &row, m[k]);
    }
    for (size_t i = 0; i < N; i++) {
        float x[CST_MAX_MOMENTS] = {m[0][i], m[1][i], m[2][i]};

        expect_one(s, want->grad[i], &want->master[i], x);
        want->weight[i] = cst_fp32_to_bf16(want->master[i]);
        for (unsigned k = 0; k < CST_MAX_MOMENTS; k++) {
            m[k][i] = x[k];
        }
    }
    for (unsigned k = 0; k < CST_MAX_MOMENTS; k++) {
        struct cst_update_moment row = moment_of(want, format, k);

        cst_moments_encode(format, k, 0, N, m[k], &row);
    }
}

static void fill_grad(struct rows *rows, uint64_t *state)
{
    for (size_t i = 0; i < N; i++) {
        rows->grad[i] = hostile_unit(state) * (i % 7 == 0 ? -1.0f : 0.01f);
    }
}

/* All three moments are read, updated, rounded and stored. */
START_TEST(test_three_moments)
{
    const enum cst_moments format = (enum cst_moments)_i;
    uint64_t state = hostile_seed();
    struct rows got = {.master = {0}}, want = got;

    for (uint64_t t = 1; t <= STEPS; t++) {
        const struct cst_update_scalars s = scalars_of(t);
        struct cst_update_rows rows = all_of(&got, format);

        fill_grad(&got, &state);
        memcpy(want.grad, got.grad, sizeof want.grad);
        cst_update_third.v[CST_OPTIMIZER_ADAMW][format][CST_ROUNDING_NEAREST](&s, NULL, N, &rows,
                                                                              NULL);
        expect(&want, format, &s);
        ck_assert_mem_eq(got.master, want.master, sizeof got.master);
        ck_assert_mem_eq(got.weight, want.weight, sizeof got.weight);
        ck_assert_mem_eq(got.moments, want.moments, sizeof got.moments);
    }
}
END_TEST

/* Each moment has random bits of its own: moments that get the same values round differently. */
START_TEST(test_roundings_differ)
{
    const struct cst_update_scalars s = {
        .grad_scale = 1, .one_minus_beta1 = 0.1f, .one_minus_beta2 = 0.1f, .eps = 1};
    const struct cst_update_random random = {.seed = hostile_seed(), .t = 1};
    uint64_t state = hostile_seed();
    struct rows got = {.master = {0}}, want = got;
    struct cst_update_rows rows = all_of(&got, CST_MOMENTS_BF16);

    fill_grad(&got, &state);
    cst_update_third.v[CST_OPTIMIZER_ADAMW][CST_MOMENTS_BF16][CST_ROUNDING_STOCHASTIC](
        &s, &random, N, &rows, NULL);
    ck_assert_mem_ne(got.moments[0], got.moments[2], N * sizeof(uint16_t));
    rows = all_of(&want, CST_MOMENTS_BF16);
    memcpy(want.grad, got.grad, sizeof want.grad);
    cst_update_third.v[CST_OPTIMIZER_ADAMW][CST_MOMENTS_BF16][CST_ROUNDING_NEAREST](&s, NULL, N,
                                                                                    &rows, NULL);
    ck_assert_mem_eq(want.moments[0], want.moments[2], N * sizeof(uint16_t));
}
END_TEST

/* The undo holds the old values of all moments. */
START_TEST(test_undo_holds_all)
{
    const struct cst_update_scalars s = scalars_of(2);
    static struct cst_update_undo undo;
    uint64_t state = hostile_seed();
    struct rows got = {.master = {0}}, before;
    struct cst_update_rows rows = all_of(&got, CST_MOMENTS_FP32);
    const struct cst_update_old *old;
    uint32_t first, n;

    memset(&undo, 0, sizeof undo);
    for (int t = 0; t < 2; t++) {
        before = got;
        fill_grad(&got, &state);
        cst_update_third.v[CST_OPTIMIZER_ADAMW][CST_MOMENTS_FP32][CST_ROUNDING_NEAREST](
            &s, NULL, N, &rows, &undo);
    }
    first = cst_update_undo_first(undo.held);
    n = cst_update_undo_n(undo.held);
    old = &undo.old[cst_update_undo_buffer(undo.held)];
    ck_assert_uint_eq(first + n, N);
    for (unsigned k = 0; k < CST_MAX_MOMENTS; k++) {
        ck_assert_mem_eq(old->moments[k], before.moments[k] + first * sizeof(float),
                         n * sizeof(float));
    }
}
END_TEST

/* A chunk has a row for each moment of its optimizer, after which the second weight row follows. */
START_TEST(test_rows_of_a_chunk)
{
    const struct cst_table_header header = {.moments = CST_MOMENTS_MX8};

    ck_assert_int_eq(CST_ROW_WEIGHT_OTHER, CST_ROW_MOMENT + 3);
    for (int row = CST_ROW_MOMENT; row < CST_ROW_MOMENT + 3; row++) {
        ck_assert(cst_table_is_moment(row) && cst_table_is_state(row));
        ck_assert(cst_table_has_row(CST_OPTIMIZER_ADAMW, CST_BF16, row));
        ck_assert_uint_eq(cst_table_row_bytes(&header, CST_BF16, row, 64), 66);
        ck_assert_uint_eq(cst_table_row_align(&header, CST_BF16, row), 1);
    }
    ck_assert(!cst_table_is_moment(CST_ROW_WEIGHT_OTHER));
    ck_assert(!cst_table_is_state(CST_ROW_WEIGHT_OTHER));
    ck_assert_uint_eq(cst_table_row_bytes(&header, CST_BF16, CST_ROW_WEIGHT_OTHER, 64), 128);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("third moment");
    TCase *tcase = suite_case(suite, "third moment", NULL, NULL);

    tcase_add_loop_test(tcase, test_three_moments, 0, CST_MOMENTS_COUNT);
    tcase_add_test(tcase, test_roundings_differ);
    tcase_add_test(tcase, test_undo_holds_all);
    tcase_add_test(tcase, test_rows_of_a_chunk);
    return hostile_main(suite);
}
