/* SPDX-License-Identifier: Apache-2.0 */
/* The results that a training of a model of train_model.h must have. */
#ifndef TRAIN_REFERENCE_H
#define TRAIN_REFERENCE_H

#include "tests/lib/train_model.h"

/* A training that train_reference computes. */
struct train_task {
    bool mixture;                 /* the mixture instead of the small model */
    uint32_t world;               /* number of ranks */
    uint32_t micro_batches;       /* micro-batches of a step */
    struct train_overlap overlap; /* when chunks are updated */
    uint64_t n_steps;             /* number of steps */
    struct train_bad bad;
};

/* Compute a training in this process, without the library. */
void train_reference(struct train_run *run, const struct train_task *task);

#endif
