/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of the sums of squares of all tiles, added one after the other in tile order, in double.
 * The result does not depend on chunk capacity or thread count. One implementation is enough: 1e9
 * parameters have only 244 141 tiles. */
#ifndef CST_NORM_H
#define CST_NORM_H

#include "proto/table.h"

/* Returns the sum of the sum_squares of @n_tiles tiles. Any thread. */
double cst_norm_sum(const struct cst_table_tile *tiles, uint64_t n_tiles);

/* Returns the same for all tiles of @table in the step with the mark @mark. The sum_squares of
 * tensors that have no gradient in this step (cst_table_is_idle) are set to 0 before: gradients of
 * theirs that were summed are discarded. May be repeated. Any thread, while no REDUCE runs. */
double cst_norm_of_step(struct cst_table_header *table, uint64_t mark);

#endif
