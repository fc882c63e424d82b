/* SPDX-License-Identifier: Apache-2.0 */
/* Streams. Each stream is a thread that executes its operations in order. Only events order the
 * operations of two streams, and with the default stream CUDA's legacy synchronisation. Before each
 * operation the thread sleeps for a random time, which depends on the seed. All functions need the
 * lock. */
#ifndef CST_FAKE_STREAM_H
#define CST_FAKE_STREAM_H

#include "tests/lib/fakecuda/context.h"
#include "tests/lib/fakecuda/op.h"

#define CST_FAKE_LEAST_PRIORITY 0
#define CST_FAKE_GREATEST_PRIORITY (-5)

/* A stream with its queue. */
struct cst_fake_stream {
    struct cst_fake_stream *next;
    CUcontext context;
    bool blocking;   /* the stream synchronises with the default stream */
    bool legacy;     /* this is the default stream */
    bool gone;       /* the stream was destroyed, and ends when its queue is empty */
    unsigned number; /* number in the process, for messages and for the seed */
    uint64_t random; /* state of the generator of delays */
    struct cst_fake_progress *progress; /* a reference */
    struct cst_fake_op *head, **tail;   /* queued operations */
    struct cst_fake_op *running;        /* the operation that runs; NULL: none */
};

extern struct cst_fake_stream *cst_fake_streams; /* all streams that have a thread */

/* Find the stream @handle in the current context. NULL and CU_STREAM_LEGACY are the context's
 * default stream. Returns CUDA_ERROR_INVALID_HANDLE if there is no such stream, or
 * CUDA_ERROR_OUT_OF_MEMORY. */
CUresult cst_fake_stream_find(CUstream handle, struct cst_fake_stream **out);

/* Append @op to the queue of the stream, which then owns it. On failure @op is dropped. */
CUresult cst_fake_stream_submit(struct cst_fake_stream *stream, struct cst_fake_op *op);

/* The point after all operations that were submitted to @stream so far. No reference is taken. */
struct cst_fake_point cst_fake_stream_point(const struct cst_fake_stream *stream);

/* True if @stream has an operation queued or running. */
bool cst_fake_stream_is_busy(const struct cst_fake_stream *stream);

/* Wait for all streams of @context. Returns the context's sticky error. */
CUresult cst_fake_streams_drain(CUcontext context);

/* @call takes [addr, addr + bytes) away. It is a misuse if operations under way access this memory,
 * and breaks their contexts. Returns when none of these operations runs any more. */
void cst_fake_streams_revoke(uintptr_t addr, size_t bytes, const char *call);

/* End the streams of @context, which ends. Streams that were not destroyed are named on stderr. */
void cst_fake_streams_end(CUcontext context);

/* Number of streams that were created and not destroyed. */
size_t cst_fake_n_streams(void);

#endif
