/* The memory of one job: arena segments, job table, pool slabs of each rank. Made at once,
 * populated by the engines, given back at once.
 *
 *   closed --open--> populating --on_ready--> ready --close--> leaving --on_gone--> closed
 *                        \------------ close ------------------/ */
#ifndef CST_MEMORY_H
#define CST_MEMORY_H

#include "daemon/arena.h"
#include "daemon/later.h"
#include "offload/core.h"

struct cst_daemon;
struct cst_gpu;
struct cst_memory;
typedef void (*cst_memory_cb)(struct cst_memory *memory);

struct cst_memory {
    struct cst_daemon *daemon;
    const char *name; /* of the job: for words */
    struct cst_segment *
        *segments; /* arenas by layout index, then the table, then slabs rank by rank */
    uint32_t n_segments;
    uint32_t n_open;    /* of them, that exist still: in the books until the last engine lets go */
    uint32_t n_waiting; /* of them, that the engines have not answered for */
    uint32_t *ids;      /* segment ids, in the same order: what the core is given */
    uint32_t n_arenas;  /* the first of segments */
    uint32_t gpu_engines;           /* of ranks' GPUs, a bit each */
    struct cst_core_pool *pools;    /* one per rank; its segments point into ids */
    uint32_t world;                 /* of pools */
    struct cst_table_header *table; /* mapped */
    uint64_t table_bytes;           /* of it */
    uint64_t arena_bytes;           /* arenas and table */
    uint64_t pool_bytes;            /* all slabs, as they are charged */
    uint64_t populated;             /* bytes, of arena_bytes + pool_bytes */
    uint64_t logged;                /* value of populated at the last line in the log */
    uint64_t started_ns;            /* when it was opened */
    struct cst_err err;             /* the first that went wrong while populating */
    cst_memory_cb on_ready; /* all is populated, or err says why not; never from within a call */
    cst_memory_cb on_gone;  /* all is given back; never from within a call */
    struct cst_later ready, gone;
};

void cst_memory_init(struct cst_memory *memory, struct cst_daemon *daemon, const char *name);

/* The pool that a rank is to have. */
struct cst_memory_pool {
    struct cst_gpu *gpu; /* whose memory; NULL: the host's */
    uint32_t n_blocks;
};

/* Make the memory that @layout wants, for a model of @n_tensors, with a pool as in @pools for each
 * of @world ranks, and have it populated. Engines of their GPUs are up. CST_EBUDGET: with all
 * numbers; CST_ENOMEM. On failure there is nothing to close. */
int cst_memory_open(struct cst_memory *memory, const struct cst_layout *layout, uint32_t n_tensors,
                    uint32_t world, const struct cst_memory_pool *pools, struct cst_err *err);

/* Bytes that a pool of @n_blocks takes where slabs are multiples of @grain bytes. */
uint64_t cst_memory_pool_bytes(const struct cst_layout *layout, uint32_t n_blocks, uint64_t grain);

/* The most blocks, up to @max, that a pool can have within @bytes. */
uint32_t cst_memory_pool_blocks(const struct cst_layout *layout, uint64_t bytes, uint64_t grain,
                                uint32_t max);

/* Of what slabs on @gpu (NULL: the host) are multiples, bytes, and what they are charged to. */
uint64_t cst_memory_grain(const struct cst_daemon *daemon, const struct cst_gpu *gpu);
struct cst_budget *cst_memory_budget(struct cst_daemon *daemon, struct cst_gpu *gpu);

/* The workers of ranks on @gpu (NULL: the host) copy weights into their pools themselves. */
bool cst_memory_worker_copies(const struct cst_daemon *daemon, const struct cst_gpu *gpu);

/* Give it all back. on_gone follows. */
void cst_memory_close(struct cst_memory *memory);

/* Slab @i of @rank's pool. */
struct cst_segment *cst_memory_slab(const struct cst_memory *memory, uint32_t rank, uint32_t i);

/* Number of slabs in @rank's pool. */
uint32_t cst_memory_n_slabs(const struct cst_memory *memory, uint32_t rank);

/* All arenas are locked. */
bool cst_memory_is_locked(const struct cst_memory *memory);

#endif
