/* AdamW, 32 elements per turn in two AVX-512 vectors; heads and tails under a mask. The weights,
 * written and never read here, go out past the cache, one whole line at a time. */
#include "kernels/adamw.h"
#include "kernels/adamw_undo.h"
#include "kernels/bf16_avx512.h"

#define AHEAD_BYTES 2048 /* of fp32: 512 elements, 16 groups */

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

/* The gradients: one of the two. Known where it is compiled, so the other costs nothing. */
struct grads {
    const uint16_t *bf16; /* NULL: fp32 has them */
    const float *fp32;
};

static inline struct grads grads_from(struct grads g, size_t i)
{
    return g.bf16 != NULL ? (struct grads){.bf16 = g.bf16 + i} : (struct grads){.fp32 = g.fp32 + i};
}

static inline __m512 load_grads(__mmask16 k, struct grads g)
{
    return g.bf16 != NULL ? cst_avx512_load_bf16(k, g.bf16) : _mm512_maskz_loadu_ps(k, g.fp32);
}

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
static inline __m256i step16(const struct consts *c, __mmask16 k, struct grads grad, float *master,
                             float *exp_avg, float *exp_avg_sq)
{
    __m512 g = load_grads(k, grad);
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

/* Sixteen elements' old values, those of @k, to place @at of a buffer. */
static inline void save16(float old[3][CST_ADAMW_GROUP], size_t at, __mmask16 k,
                          const float *master, const float *exp_avg, const float *exp_avg_sq)
{
    _mm512_store_ps(old[0] + at, _mm512_maskz_loadu_ps(k, master));
    _mm512_store_ps(old[1] + at, _mm512_maskz_loadu_ps(k, exp_avg));
    _mm512_store_ps(old[2] + at, _mm512_maskz_loadu_ps(k, exp_avg_sq));
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
        ahead(g.fp32 + 16, AHEAD_BYTES);
    }
}

/* Up to 16 elements per turn, plain stores: what stands before and behind the whole lines of the
 * weights. @undo may be NULL; @number: of the first element. Returns the next buffer of the undo.
 */
static inline uint32_t step_masked(const struct consts *c, size_t n, struct grads grad,
                                   float *master, float *exp_avg, float *exp_avg_sq,
                                   uint16_t *weight, struct cst_adamw_undo *undo, uint32_t number,
                                   uint32_t buffer)
{
    for (size_t i = 0; i < n; i += 16, buffer ^= 1) {
        __mmask16 k = cst_avx512_first(n - i);
        uint32_t group = (uint32_t)(n - i < 16 ? n - i : 16);
        __m256i w;

        if (undo != NULL) {
            save16(undo->old[buffer], 0, k, master + i, exp_avg + i, exp_avg_sq + i);
            cst_adamw_undo_hold(undo, cst_adamw_undo_word(number + (uint32_t)i, group, buffer));
        }
        w = step16(c, k, grads_from(grad, i), master + i, exp_avg + i, exp_avg_sq + i);
        _mm256_mask_storeu_epi16(weight + i, k, w);
    }
    return buffer;
}

/* All entries; without undo, the compiler drops all of it. */
__attribute__((always_inline)) static inline void
update(const struct cst_adamw *hyper, size_t n, struct grads grad, float *master, float *exp_avg,
       float *exp_avg_sq, uint16_t *weight, struct cst_adamw_undo *undo, uint32_t base)
{
    const struct consts c = broadcast(hyper);
    size_t head = ((64 - ((uintptr_t)weight & 63)) & 63) / sizeof *weight;
    size_t i = head < n ? head : n;
    uint32_t buffer;

    buffer = step_masked(&c, i, grad, master, exp_avg, exp_avg_sq, weight, undo, base, 0);
    for (; i + 32 <= n; i += 32, buffer ^= 1) {
        float *p = master + i;
        float *m = exp_avg + i;
        float *v = exp_avg_sq + i;
        __m256i lo;
        __m256i hi;

        if (undo != NULL) {
            ahead(p, AHEAD_BYTES);
            ahead(p + 16, AHEAD_BYTES);
            ahead(m, AHEAD_BYTES);
            ahead(m + 16, AHEAD_BYTES);
            ahead(v, AHEAD_BYTES);
            ahead(v + 16, AHEAD_BYTES);
            ahead_grads(grads_from(grad, i));
            save16(undo->old[buffer], 0, 0xffff, p, m, v);
            save16(undo->old[buffer], 16, 0xffff, p + 16, m + 16, v + 16);
            cst_adamw_undo_hold(undo, cst_adamw_undo_word(base + (uint32_t)i, 32, buffer));
        }
        lo = step16(&c, 0xffff, grads_from(grad, i), p, m, v);
        hi = step16(&c, 0xffff, grads_from(grad, i + 16), p + 16, m + 16, v + 16);
        _mm512_stream_si512((__m512i *)(void *)(weight + i),
                            _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1));
    }
    (void)step_masked(&c, n - i, grads_from(grad, i), master + i, exp_avg + i, exp_avg_sq + i,
                      weight + i, undo, base + (uint32_t)i, buffer);
    _mm_sfence();
}

void cst_adamw_avx512(const struct cst_adamw *hyper, size_t n, const uint16_t *grad, float *master,
                      float *exp_avg, float *exp_avg_sq, uint16_t *weight)
{
    update(hyper, n, (struct grads){.bf16 = grad}, master, exp_avg, exp_avg_sq, weight, NULL, 0);
}

void cst_adamw_undo_avx512(const struct cst_adamw *hyper, size_t n, const uint16_t *grad,
                           float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight,
                           struct cst_adamw_undo *undo)
{
    update(hyper, n, (struct grads){.bf16 = grad}, master, exp_avg, exp_avg_sq, weight, undo,
           undo->base);
}

void cst_adamw_f32_avx512(const struct cst_adamw *hyper, size_t n, const float *grad, float *master,
                          float *exp_avg, float *exp_avg_sq, uint16_t *weight)
{
    update(hyper, n, (struct grads){.fp32 = grad}, master, exp_avg, exp_avg_sq, weight, NULL, 0);
}

void cst_adamw_undo_f32_avx512(const struct cst_adamw *hyper, size_t n, const float *grad,
                               float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight,
                               struct cst_adamw_undo *undo)
{
    update(hyper, n, (struct grads){.fp32 = grad}, master, exp_avg, exp_avg_sq, weight, undo,
           undo->base);
}
