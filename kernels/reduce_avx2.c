/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/bf16_avx2.h"
#include "kernels/reduce_lanes.h"

/* Returns the bf16 sums of eight elements from @i on, in the low halves of 32-bit lanes. There is
 * at least one source. */
static inline __m256i sum8(size_t i, uint32_t n_src, const uint16_t *const *src)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)(CST_REDUCE_NAN << 16)));
    __m256 s = cst_avx2_load_bf16(src[0] + i);

    if (n_src > 1) {
        for (uint32_t r = 1; r < n_src; r++) {
            s = _mm256_add_ps(s, cst_avx2_load_bf16(src[r] + i));
        }
        s = _mm256_blendv_ps(s, nan, _mm256_cmp_ps(s, s, _CMP_UNORD_Q));
    }
    return cst_avx2_round_bf16(s);
}

/* Add the squares of eight bf16 to two vectors of four lanes. */
static inline void square8(__m256i sums, __m256d *lo, __m256d *hi)
{
    __m256 x = _mm256_castsi256_ps(_mm256_slli_epi32(sums, 16));
    __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));

    *lo = _mm256_fmadd_pd(a, a, *lo);
    *hi = _mm256_fmadd_pd(b, b, *hi);
}

double cst_reduce_avx2(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst)
{
    __m256d acc[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                      _mm256_setzero_pd()};
    double lanes[CST_REDUCE_LANES];
    size_t i = 0;

    /* Without sources, the loop of single elements stores zeros. */
    for (; n_src > 0 && i + 16 <= n; i += 16) {
        __m256i a = sum8(i, n_src, src);
        __m256i b = sum8(i + 8, n_src, src);

        _mm256_storeu_si256((__m256i *)(void *)(dst + i), cst_avx2_pack(a, b));
        square8(a, &acc[0], &acc[1]);
        square8(b, &acc[2], &acc[3]);
    }
    for (size_t j = 0; j < 4; j++) {
        _mm256_storeu_pd(lanes + 4 * j, acc[j]);
    }
    for (; i < n; i++) {
        dst[i] = cst_reduce_one(i, n_src, src);
        cst_reduce_square(dst[i], &lanes[i % CST_REDUCE_LANES]);
    }
    return cst_reduce_tree(lanes);
}
