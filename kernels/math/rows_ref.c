/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions, reduction and accumulation in plain C. They define the results of the other
 * variants. */
#include "kernels/math/sum_element.h"

void cst_cast_ref(size_t n, const float *src, uint16_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = cst_fp32_to_bf16(src[i]);
    }
}

void cst_upcast_ref(size_t n, const uint16_t *src, float *dst)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = cst_bf16_to_fp32(src[i]);
    }
}

void cst_expand_ref(size_t n, const uint16_t *src, float *fp32, uint16_t *bf16)
{
    cst_upcast_ref(n, src, fp32);
    cst_cast_ref(n, fp32, bf16);
}

double cst_reduce_ref(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst)
{
    double lanes[CST_SUM_LANES] = {0};

    for (size_t i = 0; i < n; i++) {
        cst_reduce_element(i, n_src, src, dst, lanes);
    }
    return cst_sum_tree(lanes);
}

static double accumulate(size_t n, const struct cst_sum_sources *src, bool accumulates, float *dst)
{
    double lanes[CST_SUM_LANES] = {0};

    for (size_t i = 0; i < n; i++) {
        cst_accumulate_element(cst_sum_total(i, src, accumulates ? &dst[i] : NULL), i, dst, lanes);
    }
    return cst_sum_tree(lanes);
}

double cst_accumulate_ref(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulates,
                          float *dst)
{
    return accumulate(n, &(struct cst_sum_sources){.n = n_src, .bf16 = src}, accumulates, dst);
}

double cst_accumulate_fp32_ref(size_t n, uint32_t n_src, const float *const *src, bool accumulates,
                               float *dst)
{
    return accumulate(n, &(struct cst_sum_sources){.n = n_src, .wide = true, .fp32 = src},
                      accumulates, dst);
}

void cst_total_fp32_ref(size_t n, uint32_t n_src, const float *const *src, float *dst)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = cst_total_fp32_element(i, n_src, src);
    }
}

void cst_total_bf16_ref(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = cst_total_bf16_element(i, n_src, src);
    }
}
