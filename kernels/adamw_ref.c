#include "kernels/adamw_one.h"

void cst_adamw_ref(const struct cst_adamw *hyper, size_t n, const uint16_t *grad, float *master,
                   float *exp_avg, float *exp_avg_sq, uint16_t *weight)
{
    for (size_t i = 0; i < n; i++) {
        cst_adamw_one(hyper, grad[i], &master[i], &exp_avg[i], &exp_avg_sq[i], &weight[i]);
    }
}

void cst_adamw_undo_ref(const struct cst_adamw *hyper, size_t n, const uint16_t *grad,
                        float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight,
                        struct cst_adamw_undo *undo)
{
    uint32_t buffer = 0;

    for (size_t i = 0; i < n; i += CST_ADAMW_GROUP, buffer ^= 1) {
        size_t group = n - i < CST_ADAMW_GROUP ? n - i : CST_ADAMW_GROUP;

        memcpy(undo->old[buffer][0], master + i, group * sizeof *master);
        memcpy(undo->old[buffer][1], exp_avg + i, group * sizeof *exp_avg);
        memcpy(undo->old[buffer][2], exp_avg_sq + i, group * sizeof *exp_avg_sq);
        cst_adamw_undo_hold(undo,
                            cst_adamw_undo_word(undo->base + (uint32_t)i, (uint32_t)group, buffer));
        cst_adamw_ref(hyper, group, grad + i, master + i, exp_avg + i, exp_avg_sq + i, weight + i);
    }
}
