/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 in AVX2 registers, shared by the AVX2 variants. Private to kernels/. */
#ifndef CST_BF16_AVX2_H
#define CST_BF16_AVX2_H

#include <immintrin.h>
#include <stdint.h>

/* Load eight bf16 values as fp32. */
static inline __m256 cst_avx2_load_bf16(const uint16_t *src)
{
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)src);

    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* cst_fp32_to_bf16 of eight lanes. Each result is in the low half of its 32-bit lane. */
static inline __m256i cst_avx2_round_bf16(__m256 x)
{
    const __m256i inf = _mm256_set1_epi32(0x7f800000);
    const __m256i one = _mm256_set1_epi32(1);
    __m256i u = _mm256_castps_si256(x);
    __m256i high = _mm256_srli_epi32(u, 16);
    __m256i bias = _mm256_add_epi32(_mm256_and_si256(high, one), _mm256_set1_epi32(0x7fff));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, bias), 16);
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    __m256i magnitude = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));

    return _mm256_blendv_epi8(rounded, quiet, _mm256_cmpgt_epi32(magnitude, inf));
}

/* Pack sixteen 32-bit lanes, whose values fit in 16 bits, into sixteen 16-bit lanes in order. */
static inline __m256i cst_avx2_pack(__m256i lo, __m256i hi)
{
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8);
}

#endif
