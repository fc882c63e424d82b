/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention in double precision, computed directly from its formula. Tests compare the CUDA
 * kernels with it, both on the processor and on a GPU. */
#ifndef CST_ATTENTION_REFERENCE_H
#define CST_ATTENTION_REFERENCE_H

#include "client/gpt/layers.h"

/* Inputs and results of one attention. Sizes are those of client/gpt/cuda/attention.h. */
struct attention_field {
    struct gpt_attention_shape shape;
    size_t n_out, n_lse;      /* elements of out and of lse; qkv has 3 x n_out elements */
    uint16_t *qkv, *dout;     /* bf16 inputs */
    uint16_t *out, *dqkv;     /* bf16 results of the kernels under test */
    float *lse;               /* fp32 result of the kernels under test */
    double *OUT, *DQKV, *LSE; /* expected results, computed by attention_reference */
};

/* Allocate a field with random inputs, which depend on @seed only. The standard deviation of q and
 * k is @deviation, of v and dout 1. Results are filled with NaN. Ends the process if memory is
 * exhausted. Free the field with attention_field_close. */
void attention_field_init(struct attention_field *field, struct gpt_attention_shape shape,
                          uint64_t seed, float deviation);
void attention_field_close(struct attention_field *field);

/* Compute OUT, LSE and DQKV. */
void attention_reference(struct attention_field *field);

/* Differences between the results and the expected results. */
struct attention_error {
    /* Relative errors sqrt(sum (a - b)^2 / sum b^2); NaN if a result is NaN. */
    double out, dq, dk, dv;
    double out_worst;  /* largest |a - b| of out; the deviation of v is 1 */
    double dqkv_worst; /* largest |a - b| of dqkv, divided by the largest |b| */
    double lse;        /* largest |a - b| / (1 + |b|) of lse */
};

/* Compare the results with OUT, LSE and DQKV, which must have been computed. */
struct attention_error attention_compare(const struct attention_field *field);

#endif
