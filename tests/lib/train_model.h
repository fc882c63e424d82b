/* SPDX-License-Identifier: Apache-2.0 */
/* Two models with synthetic gradients: they are a fixed function of rank, step, element and weight,
 * so two runs can be compared bit for bit. train_reference.h computes the expected states.
 *
 * The small model has the difficult cases of chunks: a tied tensor, a small tensor that is used
 * twice, an operator that some ranks leave out in some backward passes, and a tensor that no
 * operator uses.
 *
 * The ranks of the mixture hold different tensors: an expert per rank that is idle when it has no
 * tokens, a box of a tensor that two ranks share, frozen tensors, a replicated tensor, and one that
 * is larger than the common size class. The number of micro-batches may differ between ranks. */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include "cistern/cistern.h"

#define TRAIN_MAX_WORLD 96
#define TRAIN_MAX_EXPERTS 4 /* Ranks of the mixture. */
#define TRAIN_MAX_TENSORS 12
#define TRAIN_MAX_OPERATORS 10
#define TRAIN_MAX_IO 2
#define TRAIN_CHUNK_ELEMS 8192
#define TRAIN_MAX_ELEMS 65536
#define TRAIN_MAX_STEPS 8
#define TRAIN_NEVER UINT64_MAX
#define TRAIN_ALL_RANKS UINT64_MAX

/* A tensor of the model. */
struct train_tensor {
    char name[16];               /* name in the declaration */
    uint64_t n_elems;            /* number of elements */
    uint64_t start;              /* index of its first element in the arrays of train_states */
    float lr_scale, decay_scale; /* lr_scale and decay_scale in the declaration */
    uint64_t ranks; /* bit mask of the ranks that hold the tensor, or TRAIN_ALL_RANKS */
    enum cst_pattern_kind pattern; /* pattern in the declaration */
};

/* An operator of the model. */
struct train_operator {
    char name[16];             /* name in the declaration */
    int tensors[TRAIN_MAX_IO]; /* indices in train_model.tensors */
    uint32_t n_tensors;        /* number of entries in `tensors` */
    uint64_t ranks;            /* bit mask of the ranks that run the operator */
    uint32_t idle_every;       /* one of so many micro-batches leaves it out; 0: none does */
    bool idle_forward;         /* such a micro-batch leaves it out in the forward pass, too */
};

struct train_model {
    struct train_tensor tensors[TRAIN_MAX_TENSORS];
    struct train_operator operators[TRAIN_MAX_OPERATORS];
    int n_tensors, n_operators;
    bool uneven;      /* rank 1 does one micro-batch less in step 1 */
    bool reads_grads; /* workers also read the gradients of the last step */
};

/* True if @rank is one of @ranks, a bit mask or TRAIN_ALL_RANKS. */
static inline bool train_has(uint64_t ranks, uint32_t rank)
{
    return ranks == TRAIN_ALL_RANKS || (rank < 64 && (ranks >> rank & 1) != 0);
}

/* The small model, for any number of ranks. */
extern const struct train_model train_small;

/* Make the mixture for @world ranks. */
void train_mixture(struct train_model *model, uint32_t world);

/* Make the mixture or the small model. */
void train_model_make(struct train_model *model, bool mixture, uint32_t world);

/* Index of the first tensor of @model with @name. */
int train_find(const struct train_model *model, const char *name);

bool train_is_trained(const struct train_tensor *tensor);

/* The states of all tensors, one tensor after the other. States that do not exist are zero, so that
 * memcmp can compare two of these. */
struct train_states {
    float master[TRAIN_MAX_ELEMS];     /* master weights, fp32 */
    float exp_avg[TRAIN_MAX_ELEMS];    /* first moments, fp32 */
    float exp_avg_sq[TRAIN_MAX_ELEMS]; /* second moments, fp32 */
    uint16_t weight[TRAIN_MAX_ELEMS];  /* weights, bf16 */
    uint16_t grad[TRAIN_MAX_ELEMS];    /* gradients of the last step, bf16; see reads_grads */
};

/* The results of a training run. */
struct train_run {
    struct train_states states;                      /* states after the last step */
    struct cst_step_result results[TRAIN_MAX_STEPS]; /* result of each step */
};

/* The hyper-parameters of step @step, with this rank's @loss. */
struct cst_hyper_params train_params(uint64_t step, double loss);

enum { TRAIN_PARAM_GROUPS = 3 };

/* Fill @out with the factors of parameter groups in step @step. Returns their number, which is 0 in
 * some steps. Tensor t is in group t % (TRAIN_PARAM_GROUPS + 1): the last group has no factors. */
uint32_t train_param_groups(uint64_t step, struct cst_param_group out[TRAIN_PARAM_GROUPS]);

/* Declare groups, tensors and operators for @world ranks. Returns CST_OK or the library's
 * status. */
int train_declare(const struct train_model *model, struct cst_job *job, uint32_t world);

/* The initial master weight of element @i, counted over all tensors. */
float train_start(uint64_t i);

/* Number of micro-batches that @rank does in step @step; at most @most. */
uint32_t train_micro_batches(const struct train_model *model, uint32_t rank, uint64_t step,
                             uint32_t most);

/* The argument @moment of the functions below: micro-batch @micro of step @step. */
static inline uint64_t train_moment(uint64_t step, uint32_t micro)
{
    return step | (uint64_t)micro << 8;
}

/* The part of the loss that the forward of an operator with @n_tensors contributes, computed from
 * its weights. */
double train_forward(uint32_t n_tensors, const struct cst_io *io);

/* True if @rank runs @op in the forward or backward pass of @moment. */
bool train_runs(const struct train_operator *op, bool backward, uint32_t rank, uint64_t moment);

/* A gradient of the small model that no update can use: one element of rank 0's gradient in one
 * step. */
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

/* Write the gradients of operator number @op, or add to them, including @bad. */
void train_backward(const struct train_model *model, int op, uint32_t rank, uint64_t moment,
                    struct train_bad bad, const struct cst_io *io);

#endif
