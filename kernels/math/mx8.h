/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 32 moments in 8 bits each, written over vectors, after OCP Microscaling (MX v1.0). The
 * elements of a block share a power of two, 2^(exponent - 127), whose exponent is stored in a byte
 * of its own. Included after one of kernels/math/vec_*.h. Private to kernels/.
 *
 *                   code                                     value x 2^-(exponent - 127)
 *    exp_avg        sign, 4 bits exponent e, 3 fraction f    e > 0: (1 + f/8) x 2^(e - 7)
 *    (E4M3)                                                  e = 0: f/8 x 2^-6
 *    exp_avg_sq     5 bits exponent e, 3 fraction f          e > 0: (1 + f/8) x 2^(e - 15)
 *    (UE5M3)                                                 e = 0: f/8 x 2^-14
 *
 * e = 31 is not used. Both codes are therefore the upper half of an IEEE half. All codes of exp_avg
 * are numbers; the largest is 480. The value of a code is exact in fp32.
 *
 * Choice of the exponent:
 *
 * - It is the smallest exponent with which the largest element of the block does not exceed the
 *   largest value of the code, 1.875 x 2^8 or 1.875 x 2^15.
 * - It is at least 7 or 15. An element with the smallest normal value of the code is then a normal
 *   fp32.
 * - A block of zeros has exponent 0 and codes 0. A row of zero bytes therefore decodes to zeros.
 *
 * Rounding of the elements:
 *
 * - Stochastic rounding takes one of the two neighbours, with a probability that grows with its
 *   nearness. The other rounding is to nearest even. Both round to a multiple of the unit of the
 *   last bit.
 * - Elements with e = 0 are first rounded to nearest even at 2^-20 of that unit.
 * - An exp_avg_sq that is not zero gets at least code 1. With code 0, the next denominator of the
 *   update would depend on the last gradient alone.
 * - The sign of an exp_avg_sq is dropped.
 *
 * A block with a NaN, an infinity, or a magnitude above 1.875 x 2^127 gets exponent 255 and codes
 * 0, and all its elements are decoded to NaN. Exponents 247 to 254 are never written; these
 * exponents are decoded to NaN as well. */
#ifndef CST_MX8_H
#define CST_MX8_H

#define CST_MX8_NAN 255u          /* Exponent of a block with a NaN. */
#define CST_MX8_MAX 0x7f700000u   /* Bit pattern of 1.875 x 2^127, the largest magnitude. */
#define CST_MX8_HUGE 0x7f000000u  /* Bit pattern of 2^127. */
#define CST_MX8_MAX_EXPONENT 246u /* Largest exponent of a block of numbers. */

/* Returns the smallest exponent of a block that is not all zeros. With this exponent, the smallest
 * normal value of the code is a normal fp32, and a code and its fp32 value have the same exponent
 * bits. */
CST_INLINE uint32_t cst_mx8_least(unsigned which)
{
    return which == 0 ? 7 : 15;
}

/* Returns the exponent of a block whose largest magnitude has the bits @largest. */
CST_INLINE uint32_t cst_mx8_exponent(unsigned which, uint32_t largest)
{
    /* The addition carries into the exponent if the magnitude is above 1.875 x 2^k. */
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

/* Returns the factor for the value of a code that was loaded as an IEEE half. The exponent bias of
 * exp_avg's code is 8 less than that of a half, hence the additional factor 2^8. */
CST_INLINE struct cst_vec cst_mx8_scale(unsigned which, uint32_t exponent)
{
    uint32_t bits = exponent == 0 ? 0 : (exponent + (which == 0 ? 8 : 0)) << 23;

    return cst_vec_from_bits(
        cst_vec_set_bits(exponent > CST_MX8_MAX_EXPONENT ? CST_UPDATE_NAN : bits));
}

/* Returns the bits of |x|. */
CST_INLINE struct cst_vec_bits cst_mx8_magnitude(struct cst_vec x)
{
    return cst_vec_and(cst_vec_to_bits(x), cst_vec_set_bits(0x7fffffffu));
}

/* Constants of the encoding of one block, in every lane. */
struct cst_mx8_block {
    struct cst_vec unit; /* The smallest normal value. */
    /* What the codes of cst_mx8_fixed have in excess: the bits of @unit without the last 20. */
    struct cst_vec_bits excess;
};

/* Returns the constants for a block whose largest magnitude has the bits @largest in every lane.
 * The exponent is that of cst_mx8_exponent, at least cst_mx8_least. If the block has a NaN, the
 * constants have no meaning. */
CST_INLINE struct cst_mx8_block cst_mx8_block_of(unsigned which, struct cst_vec_bits largest)
{
    const uint32_t lowest = (which == 0 ? 8 : 15) + cst_mx8_least(which);
    struct cst_vec_bits top = cst_vec_and(cst_vec_plus(largest, cst_vec_set_bits(0x000fffffu)),
                                          cst_vec_set_bits(0xff800000u));
    struct cst_vec_bits unit = cst_vec_minus(cst_vec_max(top, cst_vec_set_bits(lowest << 23)),
                                             cst_vec_set_bits((lowest - 1) << 23));
    struct cst_mx8_block block;

    block.unit = cst_vec_from_bits(unit);
    block.excess = cst_vec_right(unit, 20);
    return block;
}

/* Returns a magnitude below 2^127 as the bits of the code plus block->excess, followed by 20 bits
 * that are to be rounded away. A normal value is doubled, which moves its bits by one exponent. The
 * smallest normal value is added to a value below it, which aligns the bits of the value with the
 * bits of a code with e = 0. */
CST_INLINE struct cst_vec_bits cst_mx8_fixed(const struct cst_mx8_block *block,
                                             struct cst_vec_bits magnitude)
{
    struct cst_vec y = cst_vec_from_bits(magnitude);

    return cst_vec_to_bits(cst_vec_add(y, cst_vec_larger(y, block->unit)));
}

/* cst_mx8_fixed of any magnitude up to CST_MX8_MAX. A normal value is doubled as an integer. */
CST_INLINE struct cst_vec_bits cst_mx8_fixed_huge(const struct cst_mx8_block *block,
                                                  struct cst_vec_bits magnitude)
{
    return cst_vec_max(cst_vec_plus(magnitude, cst_vec_set_bits(1u << 23)),
                       cst_mx8_fixed(block, magnitude));
}

#endif
