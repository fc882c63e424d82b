/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's pool: blocks, their states, which chunk is in which block. Keeps the books; decides
 * nothing. A block belongs to one size class, its part, for good; all books are kept by part.
 *
 *         load            copy done           evict
 *   FREE ------> LOADING ----------> RESIDENT ------> FREE   weights; RESIDENT may be leased
 *    |                                  | new weights while leased
 *    |                                  +-----> STALE ------> FREE at the last release
 *    | open       hand in          all ranks handed in
 *    +----> OPEN --------> PENDING ------------> REDUCING ------> FREE   gradients
 *                             | block is wanted
 *                             +--------> STAGING ------> FREE   the grad row holds it now
 *
 * Where the worker copies weights in (worker_copies), LOADING waits for the chunk's update instead
 * of a copy, and RESIDENT is filling at first.
 *
 *   RESIDENT, STALE, OPEN --hang-up while leased--> QUARANTINED --death or sync--> FREE */
#ifndef CST_BLOCK_H
#define CST_BLOCK_H

#include "offload/core.h"
#include "offload/flight.h"
#include "offload/request.h"
#include "offload/trace.h"
#include "offload/victim.h"

#define CST_NONE UINT32_MAX

enum cst_block_state {
    CST_BLOCK_FREE,
    CST_BLOCK_LOADING,     /* a copy up is under way, or the update before it; requests may wait */
    CST_BLOCK_RESIDENT,    /* holds a chunk's current weights; leases >= 0 */
    CST_BLOCK_STALE,       /* leased weights of before the last commit or write; leases > 0 */
    CST_BLOCK_OPEN,        /* a leased gradient; leases = 1 */
    CST_BLOCK_PENDING,     /* a gradient handed in, waits for other ranks */
    CST_BLOCK_STAGING,     /* it is being copied to the chunk's grad row */
    CST_BLOCK_REDUCING,    /* a reduction reads it */
    CST_BLOCK_QUARANTINED, /* its lessee hung up and may still run */
    CST_BLOCK_STATES,
};

struct cst_block {
    enum cst_block_state state;
    uint32_t chunk;      /* CST_NONE while free */
    uint32_t leases;     /* fetches not released */
    uint32_t part;       /* its size class */
    uint32_t micro;      /* a gradient that was handed in: micro-batch that it is of */
    uint32_t prev, next; /* list of its part's blocks in its state, CST_NONE: the end */
    uint32_t
        n_pieces;  /* LOADING, gathered: copies to and from it under way; 0: one copy fills it */
    bool dropped;  /* LOADING: what arrives is out of date; STAGING: nobody wants it any more */
    bool foreseen; /* LOADING: nobody had asked for it when the copy began */
    bool filling; /* RESIDENT, STALE: leased, and the lessee has not said that the weights are in */
    uint64_t generation; /* of the lease; 0 while there was none */
    uint64_t ticket;     /* of the command that moves it, or that it waits for; 0: none */
    uint64_t last_use;   /* the core's use counter when it was last granted, released or loaded */
    /* On both clocks, see instant.c. */
    struct cst_moment last;    /* the end of what was last done with it */
    struct cst_moment granted; /* its last lease */
    struct cst_moment end; /* of a GPU: when that has done what it was granted for, as foreseen */
    uint64_t shift;        /* of the rank, when that was foreseen */
    uint64_t would_end;    /* LOADING: instant at which a copy would have ended that was overtaken
                              while it waited for its update, ns; 0: it was not */
    struct cst_queue waiters; /* LOADING: fetches that it will answer */
};

/* The blocks of one size class. */
struct cst_part {
    uint32_t first_block; /* index into the pool's blocks */
    uint32_t n_blocks;    /* from there on */
    uint32_t blocks_per_slab;
    uint32_t first_slab;
    uint64_t block_bytes;
    uint32_t count[CST_BLOCK_STATES]; /* blocks by state */
    uint32_t head[CST_BLOCK_STATES];  /* list of blocks by state, the newest in it first; CST_NONE:
                                         empty */
    uint32_t n_leased_resident;       /* of the RESIDENT ones */
    uint32_t n_awaited;               /* of the LOADING ones: that fetches wait for */
    uint32_t n_foreseen;              /* of the LOADING ones: foreseen */
    struct cst_victims victims;       /* RESIDENT ones without leases, by number in the part */
    bool staging_failed; /* in this collection: it is done for a fetch alone, which hears of it */
    uint32_t n_ahead;    /* weights that the trace expects before the victims' edge */
    uint32_t n_claimed;  /* blocks that gradients which it expects there will take */
    struct cst_queue demand; /* fetches that wait for a block of it */
    struct cst_queue ahead;  /* same, served after them */
};

