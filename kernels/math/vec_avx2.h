/* SPDX-License-Identifier: Apache-2.0 */
/* The vectors of kernels/math/vec_ref.h in AVX2, with 8 lanes. */
#ifndef CST_VEC_AVX2_H
#define CST_VEC_AVX2_H

#include "kernels/math/philox.h"
#include "kernels/math/update.h"

#include <immintrin.h>
#include <stdbool.h>

#define CST_VEC_LANES 8
#define CST_VEC_GROUP 4
#define CST_VEC_UNROLL _Pragma("GCC unroll 4")

struct cst_vec {
    __m256 x;
};

struct cst_vec_bits {
    __m256i x;
};

CST_INLINE struct cst_vec cst_vec_of(__m256 x)
{
    return (struct cst_vec){x};
}

CST_INLINE struct cst_vec_bits cst_vec_bits_of(__m256i x)
{
    return (struct cst_vec_bits){x};
}

CST_INLINE struct cst_vec cst_vec_set(float x)
{
    return cst_vec_of(_mm256_set1_ps(x));
}

CST_INLINE struct cst_vec_bits cst_vec_set_bits(uint32_t x)
{
    return cst_vec_bits_of(_mm256_set1_epi32((int)x));
}

CST_INLINE struct cst_vec cst_vec_from_bits(struct cst_vec_bits b)
{
    return cst_vec_of(_mm256_castsi256_ps(b.x));
}

CST_INLINE struct cst_vec_bits cst_vec_to_bits(struct cst_vec v)
{
    return cst_vec_bits_of(_mm256_castps_si256(v.x));
}

/* A number that all lanes have in common, in every lane. The operations are those of
 * kernels/math/vec_common.h. */
struct cst_vec_common {
    __m256i x;
};

CST_INLINE struct cst_vec_common cst_vec_common_plus(struct cst_vec_common a, uint32_t b)
{
    return (struct cst_vec_common){_mm256_add_epi32(a.x, _mm256_set1_epi32((int)b))};
}

CST_INLINE struct cst_vec_common cst_vec_common_and(struct cst_vec_common a, uint32_t b)
{
    return (struct cst_vec_common){_mm256_and_si256(a.x, _mm256_set1_epi32((int)b))};
}

CST_INLINE struct cst_vec_common cst_vec_common_max(struct cst_vec_common a, uint32_t b)
{
    return (struct cst_vec_common){_mm256_max_epu32(a.x, _mm256_set1_epi32((int)b))};
}

CST_INLINE uint32_t cst_vec_common_scalar(struct cst_vec_common a)
{
    return (uint32_t)_mm_cvtsi128_si32(_mm256_castsi256_si128(a.x));
}

CST_INLINE struct cst_vec_bits cst_vec_common_bits(struct cst_vec_common a)
{
    return cst_vec_bits_of(a.x);
}

typedef uint32_t cst_vec_u32 __attribute__((vector_size(32)));
typedef __m256i cst_vec_word;

#include "kernels/math/vec_lanes.h"

/* -- arithmetic ----------------------------------------------------------------------------- */

CST_INLINE struct cst_vec cst_vec_sqrt(struct cst_vec a)
{
    return cst_vec_of(_mm256_sqrt_ps(a.x));
}

CST_INLINE struct cst_vec cst_vec_fma(struct cst_vec a, struct cst_vec b, struct cst_vec c)
{
    return cst_vec_of(_mm256_fmadd_ps(a.x, b.x, c.x));
}

CST_INLINE struct cst_vec cst_vec_fnma(struct cst_vec a, struct cst_vec b, struct cst_vec c)
{
    return cst_vec_of(_mm256_fnmadd_ps(a.x, b.x, c.x));
}

/* -- bits ----------------------------------------------------------------------------------- */

