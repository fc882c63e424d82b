/* SPDX-License-Identifier: Apache-2.0 */
/* The vectors of kernels/math/vec_ref.h in NEON (AArch64), with 4 lanes. */
#ifndef CST_VEC_NEON_H
#define CST_VEC_NEON_H

#include "kernels/math/philox.h"
#include "kernels/math/update.h"

#include <arm_neon.h>
#include <stdbool.h>
#include <string.h>

#define CST_VEC_LANES 4
#define CST_VEC_GROUP 8
#define CST_VEC_UNROLL _Pragma("GCC unroll 8")

struct cst_vec {
    float32x4_t x;
};

struct cst_vec_bits {
    uint32x4_t x;
};

CST_INLINE struct cst_vec cst_vec_of(float32x4_t x)
{
    return (struct cst_vec){x};
}

CST_INLINE struct cst_vec_bits cst_vec_bits_of(uint32x4_t x)
{
    return (struct cst_vec_bits){x};
}

CST_INLINE struct cst_vec cst_vec_set(float x)
{
    return cst_vec_of(vdupq_n_f32(x));
}

CST_INLINE struct cst_vec_bits cst_vec_set_bits(uint32_t x)
{
    return cst_vec_bits_of(vdupq_n_u32(x));
}

CST_INLINE struct cst_vec cst_vec_from_bits(struct cst_vec_bits b)
{
    return cst_vec_of(vreinterpretq_f32_u32(b.x));
}

CST_INLINE struct cst_vec_bits cst_vec_to_bits(struct cst_vec v)
{
    return cst_vec_bits_of(vreinterpretq_u32_f32(v.x));
}

#include "kernels/math/vec_common.h"

typedef uint32x4_t cst_vec_u32, cst_vec_word;

#include "kernels/math/vec_lanes.h"

/* -- arithmetic ----------------------------------------------------------------------------- */

CST_INLINE struct cst_vec cst_vec_sqrt(struct cst_vec a)
{
    return cst_vec_of(vsqrtq_f32(a.x));
}

CST_INLINE struct cst_vec cst_vec_fma(struct cst_vec a, struct cst_vec b, struct cst_vec c)
{
    return cst_vec_of(vfmaq_f32(c.x, a.x, b.x));
}

CST_INLINE struct cst_vec cst_vec_fnma(struct cst_vec a, struct cst_vec b, struct cst_vec c)
{
    return cst_vec_of(vfmsq_f32(c.x, a.x, b.x));
}

/* -- bits ----------------------------------------------------------------------------------- */

CST_INLINE struct cst_vec_bits cst_vec_lanes(void)
{
    return cst_vec_bits_of((uint32x4_t){0, 1, 2, 3});
}

CST_INLINE struct cst_vec cst_vec_limit(struct cst_vec x, struct cst_vec limit)
{
    float32x4_t most = vbslq_f32(vdupq_n_u32(0x80000000u), x.x, limit.x);

    /* A comparison of magnitudes. It does not hold for a NaN. */
    return cst_vec_of(vbslq_f32(vcagtq_f32(x.x, limit.x), most, x.x));
}

/* -- choice by lane ------------------------------------------------------------------------- */

CST_INLINE struct cst_vec cst_vec_if_nan(struct cst_vec x, struct cst_vec a, struct cst_vec b)
{
    /* A NaN does not equal itself. */
    return cst_vec_of(vbslq_f32(vceqq_f32(x.x, x.x), b.x, a.x));
}

CST_INLINE struct cst_vec cst_vec_if_zero(struct cst_vec x, struct cst_vec a, struct cst_vec b)
{
    return cst_vec_of(vbslq_f32(vceqzq_f32(x.x), a.x, b.x));
}

/* -- memory --------------------------------------------------------------------------------- */

CST_INLINE struct cst_vec cst_vec_load(const float *at)
{
    return cst_vec_of(vld1q_f32(at));
}

CST_INLINE void cst_vec_store(float *at, struct cst_vec v)
{
    vst1q_f32(at, v.x);
}

CST_INLINE void cst_vec_stream(float *at, struct cst_vec v)
{
    cst_vec_store(at, v);
}

CST_INLINE struct cst_vec cst_vec_load_bf16(const uint16_t *at)
{
    uint16x8_t h = vcombine_u16(vld1_u16(at), vdup_n_u16(0));

    return cst_vec_of(vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), h)));
}

