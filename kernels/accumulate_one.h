/* SPDX-License-Identifier: Apache-2.0 */
/* One element of the reduction into an fp32 gradient row, shared by the reference variant and by
 * the tails of the AVX2 variant. Private to kernels/. */
#ifndef CST_ACCUMULATE_ONE_H
#define CST_ACCUMULATE_ONE_H

#include "kernels/accumulate.h"
#include "kernels/reduce_lanes.h"

/* Returns the sum for element @i: *row plus the sources in rank order. If @row is NULL, the sources
 * alone are summed. */
static inline float cst_accumulate_total(size_t i, uint32_t n_src, const uint16_t *const *src,
                                         const float *row)
{
    float x = row != NULL ? *row : n_src == 0 ? 0.0f : cst_bf16_to_fp32(src[0][i]);

    for (uint32_t r = row == NULL; r < n_src; r++) {
        x += cst_bf16_to_fp32(src[r][i]);
    }
    return x;
}

/* Store @x in *dst and add its square to *lane. */
static inline void cst_accumulate_one(float x, float *dst, double *lane)
{
    const uint32_t bits = CST_ACCUMULATE_NAN;

    if (x != x) {
        memcpy(&x, &bits, sizeof x);
    }
    *dst = x;
    *lane = fma((double)x, (double)x, *lane);
}

#endif
