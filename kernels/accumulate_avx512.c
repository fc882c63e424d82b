/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/accumulate.h"
#include "kernels/bf16_avx512.h"
#include "kernels/reduce_lanes.h"

/* Operands of a sum. */
struct input {
    uint32_t n_src;
    const uint16_t *const *src;
    const float *sum; /* First operand: the row, or a sum that was made before. NULL: none. */
};

/* The lower and the upper eight lanes of the sum of squares. */
struct lanes {
    __m512d lo;
    __m512d hi;
};

static inline __m512 total16(struct input in, __mmask16 k, size_t i)
{
    uint32_t r = in.sum == NULL;
    __m512 x = _mm512_setzero_ps();

    if (in.sum != NULL) {
        x = _mm512_maskz_loadu_ps(k, in.sum + i);
    } else if (in.n_src > 0) {
        x = cst_avx512_load_bf16(k, in.src[0] + i);
    }
    for (; r < in.n_src; r++) {
        x = _mm512_add_ps(x, cst_avx512_load_bf16(k, in.src[r] + i));
    }
    return x;
}

/* Sum the elements in mask @k out of sixteen. Elements outside the mask are zero; fma(0, 0, lane)
 * leaves their lanes unchanged. */
static inline void accumulate16(struct input in, __mmask16 k, size_t i, float *dst,
                                struct lanes *lanes)
{
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32((int)CST_ACCUMULATE_NAN));
    __m512 x = total16(in, k, i);
    __m512d a;
    __m512d b;

    x = _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
    _mm512_mask_storeu_ps(dst + i, k, x);
    a = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    lanes->lo = _mm512_fmadd_pd(a, a, lanes->lo);
    lanes->hi = _mm512_fmadd_pd(b, b, lanes->hi);
}

/* The loop of both entry points. A mask is used only in the tail (cast_avx512.c). */
__attribute__((always_inline)) static inline double run(struct input in, size_t n, float *dst)
{
    struct lanes lanes = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    double stored[CST_REDUCE_LANES];
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        accumulate16(in, 0xffff, i, dst, &lanes);
    }
    if (i < n) {
        accumulate16(in, cst_avx512_first(n - i), i, dst, &lanes);
    }
    _mm512_storeu_pd(stored, lanes.lo);
    _mm512_storeu_pd(stored + 8, lanes.hi);
    return cst_reduce_tree(stored);
}

double cst_accumulate_avx512(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulate,
                             float *dst)
{
    return run((struct input){.n_src = n_src, .src = src, .sum = accumulate ? dst : NULL}, n, dst);
}

double cst_accumulate_sum_avx512(size_t n, const float *sum, float *dst)
{
    return run((struct input){.sum = sum}, n, dst);
}
