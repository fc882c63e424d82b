#include "kernels/accumulate_one.h"

double cst_accumulate_ref(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulate,
                          float *dst)
{
    double lanes[CST_REDUCE_LANES] = {0};

    for (size_t i = 0; i < n; i++) {
        cst_accumulate_one(cst_accumulate_total(i, n_src, src), accumulate, &dst[i],
                           &lanes[i % CST_REDUCE_LANES]);
    }
    return cst_reduce_tree(lanes);
}

double cst_accumulate_sum_ref(size_t n, const float *sum, bool accumulate, float *dst)
{
    double lanes[CST_REDUCE_LANES] = {0};

    for (size_t i = 0; i < n; i++) {
        cst_accumulate_one(sum[i], accumulate, &dst[i], &lanes[i % CST_REDUCE_LANES]);
    }
    return cst_reduce_tree(lanes);
}
