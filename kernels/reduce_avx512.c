#include "kernels/bf16_avx512.h"
#include "kernels/reduce_lanes.h"

/* The bf16 sums of the elements of @k out of sixteen from @i; at least one source. */
static inline __m256i sum16(__mmask16 k, size_t i, uint32_t n_src, const uint16_t *const *src)
{
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32((int)(CST_REDUCE_NAN << 16)));
    __m512 s = cst_avx512_load_bf16(k, src[0] + i);

    if (n_src > 1) {
        for (uint32_t r = 1; r < n_src; r++) {
            s = _mm512_add_ps(s, cst_avx512_load_bf16(k, src[r] + i));
        }
        s = _mm512_mask_mov_ps(s, _mm512_cmp_ps_mask(s, s, _CMP_UNORD_Q), nan);
    }
    return cst_avx512_round_bf16(s);
}

/* Lanes outside of a tail's mask hold zero: fma(0, 0, lane) leaves theirs as it was. */
double cst_reduce_avx512(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst)
{
    __m512d lo = _mm512_setzero_pd();
    __m512d hi = _mm512_setzero_pd();
    double lanes[CST_REDUCE_LANES];

    if (n_src == 0) {
        memset(dst, 0, n * sizeof *dst);
        return 0.0;
    }
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 k = cst_avx512_first(n - i);
        __m256i sums = sum16(k, i, n_src, src);
        __m512 x = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(sums), 16));
        __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
        __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));

        _mm256_mask_storeu_epi16(dst + i, k, sums);
        lo = _mm512_fmadd_pd(a, a, lo);
        hi = _mm512_fmadd_pd(b, b, hi);
    }
    _mm512_storeu_pd(lanes, lo);
    _mm512_storeu_pd(lanes + 8, hi);
    return cst_reduce_tree(lanes);
}
