/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's pool: its blocks, their states, and which chunk is in which block. Keeps the books and
 * decides nothing. A block belongs to one size class (its part) forever; all books are kept per
 * part.
 *
 *         load            copy done           evict
 *   FREE ------> LOADING ----------> RESIDENT ------> FREE   weights; RESIDENT may be leased
 *    |                                  | new weights while leased
 *    |                                  +-----> STALE ------> FREE at the last release
 *    | open       hand in          all ranks handed in
 *    +----> OPEN --------> PENDING ------------> REDUCING ------> FREE   gradients
 *                             | block is wanted
 *                             +--------> SPILLING ------> FREE   the grad row holds it now
 *
 * If the worker copies weights in (worker_copies), LOADING waits for the chunk's update instead of
 * a copy, and RESIDENT is `filling` at first.
 *
 *   FREE ------> LENT ------> FREE   a buffer of device updates (offload/gradient/lent_memory.c)
 *
 *   RESIDENT, STALE, OPEN --hang-up while leased--> QUARANTINED --death or sync--> FREE */
#ifndef CST_BLOCK_H
#define CST_BLOCK_H

#include "offload/base/stats.h"
#include "offload/base/core_config.h"
#include "offload/base/flight.h"
#include "offload/books/request.h"
#include "offload/books/trace.h"
#include "offload/books/victim.h"

#define CST_NONE UINT32_MAX

enum cst_block_state {
    CST_BLOCK_FREE,
    /* The copy into the block, or the update before it, is in flight; requests may wait for it. */
    CST_BLOCK_LOADING,
    CST_BLOCK_RESIDENT, /* The block holds a chunk's current weights; leases >= 0. */
    /* The block holds leased weights from before the last commit or write; leases > 0. */
    CST_BLOCK_STALE,
    CST_BLOCK_OPEN, /* The block holds a leased gradient; leases = 1. */
    /* The block holds a gradient that was handed in and waits for other ranks. */
    CST_BLOCK_PENDING,
    CST_BLOCK_SPILLING,    /* The gradient is being copied to the chunk's grad row. */
    CST_BLOCK_REDUCING,    /* A reduction reads the gradient. */
    CST_BLOCK_QUARANTINED, /* The lessee hung up and its process may still run. */
    CST_BLOCK_LENT,        /* Device updates use the block. It holds no chunk. */
    CST_BLOCK_STATES,
};

struct cst_block {
    enum cst_block_state state;
    uint32_t chunk;  /* CST_NONE while FREE or LENT. */
    uint32_t leases; /* Number of fetches that were not released. */
    uint32_t part;   /* Index into the pool's parts: the size class. */
    uint32_t addend; /* Gradient that was handed in: its addend (step_schedule.h). */
    /* Links of the list of the part's blocks in this state; CST_NONE: the end. */
    uint32_t prev, next;
    /* LOADING by several GPUs: copies in flight to and from the block. 0: one copy fills the
     * block. */
    uint32_t n_pieces;
    /* LOADING: the weights that arrive are out of date. SPILLING, REDUCING: the gradient is void.
     */
    bool dropped;
    bool foreseen; /* LOADING: nobody had asked for the weights when the load began. */
    /* RESIDENT, STALE: leased, and the worker has not reported that its copy into the block is
     * complete. */
    bool filling;
    uint64_t generation; /* Generation of the current lease; 0: not leased. */
    /* Ticket of the command that moves the contents, or that the block waits for; 0: none. */
    uint64_t ticket;
    /* Value of the pool's `uses` when the block was last granted, handed in, released or loaded. */
    uint64_t last_use;

    struct cst_moment last; /* End of the last action on the block, on both clocks. */

    /* Times on both clocks, changed by instant.c. */

    struct cst_moment granted; /* Time of the last lease. */
    struct cst_moment end;     /* GPU: predicted end of the work for which the block was granted. */
    uint64_t shift;            /* GPU: value of the rank's `shift` when `end` was predicted. */
    /* LOADING: instant at which a copy would have ended that was overtaken while it waited for its
     * update, in ns; 0: it was not overtaken. */
    uint64_t would_end;
    struct cst_queue waiters; /* LOADING: fetches that wait for the load. */
};

