/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of streams, and the points in streams that they and others wait for.
 *
 *   queued --its turn, its waits over--> running --> done        a broken or dying context: dropped
 *
 * All with the lock, but what an operation itself does. */
#ifndef CST_FAKE_OP_H
#define CST_FAKE_OP_H

#include "tests/lib/fakecuda/context.h"

#include <stdint.h>

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
    CUcontext context;                       /* of the stream */
    unsigned number;                         /* of the stream, for words */
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

bool cst_fake_point_reached(struct cst_fake_point point);
void cst_fake_progress_put(struct cst_fake_progress *progress);

/* Wait for @point, whose reference the caller holds. Returns @context's sticky error. */
CUresult cst_fake_point_await(struct cst_fake_point point, CUcontext context);

/* Does @op no longer matter (its context is broken or dying)? Without the lock. */
bool cst_fake_op_is_void(const struct cst_fake_op *op);

/* The stream's thread: wait for what @op waits for, sleep for @delay_us, do it if it still matters.
 * What goes wrong breaks the context. Gives the lock up meanwhile. */
void cst_fake_op_execute(struct cst_fake_op *op, uint64_t delay_us);

#endif
