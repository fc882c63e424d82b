/* SPDX-License-Identifier: Apache-2.0 */
/* Leases that are given back later. While the stream of a device still works on a block, the
 * RELEASE or REDUCE_SCATTER that offload/worker/lease.c has planned for the block waits here for
 * its fence (a mark in the stream). An ACCUMULATE that follows such items, and an EVICT, wait here,
 * too.
 *
 *   planned --hold--> waiting --its fence has passed--> passed --sent, drop--> gone
 *                        |
 *                        | a RELEASE whose chunk is wanted again: the lease is HELD as before
 *                        v
 *                   taken back
 *
 * Items leave in the order in which they came. Fence numbers never decrease. No I/O and no clock,
 * like lease.c. */
#ifndef CST_FENCE_H
#define CST_FENCE_H

#include "offload/worker/lease.h"

struct cst_fence_item {
    uint64_t fence;             /* Number of the fence for which the item waits. */
    struct cst_lease_item item; /* RELEASE, REDUCE_SCATTER, ACCUMULATE or EVICT. */
};

struct cst_fences {
    struct cst_fence_item *waiting; /* Waiting items, oldest first. Owned. */
    uint32_t n;                     /* Number of waiting items. */
    uint32_t capacity;              /* Largest number of waiting items. */
    uint32_t n_turns;               /* Number of waiting items that are ACCUMULATE. */
    struct cst_lease_item *passed;  /* Result of cst_fence_pass: capacity entries. Owned. */
};

/* Prepare for the leases on @n_chunks chunks in a job with @micro_batches micro-batches per step.
 * CST_ENOMEM: nothing is allocated. */
int cst_fence_init(struct cst_fences *fences, uint32_t n_chunks, uint32_t micro_batches,
                   struct cst_err *err);
void cst_fence_close(struct cst_fences *fences);

/* Return whether one of the items that @leases has planned gives something back. */
bool cst_fence_is_needed(const struct cst_leases *leases);

/* Cancel pairs of a planned fetch and a waiting release of one chunk: the lease is granted again,
 * and neither item is sent. */
void cst_fence_take_back(struct cst_fences *fences, struct cst_leases *leases);

/* Move the items that give something back, and an EVICT of a chunk whose RELEASE waits, from
 * leases->items to the waiting items of @fence. A second EVICT of such a chunk is dropped. The rest
 * of leases->items can be sent at once. */
void cst_fence_hold(struct cst_fences *fences, struct cst_leases *leases, uint64_t fence);

/* Remove and return the items that wait for fences up to @passed; *n_out is their number. The
 * result is borrowed until the next call. */
const struct cst_lease_item *cst_fence_pass(struct cst_fences *fences, uint64_t passed,
                                            uint32_t *n_out);

/* Remove all waiting items. */
void cst_fence_drop(struct cst_fences *fences);

#endif
