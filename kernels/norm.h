/* SPDX-License-Identifier: Apache-2.0 */
/* Sum of per-tile sums of squares, one after the other in tile order, in double: the same for every
 * chunk capacity and thread count. 1e9 parameters have 244 141 tiles, so one implementation serves.
 */
#ifndef CST_NORM_H
#define CST_NORM_H

#include "proto/table.h"

/* Any thread. */
double cst_norm_sum(const struct cst_table_tile *tiles, uint64_t n_tiles);

#endif
