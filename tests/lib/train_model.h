/* SPDX-License-Identifier: Apache-2.0 */
/* A model with synthetic gradients: they are a fixed function of rank, step, element and weight, so
 * two runs can be compared bit for bit. The model has the difficult cases of chunks: a tied tensor,
 * a small tensor that is used twice, an operator that some ranks leave out in some steps, and a
 * tensor that no operator uses. train_reference computes the expected states in this process. */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include "cistern/cistern.h"

#define TRAIN_N_TENSORS 8
#define TRAIN_N_OPERATORS 6
#define TRAIN_CHUNK_ELEMS 8192
#define TRAIN_MAX_IO 2
#define TRAIN_N_ELEMS 22678 /* elements of all tensors */
#define TRAIN_MAX_STEPS 8
#define TRAIN_NEVER UINT64_MAX

/* A tensor of the model. */
struct train_tensor {
    const char *name;            /* name in the declaration */
    uint64_t n_elems;            /* number of elements */
    uint64_t start;              /* index of its first element in the arrays of train_states */
    float lr_scale, decay_scale; /* lr_scale and decay_scale in the declaration */
};

/* An operator of the model. */
struct train_operator {
    const char *name;          /* name in the declaration */
    int tensors[TRAIN_MAX_IO]; /* indices in train_tensors */
    uint32_t n_tensors;        /* number of entries in `tensors` */
};

extern const struct train_tensor train_tensors[TRAIN_N_TENSORS];
extern const struct train_operator train_operators[TRAIN_N_OPERATORS];

/* The states of all tensors, one tensor after the other. There is no padding: memcmp can compare
 * them. */
struct train_states {
    float master[TRAIN_N_ELEMS];     /* master weights, fp32 */
    float exp_avg[TRAIN_N_ELEMS];    /* first moments, fp32 */
    float exp_avg_sq[TRAIN_N_ELEMS]; /* second moments, fp32 */
    uint16_t weight[TRAIN_N_ELEMS];  /* weights, bf16 */
};

/* The results of a training run. */
struct train_run {
    struct train_states states;                      /* states after the last step */
    struct cst_step_result results[TRAIN_MAX_STEPS]; /* result of each step */
};

/* The hyper-parameters of step @step, with this rank's @loss. */
struct cst_hyper_params train_params(uint64_t step, double loss);

/* Declare tensors and operators. Returns CST_OK or the library's status. */
int train_declare(struct cst_job *job);

/* The initial master weight of element @i, counted over all tensors. */
float train_start(uint64_t i);

/* The argument @moment of the functions below: micro-batch @micro of step @step. */
static inline uint64_t train_moment(uint64_t step, uint32_t micro)
{
    return step | (uint64_t)micro << 8;
}

/* The part of the loss that the forward of @op contributes, computed from its weights. */
double train_forward(int op, const struct cst_io *io);

/* True if @rank leaves out @op in the backward of @moment. */
bool train_idle(int op, uint32_t rank, uint64_t moment);

/* A gradient that no update can use: one element of rank 0's gradient in one step. */
struct train_bad {
    uint64_t step;  /* the step with this gradient; TRAIN_NEVER: none */
    uint16_t value; /* bits of the bf16 element */
};

/* When updates are made. All ranks prepare their steps. */
struct train_overlap {
    enum cst_overlap when;
    /* DELAYED: fetches see the updates of this and later steps one step later. */
    uint64_t delay_from;
};

/* Write the gradients of @op, or add to them, including @bad. */
void train_backward(int op, uint32_t rank, uint64_t moment, struct train_bad bad,
                    const struct cst_io *io);

/* Compute @n_steps of @micro_batches with @world ranks in this process, without the library. */
void train_reference(struct train_run *run, uint32_t world, uint32_t micro_batches,
                     struct train_overlap overlap, uint64_t n_steps, struct train_bad bad);

#endif
