/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels for processors, one row for each instruction set. The row is chosen at run
 * time by what the CPU supports. All rows produce the same bits. */
#ifndef CST_KERNELS_H
#define CST_KERNELS_H

#include "kernels/math/accumulate.h"
#include "kernels/math/cast.h"
#include "kernels/math/norm.h"
#include "kernels/math/product.h"
#include "kernels/math/reduce.h"
#include "kernels/math/total.h"
#include "kernels/math/update.h"

#include <stdbool.h>

/* The kernels of one instruction set. */
struct cst_kernels {
    const char *isa;      /* Name of the instruction set: "ref", "avx2", "avx512" or "neon". */
    bool (*usable)(void); /* Returns whether this CPU and operating system support the row. */
    const struct cst_update_table *update;
    cst_reduce_fn reduce;
    cst_accumulate_fn accumulate;
    cst_accumulate_fp32_fn accumulate_fp32;
    cst_cast_fn cast;
    cst_upcast_fn upcast;
    cst_expand_fn expand;
    cst_total_fp32_fn total_fp32;
    cst_total_bf16_fn total_bf16;
    cst_direction_fn direction;
    cst_product_fn product;
};

/* Returns all rows, the best one last, and stores their number in *n_out. The rows are constant. */
const struct cst_kernels *cst_kernels_all(unsigned *n_out);

/* Returns the row named @isa, or the best usable row if @isa is NULL. NULL: there is no such row,
 * or the CPU does not support it. */
const struct cst_kernels *cst_kernels_get(const char *isa);

#endif
