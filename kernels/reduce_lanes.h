/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of the variants of the reduction: one element, and the tree that ends the sum of
 * squares. Private to kernels/. */
#ifndef CST_REDUCE_LANES_H
#define CST_REDUCE_LANES_H

#include "kernels/cast.h"
#include "kernels/reduce.h"

#include <math.h>

#define CST_REDUCE_LANES 16

/* Returns the sum of element @i over the sources, in rank order, as bf16. */
static inline uint16_t cst_reduce_one(size_t i, uint32_t n_src, const uint16_t *const *src)
{
    float s = n_src == 0 ? 0.0f : cst_bf16_to_fp32(src[0][i]);

    for (uint32_t r = 1; r < n_src; r++) {
        s += cst_bf16_to_fp32(src[r][i]);
    }
    return n_src > 1 && s != s ? CST_REDUCE_NAN : cst_fp32_to_bf16(s);
}

/* Add the square of @value to *lane: lane = fma(x, x, lane). */
static inline void cst_reduce_square(uint16_t value, double *lane)
{
    double x = (double)cst_bf16_to_fp32(value);

    *lane = fma(x, x, *lane);
}

/* Returns the sum of the lanes, added in a tree. The contents of @lanes are lost. */
static inline double cst_reduce_tree(double lanes[CST_REDUCE_LANES])
{
    const uint64_t bits = 0x7ff8000000000000u;
    double nan;

    for (size_t half = CST_REDUCE_LANES / 2; half > 0; half /= 2) {
        for (size_t j = 0; j < half; j++) {
            lanes[j] += lanes[j + half];
        }
    }
    memcpy(&nan, &bits, sizeof nan);
    return lanes[0] != lanes[0] ? nan : lanes[0];
}

#endif
