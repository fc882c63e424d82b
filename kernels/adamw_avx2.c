/* AdamW, 16 elements per turn in two AVX2 vectors. The weights, written and never read here, go out
 * past the cache. */
#include "kernels/adamw_one.h"
#include "kernels/bf16_avx2.h"

struct consts {
    __m256 grad_scale;
    __m256 one_minus_beta1;
    __m256 beta2;
    __m256 one_minus_beta2;
    __m256 inv_sqrt_bias2;
    __m256 eps;
    __m256 decay;
    __m256 step_size;
    __m256 nan;
};

static inline struct consts broadcast(const struct cst_adamw *hyper)
{
    return (struct consts){
        .grad_scale = _mm256_set1_ps(hyper->grad_scale),
        .one_minus_beta1 = _mm256_set1_ps(hyper->one_minus_beta1),
        .beta2 = _mm256_set1_ps(hyper->beta2),
        .one_minus_beta2 = _mm256_set1_ps(hyper->one_minus_beta2),
        .inv_sqrt_bias2 = _mm256_set1_ps(hyper->inv_sqrt_bias2),
        .eps = _mm256_set1_ps(hyper->eps),
        .decay = _mm256_set1_ps(hyper->decay),
        .step_size = _mm256_set1_ps(hyper->step_size),
        .nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)CST_ADAMW_NAN)),
    };
}

static inline __m256 canonical(const struct consts *c, __m256 x)
{
    return _mm256_blendv_ps(x, c->nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* Eight elements; returns the weights as bf16 in the low halves of 32-bit lanes. */
static inline __m256i step8(const struct consts *c, const uint16_t *grad, float *master,
                            float *exp_avg, float *exp_avg_sq)
{
    __m256 g = cst_avx2_load_bf16(grad);
    __m256 m = _mm256_loadu_ps(exp_avg);
    __m256 v = _mm256_loadu_ps(exp_avg_sq);
    __m256 p = _mm256_loadu_ps(master);
    __m256 d;

    g = _mm256_mul_ps(g, c->grad_scale);
    m = _mm256_fmadd_ps(c->one_minus_beta1, _mm256_sub_ps(g, m), m);
    v = _mm256_fmadd_ps(c->one_minus_beta2, _mm256_mul_ps(g, g), _mm256_mul_ps(c->beta2, v));
    d = _mm256_fmadd_ps(_mm256_sqrt_ps(v), c->inv_sqrt_bias2, c->eps);
    p = _mm256_mul_ps(p, c->decay);
    p = canonical(c, _mm256_fnmadd_ps(c->step_size, _mm256_div_ps(m, d), p));
    _mm256_storeu_ps(exp_avg, canonical(c, m));
    _mm256_storeu_ps(exp_avg_sq, canonical(c, v));
    _mm256_storeu_ps(master, p);

    return cst_avx2_round_bf16(p);
}

void cst_adamw_avx2(const struct cst_adamw *hyper, size_t n, const uint16_t *grad, float *master,
                    float *exp_avg, float *exp_avg_sq, uint16_t *weight)
{
    const struct consts c = broadcast(hyper);
    size_t head = ((32 - ((uintptr_t)weight & 31)) & 31) / sizeof *weight;
    size_t i = 0;

    for (; i < head && i < n; i++) {
        cst_adamw_one(hyper, grad[i], &master[i], &exp_avg[i], &exp_avg_sq[i], &weight[i]);
    }
    for (; i + 16 <= n; i += 16) {
        __m256i lo = step8(&c, grad + i, master + i, exp_avg + i, exp_avg_sq + i);
        __m256i hi = step8(&c, grad + i + 8, master + i + 8, exp_avg + i + 8, exp_avg_sq + i + 8);
        __m256i both = cst_avx2_pack(lo, hi);

        _mm256_stream_si256((__m256i *)(void *)(weight + i), both);
    }
    for (; i < n; i++) {
        cst_adamw_one(hyper, grad[i], &master[i], &exp_avg[i], &exp_avg_sq[i], &weight[i]);
    }
    _mm_sfence();
}
