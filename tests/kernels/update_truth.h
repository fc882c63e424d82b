/* SPDX-License-Identifier: Apache-2.0 */
/* The update of kernels/math/update.h a second time, as the tests' reference. Each formula is
 * written in plain C, and formats of moments in double precision by their definition
 * (kernels/math/mx8.h). It shares only Philox with the kernels, which has test vectors of its own.
 */
#ifndef CST_TESTS_UPDATE_TRUTH_H
#define CST_TESTS_UPDATE_TRUTH_H

#include "kernels/math/philox.h"
#include "tests/kernels/hostile.h"

#include <math.h>

static inline uint32_t truth_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float truth_canonical(float x)
{
    return isnan(x) ? hostile_from_bits(CST_UPDATE_NAN) : x;
}

/* @m / @d, limited to the ratio's limit if moments are mx8. */
static inline float truth_ratio(enum cst_moments moments, const struct cst_update_scalars *s,
                                float m, float d)
{
    float ratio = m / d;

    return moments == CST_MOMENTS_MX8 && fabsf(ratio) > s->ratio_limit
               ? copysignf(s->ratio_limit, ratio)
               : ratio;
}

/* Update one element. @m and @v are decoded before the call; the results are not rounded yet. MUON:
 * @v is the direction. */
static inline void truth_one(enum cst_optimizer optimizer, enum cst_moments moments,
                             const struct cst_update_scalars *s, float g, float *p, float *m,
                             float *v)
{
    float u, d;

    g = g * s->grad_scale;
    switch (optimizer) {
    case CST_OPTIMIZER_ADAM:
        g = fmaf(s->weight_decay, *p, g);
        *m = fmaf(s->one_minus_beta1, g - *m, *m);
        *v = fmaf(s->one_minus_beta2, g * g, s->beta2 * *v);
        d = fmaf(sqrtf(*v), s->inv_sqrt_bias2, s->eps);
        *p = fmaf(-s->step_size, truth_ratio(moments, s, *m, d), *p);
        break;
    case CST_OPTIMIZER_LION:
        u = fmaf(s->one_minus_beta1, g - *m, *m);
        u = u > 0.0f ? 1.0f : u < 0.0f ? -1.0f : u == 0.0f ? 0.0f : u;
        *p = fmaf(-s->lr, u, *p * s->decay);
        *m = fmaf(s->one_minus_beta2, g - *m, *m);
        break;
    case CST_OPTIMIZER_SGD:
        g = fmaf(s->weight_decay, *p, g);
        *m = fmaf(s->beta1, *m, g);
        *p = fmaf(-s->lr, *m, *p);
        break;
    case CST_OPTIMIZER_MUON:
        *m = fmaf(s->one_minus_beta1, g - *m, *m);
        *p = fmaf(-s->step_size, *v, *p * s->decay);
        break;
    case CST_OPTIMIZER_ADAMW:
    case CST_OPTIMIZER_COUNT:
    default:
        *m = fmaf(s->one_minus_beta1, g - *m, *m);
        *v = fmaf(s->one_minus_beta2, g * g, s->beta2 * *v);
        d = fmaf(sqrtf(*v), s->inv_sqrt_bias2, s->eps);
        *p = fmaf(-s->step_size, truth_ratio(moments, s, *m, d), *p * s->decay);
        break;
    }
    *p = truth_canonical(*p);
}

/* @n random bits for element @element of exp_avg or exp_avg_sq (@which). */
static inline uint32_t truth_random(const struct cst_update_random *random, uint64_t element,
                                    unsigned which, int n)
{
    uint64_t span = element / 4096;
    uint32_t place = (uint32_t)(element % 4096 / 32 * 16 + element % 16);
    uint32_t key[4] = {(uint32_t)span, (uint32_t)(span >> 32), (uint32_t)random->t,
                       (uint32_t)(random->t >> 32)};
    uint32_t word;

    cst_philox(random->seed, key);
    word = place * 0x9e3779b9u + key[0];
    word = (word ^ word >> 16) * 0x21f0aaadu + key[1];
    word = (word ^ word >> 15) * 0xd35a2d97u;
    word ^= word >> 15;
    if (which == 1) {
        word = (word ^ word >> 16) * 0x9e3779b1u;
    }
    return element % 32 >= 16 ? word >> (32 - n) : word & ((1u << n) - 1);
}

/* -- bf16 ----------------------------------------------------------------------------------- */

static inline uint16_t truth_bf16(enum cst_rounding rounding, float x, uint32_t add)
{
    x = truth_canonical(x);
    return rounding == CST_ROUNDING_NEAREST ? cst_fp32_to_bf16(x)
                                            : (uint16_t)((truth_bits(x) + add) >> 16);
}

/* -- mx8 ------------------------------------------------------------------------------------ */

/* Bias of the code's exponent, and the largest exponent in use. */
static inline int truth_bias(unsigned which)
{
    return which == 0 ? 7 : 15;
}

static inline double truth_largest_value(unsigned which)
{
    return which == 0 ? 480.0 : 61440.0;
}

static inline float truth_mx8_decode(unsigned which, uint8_t code, uint8_t exponent)
{
    int e = code >> 3 & (which == 0 ? 15 : 31), f = code & 7;
    double x =
        e > 0 ? ldexp(1.0 + f / 8.0, e - truth_bias(which)) : ldexp(f / 8.0, 1 - truth_bias(which));

    if (exponent > 246) {
        return hostile_from_bits(CST_UPDATE_NAN);
    }
    if (which == 0 && (code & 0x80) != 0) {
        x = -x;
    }
    return (float)(exponent == 0 ? copysign(0.0, x) : ldexp(x, exponent - 127));
}

/* The exponent of a block of @n elements. */
static inline uint8_t truth_mx8_exponent(unsigned which, const float *x, size_t n)
{
    double largest = 0.0;
    int exponent = truth_bias(which);

    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            return 255;
        }
        largest = fmax(largest, fabs((double)x[i]));
    }
    if (largest > ldexp(1.875, 127)) {
        return 255;
    }
    while (largest > ldexp(truth_largest_value(which), exponent - 127)) {
        exponent++;
    }
    return largest == 0.0 ? 0 : (uint8_t)exponent;
}

/* Encode @x. @add: the number that is added to the 20 bits that are cut off; negative: round to
 * nearest. */
static inline uint8_t truth_mx8_encode(unsigned which, float x, uint8_t exponent, int64_t add)
{
    double y = ldexp(fabs((double)x), 127 - exponent), smallest = ldexp(1.0, 1 - truth_bias(which));
    bool negative = which == 0 && signbit(x);
    int64_t q, code;
    double unit;
    int e;

    if (exponent == 255 || exponent == 0) {
        return exponent == 0 && negative ? 0x80 : 0;
    }
    e = y < smallest ? 1 : ilogb(y) + truth_bias(which);
    unit = ldexp(0.125, e - truth_bias(which));
    q = (int64_t)rint(y / unit * 1048576.0);
    code = (q + (add < 0 ? 0x7ffff + (q >> 20 & 1) : add)) >> 20;
    /* Codes 8 to 15 are 1.0 to 1.875 with this exponent, 16 is the next exponent's first, and codes
     * below 8 have e = 0. */
    code = code + (e - 1) * 8;
    if (which == 1 && code == 0 && x != 0.0f) {
        code = 1;
    }
    return (uint8_t)(negative ? code | 0x80 : code);
}

#endif
