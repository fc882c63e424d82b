/* SPDX-License-Identifier: Apache-2.0 */
/* The formulas of kernels/math/update.h, written over vectors. Included after one of
 * kernels/math/vec_*.h (by CUDA after its own vectors) and compiled for each. Private to kernels/.
 * Each optimizer of CST_OPTIMIZERS (proto/optimizers.h) has two functions: the first one computes
 * the moments, and the second one the master weight. A kernel can store the moments between the
 * two, while square roots and quotients are computed. */
#ifndef CST_FORMULAS_H
#define CST_FORMULAS_H

#include "proto/optimizers.h"

/* The values of struct cst_update_scalars, each in every lane. */
struct cst_formula_scalars {
    struct cst_vec grad_scale;
    struct cst_vec beta1, beta2;
    struct cst_vec one_minus_beta1, one_minus_beta2;
    struct cst_vec inv_sqrt_bias2;
    struct cst_vec eps;
    struct cst_vec lr;
    struct cst_vec weight_decay;
    struct cst_vec decay;
    struct cst_vec step_size;
    struct cst_vec ratio_limit;
};

/* The states of the elements in a vector. */
struct cst_formula_states {
    struct cst_vec p;                  /* master weights */
    struct cst_vec m[CST_MAX_MOMENTS]; /* Those that the optimizer has. */
    struct cst_vec u;                  /* Result of the first function for the second one. */
    struct cst_vec o;                  /* Optimizers of matrices: the orthogonalised direction. */
};

/* Copy each scalar to every lane. */
CST_INLINE void cst_formula_broadcast(struct cst_formula_scalars *out,
                                      const struct cst_update_scalars *scalars)
{
    out->grad_scale = cst_vec_set(scalars->grad_scale);
    out->beta1 = cst_vec_set(scalars->beta1);
    out->beta2 = cst_vec_set(scalars->beta2);
    out->one_minus_beta1 = cst_vec_set(scalars->one_minus_beta1);
    out->one_minus_beta2 = cst_vec_set(scalars->one_minus_beta2);
    out->inv_sqrt_bias2 = cst_vec_set(scalars->inv_sqrt_bias2);
    out->eps = cst_vec_set(scalars->eps);
    out->lr = cst_vec_set(scalars->lr);
    out->weight_decay = cst_vec_set(scalars->weight_decay);
    out->decay = cst_vec_set(scalars->decay);
    out->step_size = cst_vec_set(scalars->step_size);
    out->ratio_limit = cst_vec_set(scalars->ratio_limit);
}

/* Replace every NaN by CST_UPDATE_NAN. Instructions, compilers and devices differ in which
 * operand's NaN an addition returns. */
CST_INLINE struct cst_vec cst_formula_canonical(struct cst_vec x)
{
    return cst_vec_if_nan(x, cst_vec_from_bits(cst_vec_set_bits(CST_UPDATE_NAN)), x);
}

/* Returns 1 or -1, 0 for either zero, and a NaN for a NaN. */
CST_INLINE struct cst_vec cst_formula_sign(struct cst_vec x)
{
    struct cst_vec_bits sign = cst_vec_and(cst_vec_to_bits(x), cst_vec_set_bits(0x80000000u));
    struct cst_vec one = cst_vec_from_bits(cst_vec_or(sign, cst_vec_set_bits(0x3f800000u)));

    return cst_vec_if_nan(x, x, cst_vec_if_zero(x, cst_vec_set(0.0f), one));
}

/* Returns x + a * (y - x), as lerp of torch does. */
CST_INLINE struct cst_vec cst_formula_towards(struct cst_vec x, struct cst_vec y, struct cst_vec a)
{
    return cst_vec_fma(a, cst_vec_sub(y, x), x);
}

/* The common parts of ADAM and ADAMW. */
CST_INLINE void cst_formula_two_moments(const struct cst_formula_scalars *s, struct cst_vec g,
                                        struct cst_formula_states *x)
{
    x->m[0] = cst_formula_towards(x->m[0], g, s->one_minus_beta1);
    x->m[1] = cst_vec_fma(s->one_minus_beta2, cst_vec_mul(g, g), cst_vec_mul(s->beta2, x->m[1]));
    x->u = cst_vec_sqrt(x->m[1]);
}

CST_INLINE void cst_formula_quotient(enum cst_moments moments, const struct cst_formula_scalars *s,
                                     struct cst_formula_states *x)
{
    struct cst_vec d = cst_vec_fma(x->u, s->inv_sqrt_bias2, s->eps);
    struct cst_vec ratio = cst_vec_div(x->m[0], d);

