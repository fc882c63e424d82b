/* SPDX-License-Identifier: Apache-2.0 */
/* What a pool knows of the requests that are expected next: its horizons and claims (lookahead.c).
 * The numbers are in struct cst_pool. Called by fetch, prefetch and eviction. */
#ifndef CST_LOOKAHEAD_H
#define CST_LOOKAHEAD_H

#include "offload/books/block.h"
#include "offload/books/rank.h"

#define CST_PREFETCH_IN_FLIGHT 16 /* Maximum number of unrequested loads of a part in flight. */

/* The rank has asked for weights, or opened a gradient, that it did not have: advance the trace. */
void cst_lookahead_follow(struct cst_rank *rank, uint32_t chunk, bool grad);

/* The gradient of @chunk has a block now, or does not need one any more. */
void cst_lookahead_opened(struct cst_pool *pool, uint32_t chunk);

/* Weights that are used next at @next are no longer in a block of @part. */
void cst_lookahead_evicted(struct cst_pool *pool, uint32_t part, uint64_t next);

/* True if @entry needs a block that it cannot take yet: a gradient, or weights that change before.
 */
bool cst_lookahead_claims(const struct cst_pool *pool, const struct cst_trace_entry *entry);

/* What cannot have a block yet is expected at the horizon, and claims one: the gradient of @chunk,
 * or without @grad its weights after the commit. False: it must wait, because it claims a block for
 * an earlier use, or the gradient has one for an earlier micro-batch. */
bool cst_lookahead_claim(struct cst_pool *pool, uint32_t chunk, bool grad);
/* The horizon moves past the use of @chunk's weights. */
void cst_lookahead_passed(struct cst_pool *pool, uint32_t chunk);

/* Adopt the times of the trace, if enough expected requests have paid for the review of all
 * victims. False: the pool's times are out of date. */
bool cst_lookahead_catch_up(struct cst_pool *pool);

/* Maximum number of unrequested loads of the part in flight. */
uint32_t cst_lookahead_most_in_flight(const struct cst_part *part);
/* True if one more load can begin and leaves the claims their blocks. */
bool cst_lookahead_can_load(const struct cst_part *part);

/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_lookahead_check(const struct cst_rank *rank);

#endif
