/* SPDX-License-Identifier: Apache-2.0 */
/* A model without mathematics: its gradients are a fixed function of rank, step, element and
 * weight, so that two runs can be compared bit for bit. It has what is hard for chunks: a tied
 * tensor, a small one used twice, an operator that some ranks leave out in some steps, a tensor
 * that no operator uses. And the states that training it gives, calculated in this process. */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include "cistern/cistern.h"

#define TRAIN_N_TENSORS 8
#define TRAIN_N_OPERATORS 6
#define TRAIN_CHUNK_ELEMS 8192
#define TRAIN_MAX_IO 2
#define TRAIN_N_ELEMS 22678 /* of all tensors */
#define TRAIN_MAX_STEPS 8
#define TRAIN_NEVER UINT64_MAX

struct train_tensor {
    const char *name;            /* as declared */
    uint64_t n_elems;            /* elements */
    uint64_t start;              /* in the arrays of train_states */
    float lr_scale, decay_scale; /* as declared */
};

struct train_operator {
    const char *name;          /* as declared */
    int tensors[TRAIN_MAX_IO]; /* numbers */
    uint32_t n_tensors;        /* entries in tensors */
};

extern const struct train_tensor train_tensors[TRAIN_N_TENSORS];
extern const struct train_operator train_operators[TRAIN_N_OPERATORS];

/* All states, tensor after tensor. Plain memory: compare with memcmp. */
struct train_states {
    float master[TRAIN_N_ELEMS];     /* fp32 */
    float exp_avg[TRAIN_N_ELEMS];    /* fp32 */
    float exp_avg_sq[TRAIN_N_ELEMS]; /* fp32 */
    uint16_t weight[TRAIN_N_ELEMS];  /* bf16 */
};

struct train_run {
    struct train_states states;                      /* after the last step */
    struct cst_step_result results[TRAIN_MAX_STEPS]; /* per step */
};

/* The parameters of step @step, with this rank's @loss. */
struct cst_hyper_params train_params(uint64_t step, double loss);

/* Declare tensors and operators. CST_OK or what the library said. */
int train_declare(struct cst_job *job);

/* Master weight of element @i of all, before the first step. */
float train_start(uint64_t i);

/* What stands for the step in the following two: step @step, micro-batch @micro of it. */
static inline uint64_t train_moment(uint64_t step, uint32_t micro)
{
    return step | (uint64_t)micro << 8;
}

/* What the forward of @op adds to the loss, given its weights. */
double train_forward(int op, const struct cst_io *io);

/* True if @rank leaves @op out of the backward of @moment. */
bool train_idle(int op, uint32_t rank, uint64_t moment);

/* A gradient that no update takes: one element of rank 0's in one step. */
struct train_bad {
    uint64_t step;  /* TRAIN_NEVER: in none */
    uint16_t value; /* bf16 */
};

/* When updates are made. All ranks prepare their steps. */
struct train_overlap {
    enum cst_overlap when;
    uint64_t delay_from; /* DELAYED: updates of steps from this one on are seen one step later */
};

/* Write, or add, the gradients of @op, @bad among them. */
void train_backward(int op, uint32_t rank, uint64_t moment, struct train_bad bad,
                    const struct cst_io *io);

/* Train for @n_steps of @micro_batches with @world ranks, in this process and without the library.
 */
void train_reference(struct train_run *run, uint32_t world, uint32_t micro_batches,
                     struct train_overlap overlap, uint64_t n_steps, struct train_bad bad);

#endif