CST_INLINE struct cst_vec_bits cst_vec_lanes(void)
{
    return cst_vec_bits_of(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The minimum and the maximum of a NaN and a number are the second operand. */
CST_INLINE struct cst_vec cst_vec_limit(struct cst_vec x, struct cst_vec limit)
{
    __m256 least = _mm256_xor_ps(limit.x, _mm256_set1_ps(-0.0f));

    return cst_vec_of(_mm256_max_ps(least, _mm256_min_ps(limit.x, x.x)));
}

/* -- choice by lane ------------------------------------------------------------------------- */

CST_INLINE struct cst_vec cst_vec_if_nan(struct cst_vec x, struct cst_vec a, struct cst_vec b)
{
    return cst_vec_of(_mm256_blendv_ps(b.x, a.x, _mm256_cmp_ps(x.x, x.x, _CMP_UNORD_Q)));
}

CST_INLINE struct cst_vec cst_vec_if_zero(struct cst_vec x, struct cst_vec a, struct cst_vec b)
{
    __m256 k = _mm256_cmp_ps(x.x, _mm256_setzero_ps(), _CMP_EQ_OQ);

    return cst_vec_of(_mm256_blendv_ps(b.x, a.x, k));
}

/* -- memory --------------------------------------------------------------------------------- */

CST_INLINE struct cst_vec cst_vec_load(const float *at)
{
    return cst_vec_of(_mm256_loadu_ps(at));
}

CST_INLINE void cst_vec_store(float *at, struct cst_vec v)
{
    _mm256_storeu_ps(at, v.x);
}

CST_INLINE void cst_vec_stream(float *at, struct cst_vec v)
{
    _mm256_stream_ps(at, v.x);
}

CST_INLINE struct cst_vec cst_vec_load_bf16(const uint16_t *at)
{
    const __m256i order =
        _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, -1, -1, 8, 9, -1,
                         -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    __m256i h = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)at));

    return cst_vec_of(_mm256_castsi256_ps(_mm256_shuffle_epi8(h, order)));
}

CST_INLINE struct cst_vec_bits cst_vec_load_int16(const int16_t *at)
{
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)at);

    return cst_vec_bits_of(_mm256_cvtepi16_epi32(h));
}

CST_INLINE struct cst_vec cst_vec_load_signed(const uint8_t *codes)
{
    __m128i c = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)codes));

    /* Sign extension has put the sign into the two highest bits of the half. The mask clears the
     * lower of the two. */
    c = _mm_and_si128(_mm_slli_epi16(c, 7), _mm_set1_epi16((short)0xbfff));
    return cst_vec_of(_mm256_cvtph_ps(c));
}

CST_INLINE struct cst_vec cst_vec_load_unsigned(const uint8_t *codes)
{
    __m128i c = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)codes));

    return cst_vec_of(_mm256_cvtph_ps(_mm_slli_epi16(c, 7)));
}

/* -- groups --------------------------------------------------------------------------------- */

CST_INLINE void cst_vec_load_all_bf16(const uint16_t *at, int n, struct cst_vec *out)
{
    CST_VEC_UNROLL
    for (int j = 0; j < n; j++) {
        out[j] = cst_vec_load_bf16(at + j * CST_VEC_LANES);
    }
}

CST_INLINE void cst_vec_store_upper(uint16_t *at, int n, const struct cst_vec_bits *v, bool stream)
{
    CST_VEC_UNROLL
    for (int j = 0; j < n; j += 2) {
        __m256i h =
            _mm256_packus_epi32(_mm256_srli_epi32(v[j].x, 16), _mm256_srli_epi32(v[j + 1].x, 16));

        /* Packing works on each half of the register. */
        h = _mm256_permute4x64_epi64(h, 0xd8);

        if (stream) {
            _mm256_stream_si256((__m256i *)(void *)(at + 8 * j), h);
        } else {
            _mm256_storeu_si256((__m256i *)(void *)(at + 8 * j), h);
        }
    }
}

CST_INLINE void cst_vec_store_lower(uint16_t *at, int n, const struct cst_vec_bits *v)
{
    const __m256i zero = _mm256_setzero_si256();

    CST_VEC_UNROLL
    for (int j = 0; j < n; j += 2) {
        __m256i h = _mm256_packus_epi32(_mm256_blend_epi16(v[j].x, zero, 0xaa),
                                        _mm256_blend_epi16(v[j + 1].x, zero, 0xaa));

        _mm256_storeu_si256((__m256i *)(void *)(at + 8 * j), _mm256_permute4x64_epi64(h, 0xd8));
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

/* Sixteen sums of squares in double, kernels/math/reduce.h. Lane i mod 16 has those of element i.
 */
struct cst_vec_squares {
    __m256d x[4];
};

CST_INLINE void cst_vec_add_squares(struct cst_vec_squares *sums,
                                    const struct cst_vec v[CST_VEC_GROUP])
{
    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v[j].x));
        __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v[j].x, 1));
        __m256d *lanes = &sums->x[j % 2 * 2];

        lanes[0] = _mm256_fmadd_pd(low, low, lanes[0]);
        lanes[1] = _mm256_fmadd_pd(high, high, lanes[1]);
    }
}

CST_INLINE bool cst_vec_can_stream(const void *at)
{
    return ((uintptr_t)at & 31) == 0;
}

CST_INLINE void cst_vec_fence(void)
{
    _mm_sfence();
}

