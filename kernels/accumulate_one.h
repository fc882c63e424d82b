/* One element of the reduction into an fp32 gradient, for the reference and the AVX2 variant's
 * tails. Private to kernels/. */
#ifndef CST_ACCUMULATE_ONE_H
#define CST_ACCUMULATE_ONE_H

#include "kernels/accumulate.h"
#include "kernels/reduce_lanes.h"

/* s of element @i: the sum over the sources, in rank order. */
static inline float cst_accumulate_total(size_t i, uint32_t n_src, const uint16_t *const *src)
{
    float s = n_src == 0 ? 0.0f : cst_bf16_to_fp32(src[0][i]);

    for (uint32_t r = 1; r < n_src; r++) {
        s += cst_bf16_to_fp32(src[r][i]);
    }
    return s;
}

/* Store or add @s, and square the result into @lane. */
static inline void cst_accumulate_one(float s, bool accumulate, float *dst, double *lane)
{
    const uint32_t bits = CST_ACCUMULATE_NAN;
    float x = accumulate ? *dst + s : s;

    if (x != x) {
        memcpy(&x, &bits, sizeof x);
    }
    *dst = x;
    *lane = fma((double)x, (double)x, *lane);
}

#endif
