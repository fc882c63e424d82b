/* SPDX-License-Identifier: Apache-2.0 */
/* Items that are too large for the first class, and further classes that fit them. Private to
 * capacity.c. */
#ifndef CST_SIZE_CLASSES_H
#define CST_SIZE_CLASSES_H

#include "offload/layout/packing.h"

#define CST_SIZE_CLASSES_MAX 64 /* Maximum number of different sizes that are distinguished. */

/* The different sizes of items, the largest first. */
struct cst_size_classes {
    uint64_t size[CST_SIZE_CLASSES_MAX];  /* In elements; multiples of CST_LAYOUT_CAPACITY_STEP. */
    uint32_t count[CST_SIZE_CLASSES_MAX]; /* Number of items of this size. */
    uint32_t n;                           /* Number of sizes. */
};

/* The smallest size that may be the capacity of the first class: items up to it have a tenth of the
 * elements, and at most CST_SIZE_CLASSES_MAX sizes are larger. CST_ENOMEM. */
int cst_size_classes_least(const struct cst_packing *packing, uint64_t *out);

/* Collect the sizes above @above, rounded up more coarsely if there are too many. */
void cst_size_classes_find(struct cst_size_classes *out, const struct cst_packing *packing,
                           uint64_t above);

/* Choose further classes for the sizes above @first with the least waste. *sizes_out gets @first
 * and then these classes: at most @max_classes in total. Each further class after the second counts
 * like @price elements of waste. */
void cst_size_classes_fit(const struct cst_size_classes *outliers, uint64_t first,
                          uint32_t max_classes, uint64_t price, struct cst_sizes *sizes_out);

#endif
