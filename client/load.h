/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that this worker copies into its pool itself, where the daemon wants that ([gpu] copies =
 * worker): it maps the job's arenas, and a granted lease names a row in them.
 *
 *   granted --copy--> in the device's queue of copies --await--> the stream is behind it
 *                                                   an operator begins that uses the chunk,
 *                                                   or its lease is to be given back
 *
 * So a fence behind the stream is behind the copy too, and RELEASE says that the weights are in the
 * block. Once a sync or the end begins nothing more is copied: the daemon may take the blocks back.
 * No arenas: engines copy, and all of this does nothing. */
#ifndef CST_CLIENT_LOAD_H
#define CST_CLIENT_LOAD_H

#include "client/lease.h"
#include "client/segment.h"

struct cst_job;

struct cst_load_home {
    uint32_t segment; /* of an arena */
    uint64_t offset;  /* bytes in it */
    uint64_t bytes;   /* to copy */
};

struct cst_loads {
    uint32_t n_arenas;          /* 0: engines copy */
    uint32_t n_mapped;          /* the first of arenas, told to the device */
    uint32_t *segments;         /* per arena: its id on the wire; owned */
    struct cst_segment *arenas; /* n_arenas; owned */
    uint64_t *copies;           /* per chunk: number of its last copy; owned */
    uint64_t last;              /* number of the newest copy */
    uint64_t awaited;           /* the stream is behind all copies up to it */
    bool over;                  /* a sync, or the end, has begun */
};

/* Room for @n_arenas arenas of a job of @n_chunks chunks; what was there is gone. CST_ENOMEM. */
int cst_load_init(struct cst_loads *loads, uint32_t n_arenas, uint32_t n_chunks,
                  struct cst_err *err);

/* Forget the arenas. They are not mapped. */
void cst_load_close(struct cst_loads *loads);

/* Map the next arena: @fd is the caller's. CST_EPROTO: it is not what the daemon says. */
int cst_load_map(struct cst_job *job, uint32_t segment, int fd, uint64_t bytes,
                 struct cst_err *err);

/* Unmap all arenas. No copy is under way. */
void cst_load_unmap(struct cst_job *job);

/* *row: where @home of @chunk is in this process. CST_EPROTO: it is in no arena, or does not fit in
 * a block.
 */
int cst_load_find(const struct cst_job *job, uint32_t chunk, const struct cst_load_home *home,
                  const void **row, struct cst_err *why);

/* Enqueue the copy of @bytes from @row to the block of @lease, on the weights of @chunk. If it
 * fails, or comes too late, the step is void. */
int cst_load_start(struct cst_job *job, uint32_t chunk, const void *row, uint64_t bytes,
                   const struct cst_lease *lease);

/* The stream goes on behind the copies for @op; behind those for what job->leases has planned to
 * give back; behind all, and no more are made before cst_load_resume. If that fails the step is
 * void. */
int cst_load_await_op(struct cst_job *job, uint32_t op, struct cst_err *err);
int cst_load_await_planned(struct cst_job *job, struct cst_err *err);
int cst_load_finish(struct cst_job *job, struct cst_err *err);
void cst_load_resume(struct cst_loads *loads);

#endif
