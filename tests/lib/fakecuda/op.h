/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of streams, and the points in streams that operations and other callers wait for.
 *
 *   queued --first in the stream, waits over--> running --> done
 *   queued or running --the context is broken or dying--> dropped
 *
 * All functions need the lock unless they say otherwise. */
#ifndef CST_FAKE_OP_H
#define CST_FAKE_OP_H

#include "tests/lib/fakecuda/context.h"

#include <stdint.h>

/* How far a stream has come. It outlives the stream. */
struct cst_fake_progress {
    unsigned refs;
    uint64_t submitted; /* number of operations submitted so far */
    uint64_t done;      /* number of operations done so far; they are done in order */
};

/* The point in a stream at which operation number @seq is done. */
struct cst_fake_point {
    struct cst_fake_progress *progress; /* a reference */
    uint64_t seq;
};

/* Memory that an operation accesses. */
struct cst_fake_touch {
    uintptr_t addr;
    size_t bytes; /* size of the memory; 0: no memory */
    bool write;
};

/* An operation of a stream. Its data follows in a larger struct that begins with this one. */
struct cst_fake_op {
    const char *kind; /* kind of the operation, for cst_fake_fault */
    /* Executes the operation; called by the stream's thread without the lock. */
    CUresult (*run)(struct cst_fake_op *op);
    /* Frees the operation's data but not the operation. Called with the lock, whether the operation
     * ran or not. May be NULL. */
    void (*finish)(struct cst_fake_op *op);
    struct cst_fake_touch touches[2]; /* memory that is checked before the operation runs */
    bool blind; /* the operation is a kernel: the memory that it accesses is unknown */
    /* Next operation of the stream; the stream sets this field and those below. */
    struct cst_fake_op *next;
    CUcontext context;            /* context of the stream */
    unsigned number;              /* number of the stream, for messages */
    struct cst_fake_point *waits; /* points that the operation waits for */
    size_t n_waits;               /* number of entries in `waits` */
    uint64_t seq;                 /* number of the operation in its stream */
};

/* Make an operation of @bytes in all. NULL if memory is exhausted. */
struct cst_fake_op *cst_fake_op_new(size_t bytes, const char *kind,
                                    CUresult (*run)(struct cst_fake_op *op));
/* Free an operation that was not submitted, with its finish. */
void cst_fake_op_drop(struct cst_fake_op *op);

/* Let @op also wait for @point, and take a reference to it. Can return CUDA_ERROR_OUT_OF_MEMORY. */
CUresult cst_fake_op_wait(struct cst_fake_op *op, struct cst_fake_point point);

/* True if the operation of @point is done. */
bool cst_fake_point_reached(struct cst_fake_point point);
/* Drop a reference. */
void cst_fake_progress_put(struct cst_fake_progress *progress);

/* Wait for @point; the caller holds its reference. Returns @context's sticky error. */
CUresult cst_fake_point_await(struct cst_fake_point point, CUcontext context);

/* True if @op must not run any more, because its context is broken or dying. Called without the
 * lock. */
bool cst_fake_op_is_void(const struct cst_fake_op *op);

/* For the stream's thread: wait for what @op waits for, sleep for @delay_us, and run @op unless it
 * is void. An error breaks the context. The lock is released meanwhile. */
void cst_fake_op_execute(struct cst_fake_op *op, uint64_t delay_us);

#endif
