/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW with fp32 moments on plain arrays. The tests' reference models are updated with it. */
#ifndef CST_TESTS_ADAMW_H
#define CST_TESTS_ADAMW_H

#include "kernels/math/update.h"

/* Update @n elements in place with the kernels of @table. One of @grad and @grad_f32 is NULL. */
static inline void adamw_update(const struct cst_update_table *table,
                                const struct cst_update_scalars *scalars, size_t n,
                                const uint16_t *grad, const float *grad_f32, float *master,
                                float *exp_avg, float *exp_avg_sq, uint16_t *weight)
{
    const struct cst_update_rows rows = {
        .grad_bf16 = grad,
        .grad_fp32 = grad_f32,
        .master_in = master,
        .moments_in = {{.values = exp_avg}, {.values = exp_avg_sq}},
        .master = master,
        .moments = {{.values = exp_avg}, {.values = exp_avg_sq}},
        .weight = weight,
    };

    table->v[CST_OPTIMIZER_ADAMW][CST_MOMENTS_FP32][CST_ROUNDING_NEAREST](scalars, NULL, n, &rows,
                                                                          NULL);
}

#endif
