/* SPDX-License-Identifier: Apache-2.0 */
/* The computation of a worker on a device: a queue of work that runs in order and asynchronously to
 * the worker, as a GPU's stream does. One kind is a thread of the worker that uses memory which the
 * processor can map; the other kind uses libcistern-cuda (tests/lib/train_cuda.h). */
#ifndef TRAIN_STREAM_H
#define TRAIN_STREAM_H

#include "cistern/cistern.h"

struct train_stream;

/* A kind of stream: its functions return a status, with the error in @err. */
struct train_stream_kind {
    /* Prepare @job's device. Called between cst_job_open and cst_commit. The caller closes
     * *@out. */
    int (*open)(struct train_stream **out, struct cst_job *job, struct cst_err *err);
    /* Enqueue @fn(@arg). @fn may access device memory and must not call the library. */
    int (*run)(struct train_stream *stream, void (*fn)(void *arg), void *arg, struct cst_err *err);
    /* Returns CST_OK while enqueued work will run, otherwise the error. */
    int (*check)(struct train_stream *stream, struct cst_err *err);
    /* Wait for the enqueued work and free the stream. Called after cst_disconnect. */
    void (*close)(struct train_stream *stream);
};

/* The kind with a thread. The thread waits for a random time before each piece of work, at most
 * $TRAIN_STREAM_DELAY_US microseconds (default 0). */
extern const struct train_stream_kind train_thread;

#endif
