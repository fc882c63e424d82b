/* SPDX-License-Identifier: Apache-2.0 */
/* What the update benchmark compares with: plain passes that move the update's 28 bytes per
 * parameter and compute nothing, and an AdamW step on fp32 gradients for the three-pass way. pass.c
 * is compiled once per instruction set. */
#ifndef CST_BENCH_PASS_H
#define CST_BENCH_PASS_H

#include "kernels/math/update.h"

/* Stretches of the rows of one chunk, each aligned to 64 bytes; n is a multiple of 32. */
struct cst_pass_rows {
    size_t n;             /* elements */
    const uint16_t *grad; /* read */
    uint16_t *weight;     /* written */
    float *master;        /* read and written, as the next two */
    float *exp_avg;
    float *exp_avg_sq;
};

struct cst_pass {
    const char *name;
    const char *isa; /* the kernels' row that this CPU must have */
    void (*run)(const struct cst_pass_rows *rows);
};

/* AdamW on fp32 gradients, without bf16 weights: 28 bytes per element. @n is a multiple of 32. */
typedef void (*cst_pass_step_fn)(const struct cst_update_scalars *hyper, size_t n,
                                 const float *grad, float *master, float *exp_avg,
                                 float *exp_avg_sq);

/* For each instruction set, its passes, ended by one without a name, and its step. */
extern const struct cst_pass cst_pass_ref[];
extern const struct cst_pass cst_pass_avx2[];
extern const struct cst_pass cst_pass_avx512[];
void cst_pass_step_ref(const struct cst_update_scalars *hyper, size_t n, const float *grad,
                       float *master, float *exp_avg, float *exp_avg_sq);
void cst_pass_step_avx2(const struct cst_update_scalars *hyper, size_t n, const float *grad,
                        float *master, float *exp_avg, float *exp_avg_sq);
void cst_pass_step_avx512(const struct cst_update_scalars *hyper, size_t n, const float *grad,
                          float *master, float *exp_avg, float *exp_avg_sq);

#endif
