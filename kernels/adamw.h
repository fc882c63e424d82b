/* Fused AdamW: one pass over bf16 (or fp32) gradient, fp32 master, exp_avg, exp_avg_sq and bf16
 * weight. PyTorch's definition (torch.optim.AdamW: decoupled decay, eps added to the bias-corrected
 * root), written so that reference, AVX2, AVX-512 and CUDA give the same bits. Per element, every
 * line rounded once, fma(a,b,c) = a*b + c in one rounding:
 *
 *   g = bf16_to_fp32(grad) * grad_scale
 *   m = fma(1 - beta1, g - m, m)                    (torch's lerp)
 *   v = fma(1 - beta2, g * g, beta2 * v)            (g*g and beta2*v each rounded)
 *   d = fma(sqrt(v), inv_sqrt_bias2, eps)
 *   p = p * decay                                   (decay = 1 - lr * weight_decay)
 *   p = fma(-step_size, m / d, p)                   (step_size = lr / (1 - beta1^t); m / d rounded)
 *   weight = bf16(p), round to nearest even by integer arithmetic
 *
 * A NaN in p, m or v is stored as CST_ADAMW_NAN, whatever its sign and payload: which operand's NaN
 * survives an addition differs between instructions, compilers and devices. Subnormals are kept:
 * callers run with the default floating-point environment (nearest even, no flushing). Scalars are
 * computed once per step and span, in double, rounded to float (cst_adamw_prepare). Traffic: 28
 * bytes per element; the weights are stored past the cache. */
#ifndef CST_ADAMW_H
#define CST_ADAMW_H

#include <stddef.h>
#include <stdint.h>

#define CST_ADAMW_NAN 0x7fc00000u /* bits of the only NaN in updated states */

struct cst_adamw {
    float grad_scale;      /* multiplies the gradient: loss scale x clip factor */
    float one_minus_beta1; /* (float)(1 - (double)beta1) */
    float beta2;           /* (float)beta2 */
    float one_minus_beta2; /* (float)(1 - (double)beta2) */
    float inv_sqrt_bias2;  /* 1 / sqrt(1 - beta2^t) */
    float eps;             /* added to the bias-corrected root */
    float decay;           /* 1 - lr * weight_decay */
    float step_size;       /* lr / (1 - beta1^t) */
};

/* @t: adam step, from 1. lr and weight_decay are those of the span: lr x lr_scale, weight_decay x
 * decay_scale, the products in double. The same bits on every machine: powers by repeated squaring,
 * no libm but sqrt. Any thread. */
void cst_adamw_prepare(struct cst_adamw *out, double lr, double beta1, double beta2, double eps,
                       double weight_decay, float grad_scale, uint64_t t);

/* Update n elements in place. Any alignment of whole elements, any n; rows do not overlap. When it
 * returns, all stores are ordered before later stores of this thread (a fence follows those past
 * the cache). No allocation; any thread. */
typedef void (*cst_adamw_fn)(const struct cst_adamw *hyper, size_t n, const uint16_t *grad,
                             float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight);

/* The same, and at any instruction @undo (kernels/adamw_undo.h) has the old value of each element
 * that may be half changed: states in shared memory can be made whole after kill -9. */
struct cst_adamw_undo;
typedef void (*cst_adamw_undo_fn)(const struct cst_adamw *hyper, size_t n, const uint16_t *grad,
                                  float *master, float *exp_avg, float *exp_avg_sq,
                                  uint16_t *weight, struct cst_adamw_undo *undo);

/* The same with an fp32 gradient (kernels/accumulate.h): g = grad * grad_scale, 30 bytes per
 * element. */
typedef void (*cst_adamw_f32_fn)(const struct cst_adamw *hyper, size_t n, const float *grad,
                                 float *master, float *exp_avg, float *exp_avg_sq,
                                 uint16_t *weight);
typedef void (*cst_adamw_undo_f32_fn)(const struct cst_adamw *hyper, size_t n, const float *grad,
                                      float *master, float *exp_avg, float *exp_avg_sq,
                                      uint16_t *weight, struct cst_adamw_undo *undo);

void cst_adamw_ref(const struct cst_adamw *hyper, size_t n, const uint16_t *grad, float *master,
                   float *exp_avg, float *exp_avg_sq, uint16_t *weight);
void cst_adamw_avx2(const struct cst_adamw *hyper, size_t n, const uint16_t *grad, float *master,
                    float *exp_avg, float *exp_avg_sq, uint16_t *weight);
void cst_adamw_avx512(const struct cst_adamw *hyper, size_t n, const uint16_t *grad, float *master,
                      float *exp_avg, float *exp_avg_sq, uint16_t *weight);

void cst_adamw_undo_ref(const struct cst_adamw *hyper, size_t n, const uint16_t *grad,
                        float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight,
                        struct cst_adamw_undo *undo);
void cst_adamw_undo_avx2(const struct cst_adamw *hyper, size_t n, const uint16_t *grad,
                         float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight,
                         struct cst_adamw_undo *undo);
void cst_adamw_undo_avx512(const struct cst_adamw *hyper, size_t n, const uint16_t *grad,
                           float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight,
                           struct cst_adamw_undo *undo);

void cst_adamw_f32_ref(const struct cst_adamw *hyper, size_t n, const float *grad, float *master,
                       float *exp_avg, float *exp_avg_sq, uint16_t *weight);
void cst_adamw_f32_avx2(const struct cst_adamw *hyper, size_t n, const float *grad, float *master,
                        float *exp_avg, float *exp_avg_sq, uint16_t *weight);
void cst_adamw_f32_avx512(const struct cst_adamw *hyper, size_t n, const float *grad, float *master,
                          float *exp_avg, float *exp_avg_sq, uint16_t *weight);

void cst_adamw_undo_f32_ref(const struct cst_adamw *hyper, size_t n, const float *grad,
                            float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight,
                            struct cst_adamw_undo *undo);
void cst_adamw_undo_f32_avx2(const struct cst_adamw *hyper, size_t n, const float *grad,
                             float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight,
                             struct cst_adamw_undo *undo);
void cst_adamw_undo_f32_avx512(const struct cst_adamw *hyper, size_t n, const float *grad,
                               float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight,
                               struct cst_adamw_undo *undo);

#endif
