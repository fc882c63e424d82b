/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that wait, and how the wait ends: a fetch is granted a block, or a request is refused.
 * Owns the numbers of leases; the requests themselves are in offload/books/request.h. Called by
 * the parts that load weights, and by ranks and commit. */
#ifndef CST_WAITING_H
#define CST_WAITING_H

#include "offload/base/event.h"
#include "offload/books/rank.h"

struct cst_core;
struct cst_grants {
    uint64_t generation; /* Generation of the last granted lease. */
};

/* The deadline of a request that begins to wait for other ranks now. */
uint64_t cst_waiting_deadline(const struct cst_core *core);

/* The waits for other ranks that have a deadline begin again now. */
void cst_waiting_restart(struct cst_core *core);

/* Put a fetch that is in no queue into the queue of fetches that wait for a block. */
void cst_waiting_enqueue(struct cst_core *core, uint32_t request);

/* Take a waiting fetch out of its queue. */
void cst_waiting_unqueue(struct cst_core *core, uint32_t request);

/* True if a fetch waits for a block of @part. */
static inline bool cst_waiting_part(const struct cst_part *part)
{
    return !cst_queue_empty(&part->demand) || !cst_queue_empty(&part->ahead);
}

/* True if a fetch of the rank waits for a block. */
bool cst_waiting_for_block(const struct cst_rank *rank);

/* Grant a lease on block @b of @rank and answer @tag. @ahead: the worker does not wait for it. */
void cst_waiting_grant(struct cst_core *core, uint32_t rank, uint32_t b, uint64_t tag, bool hit,
                       bool ahead);

/* Grant block @b to request @i, which ends and is counted. @again: the block already holds its
 * gradient. */
void cst_waiting_answer(struct cst_core *core, uint32_t i, uint32_t b, bool again);

/* Take request @i out of its place and answer it with @err. Not for READ and WRITE, whose commands
 * are in flight. */
void cst_waiting_refuse(struct cst_core *core, uint32_t i, const struct cst_err *err);
/* Answer all waiting requests of the rank, or of all ranks, with @why. */
void cst_waiting_refuse_rank(struct cst_core *core, uint32_t rank, const struct cst_err *why);
void cst_waiting_refuse_all(struct cst_core *core, const struct cst_err *why);
/* The attempt ends: answer all fetches with @fetches, and each STEP with @steps. */
void cst_waiting_refuse_step(struct cst_core *core, const struct cst_err *fetches,
                             const struct cst_err *steps);

/* The rank has asked for the step: answer its waiting fetches with CST_ECANCELLED. */
void cst_waiting_cancel_fetches(struct cst_core *core, uint32_t rank);

/* The rank has ended @what, "its unit" for example: answer its waiting fetches of gradients with
 * CST_ECANCELLED. */
void cst_waiting_cancel_grads(struct cst_core *core, uint32_t rank, const char *what);

#endif
