/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/bf16_avx2.h"
#include "kernels/cast.h"

void cst_cast_avx2(size_t n, const float *src, uint16_t *dst)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m256i lo = cst_avx2_round_bf16(_mm256_loadu_ps(src + i));
        __m256i hi = cst_avx2_round_bf16(_mm256_loadu_ps(src + i + 8));

        _mm256_storeu_si256((__m256i *)(void *)(dst + i), cst_avx2_pack(lo, hi));
    }
    for (; i < n; i++) {
        dst[i] = cst_fp32_to_bf16(src[i]);
    }
}

void cst_upcast_avx2(size_t n, const uint16_t *src, float *dst)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(dst + i, cst_avx2_load_bf16(src + i));
    }
    for (; i < n; i++) {
        dst[i] = cst_bf16_to_fp32(src[i]);
    }
}
