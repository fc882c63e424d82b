/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: each is a thread that takes its operations in order; nothing orders two streams but
 * events and, with the default stream, what CUDA calls legacy synchronisation. Before each
 * operation the thread sleeps for a random time that the seed decides.
 *
 * All with the lock. */
#ifndef CST_FAKE_STREAM_H
#define CST_FAKE_STREAM_H

#include "tests/lib/fakecuda/context.h"
#include "tests/lib/fakecuda/op.h"

#define CST_FAKE_LEAST_PRIORITY 0
#define CST_FAKE_GREATEST_PRIORITY (-5)

struct cst_fake_stream {
    struct cst_fake_stream *next;
    CUcontext context;
    bool blocking;                      /* with the default stream */
    bool legacy;                        /* it is that one */
    bool gone;                          /* destroyed: ends when its queue is empty */
    unsigned number;                    /* in the process, for words and for the seed */
    uint64_t random;                    /* state of the delays */
    struct cst_fake_progress *progress; /* a reference */
    struct cst_fake_op *head, **tail;   /* queued */
    struct cst_fake_op *running;        /* NULL: none */
};

extern struct cst_fake_stream *cst_fake_streams; /* all that have a thread */

/* The stream that goes by @handle in the current context: NULL and CU_STREAM_LEGACY are its default
 * stream. CUDA_ERROR_INVALID_HANDLE: no stream; CUDA_ERROR_OUT_OF_MEMORY. */
CUresult cst_fake_stream_find(CUstream handle, struct cst_fake_stream **out);

/* The queue gets @op, which becomes the stream's. On failure it is dropped. */
CUresult cst_fake_stream_submit(struct cst_fake_stream *stream, struct cst_fake_op *op);

/* Where @stream stands: all that was submitted so far. No reference is taken. */
struct cst_fake_point cst_fake_stream_point(const struct cst_fake_stream *stream);

/* Has it anything queued or running? */
bool cst_fake_stream_is_busy(const struct cst_fake_stream *stream);

/* Wait for all streams of @context. Returns its sticky error. */
CUresult cst_fake_streams_drain(CUcontext context);

/* @call takes [addr, addr + bytes) away. Operations under way that touch it make that a misuse and
 * break their contexts; returns when none of them runs any more. */
void cst_fake_streams_revoke(uintptr_t addr, size_t bytes, const char *call);

/* @context ends: its streams too. Those that were not destroyed are named on stderr. */
void cst_fake_streams_end(CUcontext context);

/* Streams that were created and not destroyed. */
size_t cst_fake_n_streams(void);

#endif
