/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of one update in any format, each ending at an unmapped page, and the reference update of
 * them. */
#ifndef CST_TESTS_UPDATE_ROWS_H
#define CST_TESTS_UPDATE_ROWS_H

#include "kernels/math/moments.h"
#include "proto/table.h"
#include "tests/kernels/update_truth.h"

/* Rows of @n elements each; n is a multiple of 32. */
struct rows {
    enum cst_moments format;
    size_t n;
    uint16_t *grad;
    float *grad_fp32;
    uint16_t *direction; /* MUON */
    uint16_t *weight;
    float *master;
    struct cst_update_moment moments[2];
};

/* The form of an update. */
struct how {
    enum cst_optimizer optimizer;
    enum cst_moments moments;
    enum cst_rounding rounding;
    bool wide; /* gradients are fp32 */
};

#define N_HOWS (CST_OPTIMIZER_COUNT * 5 * 2)

static inline struct how how_of(int i)
{
    static const int formats[5][2] = {{CST_MOMENTS_FP32, CST_ROUNDING_NEAREST},
                                      {CST_MOMENTS_BF16, CST_ROUNDING_NEAREST},
                                      {CST_MOMENTS_BF16, CST_ROUNDING_STOCHASTIC},
                                      {CST_MOMENTS_MX8, CST_ROUNDING_NEAREST},
                                      {CST_MOMENTS_MX8, CST_ROUNDING_STOCHASTIC}};
    const int *format = formats[i / 2 % 5];

    return (struct how){.optimizer = (enum cst_optimizer)(i / 10),
                        .moments = (enum cst_moments)format[0],
                        .rounding = (enum cst_rounding)format[1],
                        .wide = i % 2 == 1};
}

static inline cst_update_fn fn_of(const struct cst_kernels *kernels, struct how how)
{
    return kernels->update->v[how.optimizer][how.moments][how.rounding];
}

static inline size_t moment_bytes(enum cst_moments format, size_t n)
{
    return (size_t)cst_table_moment_bytes(format, n);
}

static inline void allocate(struct rows *rows, enum cst_moments format, size_t n)
{
    *rows = (struct rows){.format = format, .n = n};
    rows->grad = hostile_buffer(n * sizeof *rows->grad);
    rows->grad_fp32 = hostile_buffer(n * sizeof *rows->grad_fp32);
    rows->direction = hostile_buffer(n * sizeof *rows->direction);
    rows->weight = hostile_buffer(n * sizeof *rows->weight);
    rows->master = hostile_buffer(n * sizeof *rows->master);
    for (int k = 0; k < 2; k++) {
        rows->moments[k].values = hostile_buffer(moment_bytes(format, n));
        if (format == CST_MOMENTS_MX8) {
            rows->moments[k].exponents = (uint8_t *)rows->moments[k].values + n;
        }
    }
}

static inline void copy_rows(struct rows *to, const struct rows *from)
{
    memcpy(to->grad, from->grad, to->n * sizeof *to->grad);
    memcpy(to->grad_fp32, from->grad_fp32, to->n * sizeof *to->grad_fp32);
    memcpy(to->direction, from->direction, to->n * sizeof *to->direction);
    memcpy(to->weight, from->weight, to->n * sizeof *to->weight);
    memcpy(to->master, from->master, to->n * sizeof *to->master);
    for (int k = 0; k < 2; k++) {
        memcpy(to->moments[k].values, from->moments[k].values, moment_bytes(to->format, to->n));
    }
}

static inline void assert_same(const struct rows *got, const struct rows *want)
{
    size_t n = got->n;

    suite_must(memcmp(got->grad, want->grad, n * sizeof *got->grad) == 0 &&
                   memcmp(got->grad_fp32, want->grad_fp32, n * sizeof *got->grad_fp32) == 0,
               "the gradient changed");
    suite_must(memcmp(got->master, want->master, n * sizeof *got->master) == 0,
               "other master weights");
    suite_must(memcmp(got->weight, want->weight, n * sizeof *got->weight) == 0, "other weights");
    for (int k = 0; k < 2; k++) {
        suite_must(memcmp(got->moments[k].values, want->moments[k].values,
                          moment_bytes(got->format, n)) == 0,
                   "other values of moment %d", k);
    }
}

