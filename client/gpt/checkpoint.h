/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of a job of cistern-gpt: a thread of rank 0 saves it every --save-every steps while
 * the training goes on. A save that fails is reported and does not end the training, but its end is
 * no success without the last one. */
#ifndef GPT_CHECKPOINT_H
#define GPT_CHECKPOINT_H

#include "client/gpt/model.h"
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
    bool failed;          /* the save of the thread that was joined last has failed */
    uint64_t step;        /* step after which the thread was started */
};

/* Check, before the job is opened, that --save-dir has no checkpoints of another job.
 * CST_EMISMATCH: it has; CST_ENOMEM. */
int gpt_checkpoint_check_job(const struct gpt_options *options, struct cst_err *err);

/* Check that the checkpoint at @path, or the newest one in this directory, is of a model with as
 * many heads as @model, which tensors do not show. CST_EMISMATCH: it has others; CST_ENOMEM. */
int gpt_checkpoint_check_model(const char *path, const struct gpt_model *model,
                               struct cst_err *err);

/* Warn if --save-dir has checkpoints of later steps than @step, the step that the job stands at. */
void gpt_checkpoint_warn(const struct gpt_options *options, uint64_t step);

/* @step is committed: begin to save it, if it is time, and return when later steps do not matter.
 * If the last save is still under way, say that this one is left out, unless @step is the last one
 * of the job. */
void gpt_checkpoint_step(struct gpt_checkpoint *checkpoint, uint64_t step);

/* Wait until the last save has ended. CST_EIO: it has failed, which was reported; the error says
 * how to repeat it. */
int gpt_checkpoint_close(struct gpt_checkpoint *checkpoint, struct cst_err *err);

#endif
