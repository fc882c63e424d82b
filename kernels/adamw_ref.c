#include "kernels/adamw_one.h"

void cst_adamw_ref(const struct cst_adamw *hyper, size_t n, const uint16_t *grad, float *master,
                   float *exp_avg, float *exp_avg_sq, uint16_t *weight)
{
    for (size_t i = 0; i < n; i++) {
        cst_adamw_one(hyper, cst_bf16_to_fp32(grad[i]), &master[i], &exp_avg[i], &exp_avg_sq[i],
                      &weight[i]);
    }
}

void cst_adamw_f32_ref(const struct cst_adamw *hyper, size_t n, const float *grad, float *master,
                       float *exp_avg, float *exp_avg_sq, uint16_t *weight)
{
    for (size_t i = 0; i < n; i++) {
        cst_adamw_one(hyper, grad[i], &master[i], &exp_avg[i], &exp_avg_sq[i], &weight[i]);
    }
}

/* Save @n elements at the rows' starts, number @first of the update, in @buffer. */
static void hold(struct cst_adamw_undo *undo, size_t first, size_t n, uint32_t buffer,
                 const float *master, const float *exp_avg, const float *exp_avg_sq)
{
    memcpy(undo->old[buffer][0], master, n * sizeof *master);
    memcpy(undo->old[buffer][1], exp_avg, n * sizeof *exp_avg);
    memcpy(undo->old[buffer][2], exp_avg_sq, n * sizeof *exp_avg_sq);
    cst_adamw_undo_hold(undo,
                        cst_adamw_undo_word(undo->base + (uint32_t)first, (uint32_t)n, buffer));
}

void cst_adamw_undo_ref(const struct cst_adamw *hyper, size_t n, const uint16_t *grad,
                        float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight,
                        struct cst_adamw_undo *undo)
{
    uint32_t buffer = 0;

    for (size_t i = 0; i < n; i += CST_ADAMW_GROUP, buffer ^= 1) {
        size_t group = n - i < CST_ADAMW_GROUP ? n - i : CST_ADAMW_GROUP;

        hold(undo, i, group, buffer, master + i, exp_avg + i, exp_avg_sq + i);
        cst_adamw_ref(hyper, group, grad + i, master + i, exp_avg + i, exp_avg_sq + i, weight + i);
    }
}

void cst_adamw_undo_f32_ref(const struct cst_adamw *hyper, size_t n, const float *grad,
                            float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight,
                            struct cst_adamw_undo *undo)
{
    uint32_t buffer = 0;

    for (size_t i = 0; i < n; i += CST_ADAMW_GROUP, buffer ^= 1) {
        size_t group = n - i < CST_ADAMW_GROUP ? n - i : CST_ADAMW_GROUP;

        hold(undo, i, group, buffer, master + i, exp_avg + i, exp_avg_sq + i);
        cst_adamw_f32_ref(hyper, group, grad + i, master + i, exp_avg + i, exp_avg_sq + i,
                          weight + i);
    }
}
