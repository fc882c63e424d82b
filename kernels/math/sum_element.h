/* SPDX-License-Identifier: Apache-2.0 */
/* One element of kernels/math/reduce.h, kernels/math/accumulate.h and kernels/math/total.h, and the
 * tree that ends a sum of squares. For the reference variants, and for the last elements of the
 * others. Private to kernels/. */
#ifndef CST_SUM_ELEMENT_H
#define CST_SUM_ELEMENT_H

#include "kernels/math/accumulate.h"
#include "kernels/math/cast.h"
#include "kernels/math/reduce.h"
#include "kernels/math/total.h"

#include <math.h>

#define CST_SUM_LANES 16

/* Contributions in rank order. */
struct cst_sum_sources {
    uint32_t n;
    bool wide;                   /* They are in `fp32`, otherwise in `bf16`. */
    const uint16_t *const *bf16; /* NULL if `wide`. */
    const float *const *fp32;    /* NULL unless `wide`. */
};

/* Returns element @i of contribution @r. */
static inline float cst_sum_load(const struct cst_sum_sources *src, uint32_t r, size_t i)
{
    return src->wide ? src->fp32[r][i] : cst_bf16_to_fp32(src->bf16[r][i]);
}

/* Returns the sum for element @i: *row plus the sources in rank order. If @row is NULL, the sources
 * alone are summed. */
static inline float cst_sum_total(size_t i, const struct cst_sum_sources *src, const float *row)
{
    float x = row != NULL ? *row : src->n == 0 ? 0.0f : cst_sum_load(src, 0, i);

    for (uint32_t r = row == NULL; r < src->n; r++) {
        x += cst_sum_load(src, r, i);
    }
    return x;
}

/* Add the square of @x to the lane of element @i. */
static inline void cst_sum_square(float x, size_t i, double lanes[CST_SUM_LANES])
{
    double *lane = &lanes[i % CST_SUM_LANES];

    *lane = fma((double)x, (double)x, *lane);
}

/* Reduce element @i: store the sum of the sources in @dst, and add its square. */
static inline void cst_reduce_element(size_t i, uint32_t n_src, const uint16_t *const *src,
                                      uint16_t *dst, double lanes[CST_SUM_LANES])
{
    float s = cst_sum_total(i, &(struct cst_sum_sources){.n = n_src, .bf16 = src}, NULL);

    dst[i] = n_src > 1 && s != s ? CST_REDUCE_NAN : cst_fp32_to_bf16(s);
    cst_sum_square(cst_bf16_to_fp32(dst[i]), i, lanes);
}

/* Store @x as element @i of the fp32 row @dst, and add its square. */
static inline void cst_accumulate_element(float x, size_t i, float *dst,
                                          double lanes[CST_SUM_LANES])
{
    const uint32_t bits = CST_ACCUMULATE_NAN;

    if (x != x) {
        memcpy(&x, &bits, sizeof x);
    }
    dst[i] = x;
    cst_sum_square(x, i, lanes);
}

/* Return element @i of a total of fp32 contributions. */
static inline float cst_total_fp32_element(size_t i, uint32_t n_src, const float *const *src)
{
    const uint32_t bits = CST_TOTAL_NAN;
    float x = src[0][i];

    for (uint32_t r = 1; r < n_src; r++) {
        x += src[r][i];
    }
    if (x != x) {
        memcpy(&x, &bits, sizeof x);
    }
    return x;
}

/* Return element @i of a total of bf16 contributions. */
static inline uint16_t cst_total_bf16_element(size_t i, uint32_t n_src, const uint16_t *const *src)
{
    float x = cst_sum_total(i, &(struct cst_sum_sources){.n = n_src, .bf16 = src}, NULL);

    return x != x ? CST_TOTAL_NAN >> 16 : cst_fp32_to_bf16(x);
}

/* Returns the sum of the lanes, added in a tree. The contents of @lanes are lost. */
static inline double cst_sum_tree(double lanes[CST_SUM_LANES])
{
    const uint64_t bits = 0x7ff8000000000000u;
    double nan;

    for (size_t half = CST_SUM_LANES / 2; half > 0; half /= 2) {
        for (size_t j = 0; j < half; j++) {
            lanes[j] += lanes[j + half];
        }
    }
    memcpy(&nan, &bits, sizeof nan);
    return lanes[0] != lanes[0] ? nan : lanes[0];
}

#endif
