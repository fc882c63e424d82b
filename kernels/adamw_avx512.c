/* AdamW, 32 elements per turn in two AVX-512 vectors; heads and tails under a mask. The weights,
 * written and never read here, go out past the cache, one whole line at a time. */
#include "kernels/adamw.h"
#include "kernels/bf16_avx512.h"

struct consts {
    __m512 grad_scale;
    __m512 one_minus_beta1;
    __m512 beta2;
    __m512 one_minus_beta2;
    __m512 inv_sqrt_bias2;
    __m512 eps;
    __m512 decay;
    __m512 step_size;
    __m512 nan;
};

static inline struct consts broadcast(const struct cst_adamw *hyper)
{
    return (struct consts){
        .grad_scale = _mm512_set1_ps(hyper->grad_scale),
        .one_minus_beta1 = _mm512_set1_ps(hyper->one_minus_beta1),
        .beta2 = _mm512_set1_ps(hyper->beta2),
        .one_minus_beta2 = _mm512_set1_ps(hyper->one_minus_beta2),
        .inv_sqrt_bias2 = _mm512_set1_ps(hyper->inv_sqrt_bias2),
        .eps = _mm512_set1_ps(hyper->eps),
        .decay = _mm512_set1_ps(hyper->decay),
        .step_size = _mm512_set1_ps(hyper->step_size),
        .nan = _mm512_castsi512_ps(_mm512_set1_epi32((int)CST_ADAMW_NAN)),
    };
}

static inline __m512 canonical(const struct consts *c, __m512 x)
{
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), c->nan);
}

/* The elements of @k out of sixteen; returns their weights as bf16. */
static inline __m256i step16(const struct consts *c, __mmask16 k, const uint16_t *grad,
                             float *master, float *exp_avg, float *exp_avg_sq)
{
    __m512 g = cst_avx512_load_bf16(k, grad);
    __m512 m = _mm512_maskz_loadu_ps(k, exp_avg);
    __m512 v = _mm512_maskz_loadu_ps(k, exp_avg_sq);
    __m512 p = _mm512_maskz_loadu_ps(k, master);
    __m512 d;

    g = _mm512_mul_ps(g, c->grad_scale);
    m = _mm512_fmadd_ps(c->one_minus_beta1, _mm512_sub_ps(g, m), m);
    v = _mm512_fmadd_ps(c->one_minus_beta2, _mm512_mul_ps(g, g), _mm512_mul_ps(c->beta2, v));
    d = _mm512_fmadd_ps(_mm512_sqrt_ps(v), c->inv_sqrt_bias2, c->eps);
    p = _mm512_mul_ps(p, c->decay);
    p = canonical(c, _mm512_fnmadd_ps(c->step_size, _mm512_div_ps(m, d), p));
    _mm512_mask_storeu_ps(exp_avg, k, canonical(c, m));
    _mm512_mask_storeu_ps(exp_avg_sq, k, canonical(c, v));
    _mm512_mask_storeu_ps(master, k, p);

    return cst_avx512_round_bf16(p);
}

/* Up to 16 elements per turn, plain stores: what stands before and behind the whole lines of the
 * weights. */
static inline void step_masked(const struct consts *c, size_t n, const uint16_t *grad,
                               float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 k = cst_avx512_first(n - i);
        __m256i w = step16(c, k, grad + i, master + i, exp_avg + i, exp_avg_sq + i);

        _mm256_mask_storeu_epi16(weight + i, k, w);
    }
}

void cst_adamw_avx512(const struct cst_adamw *hyper, size_t n, const uint16_t *grad, float *master,
                      float *exp_avg, float *exp_avg_sq, uint16_t *weight)
{
    const struct consts c = broadcast(hyper);
    size_t head = ((64 - ((uintptr_t)weight & 63)) & 63) / sizeof *weight;
    size_t i = head < n ? head : n;

    step_masked(&c, i, grad, master, exp_avg, exp_avg_sq, weight);
    for (; i + 32 <= n; i += 32) {
        __m256i lo = step16(&c, 0xffff, grad + i, master + i, exp_avg + i, exp_avg_sq + i);
        __m256i hi = step16(&c, 0xffff, grad + i + 16, master + i + 16, exp_avg + i + 16,
                            exp_avg_sq + i + 16);
        __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);

        _mm512_stream_si512((__m512i *)(void *)(weight + i), both);
    }
    step_masked(&c, n - i, grad + i, master + i, exp_avg + i, exp_avg_sq + i, weight + i);
    _mm_sfence();
}
