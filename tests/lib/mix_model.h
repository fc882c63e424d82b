/* SPDX-License-Identifier: Apache-2.0 */
/* A second model with synthetic gradients (see train_model.h), whose ranks hold different tensors:
 * an expert per rank that is idle when it has no tokens, a box of a tensor that two ranks share,
 * frozen tensors, a replicated tensor, and one that is larger than the common size class. Steps
 * have several micro-batches, and their number may differ between ranks. mix_reference computes the
 * expected states in this process. */
#ifndef MIX_MODEL_H
#define MIX_MODEL_H

#include "cistern/cistern.h"

#define MIX_MAX_WORLD 4
#define MIX_MAX_TENSORS 12
#define MIX_MAX_OPERATORS 10
#define MIX_MAX_IO 2
#define MIX_CHUNK_ELEMS 8192
#define MIX_MAX_ELEMS 65536
#define MIX_MAX_STEPS 8

/* A tensor of the model. */
struct mix_tensor {
    char name[16];                 /* name in the declaration */
    uint64_t n_elems;              /* number of elements */
    uint64_t start;                /* index of its first element in the arrays of mix_states */
    uint64_t ranks;                /* bit mask of the ranks that hold the tensor */
    enum cst_pattern_kind pattern; /* pattern in the declaration */
};

/* An operator of the model. */
struct mix_operator {
    char name[16];           /* name in the declaration */
    int tensors[MIX_MAX_IO]; /* indices in mix_model.tensors */
    uint32_t n_tensors;      /* number of entries in `tensors` */
    uint64_t ranks;          /* bit mask of the ranks that run the operator */
};

/* The model for a number of ranks. */
struct mix_model {
    struct mix_tensor tensors[MIX_MAX_TENSORS];
    struct mix_operator operators[MIX_MAX_OPERATORS];
    int n_tensors, n_operators;
    uint32_t world;
};

/* The states of all tensors, one tensor after the other. States that do not exist are zero, so that
 * memcmp can compare two of these. */
struct mix_states {
    float master[MIX_MAX_ELEMS];     /* master weights, fp32 */
    float exp_avg[MIX_MAX_ELEMS];    /* first moments, fp32 */
    float exp_avg_sq[MIX_MAX_ELEMS]; /* second moments, fp32 */
    uint16_t weight[MIX_MAX_ELEMS];  /* weights, bf16 */
    uint16_t grad[MIX_MAX_ELEMS];    /* gradients of the last step, bf16 */
};

/* The results of a training run. */
struct mix_run {
    struct mix_states states;                      /* states after the last step */
    struct cst_step_result results[MIX_MAX_STEPS]; /* result of each step */
};

/* Make the model for @world ranks. */
void mix_model_make(struct mix_model *model, uint32_t world);

/* Index of the first tensor of @model with @name. */
int mix_find(const struct mix_model *model, const char *name);

/* Declare groups, tensors and operators. Returns CST_OK or the library's status. */
int mix_declare(const struct mix_model *model, struct cst_job *job);

/* The initial master weight of element @i, counted over all tensors. */
float mix_start(uint64_t i);

/* The hyper-parameters of step @step, with this rank's @loss. */
struct cst_hyper_params mix_params(uint64_t step, double loss);

/* Number of micro-batches that @rank does in step @step; at most @most. */
uint32_t mix_micro_batches(uint32_t rank, uint64_t step, uint32_t most);

/* True if @op has no tokens in micro-batch @micro and is left out. */
bool mix_idle(const struct mix_model *model, int op, uint32_t rank, uint64_t step, uint32_t micro);

/* The part of the loss that the forward of @op contributes, computed from its weights. */
double mix_forward(const struct mix_model *model, int op, const struct cst_io *io);

/* Write the gradients of @op, or add to them. */
void mix_backward(const struct mix_model *model, int op, uint32_t rank, uint64_t step,
                  uint32_t micro, const struct cst_io *io);

/* Compute @n_steps of training in this process, without the library. */
void mix_reference(const struct mix_model *model, struct mix_run *run, uint32_t micro_batches,
                   uint64_t n_steps);

#endif
