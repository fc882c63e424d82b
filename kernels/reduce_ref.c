/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/reduce_lanes.h"

double cst_reduce_ref(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst)
{
    double lanes[CST_REDUCE_LANES] = {0};

    for (size_t i = 0; i < n; i++) {
        dst[i] = cst_reduce_one(i, n_src, src);
        cst_reduce_square(dst[i], &lanes[i % CST_REDUCE_LANES]);
    }
    return cst_reduce_tree(lanes);
}
