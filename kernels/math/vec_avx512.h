/* SPDX-License-Identifier: Apache-2.0 */
/* The vectors of kernels/math/vec_ref.h in AVX-512, with 16 lanes. The bf16 conversion instruction
 * of the processor is not used because it flushes subnormals to zero. */
#ifndef CST_VEC_AVX512_H
#define CST_VEC_AVX512_H

#include "kernels/math/philox.h"
#include "kernels/math/update.h"

#include <immintrin.h>
#include <stdbool.h>

#define CST_VEC_LANES 16
#define CST_VEC_GROUP 2
#define CST_VEC_UNROLL _Pragma("GCC unroll 4")

struct cst_vec {
    __m512 x;
};

struct cst_vec_bits {
    __m512i x;
};

CST_INLINE struct cst_vec cst_vec_of(__m512 x)
{
    return (struct cst_vec){x};
}

CST_INLINE struct cst_vec_bits cst_vec_bits_of(__m512i x)
{
    return (struct cst_vec_bits){x};
}

CST_INLINE struct cst_vec cst_vec_set(float x)
{
    return cst_vec_of(_mm512_set1_ps(x));
}

CST_INLINE struct cst_vec_bits cst_vec_set_bits(uint32_t x)
{
    return cst_vec_bits_of(_mm512_set1_epi32((int)x));
}

CST_INLINE struct cst_vec cst_vec_from_bits(struct cst_vec_bits b)
{
    return cst_vec_of(_mm512_castsi512_ps(b.x));
}

CST_INLINE struct cst_vec_bits cst_vec_to_bits(struct cst_vec v)
{
    return cst_vec_bits_of(_mm512_castps_si512(v.x));
}

/* -- arithmetic ----------------------------------------------------------------------------- */

CST_INLINE struct cst_vec cst_vec_add(struct cst_vec a, struct cst_vec b)
{
    return cst_vec_of(_mm512_add_ps(a.x, b.x));
}

CST_INLINE struct cst_vec cst_vec_sub(struct cst_vec a, struct cst_vec b)
{
    return cst_vec_of(_mm512_sub_ps(a.x, b.x));
}

CST_INLINE struct cst_vec cst_vec_mul(struct cst_vec a, struct cst_vec b)
{
    return cst_vec_of(_mm512_mul_ps(a.x, b.x));
}

CST_INLINE struct cst_vec cst_vec_div(struct cst_vec a, struct cst_vec b)
{
    return cst_vec_of(_mm512_div_ps(a.x, b.x));
}

CST_INLINE struct cst_vec cst_vec_sqrt(struct cst_vec a)
{
    return cst_vec_of(_mm512_sqrt_ps(a.x));
}

CST_INLINE struct cst_vec cst_vec_fma(struct cst_vec a, struct cst_vec b, struct cst_vec c)
{
    return cst_vec_of(_mm512_fmadd_ps(a.x, b.x, c.x));
}

CST_INLINE struct cst_vec cst_vec_fnma(struct cst_vec a, struct cst_vec b, struct cst_vec c)
{
    return cst_vec_of(_mm512_fnmadd_ps(a.x, b.x, c.x));
}

/* -- bits ----------------------------------------------------------------------------------- */

CST_INLINE struct cst_vec_bits cst_vec_and(struct cst_vec_bits a, struct cst_vec_bits b)
{
    return cst_vec_bits_of(_mm512_and_si512(a.x, b.x));
}

CST_INLINE struct cst_vec_bits cst_vec_or(struct cst_vec_bits a, struct cst_vec_bits b)
{
    return cst_vec_bits_of(_mm512_or_si512(a.x, b.x));
}

CST_INLINE struct cst_vec_bits cst_vec_xor(struct cst_vec_bits a, struct cst_vec_bits b)
{
    return cst_vec_bits_of(_mm512_xor_si512(a.x, b.x));
}

CST_INLINE struct cst_vec_bits cst_vec_plus(struct cst_vec_bits a, struct cst_vec_bits b)
{
    return cst_vec_bits_of(_mm512_add_epi32(a.x, b.x));
}

