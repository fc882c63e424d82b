/* SPDX-License-Identifier: Apache-2.0 */
/* The one table of kernels, chosen at run time by what the CPU can do. All rows give the same bits.
 */
#ifndef CST_KERNELS_H
#define CST_KERNELS_H

#include "kernels/accumulate.h"
#include "kernels/cast.h"
#include "kernels/norm.h"
#include "kernels/reduce.h"
#include "kernels/update.h"

#include <stdbool.h>

struct cst_kernels {
    const char *isa;      /* "ref", "avx2", "avx512" */
    bool (*usable)(void); /* does this CPU (and OS) have it */
    const struct cst_update_table *update;
    cst_reduce_fn reduce;
    cst_accumulate_fn accumulate;
    cst_accumulate_sum_fn accumulate_sum;
    cst_cast_fn cast;
    cst_upcast_fn upcast;
};

/* All rows, best last; *n_out of them. Constant. */
const struct cst_kernels *cst_kernels_all(unsigned *n_out);

/* The best usable row, or the one named by @isa if that is not NULL; NULL if there is no such row
 * or the CPU lacks it. */
const struct cst_kernels *cst_kernels_get(const char *isa);

#endif
