/* SPDX-License-Identifier: Apache-2.0 */
/* Rounding to fewer bits, written over vectors. A number is added below the last bit that stays,
 * and the remaining bits are cut. Included after one of kernels/math/vec_*.h. Private to kernels/.
 *
 * Stochastic rounding adds random bits of the element's word (kernels/math/random.h): 16 bits for
 * bf16 and 20 bits for mx8, from the low or the high end of the word. The two mx8 elements of a
 * word therefore share 8 bits, which are the most significant for one element and the least
 * significant for the other. */
#ifndef CST_ROUNDING_H
#define CST_ROUNDING_H

/* Returns the number that is added to @x before its last @n bits are cut. @word is the random word
 * of the element, of which the high or the low bits are taken. Rounding to nearest does not read
 * @word. */
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

/* Round @x to bf16, to nearest even. The result is in the upper half of each lane. A NaN in @x must
 * be CST_UPDATE_NAN. */
CST_INLINE struct cst_vec_bits cst_round_bf16(struct cst_vec x)
{
    struct cst_vec_bits bits = cst_vec_to_bits(x);

    return cst_vec_plus(bits, cst_round_add(CST_ROUNDING_NEAREST, 16, bits, bits, false));
}

#endif