CST_INLINE struct cst_vec_bits cst_vec_minus(struct cst_vec_bits a, struct cst_vec_bits b)
{
    return cst_vec_bits_of(_mm512_sub_epi32(a.x, b.x));
}

CST_INLINE struct cst_vec_bits cst_vec_times(struct cst_vec_bits a, struct cst_vec_bits b)
{
    return cst_vec_bits_of(_mm512_mullo_epi32(a.x, b.x));
}

CST_INLINE struct cst_vec_bits cst_vec_lanes(void)
{
    return cst_vec_bits_of(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

CST_INLINE struct cst_vec_bits cst_vec_right(struct cst_vec_bits a, int n)
{
    return cst_vec_bits_of(_mm512_srli_epi32(a.x, (unsigned)n));
}

CST_INLINE struct cst_vec_bits cst_vec_left(struct cst_vec_bits a, int n)
{
    return cst_vec_bits_of(_mm512_slli_epi32(a.x, (unsigned)n));
}

CST_INLINE struct cst_vec_bits cst_vec_max(struct cst_vec_bits a, struct cst_vec_bits b)
{
    return cst_vec_bits_of(_mm512_max_epi32(a.x, b.x));
}

CST_INLINE struct cst_vec cst_vec_larger(struct cst_vec a, struct cst_vec b)
{
    return cst_vec_of(_mm512_max_ps(a.x, b.x));
}

/* The minimum and the maximum of a NaN and a number are the second operand. */
CST_INLINE struct cst_vec cst_vec_limit(struct cst_vec x, struct cst_vec limit)
{
    __m512 least = _mm512_xor_ps(limit.x, _mm512_set1_ps(-0.0f));

    return cst_vec_of(_mm512_max_ps(least, _mm512_min_ps(limit.x, x.x)));
}

/* -- choice by lane ------------------------------------------------------------------------- */

CST_INLINE struct cst_vec cst_vec_if_nan(struct cst_vec x, struct cst_vec a, struct cst_vec b)
{
    return cst_vec_of(_mm512_mask_mov_ps(b.x, _mm512_cmp_ps_mask(x.x, x.x, _CMP_UNORD_Q), a.x));
}

CST_INLINE struct cst_vec cst_vec_if_zero(struct cst_vec x, struct cst_vec a, struct cst_vec b)
{
    __mmask16 k = _mm512_cmp_ps_mask(x.x, _mm512_setzero_ps(), _CMP_EQ_OQ);

    return cst_vec_of(_mm512_mask_mov_ps(b.x, k, a.x));
}

/* -- memory --------------------------------------------------------------------------------- */

CST_INLINE struct cst_vec cst_vec_load(const float *at)
{
    return cst_vec_of(_mm512_loadu_ps(at));
}

CST_INLINE void cst_vec_store(float *at, struct cst_vec v)
{
    _mm512_storeu_ps(at, v.x);
}

CST_INLINE void cst_vec_stream(float *at, struct cst_vec v)
{
    _mm512_stream_ps(at, v.x);
}

CST_INLINE struct cst_vec cst_vec_load_bf16(const uint16_t *at)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)at);

    return cst_vec_of(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)));
}

CST_INLINE struct cst_vec_bits cst_vec_load_int16(const int16_t *at)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)at);

    return cst_vec_bits_of(_mm512_cvtepi16_epi32(h));
}

CST_INLINE struct cst_vec cst_vec_load_signed(const uint8_t *codes)
{
    __m256i c = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)codes));

    /* Sign extension has put the sign into the two highest bits of the half. The mask clears the
     * lower of the two. */
    c = _mm256_and_si256(_mm256_slli_epi16(c, 7), _mm256_set1_epi16((short)0xbfff));
    return cst_vec_of(_mm512_cvtph_ps(c));
}

CST_INLINE struct cst_vec cst_vec_load_unsigned(const uint8_t *codes)
{
    __m256i c = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)codes));

    return cst_vec_of(_mm512_cvtph_ps(_mm256_slli_epi16(c, 7)));
}

/* -- groups --------------------------------------------------------------------------------- */

