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

/* The two halves of the sixteen lanes of the sum of squares. */
struct lanes {
    __m512d lo;
    __m512d hi;
};

/* Sum, store and square the elements of @k out of sixteen. Lanes outside of it hold zero: fma(0, 0,
 * lane) leaves theirs as it was. */
static inline void reduce16(__mmask16 k, size_t i, uint32_t n_src, const uint16_t *const *src,
                            uint16_t *dst, struct lanes *lanes)
{
    __m256i sums = sum16(k, i, n_src, src);
    __m512 x = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(sums), 16));
    __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));

    _mm256_mask_storeu_epi16(dst + i, k, sums);
    lanes->lo = _mm512_fmadd_pd(a, a, lanes->lo);
    lanes->hi = _mm512_fmadd_pd(b, b, lanes->hi);
}

/* As in cast_avx512.c, a mask only in the tail. */
double cst_reduce_avx512(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst)
{
    struct lanes lanes = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    double stored[CST_REDUCE_LANES];
    size_t i = 0;

    if (n_src == 0) {
        memset(dst, 0, n * sizeof *dst);
        return 0.0;
    }
    for (; i + 16 <= n; i += 16) {
        reduce16(0xffff, i, n_src, src, dst, &lanes);
    }
    if (i < n) {
        reduce16(cst_avx512_first(n - i), i, n_src, src, dst, &lanes);
    }
    _mm512_storeu_pd(stored, lanes.lo);
    _mm512_storeu_pd(stored + 8, lanes.hi);
    return cst_reduce_tree(stored);
}
