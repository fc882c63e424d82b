/* SPDX-License-Identifier: Apache-2.0 */
/* Names and sizes of the types in cistern/dtype.h, for layouts, messages and programs. Pure. */
#ifndef CST_DTYPES_H
#define CST_DTYPES_H

#include "cistern/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/* Returns whether @dtype is a number of enum cst_dtype. */
static inline bool cst_dtype_is_known(uint32_t dtype)
{
    return dtype == CST_BF16 || dtype == CST_FP32;
}

/* Returns the bytes of a weight of a tensor of @dtype, and of an element of its gradient in a
 * block. */
static inline uint64_t cst_dtype_bytes(enum cst_dtype dtype)
{
    return dtype == CST_FP32 ? 4 : 2;
}

/* Returns the name of @dtype: "bf16" or "fp32". */
static inline const char *cst_dtype_name(enum cst_dtype dtype)
{
    return dtype == CST_FP32 ? "fp32" : "bf16";
}

#endif
