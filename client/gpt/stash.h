/* SPDX-License-Identifier: Apache-2.0 */
/* Activations of blocks that wait in the stash, an edge of the store, for their backward pass
 * (--activation-memory). A pass then holds the activations of fewer blocks than the model has, in
 * buffers that its blocks use in turn: block i uses buffer i mod n_buffers.
 *
 *   forward of block   0   1   2   3   4   5     n_buffers 2, 6 blocks
 *   put                    0   1   2   3         beside the forward pass of the next block
 *   backward of block  5   4   3   2   1   0
 *   take                   3   2   1   0         beside the backward pass of the block before it
 *
 * The last n_buffers blocks stay where they are. A pass on the host and one on a GPU do the same.
 * Used by the pass's thread. */
#ifndef GPT_STASH_H
#define GPT_STASH_H

#include "client/gpt/model.h"
#include "cistern/cistern.h"

struct gpt_store;

/* How the activations of a pass fit into a limit. */
struct gpt_stash_plan {
    uint32_t n_buffers;   /* blocks whose activations the pass holds at the same time */
    uint32_t n_stashed;   /* the other blocks, the first ones of the model */
    uint64_t block_bytes; /* activations of a block, and size of a slot of the stash */
    uint64_t held_bytes;  /* all activations that the pass holds */
};

/* Plan a pass of @layers blocks that holds at most @limit bytes of activations (0: no limit): the
 * activations of a block take @block_bytes, and all others @rest_bytes. As few blocks as possible
 * are stashed. CST_EINVAL: the limit is too small, even with two buffers; the text has the smallest
 * limit. */
int gpt_stash_plan_fit(uint32_t layers, uint64_t block_bytes, uint64_t rest_bytes, uint64_t limit,
                       struct gpt_stash_plan *out, struct cst_err *err);

struct gpt_stash {
    struct gpt_stash_plan plan;
    uint32_t layers; /* blocks of the model */
    char *buffers;   /* n_buffers times block_bytes, on the pass's device; borrowed */
};

/* Operator @op is about to run: wait until its activations are there, and the buffer that it
 * overwrites is free. Both functions do nothing if no block is stashed, or if @store has no stash:
 * a store that is a view is used for forward passes alone. Statuses are those of cst_edge_wait. */
int gpt_stash_before(const struct gpt_stash *stash, struct gpt_store *store,
                     const struct gpt_operator *op, enum cst_direction direction,
                     struct cst_err *err);

/* Operator @op has ended: begin the copies that are possible now. Statuses are those of
 * cst_put_start and cst_take_start. */
int gpt_stash_after(const struct gpt_stash *stash, struct gpt_store *store,
                    const struct gpt_operator *op, enum cst_direction direction,
                    struct cst_err *err);

/* The pass has failed: wait until no copy uses its memory any more. On a GPU, the stream waits, and
 * not this thread. */
void gpt_stash_end(const struct gpt_stash *stash, struct gpt_store *store);

#endif
