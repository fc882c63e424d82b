#include "kernels/adamw_one.h"

void cst_adamw_ref(const struct cst_adamw *hyper, size_t n, const uint16_t *grad, float *master,
                   float *exp_avg, float *exp_avg_sq, uint16_t *weight)
{
    for (size_t i = 0; i < n; i++) {
        cst_adamw_one(hyper, grad[i], &master[i], &exp_avg[i], &exp_avg_sq[i], &weight[i]);
    }
}
