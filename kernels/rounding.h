/* SPDX-License-Identifier: Apache-2.0 */
/* Rounding to fewer bits, over vectors: something is added below the last bit that stays, then the
 * rest is cut. Included behind one of kernels/vec_*.h. Private to kernels/.
 *
 * At random, what is added are random bits: of an element's word (kernels/philox.h) bf16 takes 16
 * and mx8 20, from the low end or the high one. (So mx8's elements that share a word share 8 bits,
 * which are the most that one has and the least that the other has.) */
#ifndef CST_ROUNDING_H
#define CST_ROUNDING_H

/* What is added to @x before its last @n bits are cut. @word: the element's random word, of which
 * it takes the high or the low bits; not read in rounding to nearest. */
CST_INLINE struct cst_vec_bits cst_round_add(enum cst_rounding rounding, int n,
                                             struct cst_vec_bits x, struct cst_vec_bits word,
                                             bool high)
{
    struct cst_vec_bits odd;

    if (rounding == CST_ROUNDING_STOCHASTIC) {
        return high ? cst_vec_right(word, 32 - n)
                    : cst_vec_and(word, cst_vec_set_bits((1u << n) - 1));
    }
    odd = cst_vec_and(cst_vec_right(x, n), cst_vec_set_bits(1));
    return cst_vec_plus(odd, cst_vec_set_bits((1u << (n - 1)) - 1));
}

/* @x, no NaN but the canonical one, as bf16 in the upper half of each lane, to nearest. */
CST_INLINE struct cst_vec_bits cst_round_bf16(struct cst_vec x)
{
    struct cst_vec_bits bits = cst_vec_to_bits(x);

    return cst_vec_plus(bits, cst_round_add(CST_ROUNDING_NEAREST, 16, bits, bits, false));
}

#endif
