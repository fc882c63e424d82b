/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 32 moments in 8 bits each, written over vectors, after OCP Microscaling (MX v1.0). The
 * elements of a block share a power of two, 2^(exponent - 127), whose exponent is stored in a byte
 * of its own. Included after one of kernels/math/vec_*.h. Private to kernels/.
 *
 *                   code                                     value x 2^-(exponent - 127)
 *    with sign      sign, 4 bits exponent e, 3 fraction f    e > 0: (1 + f/8) x 2^(e - 7)
 *    (E4M3)                                                  e = 0: f/8 x 2^-6
 *    without        5 bits exponent e, 3 fraction f          e > 0: (1 + f/8) x 2^(e - 15)
 *    (UE5M3)                                                 e = 0: f/8 x 2^-14
 *
 * e = 31 is not used. Both codes are therefore the upper half of an IEEE half. All codes with a
 * sign are numbers; the largest is 480. The value of a code is exact in fp32. The first code is
 * that of moments such as exp_avg, the second one that of means of squares, such as exp_avg_sq
 * (CST_MOMENTS_UNSIGNED, proto/optimizers.h). In the functions, @which is 0 for the first and 1 for
 * the second one.
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
 * - Without a sign, an element that is not zero gets at least code 1. With code 0, the next
 *   denominator of the update would depend on the last gradient alone.
 * - A sign for which there is no bit is dropped.
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

/* Returns the bits of the smallest normal value of a code in a block whose largest magnitude has
 * the bits @largest. If @largest is above CST_MX8_MAX, the result has no meaning.
 *
 * With this unit, cst_vec_fixed of a magnitude below 2^127 is the code, in excess of the unit's
 * bits without the last 20, followed by 20 bits that are to be rounded away. A normal value is
 * doubled, which moves its bits by one exponent. The unit is added to a value below it, which
 * aligns the bits of the value with the bits of a code with e = 0. */
CST_INLINE struct cst_vec_common cst_mx8_unit(unsigned which, struct cst_vec_common largest)
{
    const uint32_t lowest = ((which == 0 ? 8 : 15) + cst_mx8_least(which)) << 23;
    /* The addition carries into the exponent if the magnitude is above 1.875 x 2^k. */
    struct cst_vec_common top =
        cst_vec_common_and(cst_vec_common_plus(largest, 0x000fffffu), 0xff800000u);

    return cst_vec_common_plus(cst_vec_common_max(top, lowest), (1u << 23) - lowest);
}

/* Returns the exponent of a block whose largest magnitude has the bits @largest. If @largest is
 * above CST_MX8_MAX, the result has no meaning. */
CST_INLINE uint32_t cst_mx8_exponent(unsigned which, struct cst_vec_common largest)
{
    uint32_t unit = cst_vec_common_scalar(cst_mx8_unit(which, largest));

    return cst_vec_common_scalar(largest) == 0 ? 0 : (unit >> 23) + cst_mx8_least(which) - 1;
}

/* Returns the factor for the value of a code that was loaded as an IEEE half. The exponent bias of
 * the code with a sign is 8 less than that of a half, hence the additional factor 2^8. */
CST_INLINE struct cst_vec cst_mx8_scale(unsigned which, uint32_t exponent)
{
    uint32_t bits = exponent == 0 ? 0 : (exponent + (which == 0 ? 8 : 0)) << 23;

    return cst_vec_from_bits(
        cst_vec_set_bits(exponent > CST_MX8_MAX_EXPONENT ? CST_UPDATE_NAN : bits));
}

/* Returns |x|. */
CST_INLINE struct cst_vec cst_mx8_magnitude(struct cst_vec x)
{
    return cst_vec_from_bits(cst_vec_and(cst_vec_to_bits(x), cst_vec_set_bits(0x7fffffffu)));
}

#endif
