/* SPDX-License-Identifier: Apache-2.0 */
/* Where a worker on a device computes: a queue of work that runs behind it, in order, as a GPU's
 * stream does. One kind is a thread of the worker's over memory that the processor can map; the
 * other is libcistern-cuda's (tests/lib/train_cuda.h). */
#ifndef TRAIN_STREAM_H
#define TRAIN_STREAM_H

#include "cistern/cistern.h"

struct train_stream;

struct train_stream_kind {
    /* Make @job's device ready; between cst_job_open and cst_commit. *out is the caller's. */
    int (*open)(struct train_stream **out, struct cst_job *job, struct cst_err *err);
    /* Enqueue @fn(@arg). It may touch device memory and makes no call of the library. */
    int (*run)(struct train_stream *stream, void (*fn)(void *arg), void *arg, struct cst_err *err);
    /* CST_OK while what is enqueued will run. */
    int (*check)(struct train_stream *stream, struct cst_err *err);
    /* After cst_disconnect. What is enqueued is waited for. */
    void (*close)(struct train_stream *stream);
};

/* The thread. Before each piece of work it dawdles for a random time, $TRAIN_STREAM_DELAY_US at
 * most (default 0). */
extern const struct train_stream_kind train_thread;

#endif
