/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 in AVX-512 registers, shared by the AVX-512 variants. Private to kernels/. The bf16
 * conversion instruction of the processor is not used because it flushes subnormals to zero. */
#ifndef CST_BF16_AVX512_H
#define CST_BF16_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the mask of the first @n lanes, or of all sixteen if @n is larger. */
static inline __mmask16 cst_avx512_first(size_t n)
{
    return (__mmask16)(n < 16 ? (1u << n) - 1u : 0xffffu);
}

/* Load bf16 values as fp32 in the lanes of mask @k. The other lanes are zero, and their memory is
 * not read. */
static inline __m512 cst_avx512_load_bf16(__mmask16 k, const uint16_t *src)
{
    __m256i h = _mm256_maskz_loadu_epi16(k, src);

    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* cst_fp32_to_bf16 of sixteen lanes. */
static inline __m256i cst_avx512_round_bf16(__m512 x)
{
    const __m512i inf = _mm512_set1_epi32(0x7f800000);
    const __m512i one = _mm512_set1_epi32(1);
    __m512i u = _mm512_castps_si512(x);
    __m512i high = _mm512_srli_epi32(u, 16);
    __m512i bias = _mm512_add_epi32(_mm512_and_si512(high, one), _mm512_set1_epi32(0x7fff));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, bias), 16);
    __m512i magnitude = _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff));
    __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, inf);

    rounded = _mm512_mask_or_epi32(rounded, is_nan, high, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(rounded);
}

/* Returns the upper 16 bits of the 32 lanes of @lo and @hi, in order. */
static inline __m512i cst_avx512_upper_halves(__m512i lo, __m512i hi)
{
    const __m512i odd =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                         25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);

    return _mm512_permutex2var_epi16(lo, odd, hi);
}

#endif