CST_INLINE struct cst_vec_bits cst_vec_load_int16(const int16_t *at)
{
    return cst_vec_bits_of(vreinterpretq_u32_s32(vmovl_s16(vld1_s16(at))));
}

/* Load four codes to the lower half of a vector. */
CST_INLINE uint8x8_t cst_vec_load_codes(const uint8_t *codes)
{
    uint32_t four;

    memcpy(&four, codes, sizeof four);
    return vreinterpret_u8_u32(vdup_n_u32(four));
}

CST_INLINE struct cst_vec cst_vec_load_signed(const uint8_t *codes)
{
    int16x8_t c = vshll_n_s8(vreinterpret_s8_u8(cst_vec_load_codes(codes)), 7);

    /* Sign extension has put the sign into the two highest bits of the half. The mask clears the
     * lower of the two. */
    c = vbicq_s16(c, vdupq_n_s16(0x4000));
    return cst_vec_of(vcvt_f32_f16(vreinterpret_f16_s16(vget_low_s16(c))));
}

CST_INLINE struct cst_vec cst_vec_load_unsigned(const uint8_t *codes)
{
    uint16x8_t c = vshll_n_u8(cst_vec_load_codes(codes), 7);

    return cst_vec_of(vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(c))));
}

/* -- groups --------------------------------------------------------------------------------- */

CST_INLINE void cst_vec_load_all_bf16(const uint16_t *at, int n, struct cst_vec *out)
{
    const uint16x8_t zero = vdupq_n_u16(0);

    CST_VEC_UNROLL
    for (int j = 0; j < n; j += 2) {
        uint16x8_t h = vld1q_u16(at + 4 * j);

        out[j] = cst_vec_of(vreinterpretq_f32_u16(vzip1q_u16(zero, h)));
        out[j + 1] = cst_vec_of(vreinterpretq_f32_u16(vzip2q_u16(zero, h)));
    }
}

/* The weights do not bypass the cache: the processors detect rows that are only written. */
CST_INLINE void cst_vec_store_upper(uint16_t *at, int n, const struct cst_vec_bits *v, bool stream)
{
    (void)stream;
    CST_VEC_UNROLL
    for (int j = 0; j < n; j += 2) {
        vst1q_u16(at + 4 * j,
                  vuzp2q_u16(vreinterpretq_u16_u32(v[j].x), vreinterpretq_u16_u32(v[j + 1].x)));
    }
}

CST_INLINE void cst_vec_store_lower(uint16_t *at, int n, const struct cst_vec_bits *v)
{
    CST_VEC_UNROLL
    for (int j = 0; j < n; j += 2) {
        vst1q_u16(at + 4 * j,
                  vuzp1q_u16(vreinterpretq_u16_u32(v[j].x), vreinterpretq_u16_u32(v[j + 1].x)));
    }
}

CST_INLINE void cst_vec_store_bf16(uint16_t *at, int n, const struct cst_vec *v, bool stream)
{
    struct cst_vec_bits upper[CST_VEC_GROUP];

    CST_VEC_UNROLL
    for (int j = 0; j < n; j++) {
        struct cst_vec_bits bits = cst_vec_to_bits(v[j]);
        struct cst_vec_bits odd = cst_vec_and(cst_vec_right(bits, 16), cst_vec_set_bits(1));

        upper[j] = cst_vec_plus(bits, cst_vec_plus(odd, cst_vec_set_bits(0x7fff)));
    }
    cst_vec_store_upper(at, n, upper, stream);
}

CST_INLINE bool cst_vec_can_stream(const void *at)
{
    (void)at;
    return false;
}

CST_INLINE void cst_vec_fence(void)
{
}

/* Sixteen sums of squares in double, kernels/math/reduce.h. Lane i mod 16 has those of element i.
 */
struct cst_vec_squares {
    float64x2_t x[8];
};

CST_INLINE void cst_vec_add_squares(struct cst_vec_squares *sums,
                                    const struct cst_vec v[CST_VEC_GROUP])
{
    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        float64x2_t low = vcvt_f64_f32(vget_low_f32(v[j].x));
        float64x2_t high = vcvt_high_f64_f32(v[j].x);
        float64x2_t *lanes = &sums->x[j % 4 * 2];

        lanes[0] = vfmaq_f64(lanes[0], low, low);
        lanes[1] = vfmaq_f64(lanes[1], high, high);
    }
}

