/* SPDX-License-Identifier: Apache-2.0 */
/* The fused update of every optimizer: one pass over gradient, fp32 master weights, moments and
 * bf16 weight. All variants (reference, AVX2, AVX-512, CUDA) have the same bits. Per element, every
 * line rounded once, fma(a,b,c) = a*b + c in one rounding; g = fp32(grad) * grad_scale first:
 *
 *   ADAMW  torch.optim.AdamW   m = fma(1 - beta1, g - m, m)                 (torch's lerp)
 *                              v = fma(1 - beta2, g * g, beta2 * v)
 *                              d = fma(sqrt(v), inv_sqrt_bias2, eps)
 *                              p = p * decay
 *                              p = fma(-step_size, m / d, p)
 *   ADAM   torch.optim.Adam    g = fma(weight_decay, p, g)
 *                              then as ADAMW, but p is not multiplied with decay
 *   LION   Chen et al. 2023    u = sign(fma(1 - beta1, g - m, m))           (sign(0) = 0)
 *                              p = p * decay
 *                              p = fma(-lr, u, p)
 *                              m = fma(1 - beta2, g - m, m)
 *   SGD    torch.optim.SGD,    g = fma(weight_decay, p, g)
 *          dampening 0,        m = fma(beta1, m, g)
 *          no Nesterov         p = fma(-lr, m, p)
 *   all    decay = 1 - lr * weight_decay; step_size = lr / (1 - beta1^t); weight = bf16(p), nearest
 *          even
 *
 * A NaN in p, m or v is stored as CST_UPDATE_NAN: which operand's NaN survives an addition differs
 * between instructions, compilers and devices. Subnormals are kept: callers run with the default
 * floating-point environment (nearest even, no flushing). Formulas are written once, in
 * kernels/formulas.h, over the vectors of kernels/vec_*.h.
 *
 * With mx8 moments, ADAMW and ADAM limit |m / d| to 1 - beta1^t. A step is then at most lr long,
 * decay aside: as long as every element's first step, and as each step of a steady gradient, with
 * fp32 moments (Kingma and Ba: Adam, 2015, section 2.1). The quotient needs a limit because the
 * rounding errors of m and v depend on the largest elements of a block, M and V. The units of their
 * codes, and so the errors, are
 *
 *   of m: max(|m| / 2^3, M / 2^16.9)    of v: max(v / 2^3, V / 2^31.9)
 *
 * An element whose gradients are 10^-5 of the largest can therefore get M / 2^16.9 as its m. Its v
 * is not zero, so it is at least the smallest code (kernels/mx8.h), which is not below V / 2^32.9.
 * Hence |m| / sqrt(v) <= 0.74 M / sqrt(V) for all elements that have the smallest codes. (If v
 * could become zero, the next step would be |m| / (sqrt(1 - beta2) |g|), which has no bound.) In
 * between, and while v grows, a quotient can be wrong by a small factor: these the limit stops. It
 * also shortens the steps that a rare gradient makes with fp32 moments, at most
 * lr (1 - beta1) / sqrt(1 - beta2).
 *
 * Moments are read exactly and rounded when stored, after everything else used them: p depends on
 * the unrounded m and v. Formats: fp32; bf16; mx8 (kernels/mx8.h). Random numbers of stochastic
 * rounding (kernels/philox.h) are those of (seed, t, element of the job), so they depend on nothing
 * else.
 *
 * Bytes per element: gradient 2 (4 fp32) + master 8 + weight 2 + two moments, each read and
 * written: 16 (fp32), 8 (bf16), 4 1/8 (mx8), half of that with one moment: 28 for ADAMW in fp32. */
#ifndef CST_UPDATE_H
#define CST_UPDATE_H

#include "cistern/optimizer.h"

#include <stddef.h>
#include <stdint.h>

#define CST_UPDATE_NAN 0x7fc00000u /* bits of the only NaN in updated states */
#define CST_UPDATE_GROUP 32        /* elements that are done at a time; an mx8 block */

/* What hyper-parameters come to, for one span and step. Computed in double, rounded to float. */
struct cst_update_scalars {
    float grad_scale;      /* multiplies the gradient: loss scale x clip factor */
    float beta1, beta2;    /* as given */
    float one_minus_beta1; /* (float)(1 - (double)beta1) */
    float one_minus_beta2;
    float inv_sqrt_bias2; /* 1 / sqrt(1 - beta2^t) */
    float eps;
    float lr;           /* as given, times the span's scale */
    float weight_decay; /* same */
    float decay;        /* 1 - lr * weight_decay */
    float step_size;    /* lr / (1 - beta1^t) */
    float ratio_limit;  /* 1 - beta1^t: the largest |m / d| where moments are mx8 */
};

/* @t: step of the optimizer, from 1. lr and weight_decay are those of the span. The same bits on
 * every machine: powers by repeated squaring, no libm but sqrt. Any thread. */
void cst_update_prepare(struct cst_update_scalars *out, double lr, double beta1, double beta2,
                        double eps, double weight_decay, float grad_scale, uint64_t t);

/* A row of moments, from some element on. */
struct cst_update_moment {
    void *values;       /* fp32 or bf16 values, or codes; NULL: the optimizer has no such moment */
    uint8_t *exponents; /* mx8: of 32 elements each; else NULL */
};

/* Where n elements are read and written. In place where both are the same rows; the weights may
 * take the place of a bf16 gradient. mx8: element 0 is the first of a block. */
struct cst_update_rows {
    const uint16_t *grad_bf16; /* one of the two; NULL: the other */
    const float *grad_fp32;
    const float *master_in;
    struct cst_update_moment moments_in[2]; /* exp_avg, exp_avg_sq; read only */
    float *master;
    struct cst_update_moment moments[2];
    uint16_t *weight;
    /* Rows that will be summed next, read into the cache while this update waits for its own: as
     * many elements as it has; hints, so that they may end before. */
    const uint16_t *const *next;
    uint32_t n_next;
};

/* Bytes of @n elements of the rows that are given, all of which a kernel goes over once: those that
 * it reads and those that it writes, the same row twice where it does both; of mx8 whole exponents.
 * Any thread. */
uint64_t cst_update_bytes(const struct cst_update_rows *rows, enum cst_moments moments, size_t n);

/* Which random numbers. */
struct cst_update_random {
    uint64_t seed;    /* of the job */
    uint64_t t;       /* step of the optimizer */
    uint64_t element; /* the first one's: its tile's number x CST_TILE_ELEMS + its place in the
                         tile; a multiple of CST_UPDATE_GROUP */
};

struct cst_update_undo; /* kernels/update_undo.h */

/* Update n elements. Any alignment of whole elements, any n; rows do not overlap but for those that
 * are the same. @random: not read with fp32 moments or rounding to nearest. @undo: has the old
 * values of each element that may be half changed, at any instruction, so that rows in shared
 * memory, updated in place, can be made whole after kill -9; NULL: none is kept. All stores are
 * ordered before later ones of this thread when it returns. No allocation; any thread. */
typedef void (*cst_update_fn)(const struct cst_update_scalars *scalars,
                              const struct cst_update_random *random, size_t n,
                              const struct cst_update_rows *rows, struct cst_update_undo *undo);

/* The kernels of an instruction set: [optimizer][moments][rounding]; fp32 moments have one
 * rounding.
 */
struct cst_update_table {
    cst_update_fn v[CST_OPTIMIZER_COUNT][CST_MOMENTS_COUNT][CST_ROUNDING_COUNT];
};

extern const struct cst_update_table cst_update_ref, cst_update_avx2, cst_update_avx512;

#endif
