/* The fused update of every optimizer: one pass over gradient, fp32 master weights, moments and bf16
 * weight. All variants (reference, AVX2, AVX-512, CUDA) have the same bits. Per element, every line
 * rounded once, fma(a,b,c) = a*b + c in one rounding; g = fp32(grad) * grad_scale first:
 *
 *   ADAMW   torch.optim.AdamW          m = fma(1 - beta1, g - m, m)
 *                                      v = fma(1 - beta2, g * g, beta2 * v)
 *                                      d = fma(sqrt(v), inv_sqrt_bias2, eps)
 *                                      p = p * decay;  p = fma(-step_size, m / d, p)
 *   ADAM    torch.optim.Adam           g = fma(weight_decay, p, g), then as ADAMW with decay = 1 (p is not multiplied)
 *   LION    Chen et al. 2023           u = sign(fma(1 - beta1, g - m, m))      (sign(0) = 0)
 *                                      p = p * decay;  p = fma(-lr, u, p)
 *                                      m = fma(1 - beta2, g - m, m)
 *   SGD     torch.optim.SGD, dampening 0, no Nesterov
 *                                      g = fma(weight_decay, p, g);  m = fma(beta1, m, g);  p = fma(-lr, m, p)
 *   all     decay = 1 - lr * weight_decay; step_size = lr / (1 - beta1^t); weight = bf16(p), nearest even
 *
 * A NaN in p, m or v is stored as CST_UPDATE_NAN. Subnormals are kept. Formulas are written once, in
 * kernels/formulas.h, over the vectors of kernels/vec_*.h; a new one is a function there and a row in
 * its list.
 *
 * Moments are read exactly and rounded when stored, after everything else used them: p depends on the
 * unrounded m and v. Formats: kernels/moments.h (fp32, bf16, mx8). Random numbers of stochastic
 * rounding: kernels/philox.h, by (seed, t, element of the job, row), so they depend on nothing else.
 *
 * Bytes per element: gradient 2 (4 fp32) + master 8 + weight 2 + moments 2 x 8 (fp32), 2 x 4 (bf16),
 * 2 x 66/32 (mx8), half of that with one moment: 28 for ADAMW in fp32. */
#ifndef CST_UPDATE_H
#define CST_UPDATE_H

#include "proto/optimizer.h"

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
    float inv_sqrt_bias2;  /* 1 / sqrt(1 - beta2^t) */
    float eps;
    float lr;              /* as given, times the span's scale */
    float weight_decay;    /* same */
    float decay;           /* 1 - lr * weight_decay */
    float step_size;       /* lr / (1 - beta1^t) */
};

/* @t: step of the optimizer, from 1. lr and weight_decay are those of the span. The same bits on every
 * machine: powers by repeated squaring, no libm but sqrt. Any thread. */
void cst_update_prepare(struct cst_update_scalars *out, double lr, double beta1, double beta2,
                        double eps, double weight_decay, float grad_scale, uint64_t t);

/* Where n elements are read and written. In place where in and out are the same rows. Element i of the
 * call is element first + i of the tile. An mx8 row: codes[i], and exponents[i / 32]; the call then
 * begins at a multiple of 32 elements of the row. */
struct cst_update_moment {
    void *values;       /* fp32 or bf16 values, or codes; NULL: the optimizer has no such moment */
    uint8_t *exponents; /* mx8; else NULL */
};

struct cst_update_rows {
    const uint16_t *grad_bf16;            /* one of the two */
    const float *grad_fp32;
    const float *master_in;
    struct cst_update_moment moments_in[2]; /* exp_avg, exp_avg_sq; read only */
    float *master;
    struct cst_update_moment moments[2];
    uint16_t *weight;
};

/* Which random numbers: those of the elements from @element on. */
struct cst_update_random {
    uint64_t seed;    /* of the job */
    uint64_t t;       /* step of the optimizer */
    uint64_t element; /* tile number x CST_TILE_ELEMS + element of the tile, of the first one */
};

struct cst_update_undo; /* kernels/update_undo.h; NULL: none is kept. With one, rows are updated in place */

/* Update n elements. Any alignment of whole elements, any n; rows do not overlap but for in = out. All
 * stores are ordered before later ones of this thread when it returns. No allocation; any thread. */
typedef void (*cst_update_fn)(const struct cst_update_scalars *scalars,
                              const struct cst_update_random *random, size_t n,
                              const struct cst_update_rows *rows, struct cst_update_undo *undo);

/* The kernels of an instruction set: [optimizer][moments][rounding]; fp32 moments have one rounding.
 * Both kinds of gradient. */
struct cst_update_table {
    cst_update_fn v[CST_OPTIMIZER_COUNT][CST_MOMENTS_COUNT][CST_ROUNDING_COUNT];
};

extern const struct cst_update_table cst_update_ref, cst_update_avx2, cst_update_avx512;

#endif
