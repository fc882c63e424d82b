/* SPDX-License-Identifier: Apache-2.0 */
/* Masks are used only in the tails, because some processors store whole vectors several times
 * slower under a mask. Each loop has a constant mask of all lanes, which the compiler removes. */
#include "kernels/bf16_avx512.h"
#include "kernels/cast.h"

static inline void cast16(__mmask16 k, const float *src, uint16_t *dst)
{
    __m256i h = cst_avx512_round_bf16(_mm512_maskz_loadu_ps(k, src));

    _mm256_mask_storeu_epi16(dst, k, h);
}

void cst_cast_avx512(size_t n, const float *src, uint16_t *dst)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        cast16(0xffff, src + i, dst + i);
    }
    if (i < n) {
        cast16(cst_avx512_first(n - i), src + i, dst + i);
    }
}

static inline void upcast16(__mmask16 k, const uint16_t *src, float *dst)
{
    _mm512_mask_storeu_ps(dst, k, cst_avx512_load_bf16(k, src));
}

void cst_upcast_avx512(size_t n, const uint16_t *src, float *dst)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        upcast16(0xffff, src + i, dst + i);
    }
    if (i < n) {
        upcast16(cst_avx512_first(n - i), src + i, dst + i);
    }
}
