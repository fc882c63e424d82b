/* SPDX-License-Identifier: Apache-2.0 */
/* The formulas of kernels/update.h, over vectors: included behind one of kernels/vec_*.h, or by
 * CUDA behind its own, and compiled for each. Private to kernels/. A new formula is a function here
 * and a row of the list. */
#ifndef CST_FORMULAS_H
#define CST_FORMULAS_H

/* X(name of enum cst_optimizer, function) */
#define CST_FORMULAS(X)                                                                            \
    X(ADAMW, adamw)                                                                                \
    X(ADAM, adam)                                                                                  \
    X(LION, lion)                                                                                  \
    X(SGD, sgd)

/* struct cst_update_scalars in every lane. */
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

/* An element's states. */
struct cst_formula_states {
    struct cst_vec p; /* master */
    struct cst_vec m; /* exp_avg */
    struct cst_vec v; /* exp_avg_sq, where the optimizer has it */
};

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

/* Any NaN as CST_UPDATE_NAN: which operand's NaN survives an addition differs between instructions,
 * compilers and devices. */
CST_INLINE struct cst_vec cst_formula_canonical(struct cst_vec x)
{
    return cst_vec_if_nan(x, cst_vec_from_bits(cst_vec_set_bits(CST_UPDATE_NAN)), x);
}

/* 1 or -1; 0 for either zero; a NaN for a NaN. */
CST_INLINE struct cst_vec cst_formula_sign(struct cst_vec x)
{
    struct cst_vec_bits sign = cst_vec_and(cst_vec_to_bits(x), cst_vec_set_bits(0x80000000u));
    struct cst_vec one = cst_vec_from_bits(cst_vec_or(sign, cst_vec_set_bits(0x3f800000u)));

    return cst_vec_if_nan(x, x, cst_vec_if_zero(x, cst_vec_set(0.0f), one));
}

/* x + a * (y - x), torch's lerp */
CST_INLINE struct cst_vec cst_formula_towards(struct cst_vec x, struct cst_vec y, struct cst_vec a)
{
    return cst_vec_fma(a, cst_vec_sub(y, x), x);
}

/* @x, its magnitude at most @limit; a NaN stays one. */
CST_INLINE struct cst_vec cst_formula_limit(struct cst_vec x, struct cst_vec limit)
{
    struct cst_vec_bits bits = cst_vec_to_bits(x);
    struct cst_vec_bits sign = cst_vec_and(bits, cst_vec_set_bits(0x80000000u));
    struct cst_vec_bits magnitude = cst_vec_and(bits, cst_vec_set_bits(0x7fffffffu));

    magnitude =
        cst_vec_if_less(limit, cst_vec_from_bits(magnitude), cst_vec_to_bits(limit), magnitude);
    return cst_vec_from_bits(cst_vec_or(magnitude, sign));
}

/* What both Adams do; p as it is after decay, if any. */
CST_INLINE void cst_formula_moments(enum cst_moments moments, const struct cst_formula_scalars *s,
                                    struct cst_vec g, struct cst_formula_states *x)
{
    struct cst_vec d, ratio;

    x->m = cst_formula_towards(x->m, g, s->one_minus_beta1);
    x->v = cst_vec_fma(s->one_minus_beta2, cst_vec_mul(g, g), cst_vec_mul(s->beta2, x->v));
    d = cst_vec_fma(cst_vec_sqrt(x->v), s->inv_sqrt_bias2, s->eps);
    ratio = cst_vec_div(x->m, d);
    if (moments == CST_MOMENTS_MX8) {
        ratio = cst_formula_limit(ratio, s->ratio_limit);
    }
    x->p = cst_vec_fnma(s->step_size, ratio, x->p);
}

CST_INLINE void cst_formula_adamw(enum cst_moments moments, const struct cst_formula_scalars *s,
                                  struct cst_vec g, struct cst_formula_states *x)
{
    x->p = cst_vec_mul(x->p, s->decay);
    cst_formula_moments(moments, s, g, x);
}

CST_INLINE void cst_formula_adam(enum cst_moments moments, const struct cst_formula_scalars *s,
                                 struct cst_vec g, struct cst_formula_states *x)
{
    cst_formula_moments(moments, s, cst_vec_fma(s->weight_decay, x->p, g), x);
}

CST_INLINE void cst_formula_lion(enum cst_moments moments, const struct cst_formula_scalars *s,
                                 struct cst_vec g, struct cst_formula_states *x)
{
    struct cst_vec u = cst_formula_sign(cst_formula_towards(x->m, g, s->one_minus_beta1));

    (void)moments; /* This formula is the same for all formats, as that of SGD is. */
    x->p = cst_vec_fnma(s->lr, u, cst_vec_mul(x->p, s->decay));
    x->m = cst_formula_towards(x->m, g, s->one_minus_beta2);
}

CST_INLINE void cst_formula_sgd(enum cst_moments moments, const struct cst_formula_scalars *s,
                                struct cst_vec g, struct cst_formula_states *x)
{
    (void)moments;
    x->m = cst_vec_fma(s->beta1, x->m, cst_vec_fma(s->weight_decay, x->p, g));
    x->p = cst_vec_fnma(s->lr, x->m, x->p);
}

/* The formula of @optimizer, for moments that are kept in the format @moments; both are known where
 * it is compiled. @g is the gradient as it came. p comes out canonical. */
CST_INLINE void cst_formula_apply(enum cst_optimizer optimizer, enum cst_moments moments,
                                  const struct cst_formula_scalars *s, struct cst_vec g,
                                  struct cst_formula_states *x)
{
    g = cst_vec_mul(g, s->grad_scale);
#define CASE(name, function)                                                                       \
    if (optimizer == CST_OPTIMIZER_##name) {                                                       \
        cst_formula_##function(moments, s, g, x);                                                  \
    }
    CST_FORMULAS(CASE)
#undef CASE
    x->p = cst_formula_canonical(x->p);
}

#endif
