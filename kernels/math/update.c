/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/update.h"

#include "proto/muon.h"
#include "proto/table.h"

#include <math.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

/* Returns x^t by repeated squaring, using only multiplications; the bits do not depend on the pow
 * of a libm. For t <= 2^20 and 0 < x < 1 the relative error is below 2^-32. The error is far
 * smaller where x^t is not negligible compared with 1. */
static double power(double x, uint64_t t)
{
    double result = 1.0;

    for (; t != 0; t >>= 1) {
        if (t & 1) {
            result *= x;
        }
        x *= x;
    }
    return result;
}

void cst_update_prepare(struct cst_update_scalars *out, double lr, double beta1, double beta2,
                        double eps, double weight_decay, float grad_scale, uint64_t t)
{
    double bias1 = 1.0 - power(beta1, t);
    double bias2 = 1.0 - power(beta2, t);

    *out = (struct cst_update_scalars){
        .grad_scale = grad_scale,
        .beta1 = (float)beta1,
        .beta2 = (float)beta2,
        .one_minus_beta1 = (float)(1.0 - beta1),
        .one_minus_beta2 = (float)(1.0 - beta2),
        .inv_sqrt_bias2 = (float)(1.0 / sqrt(bias2)),
        .eps = (float)eps,
        .lr = (float)lr,
        .weight_decay = (float)weight_decay,
        .decay = (float)(1.0 - lr * weight_decay),
        .step_size = (float)(lr / bias1),
        .ratio_limit = (float)bias1,
    };
}

void cst_update_prepare_muon(struct cst_update_scalars *out, double lr, double weight_decay,
                             float grad_scale, uint32_t rows, uint32_t columns)
{
    double longest = rows > columns ? rows : columns;

    *out = (struct cst_update_scalars){
        .grad_scale = grad_scale,
        .beta1 = (float)CST_MUON_MOMENTUM,
        .one_minus_beta1 = (float)(1.0 - CST_MUON_MOMENTUM),
        .lr = (float)lr,
        .weight_decay = (float)weight_decay,
        .decay = (float)(1.0 - lr * weight_decay),
        .step_size = (float)(lr * 0.2 * sqrt(longest)),
    };
}

static uint64_t moment_bytes(const struct cst_update_moment *row, enum cst_moments moments,
                             size_t n)
{
    uint64_t blocks = (n + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK;

    if (row->values == NULL) {
        return 0;
    }
    return moments == CST_MOMENTS_MX8 ? n + blocks : cst_table_moment_bytes(moments, n);
}

uint64_t cst_update_bytes(const struct cst_update_rows *rows, enum cst_moments moments, size_t n)
{
    uint64_t bytes = 0;

    bytes += rows->grad_bf16 != NULL ? n * sizeof *rows->grad_bf16 : 0;
    bytes += rows->grad_fp32 != NULL ? n * sizeof *rows->grad_fp32 : 0;
    bytes += rows->direction != NULL ? n * sizeof *rows->direction : 0;
    bytes += rows->master_in != NULL ? n * sizeof *rows->master_in : 0;
    bytes += rows->master != NULL ? n * sizeof *rows->master : 0;
    bytes += rows->weight_in != NULL ? n * sizeof *rows->weight_in : 0;
    bytes += rows->remainder_in != NULL ? n * sizeof *rows->remainder_in : 0;
    bytes += rows->remainder != NULL ? n * sizeof *rows->remainder : 0;
    bytes += rows->weight != NULL ? n * sizeof *rows->weight : 0;
    for (int k = 0; k < CST_MAX_MOMENTS; k++) {
        bytes += moment_bytes(&rows->moments_in[k], moments, n);
        bytes += moment_bytes(&rows->moments[k], moments, n);
    }
    return bytes;
}

void cst_update_fence(void)
{
#ifdef __x86_64__
    _mm_sfence();
#endif
}
