/* SPDX-License-Identifier: Apache-2.0 */
/* Leases that are given back later: while a device's stream is still at work on a block, the
 * RELEASE or REDUCE_SCATTER that client/lease.c has planned for it waits here for its fence, a mark
 * in the stream; so does the ACCUMULATE behind them.
 *
 *   planned --hold--> waiting --its fence has passed--> passed --sent, drop--> gone
 *                        |
 *                        | a RELEASE whose chunk is wanted again: the lease is HELD as before
 *                        v
 *                   taken back
 *
 * Items leave in the order in which they came; fences never fall. Pure, as lease.c is. */
#ifndef CST_FENCE_H
#define CST_FENCE_H

#include "client/lease.h"

struct cst_fence_item {
    uint64_t fence;             /* it waits for */
    struct cst_lease_item item; /* RELEASE, REDUCE_SCATTER or ACCUMULATE */
};

struct cst_fences {
    struct cst_fence_item *waiting; /* oldest first; n of them */
    uint32_t n;                     /* entries in waiting */
    uint32_t capacity;              /* of waiting */
    uint32_t n_turns;               /* of n, that are ACCUMULATE */
    struct cst_lease_item *passed;  /* capacity of them: what cst_fence_pass gives */
};

/* For the leases on @n_chunks chunks in a job of @micro_batches. CST_ENOMEM: nothing is held. */
int cst_fence_init(struct cst_fences *fences, uint32_t n_chunks, uint32_t micro_batches,
                   struct cst_err *err);
void cst_fence_close(struct cst_fences *fences);

/* True if something is given back in what @leases has planned. */
bool cst_fence_is_needed(const struct cst_leases *leases);

/* What @leases has planned to fetch and what waits here to be released need not travel: the lease
 * is granted, both items are gone. */
void cst_fence_take_back(struct cst_fences *fences, struct cst_leases *leases);

/* What @leases has planned to give back waits for @fence from now on; what is left in leases->items
 * is to be sent. */
void cst_fence_hold(struct cst_fences *fences, struct cst_leases *leases, uint64_t fence);

/* Take out what waits for fences up to @passed; *n_out items, borrowed until the next call. */
const struct cst_lease_item *cst_fence_pass(struct cst_fences *fences, uint64_t passed,
                                            uint32_t *n_out);

/* Forget all that waits. */
void cst_fence_drop(struct cst_fences *fences);

#endif
