/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention in double precision by its formula, for tests of the CUDA kernels on the
 * processor and on a GPU. */
#ifndef CST_ATTENTION_REFERENCE_H
#define CST_ATTENTION_REFERENCE_H

#include "client/gpt/layers.h"

/* What one attention reads and writes; sizes as in client/gpt/cuda/attention.h. */
struct attention_field {
    struct gpt_attention_shape shape;
    size_t n_out, n_lse;      /* elements of out and of lse; qkv has 3 n_out */
    uint16_t *qkv, *dout;     /* bf16: the inputs */
    uint16_t *out, *dqkv;     /* bf16: results */
    float *lse;               /* result */
    double *OUT, *DQKV, *LSE; /* what they should be */
};

/* Random inputs of deviation @deviation (q and k; v and dout: 1), a function of @seed; results are
 * filled with NaNs. Ends the process when memory runs out. attention_field_close frees. */
void attention_field_init(struct attention_field *field, struct gpt_attention_shape shape,
                          uint64_t seed, float deviation);
void attention_field_close(struct attention_field *field);

/* OUT, LSE, DQKV. */
void attention_reference(struct attention_field *field);

/* How far results are from that. */
struct attention_error {
    double out, dq, dk, dv; /* sqrt(sum (a - b)^2 / sum b^2), NaN where one is */
    double out_worst;       /* largest |a - b| of out, of v's 1 */
    double dqkv_worst;      /* largest |a - b| of dqkv over the largest |b| */
    double lse;             /* largest |a - b| / (1 + |b|) */
};

struct attention_error attention_compare(const struct attention_field *field);

#endif
