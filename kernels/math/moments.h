/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion of moments rows to and from fp32, for reading and writing states. The update does not
 * use these functions (kernels/math/update.h). All functions work on elements [first, first + n) of
 * a row; @row points to the start of the row, with mx8 to its codes and exponents. An mx8 row has a
 * multiple of CST_MX8_BLOCK elements. @which is the number of the moment; mx8 codes with and
 * without a sign differ (kernels/math/mx8.h). Any thread. */
#ifndef CST_MOMENTS_H
#define CST_MOMENTS_H

#include "kernels/math/update.h"

/* Convert elements of @row to fp32. The conversion is exact. */
void cst_moments_decode(enum cst_moments moments, unsigned which, uint64_t first, size_t n,
                        const struct cst_update_moment *row, float *out);

/* Convert fp32 values to elements of @row, rounded to nearest even. A NaN becomes CST_UPDATE_NAN.
 * With mx8, the elements of a block that are not written keep their values as nearly as the new
 * exponent of the block allows. Threads that write to one row therefore begin and end at different
 * blocks. */
void cst_moments_encode(enum cst_moments moments, unsigned which, uint64_t first, size_t n,
                        const float *in, const struct cst_update_moment *row);

/* Set elements of @row to zero. The result is that of encoding zeros. */
void cst_moments_clear(enum cst_moments moments, unsigned which, uint64_t first, size_t n,
                       const struct cst_update_moment *row);

/* Returns the bytes of an element of a row, without the exponents of mx8. */
static inline size_t cst_moments_elem_bytes(enum cst_moments moments)
{
    return moments == CST_MOMENTS_FP32 ? sizeof(float) : moments == CST_MOMENTS_BF16 ? 2 : 1;
}

/* Returns @row from element @i on. With mx8, @i must be the first element of a block. A row that
 * does not exist (values is NULL) stays so. */
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