/* The blocks of one size class. */
struct cst_part {
    uint32_t first_block; /* Index into the pool's blocks. */
    uint32_t n_blocks;    /* Number of blocks from first_block on. */
    uint32_t blocks_per_slab;
    uint32_t first_slab;
    uint64_t block_bytes;
    uint32_t count[CST_BLOCK_STATES]; /* Number of blocks in each state. */
    /* List of the blocks in each state, the newest first; CST_NONE: empty. */
    uint32_t head[CST_BLOCK_STATES];
    uint32_t n_leased_resident; /* Number of leased RESIDENT blocks. */
    uint32_t n_awaited;         /* Number of LOADING blocks that fetches wait for. */
    uint32_t n_foreseen;        /* Number of LOADING blocks that are foreseen. */
    struct cst_victims victims; /* RESIDENT blocks without leases, numbered within the part. */
    /* Changed by collection.c: in this collection a gradient could not be spilled. Gradients are
     * then spilled for fetches only, which get the error. */
    bool spill_failed;
    /* Changed by lookahead.c. */
    uint32_t
        n_ahead; /* Number of weights that the trace expects before the horizon of `victims`. */
    uint32_t n_claimed;      /* Number of blocks that claims will take (lookahead.h). */
    struct cst_queue demand; /* Fetches that wait for a block of the part. */
    /* Fetches ahead that wait for a block of the part; served after `demand`. */
    struct cst_queue ahead;
};

struct cst_pool {
    struct cst_block *blocks; /* All n_blocks blocks, part by part; owned. */
    uint32_t n_blocks;
    struct cst_part parts[CST_LAYOUT_MAX_CLASSES];
    uint32_t n_parts;
    uint32_t n_chunks;
    const struct cst_layout_chunk *chunks; /* Chunks of the layout; borrowed. */
    const uint32_t *segments;              /* Segment id of each slab; borrowed. */
    uint32_t tier;                         /* Number of the tier whose memory the pool is. */
    bool worker_copies; /* The rank's worker copies weights in; engines do not. */
    /* Engines of GPUs whose memory the pool's GPU cannot access. */
    struct cst_set unreachable;
    /* The rank's trace, which predicts when weights are used; borrowed. */
    const struct cst_trace *trace;
    uint64_t uses; /* Number of uses of the pool's blocks so far, for LRU. */

    /* Changed by lookahead.c. */

    uint64_t epoch; /* Epoch of the trace to which the times in `victims` belong. */
    /* Grows with requests that come as expected; pays for a new look at all victims. */
    uint64_t credit;
    uint64_t serial; /* Current value of valid entries of `claimed`. */
    /* Per chunk, for its weights and then its gradient: equals serial if they count in n_claimed;
     * owned. */
    uint64_t *claimed;

    /* Changed by block.c again. */

    uint32_t *weight_of; /* Per chunk: its LOADING or RESIDENT block, or CST_NONE; owned. */
    /* Per chunk: the block of its gradient in this collection, or CST_NONE; owned. */
    uint32_t *grad_of;
    bool changed;          /* A waiting fetch may now succeed. */
    struct cst_moment now; /* Time of the current event on both clocks, see instant.c. */
};

/* True if the GPU of @pool can access the memory of the GPU of @engine. */
static inline bool cst_pool_reaches(const struct cst_pool *pool, uint32_t engine)
{
    return !cst_set_has(&pool->unreachable, engine);
}

/* True if both pools are on different GPUs that can access each other's memory. */
static inline bool cst_pool_can_exchange(const struct cst_pool *a, const struct cst_pool *b)
{
    return a->tier != b->tier && cst_pool_reaches(a, b->tier) && cst_pool_reaches(b, a->tier);
}

/* CST_ENOMEM: nothing is owned. */
int cst_pool_init(struct cst_pool *pool, const struct cst_core_pool *config,
                  const struct cst_layout *layout, const struct cst_trace *trace);
/* Free the pool's books. Also allowed after a failed cst_pool_init. */
void cst_pool_close(struct cst_pool *pool);

/* The part whose blocks hold @chunk. */
static inline struct cst_part *cst_pool_part(struct cst_pool *pool, uint32_t chunk)
{
    return &pool->parts[pool->chunks[chunk].size_class];
}

/* Number of the pool's blocks in @state. */
uint32_t cst_pool_count(const struct cst_pool *pool, enum cst_block_state state);

