/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of a job of cistern-gpt: a thread of rank 0 saves it every --save-every steps while
 * the training goes on. A save that fails is reported and does not end the training. */
#ifndef GPT_CHECKPOINT_H
#define GPT_CHECKPOINT_H

#include "client/gpt/options.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

struct gpt_checkpoint {
    const struct gpt_options *options; /* borrowed */
    pthread_t thread;
    sem_t begun;  /* posted when the step is fixed that the thread saves, or it has failed */
    bool running; /* the thread was started and not joined */
    atomic_bool finished; /* the thread has nothing more to do */
    uint64_t step;        /* step after which the thread was started */
};

/* @step is committed: begin to save it, if it is time, and return when later steps do not matter.
 * If the last save is still under way, say that this one is left out. */
void gpt_checkpoint_step(struct gpt_checkpoint *checkpoint, uint64_t step);

/* Wait until the last save has ended. */
void gpt_checkpoint_close(struct gpt_checkpoint *checkpoint);

#endif
