/* One element of AdamW in scalar C: the truth that every variant is compared with. Private to
 * kernels/: the reference is a loop over it, the AVX2 variant uses it for heads and tails. It is
 * `static inline` on purpose: each file compiles its own copy under its own -m flags, where fmaf
 * and sqrtf are one instruction, and the bits are the same. */
#ifndef CST_ADAMW_ONE_H
#define CST_ADAMW_ONE_H

#include "kernels/adamw.h"
#include "kernels/adamw_undo.h"
#include "kernels/cast.h"

#include <math.h>

/* @x, or the canonical quiet NaN if @x is any NaN: which payload survives an addition differs
 * between instructions. */
static inline float cst_adamw_canonical(float x)
{
    const uint32_t bits = CST_ADAMW_NAN;
    float nan;

    memcpy(&nan, &bits, sizeof nan);
    return x != x ? nan : x;
}

/* The lines of kernels/adamw.h, in their order; @grad as fp32. */
static inline void cst_adamw_one(const struct cst_adamw *hyper, float grad, float *master,
                                 float *exp_avg, float *exp_avg_sq, uint16_t *weight)
{
    float g = grad * hyper->grad_scale;
    float m = fmaf(hyper->one_minus_beta1, g - *exp_avg, *exp_avg);
    float v = fmaf(hyper->one_minus_beta2, g * g, hyper->beta2 * *exp_avg_sq);
    float d = fmaf(sqrtf(v), hyper->inv_sqrt_bias2, hyper->eps);
    float p = fmaf(-hyper->step_size, m / d, *master * hyper->decay);

    p = cst_adamw_canonical(p);
    *exp_avg = cst_adamw_canonical(m);
    *exp_avg_sq = cst_adamw_canonical(v);
    *master = p;
    *weight = cst_fp32_to_bf16(p);
}

#endif
