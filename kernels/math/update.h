/* SPDX-License-Identifier: Apache-2.0 */
/* The fused update of every optimizer: one pass over gradient, fp32 master weights, moments and
 * bf16 weights. Master weights have a row of their own, or are split (kernels/math/split.h). The
 * master weights of fp32 tensors are their weights, and there are no bf16 weights. All variants
 * (reference, AVX2, AVX-512, NEON, CUDA) produce the same bits. The formulas per element follow.
 * Every line is rounded once, and fma(a,b,c) is a*b + c with one rounding. Each formula begins with
 * g = fp32(grad) * grad_scale:
 *
 *   ADAMW  torch.optim.AdamW   m = fma(1 - beta1, g - m, m)                 (torch's lerp)
 *                              v = fma(1 - beta2, g * g, beta2 * v)
 *                              d = fma(sqrt(v), inv_sqrt_bias2, eps)
 *                              p = p * decay
 *                              p = fma(-step_size, m / d, p)
 *   ADAM   torch.optim.Adam    g = fma(weight_decay, p, g)
 *                              then as ADAMW, but p is not multiplied by decay
 *   LION   Chen et al. 2023    u = sign(fma(1 - beta1, g - m, m))           (sign(0) = 0)
 *                              p = p * decay
 *                              p = fma(-lr, u, p)
 *                              m = fma(1 - beta2, g - m, m)
 *   SGD    torch.optim.SGD,    g = fma(weight_decay, p, g)
 *          dampening 0,        m = fma(beta1, m, g)
 *          no Nesterov         p = fma(-lr, m, p)
 *   MUON   torch.optim.Muon    m = fma(1 - beta1, g - m, m)
 *                              p = p * decay
 *                              p = fma(-step_size, o, p)
 *          o is the orthogonalised direction, computed before (kernels/math/muon.h), and step_size
 *          is lr * 0.2 * sqrt(max(rows, columns)) (adjust_lr_fn "match_rms_adamw")
 *   all    decay = 1 - lr * weight_decay; step_size = lr / (1 - beta1^t); weight = bf16(p), nearest
 *          even; split masters: nearest, ties away from zero
 *
 * A NaN in p, m or v is stored as CST_UPDATE_NAN, because instructions, compilers and devices
 * differ in which operand's NaN an addition returns. Subnormals are kept: callers run with the
 * default floating-point environment (nearest even, no flushing). The formulas are written once, in
 * kernels/math/formulas.h, over the vectors of kernels/math/vec_*.h.
 *
 * With mx8 moments, ADAMW and ADAM limit |m / d| to 1 - beta1^t. Apart from decay, a step is then
 * at most lr long. With fp32 moments, the first step of every element and each step under a
 * constant gradient have this length (Kingma and Ba: Adam, 2015, section 2.1). The quotient needs a
 * limit because the rounding errors of m and v depend on the largest elements of a block, M and V.
 * The units of their codes, and hence the errors, are
 *
 *   of m: max(|m| / 2^3, M / 2^16.9)    of v: max(v / 2^3, V / 2^31.9)
 *
 * An element whose gradients are 10^-5 of the largest can therefore get M / 2^16.9 as its m. Its v
 * is not zero; it is at least the smallest code (kernels/math/mx8.h), which is not below V /
 * 2^32.9. For all elements with the smallest codes, |m| / sqrt(v) is hence at most 0.74 M /
 * sqrt(V). (If v could become zero, the next step would be |m| / (sqrt(1 - beta2) |g|), which has
 * no bound.) For elements between these and the largest, and while v grows, a quotient can be wrong
 * by a small factor. The limit stops these quotients. It also shortens the steps that a rare
 * gradient makes with fp32 moments, which are at most lr (1 - beta1) / sqrt(1 - beta2).
 *
 * Moments are read exactly. Moments are rounded when they are stored, after all other uses: p
 * depends on the unrounded m and v. Formats: fp32, bf16, mx8 (kernels/math/mx8.h). The random
 * bits of stochastic rounding (kernels/math/random.h) are determined by (seed, t, element of the
 * job) alone.
 *
 * Bytes per element: gradient 2 (fp32: 4) + master 8 + weight 2 + two moments, each read and
 * written: 16 (fp32), 8 (bf16) or 4 1/8 (mx8), and half of that with one moment. For ADAMW with
 * fp32 moments the sum is 28. Split masters take 8 instead of master 8 + weight 2: the sum is 26.
 * fp32 tensors have fp32 gradients and no bf16 weights: the sum is 28. */
#ifndef CST_MATH_UPDATE_H
#define CST_MATH_UPDATE_H

#include "proto/optimizers.h"

#include <stddef.h>
#include <stdint.h>

#define CST_UPDATE_NAN 0x7fc00000u /* Bit pattern of every NaN in updated states. */
/* Number of elements that are processed together; also the size of an mx8 block. */
#define CST_UPDATE_GROUP 32

/* Scalars derived from the hyper-parameters for one span and step. The scalars are computed in
 * double and rounded to float. */