/* Returns @x without its sign, if moments have one. */
CST_INLINE __m256i cst_vec_magnitude(unsigned which, struct cst_vec x)
{
    __m256i bits = _mm256_castps_si256(x.x);

    return which == 0 ? _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)) : bits;
}

CST_INLINE struct cst_vec_bits cst_vec_fixed(unsigned which, struct cst_vec x, struct cst_vec unit)
{
    __m256 y = _mm256_castsi256_ps(cst_vec_magnitude(which, x));

    return cst_vec_bits_of(_mm256_castps_si256(_mm256_add_ps(y, _mm256_max_ps(y, unit.x))));
}

/* Cut the lanes of @a and @b to their bits from 20 on. The lanes have no signs. */
CST_INLINE __m256i cst_vec_cut(struct cst_vec_bits a, struct cst_vec_bits b)
{
    return _mm256_packus_epi32(_mm256_srli_epi32(a.x, 20), _mm256_srli_epi32(b.x, 20));
}

/* Convert the lanes to bytes with saturation, which keeps signs and numbers that are not 0. Packing
 * works on each half of a register. */
CST_INLINE __m256i cst_vec_saturated(unsigned which, const struct cst_vec v[CST_VEC_GROUP])
{
    __m256i low = _mm256_packs_epi32(_mm256_castps_si256(v[0].x), _mm256_castps_si256(v[1].x));
    __m256i high = _mm256_packs_epi32(_mm256_castps_si256(v[2].x), _mm256_castps_si256(v[3].x));

    return which == 0 ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);
}

CST_INLINE void cst_vec_store_codes(unsigned which, uint8_t *at,
                                    const struct cst_vec_bits v[CST_VEC_GROUP],
                                    struct cst_vec_common unit,
                                    const struct cst_vec from[CST_VEC_GROUP])
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i units = _mm256_srli_epi32(unit.x, 20), less = _mm256_packus_epi32(units, units);
    __m256i low = _mm256_sub_epi16(cst_vec_cut(v[0], v[1]), less);
    __m256i high = _mm256_sub_epi16(cst_vec_cut(v[2], v[3]), less);
    __m256i c = _mm256_packus_epi16(low, high), x = cst_vec_saturated(which, from);

    if (which == 0) {
        c = _mm256_or_si256(c, _mm256_and_si256(x, _mm256_set1_epi8((char)0x80)));
    } else {
        c = _mm256_max_epu8(c, _mm256_min_epu8(x, _mm256_set1_epi8(1)));
    }
    _mm256_storeu_si256((__m256i *)(void *)at, _mm256_permutevar8x32_epi32(c, order));
}

/* Returns the largest bits of eight parts of a group. */
CST_INLINE __m256i cst_vec_largest_of_parts(unsigned which, const struct cst_vec v[CST_VEC_GROUP])
{
    __m256i a = _mm256_max_epu32(cst_vec_magnitude(which, v[0]), cst_vec_magnitude(which, v[1]));
    __m256i b = _mm256_max_epu32(cst_vec_magnitude(which, v[2]), cst_vec_magnitude(which, v[3]));

    return _mm256_max_epu32(a, b);
}

CST_INLINE void cst_vec_largest(unsigned which, unsigned n, const struct cst_vec v[][CST_VEC_GROUP],
                                struct cst_vec_common largest[])
{
    CST_VEC_UNROLL
    for (unsigned k = 0; k < n; k++) {
        __m256i a = cst_vec_largest_of_parts(which >> k & 1u, v[k]);

        a = _mm256_max_epu32(a, _mm256_permute2x128_si256(a, a, 1));
        a = _mm256_max_epu32(a, _mm256_shuffle_epi32(a, 0x4e));
        largest[k].x = _mm256_max_epu32(a, _mm256_shuffle_epi32(a, 0xb1));
    }
}

struct cst_vec_flags {
    __m256 x;
};

CST_INLINE struct cst_vec_flags cst_vec_no_flags(void)
{
    return (struct cst_vec_flags){_mm256_setzero_ps()};
}

CST_INLINE struct cst_vec_flags cst_vec_flag_nan(struct cst_vec_flags flags, struct cst_vec a,
                                                 struct cst_vec b)
{
    return (struct cst_vec_flags){_mm256_or_ps(flags.x, _mm256_cmp_ps(a.x, b.x, _CMP_UNORD_Q))};
}

CST_INLINE bool cst_vec_flagged(struct cst_vec_flags flags)
{
    return _mm256_movemask_ps(flags.x) != 0;
}

CST_INLINE void cst_vec_ahead(const void *at)
{
    _mm_prefetch((const char *)at, _MM_HINT_T0);
}

#endif
