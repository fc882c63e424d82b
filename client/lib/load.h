/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that this worker copies into its pool itself, if the daemon is configured so ([gpu]
 * copies = worker). The worker maps the job's arenas; a granted lease names the row in an arena
 * from which to copy.
 *
 *   granted --copy--> in the device's queue of copies --await--> the stream waits for the copy
 *                                                   when an operator that uses the chunk begins,
 *                                                   or when its lease is to be given back
 *
 * The awaits are those of job->sequence. A fence that is placed after the await is passed only
 * after the copy. Therefore RELEASE tells the daemon that the weights are in the block. Once a sync
 * or the end of the job has begun, nothing more is copied, because the daemon may take the blocks
 * away.
 *
 * If the job has no arenas here, the daemon's engines copy, and these functions do nothing. Used by
 * the job's thread only. */
#ifndef CST_CLIENT_LOAD_H
#define CST_CLIENT_LOAD_H

#include "offload/worker/lease.h"
#include "client/lib/segment.h"

struct cst_job;

/* The row from which a chunk's weights are copied. */
struct cstc_load_home {
    uint32_t segment; /* The arena's id in messages. */
    uint64_t offset;  /* Offset in the arena, in bytes. */
    uint64_t bytes;   /* Number of bytes to copy. */
};

struct cstc_loads {
    uint32_t n_arenas;           /* Number of arenas; 0: the engines copy. */
    uint32_t n_mapped;           /* Number of arenas that are mapped and known to the device. */
    uint32_t *segments;          /* Per arena: its id in messages. Owned. */
    struct cstc_segment *arenas; /* n_arenas entries. Owned. */
    bool over;                   /* No more copies: a sync or the end has begun. */
};

/* Prepare for @n_arenas arenas. Earlier contents are forgotten, and must not be mapped.
 * CST_ENOMEM. */
int cstc_load_init(struct cstc_loads *loads, uint32_t n_arenas, struct cst_err *err);

/* Free everything. The arenas must not be mapped. */
void cstc_load_close(struct cstc_loads *loads);

/* Map the next arena and make it known to the device. @fd belongs to the caller. CST_EPROTO: the
 * arena is not as the daemon says; CST_ENOMEM; or a status of the device. */
int cstc_load_map(struct cst_job *job, uint32_t segment, int fd, uint64_t bytes,
                  struct cst_err *err);

/* Unmap all arenas. No copy may be under way. */
void cstc_load_unmap(struct cst_job *job);

/* Set *row to the address of @home, the row of @chunk, in this process. CST_EPROTO: the row is in
 * no arena, or larger than a block. */
int cstc_load_find(const struct cst_job *job, uint32_t chunk, const struct cstc_load_home *home,
                   const void **row, struct cst_err *why);

/* Enqueue the copy of @bytes from @row, the weights of @chunk, to the block of @lease, and record
 * it in job->sequence. If this fails, or a sync has begun, the step is void. */
int cstc_load_start(struct cst_job *job, uint32_t chunk, const void *row, uint64_t bytes,
                    const struct cst_lease *lease);

#endif
