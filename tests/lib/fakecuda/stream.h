/* Streams: each is a thread that takes its operations in order; nothing orders two streams but
 * events and, with the default stream, what CUDA calls legacy synchronisation. Before each
 * operation the thread sleeps for a random time that the seed decides.
 *
 *   queued --its turn, its waits over--> running --> done        a broken or dying context: dropped
 *
 * All with the lock, but the operations themselves. */
#ifndef CST_FAKE_STREAM_H
#define CST_FAKE_STREAM_H

#include "tests/lib/fakecuda/context.h"

#include <stdint.h>

#define CST_FAKE_LEAST_PRIORITY 0
#define CST_FAKE_GREATEST_PRIORITY (-5)

/* How far a stream has come; outlives it. */
struct cst_fake_progress {
    unsigned refs;
    uint64_t submitted; /* operations so far */
    uint64_t done;      /* of those, in order */
};

/* Until @progress has done operation number @seq. */
struct cst_fake_point {
    struct cst_fake_progress *progress; /* a reference */
    uint64_t seq;
};

/* Memory that an operation touches. */
struct cst_fake_touch {
    uintptr_t addr;
    size_t bytes; /* 0: nothing */
    bool write;
};

/* An operation; what it works on follows it, in a struct that begins with this one. */
struct cst_fake_op {
    const char *kind;                        /* for cst_fake_fault */
    CUresult (*run)(struct cst_fake_op *op); /* by the stream's thread, without the lock */
    void (*finish)(struct cst_fake_op *op);  /* with the lock, run or not; NULL: nothing; frees what
                                                it has but itself */
    struct cst_fake_touch touches[2];        /* checked before it runs */
    bool blind;                              /* a kernel: what it touches is not known */
    struct cst_fake_op *next;                /* the stream's, like all below */
    struct cst_fake_stream *stream;          /* that it was given to */
    struct cst_fake_point *waits;            /* before it may run */
    size_t n_waits;                          /* of those */
    uint64_t seq;                            /* its number */
};

/* A new operation of @bytes in all. NULL: no memory. */
struct cst_fake_op *cst_fake_op_new(size_t bytes, const char *kind,
                                    CUresult (*run)(struct cst_fake_op *op));
/* One that was not submitted: away with it, by its finish. */
void cst_fake_op_drop(struct cst_fake_op *op);

/* @op waits for @point too; a reference is taken. CUDA_ERROR_OUT_OF_MEMORY. */
CUresult cst_fake_op_wait(struct cst_fake_op *op, struct cst_fake_point point);

/* The stream that goes by @handle in the current context: NULL and CU_STREAM_LEGACY are its default
 * stream. CUDA_ERROR_INVALID_HANDLE: no stream; CUDA_ERROR_OUT_OF_MEMORY. */
CUresult cst_fake_stream_find(CUstream handle, struct cst_fake_stream **out);

CUcontext cst_fake_stream_context(const struct cst_fake_stream *stream);

/* Queue @op, which becomes the stream's. On failure it is dropped. */
CUresult cst_fake_stream_submit(struct cst_fake_stream *stream, struct cst_fake_op *op);

/* Where @stream stands: all that was submitted so far. No reference is taken. */
struct cst_fake_point cst_fake_stream_point(const struct cst_fake_stream *stream);
bool cst_fake_point_reached(struct cst_fake_point point);
void cst_fake_progress_put(struct cst_fake_progress *progress);

/* Wait for @point, whose reference the caller holds. Returns @context's sticky error. */
CUresult cst_fake_point_await(struct cst_fake_point point, CUcontext context);

/* Does @op no longer matter (its context is broken or dying)? Without the lock. */
bool cst_fake_op_is_void(const struct cst_fake_op *op);

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
