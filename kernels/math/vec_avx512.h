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

#include "kernels/math/vec_common.h"

typedef uint32_t cst_vec_u32 __attribute__((vector_size(64)));
typedef __m512i cst_vec_word;

#include "kernels/math/vec_lanes.h"

/* -- arithmetic ----------------------------------------------------------------------------- */

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

CST_INLINE struct cst_vec_bits cst_vec_lanes(void)
{
    return cst_vec_bits_of(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
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

/* In the functions of groups, @n is always CST_VEC_GROUP: half a group is never processed alone. */

/* One permutation puts each half of the row into the upper halves of lanes. */
CST_INLINE void cst_vec_load_all_bf16(const uint16_t *at, int n, struct cst_vec *out)
{
    const __m512i low = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0, 7, 0,
                                         6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0);
    const __m512i high = _mm512_set_epi16(31, 0, 30, 0, 29, 0, 28, 0, 27, 0, 26, 0, 25, 0, 24, 0,
                                          23, 0, 22, 0, 21, 0, 20, 0, 19, 0, 18, 0, 17, 0, 16, 0);
    __m512i h = _mm512_loadu_si512(at);

    (void)n;
    out[0].x = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, low, h));
    out[1].x = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, high, h));
}

/* Returns the upper halves of the lanes of @a and @b. */
CST_INLINE __m512i cst_vec_upper(__m512i a, __m512i b)
{
    const __m512i odd =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                         25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);

    return _mm512_permutex2var_epi16(a, odd, b);
}

/* Returns the lower halves of the lanes of @a and @b. */
CST_INLINE __m512i cst_vec_lower(__m512i a, __m512i b)
{
    const __m512i even =
        _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                         24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);

    return _mm512_permutex2var_epi16(a, even, b);
}

CST_INLINE void cst_vec_store_halves(uint16_t *at, __m512i h, bool stream)
{
    if (stream) {
        _mm512_stream_si512((__m512i *)(void *)at, h);
    } else {
        _mm512_storeu_si512(at, h);
    }
}

CST_INLINE void cst_vec_store_upper(uint16_t *at, int n, const struct cst_vec_bits *v, bool stream)
{
    (void)n;
    cst_vec_store_halves(at, cst_vec_upper(v[0].x, v[1].x), stream);
}

CST_INLINE void cst_vec_store_lower(uint16_t *at, int n, const struct cst_vec_bits *v)
{
    (void)n;
    cst_vec_store_halves(at, cst_vec_lower(v[0].x, v[1].x), false);
}

/* The upper half is rounded up if the lower half is more than 2^15, or is 2^15 where the upper half
 * is odd. */
CST_INLINE void cst_vec_store_bf16(uint16_t *at, int n, const struct cst_vec *v, bool stream)
{
    const __m512i one = _mm512_set1_epi16(1);
    __m512i a = _mm512_castps_si512(v[0].x), b = _mm512_castps_si512(v[1].x);
    __m512i upper = cst_vec_upper(a, b);
    /* (~upper & 1) | 2^15 */
    __m512i least = _mm512_ternarylogic_epi32(upper, one, _mm512_set1_epi16((short)0x8000), 0xae);
    __mmask32 up = _mm512_cmpge_epu16_mask(cst_vec_lower(a, b), least);

    (void)n;
    cst_vec_store_halves(at, _mm512_mask_add_epi16(upper, up, upper, one), stream);
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

CST_INLINE struct cst_vec_bits cst_vec_fixed(unsigned which, struct cst_vec x, struct cst_vec unit)
{
    /* The larger magnitude, with the sign of x. */
    __m512 most = which == 0 ? _mm512_range_ps(x.x, unit.x, 0x3) : _mm512_max_ps(x.x, unit.x);

    return cst_vec_bits_of(_mm512_castps_si512(_mm512_add_ps(x.x, most)));
}

/* The highest bits of @v are the signs. */
CST_INLINE void cst_vec_store_codes(unsigned which, uint8_t *at,
                                    const struct cst_vec_bits v[CST_VEC_GROUP],
                                    struct cst_vec_common unit,
                                    const struct cst_vec from[CST_VEC_GROUP])
{
    __m512i upper = cst_vec_upper(v[0].x, v[1].x);
    __m256i c = _mm512_cvtepi16_epi8(_mm512_srli_epi16(upper, 4));

    c = _mm256_sub_epi8(c, _mm256_set1_epi8((char)(unit.x >> 20)));
    if (which == 0) {
        c = _mm256_mask_add_epi8(c, _mm512_movepi16_mask(upper), c, _mm256_set1_epi8((char)0x80));
    } else {
        __m512i low = _mm512_castps_si512(from[0].x), high = _mm512_castps_si512(from[1].x);
        __mmask32 some =
            _mm512_kunpackw(_mm512_test_epi32_mask(high, high), _mm512_test_epi32_mask(low, low));

        c = _mm256_mask_max_epu8(c, some, c, _mm256_set1_epi8(1));
    }
    _mm256_storeu_si256((__m256i *)(void *)at, c);
}

/* Returns the largest bits of eight parts of a group. */
CST_INLINE __m256i cst_vec_largest_of_parts(unsigned which, const struct cst_vec v[CST_VEC_GROUP])
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i a = _mm512_castps_si512(v[0].x), b = _mm512_castps_si512(v[1].x);

    if (which == 0) {
        a = _mm512_and_si512(a, magnitude);
        b = _mm512_and_si512(b, magnitude);
    }
    a = _mm512_max_epu32(a, b);
    return _mm256_max_epu32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
}

/* Two groups are reduced in one vector, in lanes with even and with odd numbers. */
CST_INLINE void cst_vec_largest_two(unsigned which, bool two,
                                    const struct cst_vec v[][CST_VEC_GROUP],
                                    struct cst_vec_common largest[])
{
    __m256i a = cst_vec_largest_of_parts(which & 1u, v[0]);
    __m128i x;

    if (two) {
        __m256i b = cst_vec_largest_of_parts(which >> 1 & 1u, v[1]);

        a = _mm256_max_epu32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    }
    x = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0x4e));
    if (two) {
        largest[1] = cst_vec_common_of((uint32_t)_mm_extract_epi32(x, 1));
    } else {
        x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0xb1));
    }
    largest[0] = cst_vec_common_of((uint32_t)_mm_cvtsi128_si32(x));
}

CST_INLINE void cst_vec_largest(unsigned which, unsigned n, const struct cst_vec v[][CST_VEC_GROUP],
                                struct cst_vec_common largest[])
{
    CST_VEC_UNROLL
    for (unsigned k = 0; k < n; k += 2) {
        cst_vec_largest_two(which >> k, k + 1 < n, v + k, largest + k);
    }
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
