/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/norm.h"

double cst_norm_sum(const struct cst_table_tile *tiles, uint64_t n_tiles)
{
    double sum = 0.0;

    for (uint64_t i = 0; i < n_tiles; i++) {
        sum += tiles[i].sum_squares;
    }
    return sum;
}
