/* SPDX-License-Identifier: Apache-2.0 */
/* Which block is taken for new contents, and which weights are evicted for them. Owns the notes of
 * evictions. Called by the parts that load weights. */
#ifndef CST_EVICTION_H
#define CST_EVICTION_H

#include "offload/books/block.h"
#include "offload/base/event.h"

struct cst_core;

/* The last eviction of a chunk; for cst_core_explain. */
struct cst_evicted {
    uint64_t step;      /* Step in which a rank last evicted the chunk. */
    uint32_t rank;      /* Rank that last evicted the chunk; CST_NONE: none has. */
    uint32_t wanted_by; /* Chunk for which it was evicted; CST_NONE: the worker asked for it. */
};

/* Evict the clean weights in block @b of @rank. @wanted_by: the chunk that needs the block;
 * CST_NONE: the worker asked for the eviction. */
void cst_eviction_evict(struct cst_core *core, uint32_t rank, uint32_t b, uint32_t wanted_by);

/* Take a block for @chunk and set it to @state: a free one, or a victim that is used again after
 * @limit (CST_VICTIM_ANY: any victim). CST_NONE: there is none. */
uint32_t cst_eviction_take(struct cst_core *core, uint32_t rank, enum cst_block_state state,
                           uint32_t chunk, uint64_t limit);

/* Take a block for weights of @chunk that @rank expects, without evicting anything that is used
 * sooner, and mark it foreseen. CST_NONE: the rank does not expect them, or has no block to
 * spare. */
uint32_t cst_eviction_take_expected(struct cst_core *core, uint32_t rank, uint32_t chunk);

#endif
