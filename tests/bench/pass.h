/* SPDX-License-Identifier: Apache-2.0 */
/* Yardsticks of the update benchmark. A plain pass moves the 28 bytes per parameter of an update,
 * and computes nothing: it reads a bf16 row and writes another one, or reads an fp32 row, as a step
 * on fp32 gradients does. The step is an AdamW update of fp32 gradients, for the comparison with an
 * update in three passes. pass.c is compiled once per instruction set. */
#ifndef CST_BENCH_PASS_H
#define CST_BENCH_PASS_H

#include "kernels/math/update.h"

/* Parts of the rows of one chunk. Each part is aligned to 64 bytes. */
struct cst_pass_rows {
    size_t n;             /* Number of elements, a multiple of 32. */
    const uint16_t *grad; /* Gradients, which are read. */
    const float *wide;    /* Gradients in fp32, which a pass reads in place of @grad. */
    uint16_t *weight;     /* Weights, which are written. */
    float *master;        /* Master weights, which are read and written. */
    float *exp_avg;       /* First moments, which are read and written. */
    float *exp_avg_sq;    /* Second moments, which are read and written. */
};

/* A plain pass. */
struct cst_pass {
    const char *name; /* Name in the table of results; NULL: the end of a list of passes. */
    const char *isa;  /* Name of the kernels' instruction set that the processor must have. */
    void (*run)(const struct cst_pass_rows *rows); /* Move the bytes of all rows. */
};

/* AdamW on fp32 gradients, without bf16 weights: 28 bytes per element. @n is a multiple of 32. */
typedef void (*cst_pass_step_fn)(const struct cst_update_scalars *hyper, size_t n,
                                 const float *grad, float *master, float *exp_avg,
                                 float *exp_avg_sq);

/* The passes of each instruction set; the last one has no name. Then the step of each instruction
 * set. */
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
