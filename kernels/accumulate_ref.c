/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/accumulate_one.h"

double cst_accumulate_ref(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulate,
                          float *dst)
{
    double lanes[CST_REDUCE_LANES] = {0};

    for (size_t i = 0; i < n; i++) {
        float x = cst_accumulate_total(i, n_src, src, accumulate ? &dst[i] : NULL);

        cst_accumulate_one(x, &dst[i], &lanes[i % CST_REDUCE_LANES]);
    }
    return cst_reduce_tree(lanes);
}

double cst_accumulate_sum_ref(size_t n, const float *sum, float *dst)
{
    double lanes[CST_REDUCE_LANES] = {0};

    for (size_t i = 0; i < n; i++) {
        cst_accumulate_one(sum[i], &dst[i], &lanes[i % CST_REDUCE_LANES]);
    }
    return cst_reduce_tree(lanes);
}
