/* SPDX-License-Identifier: Apache-2.0 */
/* The vectors of kernels/math/formulas.h and kernels/math/formats.h in plain C, with one lane. This
 * file defines the meaning of each operation. vec_avx2.h, vec_avx512.h, vec_neon.h and vec.cuh of
 * CUDA provide the same operations. Private to kernels/. A file includes only one of these headers.
 */
#ifndef CST_VEC_REF_H
#define CST_VEC_REF_H

#include "kernels/math/cast.h"
#include "kernels/math/philox.h"
#include "kernels/math/update.h"

#include <math.h>
#include <stdbool.h>

#define CST_VEC_LANES 1
#define CST_VEC_GROUP CST_UPDATE_GROUP /* Number of vectors in a group. */
/* Precedes a loop over the few vectors of a group, or over moments. */
#define CST_VEC_UNROLL

/* fp32 lanes. */
struct cst_vec {
    float x;
};

/* The lanes as 32 bits each. */
struct cst_vec_bits {
    uint32_t x;
};

CST_INLINE struct cst_vec cst_vec_set(float x)
{
    struct cst_vec v = {x};

    return v;
}

CST_INLINE struct cst_vec_bits cst_vec_set_bits(uint32_t x)
{
    struct cst_vec_bits v = {x};

    return v;
}

CST_INLINE struct cst_vec cst_vec_from_bits(struct cst_vec_bits b)
{
    struct cst_vec v;

    memcpy(&v.x, &b.x, sizeof v.x);
    return v;
}

CST_INLINE struct cst_vec_bits cst_vec_to_bits(struct cst_vec v)
{
    struct cst_vec_bits b;

    memcpy(&b.x, &v.x, sizeof b.x);
    return b;
}

#include "kernels/math/vec_common.h"

/* A lane of cst_vec_bits as the type of its numbers, and as the type of the field. */
typedef uint32_t cst_vec_u32, cst_vec_word;

#include "kernels/math/vec_lanes.h"

/* -- arithmetic ----------------------------------------------------------------------------- */

CST_INLINE struct cst_vec cst_vec_sqrt(struct cst_vec a)
{
    return cst_vec_set(sqrtf(a.x));
}

/* Returns a * b + c. */
CST_INLINE struct cst_vec cst_vec_fma(struct cst_vec a, struct cst_vec b, struct cst_vec c)
{
    return cst_vec_set(fmaf(a.x, b.x, c.x));
}

/* Returns -a * b + c. */
CST_INLINE struct cst_vec cst_vec_fnma(struct cst_vec a, struct cst_vec b, struct cst_vec c)
{
    return cst_vec_set(fmaf(-a.x, b.x, c.x));
}

/* -- bits ----------------------------------------------------------------------------------- */

/* Returns the number of each lane. */
CST_INLINE struct cst_vec_bits cst_vec_lanes(void)
{
    return cst_vec_set_bits(0);
}

/* Returns @x, or @limit or -@limit if @x is outside of [-@limit, @limit]. A NaN stays that NaN. */
CST_INLINE struct cst_vec cst_vec_limit(struct cst_vec x, struct cst_vec limit)
{
    return cst_vec_set(fabsf(x.x) > limit.x ? copysignf(limit.x, x.x) : x.x);
}

/* -- choice by lane: returns a if the condition holds, else b ------------------------------ */

CST_INLINE struct cst_vec cst_vec_if_nan(struct cst_vec x, struct cst_vec a, struct cst_vec b)
{
    return x.x != x.x ? a : b;
}

CST_INLINE struct cst_vec cst_vec_if_zero(struct cst_vec x, struct cst_vec a, struct cst_vec b)
{
    return x.x == 0.0f ? a : b;
}

/* -- memory: addresses of any whole elements ----------------------------------------------- */

CST_INLINE struct cst_vec cst_vec_load(const float *at)
{
    return cst_vec_set(*at);
}

CST_INLINE void cst_vec_store(float *at, struct cst_vec v)
{
    *at = v.x;
}

/* Store past the cache, where that is possible. cst_vec_can_stream must hold for the row. */
CST_INLINE void cst_vec_stream(float *at, struct cst_vec v)
{
    *at = v.x;
}

CST_INLINE struct cst_vec cst_vec_load_bf16(const uint16_t *at)
{
    return cst_vec_set(cst_bf16_to_fp32(*at));
}

/* Load signed integers, which have the same value in the lanes. */
CST_INLINE struct cst_vec_bits cst_vec_load_int16(const int16_t *at)
{
    return cst_vec_set_bits((uint32_t)(int32_t)*at);
}

/* Convert IEEE halves with these bits to fp32. The conversion is exact. */
CST_INLINE struct cst_vec cst_vec_from_half(uint32_t half)
{
    uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 0x3ffu;

    if (exponent == 0) {
        float magnitude = (float)fraction * 0x1p-24f;

        return cst_vec_set(sign != 0 ? -magnitude : magnitude);
    }
    exponent = exponent == 31 ? 255 : exponent + 112;
    return cst_vec_from_bits(cst_vec_set_bits(sign | exponent << 23 | fraction << 13));
}

/* Load codes of mx8 (kernels/math/mx8.h) without the exponent of the block: signed codes of
 * exp_avg, and unsigned codes of exp_avg_sq. */
