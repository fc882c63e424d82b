/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/accumulate_one.h"
#include "kernels/bf16_avx2.h"

/* Operands of a sum. */
struct input {
    uint32_t n_src;
    const uint16_t *const *src;
    const float *sum; /* First operand: the row, or a sum that was made before. NULL: none. */
};

static inline __m256 total8(struct input in, size_t i)
{
    uint32_t r = in.sum == NULL;
    __m256 x = r == 0 ? _mm256_loadu_ps(in.sum + i) : cst_avx2_load_bf16(in.src[0] + i);

    for (; r < in.n_src; r++) {
        x = _mm256_add_ps(x, cst_avx2_load_bf16(in.src[r] + i));
    }
    return x;
}

/* Sum eight elements from @i on. Their squares are added to two vectors of four lanes. */
static inline void accumulate8(struct input in, size_t i, float *dst, __m256d *lo, __m256d *hi)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)CST_ACCUMULATE_NAN));
    __m256 x = total8(in, i);
    __m256d a;
    __m256d b;

    x = _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    _mm256_storeu_ps(dst + i, x);
    a = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    b = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    *lo = _mm256_fmadd_pd(a, a, *lo);
    *hi = _mm256_fmadd_pd(b, b, *hi);
}

/* The loop of both entry points. */
__attribute__((always_inline)) static inline double run(struct input in, size_t n, float *dst)
{
    __m256d acc[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                      _mm256_setzero_pd()};
    double lanes[CST_REDUCE_LANES];
    size_t i = 0;

    /* Without operands, the loop of single elements stores zeros. */
    for (; (in.sum != NULL || in.n_src > 0) && i + 16 <= n; i += 16) {
        accumulate8(in, i, dst, &acc[0], &acc[1]);
        accumulate8(in, i + 8, dst, &acc[2], &acc[3]);
    }
    for (size_t j = 0; j < 4; j++) {
        _mm256_storeu_pd(lanes + 4 * j, acc[j]);
    }
    for (; i < n; i++) {
        float x = cst_accumulate_total(i, in.n_src, in.src, in.sum == NULL ? NULL : in.sum + i);

        cst_accumulate_one(x, &dst[i], &lanes[i % CST_REDUCE_LANES]);
    }
    return cst_reduce_tree(lanes);
}

double cst_accumulate_avx2(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulate,
                           float *dst)
{
    return run((struct input){.n_src = n_src, .src = src, .sum = accumulate ? dst : NULL}, n, dst);
}

double cst_accumulate_sum_avx2(size_t n, const float *sum, float *dst)
{
    return run((struct input){.sum = sum}, n, dst);
}
