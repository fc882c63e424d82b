/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 32 moments in 8 bits each, over vectors, after OCP Microscaling (MX v1.0): the elements
 * share a power of two, 2^(exponent - 127), in a byte of their own. Included behind one of
 * kernels/vec_*.h. Private to kernels/.
 *
 *                  code                                     value x 2^-(exponent - 127)
 *   exp_avg        sign, 4 bits exponent e, 3 fraction f    e > 0: (1 + f/8) x 2^(e - 7)
 *   (E4M3)                                                  e = 0: f/8 x 2^-6
 *   exp_avg_sq     5 bits exponent e, 3 fraction f          e > 0: (1 + f/8) x 2^(e - 15)
 *   (UE5M3)                                                 e = 0: f/8 x 2^-14
 *
 * e = 31 is not used, so either code is the upper half of an IEEE half. All codes of exp_avg are
 * numbers, the largest 480. A code's value is exact in fp32.
 *
 * Encoding. The exponent is the smallest for which the largest element of the block is not above
 * the largest value, 1.875 x 2^8 or 1.875 x 2^15; and at least 7 or 15, so that an element of a
 * code's smallest normal value is a normal fp32. The block of zeros has exponent 0 and decodes
 * to zeros, so a row of zero bytes is zeros. Elements are rounded to a multiple of the last bit's
 * unit, with random numbers to one of both neighbours, each as likely as it is near, or to the
 * nearest one (even); those with e = 0 are first rounded to 2^-20 of that unit, to nearest even. An
 * exp_avg_sq that is not zero gets at least code 1: code 0 would leave the update a denominator
 * that has forgotten every gradient but the last. A
 * block with a NaN, an infinity, or a magnitude above 1.875 x 2^127 has exponent 255 and codes 0:
 * all its elements are NaN when decoded. (Exponents that no block gets, from 247 on, decode so as
 * well.) The sign of an exp_avg_sq is dropped. */
#ifndef CST_MX8_H
#define CST_MX8_H

#define CST_MX8_NAN 255u          /* exponent of a block with a NaN */
#define CST_MX8_MAX 0x7f700000u   /* bits of 1.875 x 2^127 */
#define CST_MX8_MAX_EXPONENT 246u /* of numbers */

/* An exponent at least so large that 2^exponent's unit is normal; also the difference of biases of
 * a code's and an fp32's exponents where the block's is 0. */
CST_INLINE uint32_t cst_mx8_least(unsigned which)
{
    return which == 0 ? 7 : 15;
}

/* The exponent of a block whose largest magnitude has these bits. */
CST_INLINE uint32_t cst_mx8_exponent(unsigned which, uint32_t largest)
{
    /* Anything above 1.875 x 2^k carries into 2^(k+1). */
    uint32_t top = (largest + 0x000fffffu) >> 23;
    uint32_t above = which == 0 ? 8 : 15;
    uint32_t least = cst_mx8_least(which);

    if (largest > CST_MX8_MAX) {
        return CST_MX8_NAN;
    }
    if (largest == 0) {
        return 0;
    }
    return top < above + least ? least : top - above;
}

/* What a code's value is multiplied with. An exp_avg's code, taken for a half, has 2^8 less. */
CST_INLINE struct cst_vec cst_mx8_scale(unsigned which, uint32_t exponent)
{
    uint32_t bits = exponent == 0 ? 0 : (exponent + (which == 0 ? 8 : 0)) << 23;

    return cst_vec_from_bits(
        cst_vec_set_bits(exponent > CST_MX8_MAX_EXPONENT ? CST_UPDATE_NAN : bits));
}

CST_INLINE struct cst_vec_bits cst_mx8_magnitude(struct cst_vec x)
{
    return cst_vec_and(cst_vec_to_bits(x), cst_vec_set_bits(0x7fffffffu));
}

/* What is constant in encoding a block. */
struct cst_mx8_block {
    struct cst_vec_bits normal; /* fp32's exponent less the code's, as bits of an fp32 */
    struct cst_vec_bits unit;   /* bits of the smallest normal value */
};

CST_INLINE struct cst_mx8_block cst_mx8_block_of(unsigned which, uint32_t exponent)
{
    uint32_t least = cst_mx8_least(which);
    uint32_t above = exponent < least ? 0 : exponent - least;
    struct cst_mx8_block block;

    block.normal = cst_vec_set_bits(above << 23);
    block.unit = cst_vec_set_bits((above + 1) << 23);
    return block;
}

/* A magnitude as the code's bits, followed by 20 that are to be rounded away. A value below the
 * smallest normal one is brought to its exponent, and so in line, by adding that. */
CST_INLINE struct cst_vec_bits cst_mx8_fixed(const struct cst_mx8_block *block,
                                             struct cst_vec_bits magnitude)
{
    struct cst_vec y = cst_vec_from_bits(magnitude);
    struct cst_vec unit = cst_vec_from_bits(block->unit);
    struct cst_vec_bits zero = cst_vec_set_bits(0);
    struct cst_vec added = cst_vec_from_bits(cst_vec_if_less(y, unit, block->unit, zero));
    struct cst_vec_bits less = cst_vec_if_less(y, unit, block->unit, block->normal);

    return cst_vec_minus(cst_vec_to_bits(cst_vec_add(y, added)), less);
}

/* The code of @x. @magnitude: the bits of |x|; @fixed: cst_mx8_fixed of them; @add: less than 2^20,
 * at random, or what rounds to nearest. */
CST_INLINE struct cst_vec_bits cst_mx8_code(unsigned which, struct cst_vec_bits magnitude,
                                            struct cst_vec_bits fixed, struct cst_vec_bits add,
                                            struct cst_vec x)
{
    struct cst_vec_bits code = cst_vec_right(cst_vec_plus(fixed, add), 20);
    struct cst_vec_bits sign =
        cst_vec_and(cst_vec_right(cst_vec_to_bits(x), 24), cst_vec_set_bits(0x80));

    return which == 0 ? cst_vec_or(code, sign)
                      : cst_vec_max(code, cst_vec_min(magnitude, cst_vec_set_bits(1)));
}

#endif