/* @n is always CST_VEC_GROUP: half a group is never stored alone. */
CST_INLINE void cst_vec_store_upper(uint16_t *at, int n, const struct cst_vec_bits *v, bool stream)
{
    const __m512i odd =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                         25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    __m512i h = _mm512_permutex2var_epi16(v[0].x, odd, v[1].x);

    (void)n;
    if (stream) {
        _mm512_stream_si512((__m512i *)(void *)at, h);
    } else {
        _mm512_storeu_si512(at, h);
    }
}

/* @n is that of cst_vec_store_upper. */
CST_INLINE void cst_vec_store_lower(uint16_t *at, int n, const struct cst_vec_bits *v)
{
    const __m512i even =
        _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                         24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);

    (void)n;
    _mm512_storeu_si512(at, _mm512_permutex2var_epi16(v[0].x, even, v[1].x));
}

/* Sixteen sums of squares in double, kernels/math/reduce.h. Lane i mod 16 has those of element i.
 */
struct cst_vec_squares {
    __m512d x[2];
};

CST_INLINE void cst_vec_add_squares(struct cst_vec_squares *sums,
                                    const struct cst_vec v[CST_VEC_GROUP])
{
    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v[j].x));
        __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v[j].x, 1));

        sums->x[0] = _mm512_fmadd_pd(low, low, sums->x[0]);
        sums->x[1] = _mm512_fmadd_pd(high, high, sums->x[1]);
    }
}

CST_INLINE bool cst_vec_can_stream(const void *at)
{
    return ((uintptr_t)at & 63) == 0;
}

CST_INLINE void cst_vec_fence(void)
{
    _mm_sfence();
}

CST_INLINE void cst_vec_store_codes(unsigned which, uint8_t *at,
                                    const struct cst_vec_bits v[CST_VEC_GROUP],
                                    struct cst_vec_bits excess,
                                    const struct cst_vec_bits from[CST_VEC_GROUP])
{
    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        __m512i c = _mm512_sub_epi32(v[j].x, excess.x);

        if (which == 0) { /* code | (from >> 24 & 0x80) */
            c = _mm512_ternarylogic_epi32(c, _mm512_srli_epi32(from[j].x, 24),
                                          _mm512_set1_epi32(0x80), 0xf8);
        } else {
            c = _mm512_max_epi32(c, _mm512_min_epi32(from[j].x, _mm512_set1_epi32(1)));
        }
        _mm_storeu_si128((__m128i *)(void *)(at + 16 * j), _mm512_cvtepi32_epi8(c));
    }
}

CST_INLINE struct cst_vec_bits cst_vec_largest(const struct cst_vec_bits v[CST_VEC_GROUP])
{
    __m512i a = _mm512_max_epi32(v[0].x, v[1].x);

    a = _mm512_max_epi32(a, _mm512_shuffle_i64x2(a, a, 0x4e));
    a = _mm512_max_epi32(a, _mm512_shuffle_i64x2(a, a, 0xb1));
    a = _mm512_max_epi32(a, _mm512_shuffle_epi32(a, _MM_PERM_BADC));
    return cst_vec_bits_of(_mm512_max_epi32(a, _mm512_shuffle_epi32(a, _MM_PERM_CDAB)));
}

CST_INLINE uint32_t cst_vec_first(struct cst_vec_bits v)
{
    return (uint32_t)_mm_cvtsi128_si32(_mm512_castsi512_si128(v.x));
}

struct cst_vec_flags {
    __mmask16 x;
};

CST_INLINE struct cst_vec_flags cst_vec_no_flags(void)
{
    return (struct cst_vec_flags){0};
}

CST_INLINE struct cst_vec_flags cst_vec_flag_nan(struct cst_vec_flags flags, struct cst_vec a,
                                                 struct cst_vec b)
{
    __mmask16 k = _mm512_cmp_ps_mask(a.x, b.x, _CMP_UNORD_Q);

    /* GCC does not see by itself that 0 changes nothing. */
    return (struct cst_vec_flags){__builtin_constant_p(flags.x) ? k : _kor_mask16(flags.x, k)};
}

CST_INLINE bool cst_vec_flagged(struct cst_vec_flags flags)
{
    return flags.x != 0;
}

CST_INLINE void cst_vec_ahead(const void *at)
{
    _mm_prefetch((const char *)at, _MM_HINT_T0);
}

#endif
