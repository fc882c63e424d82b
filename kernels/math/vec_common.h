/* SPDX-License-Identifier: Apache-2.0 */
/* A number that all lanes of a vector have in common, as a scalar. kernels/math/vec_avx2.h has the
 * same operations on a vector, which has the number in every lane, because moving it to a scalar
 * register and back takes longer there. Included by the other kernels/math/vec_*.h and by vec.cuh
 * of CUDA, after the vectors are declared. Private to kernels/. */
#ifndef CST_VEC_COMMON_H
#define CST_VEC_COMMON_H

struct cst_vec_common {
    uint32_t x;
};

CST_INLINE struct cst_vec_common cst_vec_common_of(uint32_t x)
{
    struct cst_vec_common common = {x};

    return common;
}

CST_INLINE struct cst_vec_common cst_vec_common_plus(struct cst_vec_common a, uint32_t b)
{
    return cst_vec_common_of(a.x + b);
}

CST_INLINE struct cst_vec_common cst_vec_common_and(struct cst_vec_common a, uint32_t b)
{
    return cst_vec_common_of(a.x & b);
}

CST_INLINE struct cst_vec_common cst_vec_common_max(struct cst_vec_common a, uint32_t b)
{
    return cst_vec_common_of(a.x > b ? a.x : b);
}

/* Returns the number. */
CST_INLINE uint32_t cst_vec_common_scalar(struct cst_vec_common a)
{
    return a.x;
}

/* Returns the number in every lane. */
CST_INLINE struct cst_vec_bits cst_vec_common_bits(struct cst_vec_common a)
{
    return cst_vec_set_bits(a.x);
}

#endif
