/* Rounding to fewer bits, over vectors: something is added below the last bit that stays, then the
 * rest is cut. Included behind one of kernels/vec_*.h. Private to kernels/.
 *
 * At random, what is added are random bits: of an element's word (kernels/philox.h) bf16 takes 16,
 * the low ones for exp_avg, the high ones for exp_avg_sq; mx8 takes 20 at either end, of which 8
 * are in both, being exp_avg's most and exp_avg_sq's least. */
#ifndef CST_ROUNDING_H
#define CST_ROUNDING_H

/* What is added to @x before its last @n bits are cut. */
CST_INLINE struct cst_vec_bits cst_round_add(enum cst_rounding rounding, unsigned which, int n,
                                             struct cst_vec_bits x, struct cst_vec_bits random)
{
    struct cst_vec_bits odd;

    if (rounding == CST_ROUNDING_STOCHASTIC) {
        return which == 0 ? cst_vec_and(random, cst_vec_set_bits((1u << n) - 1))
                          : cst_vec_right(random, 32 - n);
    }
    odd = cst_vec_and(cst_vec_right(x, n), cst_vec_set_bits(1));
    return cst_vec_plus(odd, cst_vec_set_bits((1u << (n - 1)) - 1));
}

/* @x, no NaN but the canonical one, as bf16 in the upper half of each lane. */
CST_INLINE struct cst_vec_bits cst_round_bf16(enum cst_rounding rounding, unsigned which,
                                              struct cst_vec x, struct cst_vec_bits random)
{
    struct cst_vec_bits bits = cst_vec_to_bits(x);

    return cst_vec_plus(bits, cst_round_add(rounding, which, 16, bits, random));
}

#endif
