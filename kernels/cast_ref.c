/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cast.h"

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