/* Fill all rows with random bits. Exponents of mx8 are in the range of numbers, or sometimes
 * NaN. */
static inline void fill_hostile(struct rows *rows, uint64_t *state)
{
    uint64_t own = *state; /* For the direction, which other updates do not have. */

    for (size_t i = 0; i < rows->n; i++) {
        rows->grad[i] = hostile_bf16(state);
        rows->grad_fp32[i] = hostile_fp32(state);
        rows->direction[i] = hostile_bf16(&own);
        rows->weight[i] = hostile_bf16(state);
        rows->master[i] = hostile_fp32(state);
        for (int k = 0; k < 2; k++) {
            if (rows->format == CST_MOMENTS_FP32) {
                ((float *)rows->moments[k].values)[i] = hostile_fp32(state);
            } else if (rows->format == CST_MOMENTS_BF16) {
                ((uint16_t *)rows->moments[k].values)[i] = hostile_bf16(state);
            } else {
                ((uint8_t *)rows->moments[k].values)[i] = (uint8_t)(hostile_next(state) % 248);
                if (i % 32 == 0) {
                    uint64_t r = hostile_next(state);

                    rows->moments[k].exponents[i / 32] =
                        (uint8_t)(r % 8 == 0   ? 255
                                  : r % 8 == 1 ? 0
                                               : 15 + (r >> 8) % 220);
                }
            }
        }
    }
}

/* Fill the rows with values that are usual after some steps of training. */
static inline void fill_ordinary(struct rows *rows, uint64_t *state)
{
    float *m = calloc(rows->n, sizeof *m), *v = calloc(rows->n, sizeof *v);
    uint64_t own = *state; /* For the direction, which other updates do not have. */

    for (size_t i = 0; i < rows->n; i++) {
        float scale = ldexpf(1.0f, -(int)(hostile_next(state) % 12));

        m[i] = hostile_unit(state) * 0.01f * scale;
        v[i] = m[i] * m[i] * (1.0f + hostile_unit(state));
        rows->grad[i] = cst_fp32_to_bf16(hostile_unit(state) * 0.1f * scale);
        rows->grad_fp32[i] = hostile_unit(state) * 0.1f;
        rows->direction[i] = cst_fp32_to_bf16(hostile_unit(&own) * 0.1f);
        rows->weight[i] = 0;
        rows->master[i] = hostile_unit(state);
    }
    cst_moments_encode(rows->format, 0, 0, rows->n, m, &rows->moments[0]);
    cst_moments_encode(rows->format, 1, 0, rows->n, v, &rows->moments[1]);
    free(m);
    free(v);
}

static inline struct cst_update_moment moment_at(const struct rows *rows, int k, size_t i)
{
    struct cst_update_moment at = {
        .values = (char *)rows->moments[k].values +
                  (rows->format == CST_MOMENTS_MX8 ? i : moment_bytes(rows->format, i))};

    if (rows->format == CST_MOMENTS_MX8) {
        at.exponents = rows->moments[k].exponents + i / 32;
    }
    return at;
}

/* The rows @in and @out from element @first on, in the type that the kernel takes. */
static inline struct cst_update_rows rows_from(struct how how, const struct rows *in,
                                               const struct rows *out, size_t first)
{
    bool two = cst_optimizer_n_moments(how.optimizer) == 2;
    bool muon = how.optimizer == CST_OPTIMIZER_MUON;
    struct cst_update_rows rows = {.grad_bf16 = how.wide ? NULL : in->grad + first,
                                   .grad_fp32 = how.wide ? in->grad_fp32 + first : NULL,
                                   .direction = muon ? in->direction + first : NULL,
                                   .master_in = in->master + first,
                                   .master = out->master + first,
                                   .weight = out->weight + first};

    for (int k = 0; k < (two ? 2 : 1); k++) {
        rows.moments_in[k] = moment_at(in, k, first);
        rows.moments[k] = moment_at(out, k, first);
    }
    return rows;
}