/* Take a free block for @chunk and set it to @state, LOADING or OPEN; CST_NONE: none is free. */
uint32_t cst_pool_take(struct cst_pool *pool, enum cst_block_state state, uint32_t chunk);

/* Change the state of @block to @state; the transition must be in the diagram above. FREE resets
 * the block. */
void cst_block_move(struct cst_pool *pool, uint32_t block, enum cst_block_state state);

/* Note that the LOADING block waits for the command @ticket: the one that fills it or, if the
 * worker copies, the chunk's update. */
void cst_block_load(struct cst_pool *pool, uint32_t block, uint64_t ticket);
/* The LOADING block waits for the update @ticket instead. */
void cst_block_wait_for(struct cst_pool *pool, uint32_t block, uint64_t ticket);

/* The gradient in an OPEN block is handed in as @addend. */
void cst_block_hand_in(struct cst_pool *pool, uint32_t block, uint32_t addend);

/* The command @ticket reads the gradient: change the block's state to SPILLING or REDUCING. Returns
 * the place to read. */
struct cst_place cst_block_read_by(struct cst_pool *pool, uint32_t block,
                                   enum cst_block_state state, uint64_t ticket);

/* What a command brings to the block, or reads from it, is out of date. */
void cst_block_drop(struct cst_pool *pool, uint32_t block);

/* The block is used now, for LRU. */
void cst_block_use(struct cst_pool *pool, uint32_t block);

/* One more copy to or from a LOADING block is in flight, or one less; true: none is left. */
void cst_block_add_piece(struct cst_pool *pool, uint32_t block);
bool cst_block_end_piece(struct cst_pool *pool, uint32_t block);

/* A waiting fetch may now succeed. */
static inline void cst_pool_wake(struct cst_pool *pool)
{
    pool->changed = true;
}
/* True if cst_pool_wake was called since the last call of this function. */
static inline bool cst_pool_take_change(struct cst_pool *pool)
{
    bool changed = pool->changed;

    pool->changed = false;
    return changed;
}

/* The time of the current event, see instant.c. */
static inline void cst_pool_set_time(struct cst_pool *pool, struct cst_moment now)
{
    pool->now = now;
}
/* Note that something was done with the block now. */
void cst_block_note_time(struct cst_pool *pool, uint32_t block);

/* Add or end one lease on a block. A first lease gets the generation @generation. */
void cst_block_lease(struct cst_pool *pool, uint32_t block, uint64_t generation);
void cst_block_unlease(struct cst_pool *pool, uint32_t block);

/* Mark a LOADING block: nobody has asked for its weights. */
void cst_block_foresee(struct cst_pool *pool, uint32_t block);

/* Update the block's place among the victims after its next use has changed. */
void cst_block_review(struct cst_pool *pool, uint32_t block);

/* End all leases of a RESIDENT block. Its worker does not fill it any more. */
void cst_block_unlease_all(struct cst_pool *pool, uint32_t block);

/* Let a fetch wait for the load of a LOADING block (await), end the wait (forsake), or take out the
 * fetch that has waited longest (pop; CST_NO_REQUEST: there is none). */
void cst_block_await(struct cst_pool *pool, uint32_t block, struct cst_requests *requests,
                     uint32_t request);
void cst_block_forsake(struct cst_pool *pool, uint32_t block, struct cst_requests *requests,
                       uint32_t request);
uint32_t cst_block_pop_waiter(struct cst_pool *pool, uint32_t block, struct cst_requests *requests);

/* Place of a block: segment id and offset; number of its slab; offset in the slab. */
struct cst_place cst_pool_place(const struct cst_pool *pool, uint32_t block);
uint32_t cst_pool_slab(const struct cst_pool *pool, uint32_t block);
uint64_t cst_pool_offset(const struct cst_pool *pool, uint32_t block);

/* Count the blocks of all size classes by state. */
void cst_pool_books(const struct cst_pool *pool, struct cst_books *out);

/* Count the blocks of size class @k only. */
void cst_pool_part_books(const struct cst_pool *pool, uint32_t k, struct cst_books *out);

/* Name of the state, "loading" for example. */
const char *cst_block_state_name(enum cst_block_state state);

/* NULL, or the name of an invariant of this pool that does not hold. For tests. */
const char *cst_pool_check(const struct cst_pool *pool, uint32_t n_chunks);

#endif