CST_INLINE struct cst_vec_bits cst_vec_fixed(unsigned which, struct cst_vec x, struct cst_vec unit)
{
    float32x4_t y = which == 0 ? vabsq_f32(x.x) : x.x;

    return cst_vec_bits_of(vreinterpretq_u32_f32(vaddq_f32(y, vmaxq_f32(y, unit.x))));
}

/* Returns the upper halves of the lanes of @a and @b. */
CST_INLINE uint16x8_t cst_vec_upper(uint32x4_t a, uint32x4_t b)
{
    return vuzp2q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
}

/* Returns the bytes with the signs of four vectors. */
CST_INLINE uint8x16_t cst_vec_signs(const struct cst_vec v[4])
{
    uint16x8_t low = cst_vec_upper(cst_vec_to_bits(v[0]).x, cst_vec_to_bits(v[1]).x);
    uint16x8_t high = cst_vec_upper(cst_vec_to_bits(v[2]).x, cst_vec_to_bits(v[3]).x);

    return vuzp2q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
}

/* Convert the bits of each lane to a byte with saturation. */
CST_INLINE uint8x16_t cst_vec_saturated(const struct cst_vec v[4])
{
    uint16x8_t low = vqmovn_high_u32(vqmovn_u32(cst_vec_to_bits(v[0]).x), cst_vec_to_bits(v[1]).x);
    uint16x8_t high = vqmovn_high_u32(vqmovn_u32(cst_vec_to_bits(v[2]).x), cst_vec_to_bits(v[3]).x);

    return vqmovn_high_u16(vqmovn_u16(low), high);
}

CST_INLINE void cst_vec_store_codes(unsigned which, uint8_t *at,
                                    const struct cst_vec_bits v[CST_VEC_GROUP],
                                    struct cst_vec_common unit,
                                    const struct cst_vec from[CST_VEC_GROUP])
{
    const uint8x16_t less = vdupq_n_u8((uint8_t)(unit.x >> 20));

    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j += 4) {
        uint8x8_t low = vshrn_n_u16(cst_vec_upper(v[j].x, v[j + 1].x), 4);
        uint16x8_t high = cst_vec_upper(v[j + 2].x, v[j + 3].x);
        uint8x16_t c = vsubq_u8(vshrn_high_n_u16(low, high, 4), less);

        if (which == 0) {
            c = vbslq_u8(vdupq_n_u8(0x80), cst_vec_signs(from + j), c);
        } else {
            c = vmaxq_u8(c, vminq_u8(cst_vec_saturated(from + j), vdupq_n_u8(1)));
        }
        vst1q_u8(at + 4 * j, c);
    }
}

CST_INLINE void cst_vec_largest(unsigned which, unsigned n, const struct cst_vec v[][CST_VEC_GROUP],
                                struct cst_vec_common largest[])
{
    CST_VEC_UNROLL
    for (unsigned k = 0; k < n; k++) {
        uint32x4_t most = vdupq_n_u32(0);

        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            float32x4_t x = (which >> k & 1u) == 0 ? vabsq_f32(v[k][j].x) : v[k][j].x;

            most = vmaxq_u32(most, vreinterpretq_u32_f32(x));
        }
        largest[k] = cst_vec_common_of(vmaxvq_u32(most));
    }
}

struct cst_vec_flags {
    uint32x4_t x; /* All bits of a lane are 1 if there was no NaN in it. */
};

CST_INLINE struct cst_vec_flags cst_vec_no_flags(void)
{
    return (struct cst_vec_flags){vdupq_n_u32(UINT32_MAX)};
}

CST_INLINE struct cst_vec_flags cst_vec_flag_nan(struct cst_vec_flags flags, struct cst_vec a,
                                                 struct cst_vec b)
{
    /* The larger one of a NaN and a number is the NaN, which does not equal itself. */
    float32x4_t most = vmaxq_f32(a.x, b.x);

    return (struct cst_vec_flags){vandq_u32(flags.x, vceqq_f32(most, most))};
}

CST_INLINE bool cst_vec_flagged(struct cst_vec_flags flags)
{
    return vminvq_u32(flags.x) == 0;
}

CST_INLINE void cst_vec_ahead(const void *at)
{
    __builtin_prefetch(at);
}

#endif