CST_INLINE struct cst_vec cst_vec_load_signed(const uint8_t *codes)
{
    return cst_vec_from_half((*codes & 0x80u) << 8 | (*codes & 0x7fu) << 7);
}

CST_INLINE struct cst_vec cst_vec_load_unsigned(const uint8_t *codes)
{
    return cst_vec_from_half((uint32_t)*codes << 7);
}

/* -- groups: CST_UPDATE_GROUP elements ------------------------------------------------------ */

/* Load @n vectors of bf16, which are a group or half a group. */
CST_INLINE void cst_vec_load_all_bf16(const uint16_t *at, int n, struct cst_vec *out)
{
    for (int j = 0; j < n; j++) {
        out[j] = cst_vec_load_bf16(at + j);
    }
}

/* Store the upper halves of the lanes of @n vectors, which are a group or half a group. @stream:
 * bypass the cache; cst_vec_fence is then needed. */
CST_INLINE void cst_vec_store_upper(uint16_t *at, int n, const struct cst_vec_bits *v, bool stream)
{
    (void)stream;
    for (int j = 0; j < n; j++) {
        at[j] = (uint16_t)(v[j].x >> 16);
    }
}

/* Store the lower halves of the lanes of @n vectors, as cst_vec_store_upper stores the upper ones.
 */
CST_INLINE void cst_vec_store_lower(uint16_t *at, int n, const struct cst_vec_bits *v)
{
    for (int j = 0; j < n; j++) {
        at[j] = (uint16_t)(v[j].x & 0xffffu);
    }
}

/* Store @n vectors, which are a group or half a group, as bf16, rounded to nearest even. A NaN must
 * be CST_UPDATE_NAN. @stream is that of cst_vec_store_upper. */
CST_INLINE void cst_vec_store_bf16(uint16_t *at, int n, const struct cst_vec *v, bool stream)
{
    (void)stream;
    for (int j = 0; j < n; j++) {
        at[j] = cst_fp32_to_bf16(v[j].x);
    }
}

/* Returns whether rows at @at can be stored with @stream. */
CST_INLINE bool cst_vec_can_stream(const void *at)
{
    (void)at;
    return false;
}

CST_INLINE void cst_vec_fence(void)
{
}

/* The functions for mx8 (kernels/math/mx8.h) take moments of one kind. @which is 0 for moments
 * with a sign and 1 for those without, and a compile-time constant.
 *
 * Returns the bits of |x| + max(|x|, unit). If @which is 0, the highest bit can be the sign of
 * @x. */
CST_INLINE struct cst_vec_bits cst_vec_fixed(unsigned which, struct cst_vec x, struct cst_vec unit)
{
    struct cst_vec y = cst_vec_set(fabsf(x.x));

    (void)which;
    return cst_vec_to_bits(cst_vec_add(y, y.x > unit.x ? y : unit));
}

/* Store codes of mx8. @v are results of cst_vec_fixed for @from, rounded at bit 20. @unit are the
 * bits of their unit. The code of a lane is bits 20 to 27 of @v - @unit. A code with a sign gets
 * that of @from in addition. A code without is at least 1 if @from, which has no sign, is not 0. */
CST_INLINE void cst_vec_store_codes(unsigned which, uint8_t *at,
                                    const struct cst_vec_bits v[CST_VEC_GROUP],
                                    struct cst_vec_common unit,
                                    const struct cst_vec from[CST_VEC_GROUP])
{
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        uint8_t code = (uint8_t)((v[j].x - unit.x) >> 20);
        uint32_t bits = cst_vec_to_bits(from[j]).x;

        at[j] = (uint8_t)(which == 0 ? code | (bits >> 24 & 0x80u) : code == 0 ? bits != 0 : code);
    }
}

/* Set @largest to the largest bits of each of @n groups: without their signs if bit k of @which,
 * that of group k, is 0. */
CST_INLINE void cst_vec_largest(unsigned which, unsigned n, const struct cst_vec v[][CST_VEC_GROUP],
                                struct cst_vec_common largest[])
{
    for (unsigned k = 0; k < n; k++) {
        const uint32_t mask = (which >> k & 1u) == 0 ? 0x7fffffffu : UINT32_MAX;

        largest[k] = cst_vec_common_of(0);
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            largest[k] = cst_vec_common_max(largest[k], cst_vec_to_bits(v[k][j]).x & mask);
        }
    }
}

/* Whether there was a NaN. */
struct cst_vec_flags {
    bool x;
};

CST_INLINE struct cst_vec_flags cst_vec_no_flags(void)
{
    return (struct cst_vec_flags){false};
}

/* Add to @flags whether a lane of @a or @b is a NaN. */
CST_INLINE struct cst_vec_flags cst_vec_flag_nan(struct cst_vec_flags flags, struct cst_vec a,
                                                 struct cst_vec b)
{
    return (struct cst_vec_flags){flags.x || isunordered(a.x, b.x)};
}

CST_INLINE bool cst_vec_flagged(struct cst_vec_flags flags)
{
    return flags.x;
}

/* Prefetch the line at @at. */
CST_INLINE void cst_vec_ahead(const void *at)
{
    (void)at;
}

#endif
