/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the operators of a worker of train_worker.h: at once, in the worker's thread, or in a
 * stream, where the work of a step can be done later. */
#ifndef TRAIN_WORK_H
#define TRAIN_WORK_H

#include "tests/lib/train_model.h"
#include "tests/lib/train_stream.h"

struct train_losses;
struct train_task;

struct train_work {
    const struct train_stream_kind *streams; /* the kind of @stream */
    struct train_stream *stream;             /* NULL: done at once. train_work_close closes it */
    const struct train_model *model;         /* borrowed */
    uint32_t rank;
    struct train_bad bad;        /* a gradient that is not finite */
    struct train_losses *losses; /* losses of the current step and of earlier ones */
    struct train_task *tasks;    /* all tasks that were enqueued; they stay when they are done */
    unsigned n_forwards;         /* forwards of the current step that were enqueued */
};

/* Begin the work of a step. Work of an abandoned step may still add to that step's losses, which
 * stay until the stream is closed. Does nothing without a stream. CST_ENOMEM. */
int train_work_begin(struct train_work *work, struct cst_err *err);

/* Compute operator @op with the tensors @io, or enqueue that. *loss is increased by the loss of a
 * forward that is done at once. CST_ENOMEM, and those of the stream's run. */
int train_work_compute(struct train_work *work, int op, bool backward, uint64_t number,
                       const struct cst_io *io, double *loss, struct cst_err *err);

/* Wait for the forwards in a stream, and store the sum of their losses in *loss. Backwards may be
 * under way when the step is requested. A stream that has failed does not reach the forwards: then
 * the status is that of its check, and *loss has what was computed. Does nothing without a
 * stream. */
int train_work_end(struct train_work *work, double *loss, struct cst_err *err);

/* Close the stream, which is not NULL, and free the work. */
void train_work_close(struct train_work *work);

#endif
