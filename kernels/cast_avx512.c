#include "kernels/bf16_avx512.h"
#include "kernels/cast.h"

void cst_cast_avx512(size_t n, const float *src, uint16_t *dst)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 k = cst_avx512_first(n - i);
        __m256i h = cst_avx512_round_bf16(_mm512_maskz_loadu_ps(k, src + i));

        _mm256_mask_storeu_epi16(dst + i, k, h);
    }
}

void cst_upcast_avx512(size_t n, const uint16_t *src, float *dst)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 k = cst_avx512_first(n - i);

        _mm512_mask_storeu_ps(dst + i, k, cst_avx512_load_bf16(k, src + i));
    }
}
