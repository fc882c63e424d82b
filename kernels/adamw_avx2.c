/* AdamW, 16 elements per turn in two AVX2 vectors. The weights, written and never read here, go out
 * past the cache. */
#include "kernels/adamw_one.h"
#include "kernels/bf16_avx2.h"

#define AHEAD_BYTES 2048 /* of fp32: 512 elements, 32 groups */

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

/* The gradients: one of the two. Known where it is compiled, so the other costs nothing. */
struct grads {
    const uint16_t *bf16; /* NULL: fp32 has them */
    const float *fp32;
};

static inline struct grads grads_from(struct grads g, size_t i)
{
    return g.bf16 != NULL ? (struct grads){.bf16 = g.bf16 + i} : (struct grads){.fp32 = g.fp32 + i};
}

static inline __m256 load_grads(struct grads g)
{
    return g.bf16 != NULL ? cst_avx2_load_bf16(g.bf16) : _mm256_loadu_ps(g.fp32);
}

static inline float load_grad(struct grads g, size_t i)
{
    return g.bf16 != NULL ? cst_bf16_to_fp32(g.bf16[i]) : g.fp32[i];
}

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
static inline __m256i step8(const struct consts *c, struct grads grad, float *master,
                            float *exp_avg, float *exp_avg_sq)
{
    __m256 g = load_grads(grad);
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

/* Eight elements' old values to place @at of a buffer. */
static inline void save8(float old[3][CST_ADAMW_GROUP], size_t at, const float *master,
                         const float *exp_avg, const float *exp_avg_sq)
{
    _mm256_store_ps(old[0] + at, _mm256_loadu_ps(master));
    _mm256_store_ps(old[1] + at, _mm256_loadu_ps(exp_avg));
    _mm256_store_ps(old[2] + at, _mm256_loadu_ps(exp_avg_sq));
}

/* The line that this row will need some groups from now; beyond the row's end it is a hint without
 * effect. With the extra stores of the undo, the processor alone does not look far enough ahead. */
static inline void ahead(const void *at, size_t bytes)
{
    _mm_prefetch((const char *)((uintptr_t)at + bytes), _MM_HINT_T0);
}

static inline void ahead_grads(struct grads g)
{
    if (g.bf16 != NULL) {
        ahead(g.bf16, AHEAD_BYTES / 2);
    } else {
        ahead(g.fp32, AHEAD_BYTES);
    }
}

/* Element by element: what stands before and behind the aligned part of the weights. @undo may be
 * NULL; @number: of the first element. Returns the next buffer of the undo. */
static inline uint32_t step_scalar(const struct cst_adamw *hyper, size_t n, struct grads grad,
                                   float *master, float *exp_avg, float *exp_avg_sq,
                                   uint16_t *weight, struct cst_adamw_undo *undo, uint32_t number,
                                   uint32_t buffer)
{
    for (size_t i = 0; i < n; i++, buffer ^= 1) {
        if (undo != NULL) {
            undo->old[buffer][0][0] = master[i];
            undo->old[buffer][1][0] = exp_avg[i];
            undo->old[buffer][2][0] = exp_avg_sq[i];
            cst_adamw_undo_hold(undo, cst_adamw_undo_word(number + (uint32_t)i, 1, buffer));
        }
        cst_adamw_one(hyper, load_grad(grad, i), &master[i], &exp_avg[i], &exp_avg_sq[i],
                      &weight[i]);
    }
    return buffer;
}

/* All entries; without undo, the compiler drops all of it. */
__attribute__((always_inline)) static inline void
update(const struct cst_adamw *hyper, size_t n, struct grads grad, float *master, float *exp_avg,
       float *exp_avg_sq, uint16_t *weight, struct cst_adamw_undo *undo, uint32_t base)
{
    const struct consts c = broadcast(hyper);
    size_t head = ((32 - ((uintptr_t)weight & 31)) & 31) / sizeof *weight;
    size_t i = head < n ? head : n;
    uint32_t buffer;

    buffer = step_scalar(hyper, i, grad, master, exp_avg, exp_avg_sq, weight, undo, base, 0);
    for (; i + 16 <= n; i += 16, buffer ^= 1) {
        float *p = master + i;
        float *m = exp_avg + i;
        float *v = exp_avg_sq + i;
        __m256i lo;
        __m256i hi;

        if (undo != NULL) {
            ahead(p, AHEAD_BYTES);
            ahead(m, AHEAD_BYTES);
            ahead(v, AHEAD_BYTES);
            ahead_grads(grads_from(grad, i));
            save8(undo->old[buffer], 0, p, m, v);
            save8(undo->old[buffer], 8, p + 8, m + 8, v + 8);
            cst_adamw_undo_hold(undo, cst_adamw_undo_word(base + (uint32_t)i, 16, buffer));
        }
        lo = step8(&c, grads_from(grad, i), p, m, v);
        hi = step8(&c, grads_from(grad, i + 8), p + 8, m + 8, v + 8);
        _mm256_stream_si256((__m256i *)(void *)(weight + i), cst_avx2_pack(lo, hi));
    }
    (void)step_scalar(hyper, n - i, grads_from(grad, i), master + i, exp_avg + i, exp_avg_sq + i,
                      weight + i, undo, base + (uint32_t)i, buffer);
    _mm_sfence();
}

void cst_adamw_avx2(const struct cst_adamw *hyper, size_t n, const uint16_t *grad, float *master,
                    float *exp_avg, float *exp_avg_sq, uint16_t *weight)
{
    update(hyper, n, (struct grads){.bf16 = grad}, master, exp_avg, exp_avg_sq, weight, NULL, 0);
}

void cst_adamw_undo_avx2(const struct cst_adamw *hyper, size_t n, const uint16_t *grad,
                         float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight,
                         struct cst_adamw_undo *undo)
{
    update(hyper, n, (struct grads){.bf16 = grad}, master, exp_avg, exp_avg_sq, weight, undo,
           undo->base);
}

void cst_adamw_f32_avx2(const struct cst_adamw *hyper, size_t n, const float *grad, float *master,
                        float *exp_avg, float *exp_avg_sq, uint16_t *weight)
{
    update(hyper, n, (struct grads){.fp32 = grad}, master, exp_avg, exp_avg_sq, weight, NULL, 0);
}

void cst_adamw_undo_f32_avx2(const struct cst_adamw *hyper, size_t n, const float *grad,
                             float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight,
                             struct cst_adamw_undo *undo)
{
    update(hyper, n, (struct grads){.fp32 = grad}, master, exp_avg, exp_avg_sq, weight, undo,
           undo->base);
}
