/* SPDX-License-Identifier: Apache-2.0 */
/* A second model without mathematics (see train_model.h), whose ranks hold different things: an
 * expert of each rank's own that is left out where no tokens come, a box of a tensor that two ranks
 * share, frozen tensors, a replicated one, and one that is larger than a chunk of the common size.
 * Steps have several micro-batches, and ranks may differ in how many. And the states that training
 * it gives, calculated in this process. */
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

struct mix_tensor {
    char name[16];                 /* as declared */
    uint64_t n_elems;              /* elements */
    uint64_t start;                /* in the arrays of mix_states */
    uint64_t ranks;                /* that hold it, a bit each */
    enum cst_pattern_kind pattern; /* as declared */
};

struct mix_operator {
    char name[16];           /* as declared */
    int tensors[MIX_MAX_IO]; /* numbers */
    uint32_t n_tensors;      /* entries in tensors */
    uint64_t ranks;          /* that run it, a bit each */
};

struct mix_model {
    struct mix_tensor tensors[MIX_MAX_TENSORS];
    struct mix_operator operators[MIX_MAX_OPERATORS];
    int n_tensors, n_operators;
    uint32_t world;
};

/* All states, tensor after tensor; zeros where there are none. Plain memory: compare with memcmp.
 */
struct mix_states {
    float master[MIX_MAX_ELEMS];     /* fp32 */
    float exp_avg[MIX_MAX_ELEMS];    /* fp32 */
    float exp_avg_sq[MIX_MAX_ELEMS]; /* fp32 */
    uint16_t weight[MIX_MAX_ELEMS];  /* bf16 */
    uint16_t grad[MIX_MAX_ELEMS];    /* bf16: of the last step */
};

struct mix_run {
    struct mix_states states;                      /* after the last step */
    struct cst_step_result results[MIX_MAX_STEPS]; /* per step */
};

/* The model for so many ranks. */
void mix_model_make(struct mix_model *model, uint32_t world);

/* The first in @model of the tensors called so. */
int mix_find(const struct mix_model *model, const char *name);

/* Declare groups, tensors and operators. CST_OK or what the library said. */
int mix_declare(const struct mix_model *model, struct cst_job *job);

/* Master weight of element @i of all, before the first step. */
float mix_start(uint64_t i);

/* The parameters of step @step, with this rank's @loss. */
struct cst_hyper_params mix_params(uint64_t step, double loss);

/* Micro-batches that @rank does in step @step, of at most @most. */
uint32_t mix_micro_batches(uint32_t rank, uint64_t step, uint32_t most);

/* True if no tokens come to @op in that micro-batch. */
bool mix_idle(const struct mix_model *model, int op, uint32_t rank, uint64_t step, uint32_t micro);

/* What the forward of @op adds to the loss, given its weights. */
double mix_forward(const struct mix_model *model, int op, const struct cst_io *io);

/* Write, or add, the gradients of @op. */
void mix_backward(const struct mix_model *model, int op, uint32_t rank, uint64_t step,
                  uint32_t micro, const struct cst_io *io);

/* Train for @n_steps, in this process and without the library. */
void mix_reference(const struct mix_model *model, struct mix_run *run, uint32_t micro_batches,
                   uint64_t n_steps);

#endif
