/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of moments as fp32: for what sets or reads states. The update has its own way
 * (kernels/update.h). Shapes: elements [first, first + n) of a row; @row points to its start. mx8:
 * to its codes and exponents; a row has a multiple of CST_MX8_BLOCK elements. @which: 0: exp_avg,
 * 1: exp_avg_sq, whose codes differ (kernels/mx8.h). Any thread. */
#ifndef CST_MOMENTS_H
#define CST_MOMENTS_H

#include "kernels/update.h"

/* Exact. */
void cst_moments_decode(enum cst_moments moments, unsigned which, uint64_t first, size_t n,
                        const struct cst_update_moment *row, float *out);

/* Nearest, even; a NaN as CST_UPDATE_NAN. mx8: elements of a block that are not written keep their
 * values, as nearly as the block's new exponent lets them; threads that write the same row begin
 * and end at different blocks. */
void cst_moments_encode(enum cst_moments moments, unsigned which, uint64_t first, size_t n,
                        const float *in, const struct cst_update_moment *row);

/* To zero: as encoding zeros. */
void cst_moments_clear(enum cst_moments moments, unsigned which, uint64_t first, size_t n,
                       const struct cst_update_moment *row);

/* Bytes of an element of a row, mx8's exponents aside. */
static inline size_t cst_moments_elem_bytes(enum cst_moments moments)
{
    return moments == CST_MOMENTS_FP32 ? sizeof(float) : moments == CST_MOMENTS_BF16 ? 2 : 1;
}

/* @row from element @i on, mx8: the first of a block. A row that is none is none. */
static inline struct cst_update_moment
cst_moments_at(enum cst_moments moments, const struct cst_update_moment *row, uint64_t i)
{
    struct cst_update_moment at = *row;

    if (at.values != NULL) {
        at.values = (uint8_t *)at.values + i * cst_moments_elem_bytes(moments);
        at.exponents = moments == CST_MOMENTS_MX8 ? at.exponents + i / CST_UPDATE_GROUP : NULL;
    }
    return at;
}

#endif