struct cst_pool {
    struct cst_block *blocks; /* n_blocks, part by part; owned */
    uint32_t n_blocks;
    struct cst_part parts[CST_LAYOUT_MAX_CLASSES];
    uint32_t n_parts;
    uint32_t n_chunks;
    const struct cst_layout_chunk *chunks; /* of the layout; borrowed */
    const uint32_t *segments;              /* segment id per slab; borrowed */
    uint32_t engine;                       /* of the GPU whose memory it is; 0: host memory */
    bool worker_copies;                    /* no engine copies weights in */
    const struct cst_trace *trace;         /* of the rank: says when weights are wanted; borrowed */
    uint64_t epoch;                        /* of the trace, to which the victims' times belong */
    uint64_t credit; /* grows with what comes as expected: pays for looking at all victims again */
    uint64_t serial; /* see claimed */
    uint64_t *claimed; /* per chunk: equals serial where its gradient counts in n_claimed; owned */
    uint32_t *weight_of;   /* per chunk: its LOADING or RESIDENT block, or CST_NONE; owned */
    uint32_t *grad_of;     /* per chunk: block of its gradient in this collection; owned */
    bool changed;          /* a waiting fetch may have a chance now */
    struct cst_moment now; /* of the event that is digested, see instant.c */
};

/* CST_ENOMEM: nothing is owned. */
int cst_pool_init(struct cst_pool *pool, const struct cst_core_pool *config,
                  const struct cst_layout *layout, const struct cst_trace *trace,
                  enum cst_core_eviction eviction);
void cst_pool_close(struct cst_pool *pool);

/* The part whose blocks hold @chunk. */
struct cst_part *cst_pool_part(struct cst_pool *pool, uint32_t chunk);

/* How many blocks of the pool are in @state. */
uint32_t cst_pool_count(const struct cst_pool *pool, enum cst_block_state state);

/* A free block of its part in @state for @chunk; CST_NONE if none is free. weight_of and grad_of
 * are the caller's business. */
uint32_t cst_pool_take(struct cst_pool *pool, enum cst_block_state state, uint32_t chunk);

/* Go to @state, which the table must allow. FREE: forgets everything and puts it on the free list.
 */
void cst_block_move(struct cst_pool *pool, uint32_t block, enum cst_block_state state);

/* One lease more or less on a RESIDENT or STALE block. */
void cst_block_lease(struct cst_pool *pool, uint32_t block);
void cst_block_unlease(struct cst_pool *pool, uint32_t block);

/* Nobody has asked for what comes into a LOADING block. */
void cst_block_foresee(struct cst_pool *pool, uint32_t block);

/* When a block's weights are wanted has changed: its place among the victims does too. */
void cst_block_review(struct cst_pool *pool, uint32_t block);

/* End all leases of a RESIDENT block. */
void cst_block_unlease_all(struct cst_pool *pool, uint32_t block);

/* A fetch waits for the copy into a LOADING block; it does no more; the oldest that does, taken out
 * (CST_NO_REQUEST: none). */
void cst_block_await(struct cst_pool *pool, uint32_t block, struct cst_requests *requests,
                     uint32_t request);
void cst_block_forsake(struct cst_pool *pool, uint32_t block, struct cst_requests *requests,
                       uint32_t request);
uint32_t cst_block_pop_waiter(struct cst_pool *pool, uint32_t block, struct cst_requests *requests);

/* Where a block lies, on the wire. */
struct cst_place cst_pool_place(const struct cst_pool *pool, uint32_t block);
uint32_t cst_pool_slab(const struct cst_pool *pool, uint32_t block);
uint64_t cst_pool_offset(const struct cst_pool *pool, uint32_t block);

void cst_pool_books(const struct cst_pool *pool, struct cst_books *out);

/* The same of size class @k alone. */
void cst_pool_part_books(const struct cst_pool *pool, uint32_t k, struct cst_books *out);

/* "loading" and so on. */
const char *cst_block_state_name(enum cst_block_state state);

/* NULL, or the name of an invariant of this pool alone that does not hold. */
const char *cst_pool_check(const struct cst_pool *pool, uint32_t n_chunks);

#endif
