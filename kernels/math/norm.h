/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of the sums of squares of all tiles, added one after the other in tile order, in double.
 * The result does not depend on chunk capacity or thread count. One implementation is enough: 1e9
 * parameters have only 244 141 tiles. */
#ifndef CST_NORM_H
#define CST_NORM_H

#include "proto/table.h"

/* Returns the sum of the sum_squares of @n_tiles tiles. Any thread. */
double cst_norm_sum(const struct cst_table_tile *tiles, uint64_t n_tiles);

#endif
