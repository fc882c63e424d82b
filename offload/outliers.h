/* SPDX-License-Identifier: Apache-2.0 */
/* Items that are larger than the first class holds, and further classes that fit them. Private to
 * capacity.c. */
#ifndef CST_OUTLIERS_H
#define CST_OUTLIERS_H

#include "offload/packing.h"

#define CST_OUTLIERS_MAX 64 /* different sizes that are told apart */

/* Different sizes of items, the largest first. */
struct cst_outliers {
    uint64_t size[CST_OUTLIERS_MAX];  /* elements, multiples of CST_LAYOUT_CAPACITY_STEP */
    uint32_t count[CST_OUTLIERS_MAX]; /* items of this size */
    uint32_t n;                       /* sizes */
};

/* The smallest size of which an item is no outlier: those up to it have a tenth of the elements,
 * and not too many sizes are larger. CST_ENOMEM. */
int cst_outliers_least(const struct cst_packing *packing, uint64_t *out);

/* The sizes above @above, coarser where they are too many. */
void cst_outliers_find(struct cst_outliers *out, const struct cst_packing *packing, uint64_t above);

/* The classes that fit those larger than @first with the least waste, behind @first in *sizes_out:
 * at most @max_classes with it, and each further one is as bad as @price elements of waste. */
void cst_outliers_fit(const struct cst_outliers *outliers, uint64_t first, uint32_t max_classes,
                      uint64_t price, struct cst_sizes *sizes_out);

#endif