struct cst_update_scalars {
    float grad_scale;   /* Factor of the gradient: loss scale x clip factor. */
    float beta1, beta2; /* As given. */
    /* (float)(1 - (double)beta), not 1 - beta in float. */
    float one_minus_beta1;
    float one_minus_beta2;
    float inv_sqrt_bias2; /* 1 / sqrt(1 - beta2^t). */
    float eps;
    float lr;           /* As given, times the scale of the span. */
    float weight_decay; /* As given, times the scale of the span. */
    float decay;        /* 1 - lr * weight_decay. */
    float step_size;    /* lr / (1 - beta1^t). MUON: see above. */
    float ratio_limit;  /* 1 - beta1^t: the largest |m / d| if moments are mx8. */
};

/* Compute the scalars of step @t of the optimizer, counted from 1. @lr and @weight_decay are those
 * of the span. The bits are the same on every machine: powers are computed by repeated squaring,
 * and sqrt is the only function of libm. Any thread. */
void cst_update_prepare(struct cst_update_scalars *out, double lr, double beta1, double beta2,
                        double eps, double weight_decay, float grad_scale, uint64_t t);

/* As cst_update_prepare, for MUON and matrices of @rows and @columns: beta1 is CST_MUON_MOMENTUM,
 * and step_size is @lr x 0.2 x sqrt(max(rows, columns)), with which a step has about the length
 * that it has with AdamW (Liu et al.: Muon is Scalable for LLM Training, 2025, equation 4). The
 * scalars of other formulas are 0. */
void cst_update_prepare_muon(struct cst_update_scalars *out, double lr, double weight_decay,
                             float grad_scale, uint32_t rows, uint32_t columns);

/* A row of moments, from some element on. */
struct cst_update_moment {
    /* fp32 or bf16 values, or mx8 codes. NULL: the optimizer does not have this moment. */
    void *values;
    uint8_t *exponents; /* mx8: exponents of 32 elements each. Otherwise NULL. */
};

/* Addresses from which n elements are read and to which they are written. The update is in place if
 * both are the same rows. The weights may overwrite a bf16 gradient. With mx8, element 0 is the
 * first of a block. */
struct cst_update_rows {
    /* The gradient as bf16 or as fp32. The other pointer is NULL. */
    const uint16_t *grad_bf16;
    const float *grad_fp32;
    const uint16_t *direction; /* MUON: the orthogonalised direction, bf16. Otherwise NULL. */
    const float *master_in;    /* NULL: masters are split. */
    /* Split masters that are read; otherwise NULL. */
    const uint16_t *weight_in;
    const int16_t *remainder_in;
    struct cst_update_moment moments_in[CST_MAX_MOMENTS]; /* By number; read only. */
    float *master;                                        /* NULL: masters are split. */
    int16_t *remainder;                                   /* Split masters; otherwise NULL. */
    struct cst_update_moment moments[CST_MAX_MOMENTS];
    uint16_t *weight; /* NULL: the master weights are the weights. */
    /* Rows that will be summed next. The kernel prefetches as many of their elements as it updates,
     * while it waits for its own rows. The addresses are hints: they may lie beyond the end of a
     * row. */
    const uint16_t *const *next;
    uint32_t n_next;
};

/* Returns the bytes that a kernel reads plus the bytes that it writes for @n elements of @rows. A
 * row that is read and written counts twice; of mx8, whole exponents count. Any thread. */
uint64_t cst_update_bytes(const struct cst_update_rows *rows, enum cst_moments moments, size_t n);

/* Identification of the random numbers of an update. */
struct cst_update_random {
    uint64_t seed; /* Seed of the job. */
    uint64_t t;    /* Step of the optimizer. */
    /* Number of the first element: number of its tile x CST_TILE_ELEMS + place in the tile. It is a
     * multiple of CST_UPDATE_GROUP. */
    uint64_t element;
};

struct cst_update_undo; /* Defined in kernels/math/update_undo.h. */

/* Update n elements, for any n. Rows may begin at any whole element. Rows do not overlap, except
 * where they are the same row. @random is not read with fp32 moments or rounding to nearest. @undo
 * holds, at any instruction, the old values of each element that may be half changed. With @undo,
 * rows in shared memory that are updated in place can be restored after kill -9. NULL: old values
 * are not kept. The weights may bypass the cache: another thread may read them after the caller's
 * cst_update_fence. The function does not allocate. Any thread. */
typedef void (*cst_update_fn)(const struct cst_update_scalars *scalars,
                              const struct cst_update_random *random, size_t n,
                              const struct cst_update_rows *rows, struct cst_update_undo *undo);

/* Order the weights that update functions have stored before later stores of the thread. An update
 * of many tiles calls this once, at its end: on x86, the processor then waits until all weights
 * have left its write-combining buffers. Waiting for each tile takes up to 4 % of an update. Any
 * thread. */
void cst_update_fence(void);

/* The update kernels of an instruction set: [optimizer][moments][rounding]. Both roundings of fp32
 * moments have the same kernel. */
struct cst_update_table {
    cst_update_fn v[CST_OPTIMIZER_COUNT][CST_MOMENTS_COUNT][CST_ROUNDING_COUNT];
};

/* The functions of other optimizers than MUON do not read rows->direction. */
extern const struct cst_update_table cst_update_ref, cst_update_avx2, cst_update_avx512,
    cst_update_neon;

#endif