    if (moments == CST_MOMENTS_MX8) {
        ratio = cst_vec_limit(ratio, s->ratio_limit);
    }
    x->p = cst_vec_fnma(s->step_size, ratio, x->p);
}

CST_INLINE void cst_formula_adamw_moments(const struct cst_formula_scalars *s, struct cst_vec g,
                                          struct cst_formula_states *x)
{
    cst_formula_two_moments(s, g, x);
}

CST_INLINE void cst_formula_adamw_weight(enum cst_moments moments,
                                         const struct cst_formula_scalars *s,
                                         struct cst_formula_states *x)
{
    x->p = cst_vec_mul(x->p, s->decay);
    cst_formula_quotient(moments, s, x);
}

CST_INLINE void cst_formula_adam_moments(const struct cst_formula_scalars *s, struct cst_vec g,
                                         struct cst_formula_states *x)
{
    cst_formula_two_moments(s, cst_vec_fma(s->weight_decay, x->p, g), x);
}

CST_INLINE void cst_formula_adam_weight(enum cst_moments moments,
                                        const struct cst_formula_scalars *s,
                                        struct cst_formula_states *x)
{
    cst_formula_quotient(moments, s, x);
}

CST_INLINE void cst_formula_lion_moments(const struct cst_formula_scalars *s, struct cst_vec g,
                                         struct cst_formula_states *x)
{
    x->u = cst_formula_sign(cst_formula_towards(x->m[0], g, s->one_minus_beta1));
    x->m[0] = cst_formula_towards(x->m[0], g, s->one_minus_beta2);
}

CST_INLINE void cst_formula_lion_weight(enum cst_moments moments,
                                        const struct cst_formula_scalars *s,
                                        struct cst_formula_states *x)
{
    (void)moments; /* The formula does not depend on the format. SGD's does not either. */
    x->p = cst_vec_fnma(s->lr, x->u, cst_vec_mul(x->p, s->decay));
}

CST_INLINE void cst_formula_sgd_moments(const struct cst_formula_scalars *s, struct cst_vec g,
                                        struct cst_formula_states *x)
{
    x->m[0] = cst_vec_fma(s->beta1, x->m[0], cst_vec_fma(s->weight_decay, x->p, g));
    x->u = x->m[0];
}

CST_INLINE void cst_formula_sgd_weight(enum cst_moments moments,
                                       const struct cst_formula_scalars *s,
                                       struct cst_formula_states *x)
{
    (void)moments;
    x->p = cst_vec_fnma(s->lr, x->u, x->p);
}

CST_INLINE void cst_formula_muon_moments(const struct cst_formula_scalars *s, struct cst_vec g,
                                         struct cst_formula_states *x)
{
    x->m[0] = cst_formula_towards(x->m[0], g, s->one_minus_beta1);
    x->u = x->o;
}

CST_INLINE void cst_formula_muon_weight(enum cst_moments moments,
                                        const struct cst_formula_scalars *s,
                                        struct cst_formula_states *x)
{
    (void)moments;
    x->p = cst_vec_fnma(s->step_size, x->u, cst_vec_mul(x->p, s->decay));
}

/* Compute the moments of @x with the formula of @optimizer, a compile-time constant. @g is the
 * gradient before scaling. x->p is only read, and x->u is set. A NaN in a result can be any NaN. */
CST_INLINE void cst_formula_moments(enum cst_optimizer optimizer,
                                    const struct cst_formula_scalars *s, struct cst_vec g,
                                    struct cst_formula_states *x)
{
    g = cst_vec_mul(g, s->grad_scale);
#define CASE(name, prefix, ...)                                                                    \
    if (optimizer == CST_OPTIMIZER_##name) {                                                       \
        cst_formula_##prefix##_moments(s, g, x);                                                   \
    }
    CST_OPTIMIZERS(CASE)
#undef CASE
}

/* Compute x->p after cst_formula_moments. @optimizer and @moments, the format of the moments, are
 * compile-time constants. A NaN in the result can be any NaN. */
CST_INLINE void cst_formula_weight(enum cst_optimizer optimizer, enum cst_moments moments,
                                   const struct cst_formula_scalars *s,
                                   struct cst_formula_states *x)
{
#define CASE(name, prefix, ...)                                                                    \
    if (optimizer == CST_OPTIMIZER_##name) {                                                       \
        cst_formula_##prefix##_weight(moments, s, x);                                              \
    }
    CST_OPTIMIZERS(CASE)
#undef CASE
}

#endif
