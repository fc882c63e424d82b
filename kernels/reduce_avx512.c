/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/bf16_avx512.h"
#include "kernels/reduce_lanes.h"

/* Prefetch distance in each source, in bytes. The part of a source in one tile is too short for the
 * processor's own prefetcher. */
#define AHEAD_BYTES 2048

/* Round @s, the sum of @n_src sources, to bf16 in the upper half of each lane. The lower half is
 * zero. */
__attribute__((always_inline)) static inline __m512i rounded(__m512 s, uint32_t n_src)
{
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32((int)(CST_REDUCE_NAN << 16)));
    __mmask16 is_nan = _mm512_cmp_ps_mask(s, s, _CMP_UNORD_Q);
    __m512i u = _mm512_castps_si512(s), odd;

    if (n_src == 1) {
        return _mm512_mask_or_epi32(u, is_nan, u, _mm512_set1_epi32(0x00400000));
    }
    /* Round to nearest even. CST_REDUCE_NAN, the only possible NaN, is not changed by rounding. */
    u = _mm512_castps_si512(_mm512_mask_mov_ps(s, is_nan, nan));
    odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7fff));
    return _mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000u));
}

/* Returns the sum of the elements in mask @k out of sixteen from @i on. There is at least one
 * source. */
static inline __m512i sum16(__mmask16 k, size_t i, uint32_t n_src, const uint16_t *const *src)
{
    __m512 s = cst_avx512_load_bf16(k, src[0] + i);

    for (uint32_t r = 1; r < n_src; r++) {
        s = _mm512_add_ps(s, cst_avx512_load_bf16(k, src[r] + i));
    }
    return rounded(s, n_src);
}

/* Load sixteen elements of @src, and prefetch a line AHEAD_BYTES further on. */
static inline __m512 load_ahead(const uint16_t *src)
{
    _mm_prefetch((const char *)((uintptr_t)src + AHEAD_BYTES), _MM_HINT_T0);
    return cst_avx512_load_bf16(0xffff, src);
}

/* The lower and the upper eight lanes of the sum of squares. */
struct lanes {
    __m512d lo;
    __m512d hi;
};

/* Add squares to the lanes. Elements outside a mask are zero; fma(0, 0, lane) leaves their lanes
 * unchanged. */
static inline void square16(__m512i sums, struct lanes *lanes)
{
    __m512 x = _mm512_castsi512_ps(sums);
    __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));

    lanes->lo = _mm512_fmadd_pd(a, a, lanes->lo);
    lanes->hi = _mm512_fmadd_pd(b, b, lanes->hi);
}

/* The loop over all elements. A mask is used only in the tail (cast_avx512.c). Frequent numbers of
 * sources are compile-time constants. */
__attribute__((always_inline)) static inline double run(size_t n, uint32_t n_src,
                                                        const uint16_t *const *src, uint16_t *dst)
{
    struct lanes lanes = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    double stored[CST_REDUCE_LANES];
    size_t i = 0;

    for (; i + 32 <= n; i += 32) {
        __m512 x = load_ahead(src[0] + i), y = cst_avx512_load_bf16(0xffff, src[0] + i + 16);
        __m512i a, b;

        for (uint32_t r = 1; r < n_src; r++) {
            x = _mm512_add_ps(x, load_ahead(src[r] + i));
            y = _mm512_add_ps(y, cst_avx512_load_bf16(0xffff, src[r] + i + 16));
        }
        a = rounded(x, n_src);
        b = rounded(y, n_src);
        _mm512_storeu_si512(dst + i, cst_avx512_upper_halves(a, b));
        square16(a, &lanes);
        square16(b, &lanes);
    }
    for (; i < n; i += 16) {
        __mmask16 k = cst_avx512_first(n - i);
        __m512i a = sum16(k, i, n_src, src);

        _mm256_mask_storeu_epi16(dst + i, k, _mm512_cvtepi32_epi16(_mm512_srli_epi32(a, 16)));
        square16(a, &lanes);
    }
    _mm512_storeu_pd(stored, lanes.lo);
    _mm512_storeu_pd(stored + 8, lanes.hi);
    return cst_reduce_tree(stored);
}

double cst_reduce_avx512(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst)
{
    switch (n_src) {
    case 0:
        memset(dst, 0, n * sizeof *dst);
        return 0.0;
    case 1:
        return run(n, 1, src, dst);
    case 2:
        return run(n, 2, src, dst);
    case 4:
        return run(n, 4, src, dst);
    default:
        return run(n, n_src, src, dst);
    }
}
