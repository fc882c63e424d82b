/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on vectors that are C's operators, on one lane or on the vectors of the compiler.
 * Included by kernels/math/vec_ref.h, vec_avx2.h, vec_avx512.h and vec_neon.h, after the vectors,
 * cst_vec_u32 and cst_vec_word are declared. Private to kernels/. */
#ifndef CST_VEC_LANES_H
#define CST_VEC_LANES_H

/* -- arithmetic: each operation is rounded once --------------------------------------------- */

CST_INLINE struct cst_vec cst_vec_add(struct cst_vec a, struct cst_vec b)
{
    return (struct cst_vec){a.x + b.x};
}

CST_INLINE struct cst_vec cst_vec_sub(struct cst_vec a, struct cst_vec b)
{
    return (struct cst_vec){a.x - b.x};
}

CST_INLINE struct cst_vec cst_vec_mul(struct cst_vec a, struct cst_vec b)
{
    return (struct cst_vec){a.x * b.x};
}

CST_INLINE struct cst_vec cst_vec_div(struct cst_vec a, struct cst_vec b)
{
    return (struct cst_vec){a.x / b.x};
}

/* -- bits ----------------------------------------------------------------------------------- */

CST_INLINE struct cst_vec_bits cst_vec_and(struct cst_vec_bits a, struct cst_vec_bits b)
{
    return (struct cst_vec_bits){a.x & b.x};
}

CST_INLINE struct cst_vec_bits cst_vec_or(struct cst_vec_bits a, struct cst_vec_bits b)
{
    return (struct cst_vec_bits){a.x | b.x};
}

CST_INLINE struct cst_vec_bits cst_vec_xor(struct cst_vec_bits a, struct cst_vec_bits b)
{
    return (struct cst_vec_bits){a.x ^ b.x};
}

/* Addition, subtraction and multiplication of bits are modulo 2^32. */
CST_INLINE struct cst_vec_bits cst_vec_plus(struct cst_vec_bits a, struct cst_vec_bits b)
{
    return (struct cst_vec_bits){(cst_vec_word)((cst_vec_u32)a.x + (cst_vec_u32)b.x)};
}

CST_INLINE struct cst_vec_bits cst_vec_minus(struct cst_vec_bits a, struct cst_vec_bits b)
{
    return (struct cst_vec_bits){(cst_vec_word)((cst_vec_u32)a.x - (cst_vec_u32)b.x)};
}

CST_INLINE struct cst_vec_bits cst_vec_times(struct cst_vec_bits a, struct cst_vec_bits b)
{
    return (struct cst_vec_bits){(cst_vec_word)((cst_vec_u32)a.x * (cst_vec_u32)b.x)};
}

CST_INLINE struct cst_vec_bits cst_vec_right(struct cst_vec_bits a, int n)
{
    return (struct cst_vec_bits){(cst_vec_word)((cst_vec_u32)a.x >> (uint32_t)n)};
}

CST_INLINE struct cst_vec_bits cst_vec_left(struct cst_vec_bits a, int n)
{
    return (struct cst_vec_bits){(cst_vec_word)((cst_vec_u32)a.x << (uint32_t)n)};
}

#endif