static inline float truth_load(const struct rows *rows, unsigned k, size_t i)
{
    const void *values = rows->moments[k].values;

    return rows->format == CST_MOMENTS_FP32 ? ((const float *)values)[i]
           : rows->format == CST_MOMENTS_BF16
               ? cst_bf16_to_fp32(((const uint16_t *)values)[i])
               : truth_mx8_decode(k, ((const uint8_t *)values)[i],
                                  rows->moments[k].exponents[i / 32]);
}

/* Store elements [i, i + n) of moment @k, at most one block. The number of the first one is
 * random->element. */
static inline void truth_store(struct how how, struct rows *rows, unsigned k, size_t i, size_t n,
                               const float *x, const struct cst_update_random *random)
{
    const bool near = how.rounding == CST_ROUNDING_NEAREST;
    void *values = rows->moments[k].values;
    uint8_t exponent = how.moments == CST_MOMENTS_MX8 ? truth_mx8_exponent(k, x, n) : 0;

    if (how.moments == CST_MOMENTS_MX8) {
        rows->moments[k].exponents[i / 32] = exponent;
    }
    for (size_t j = 0; j < n; j++) {
        uint64_t element = random->element + j;

        if (how.moments == CST_MOMENTS_FP32) {
            ((float *)values)[i + j] = truth_canonical(x[j]);
        } else if (how.moments == CST_MOMENTS_BF16) {
            ((uint16_t *)values)[i + j] =
                truth_bf16(how.rounding, x[j], near ? 0 : truth_random(random, element, k, 16));
        } else {
            ((uint8_t *)values)[i + j] = truth_mx8_encode(
                k, x[j], exponent, near ? -1 : (int64_t)truth_random(random, element, k, 20));
        }
    }
}

/* Update elements [first, first + n) in place, by the reference. */
static inline void truth_update(struct how how, const struct cst_update_scalars *scalars,
                                const struct cst_update_random *random, struct rows *rows,
                                size_t first, size_t n)
{
    for (size_t i = first; i < first + n; i += 32) {
        size_t block = first + n - i < 32 ? first + n - i : 32;
        struct cst_update_random here = *random;
        float moments[2][32];

        for (size_t j = 0; j < block; j++) {
            float g = how.wide ? rows->grad_fp32[i + j] : cst_bf16_to_fp32(rows->grad[i + j]);

            moments[0][j] = truth_load(rows, 0, i + j);
            moments[1][j] = how.optimizer == CST_OPTIMIZER_MUON
                                ? cst_bf16_to_fp32(rows->direction[i + j])
                                : truth_load(rows, 1, i + j);
            truth_one(how.optimizer, how.moments, scalars, g, &rows->master[i + j], &moments[0][j],
                      &moments[1][j]);
            rows->weight[i + j] = cst_fp32_to_bf16(rows->master[i + j]);
        }
        here.element += i - first;
        for (unsigned k = 0; k < cst_optimizer_n_moments(how.optimizer); k++) {
            truth_store(how, rows, k, i, block, moments[k], &here);
        }
    }
}

static inline struct cst_update_scalars ordinary_scalars(uint64_t t)
{
    struct cst_update_scalars scalars;

    cst_update_prepare(&scalars, 1e-3, 0.9, 0.999, 1e-8, 0.1, 0.5f, t);
    return scalars;
}

static inline struct cst_update_scalars hostile_scalars(uint64_t *state)
{
    struct cst_update_scalars scalars;
    float *x = (float *)(void *)&scalars;

    for (size_t i = 0; i < sizeof scalars / sizeof *x; i++) {
        x[i] = hostile_fp32(state);
    }
    scalars.ratio_limit = fabsf(scalars.ratio_limit); /* the definition makes this a magnitude */
    return scalars;
}

#endif
