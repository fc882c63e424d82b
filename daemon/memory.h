/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of one job: arena segments, job table, pool slabs of each rank, rooms. Made at once,
 * populated by the engines, given back at once. Arenas of a base job are mapped for this one too,
 * under ids of their own: they are the base's memory, and stay when this is given back.
 *
 *   closed --open--> populating --on_ready--> ready --close--> leaving --on_gone--> closed
 *                        \------------ close ------------------/
 *
 * A pool whose accelerator is lost can be made anew in another place while it is ready; on_ready
 * says when. */
#ifndef CST_MEMORY_H
#define CST_MEMORY_H

#include "daemon/arena.h"
#include "daemon/later.h"
#include "daemon/pools.h"
#include "daemon/room.h"
#include "offload/core.h"

struct cst_daemon;
struct cst_gpu;
struct cst_memory;
typedef void (*cst_memory_cb)(struct cst_memory *memory);

struct cst_memory {
    struct cst_daemon *daemon;
    const char *name;                  /* of the job: for words */
    struct cst_quota_account *account; /* of the job's owner, who holds it; all is charged to it */
    struct cst_segment **segments;     /* arenas by layout index, then the table, then slabs rank by
                                          rank, then rooms */
    uint32_t n_segments;
    uint32_t n_open;    /* of them, that exist still: in the books until the last engine lets go */
    uint32_t n_waiting; /* of them, that the engines have not answered for */
    uint32_t *ids;      /* segment ids, in the same order: what the core is given */
    uint32_t n_arenas;  /* the first of segments; the base's among them */
    uint32_t pool_engines;       /* of accelerators with pools, a bit each: they read each
                                    other's gradients */
    uint32_t gpu_engines;        /* of all accelerators that are used, same */
    struct cst_core_pool *pools; /* one per rank; its segments point into ids */
    uint32_t world;              /* of pools */
    struct cst_core_room rooms[CST_CORE_MAX_ROOMS]; /* as the core takes them */
    uint32_t n_rooms;                               /* of them */
    struct cst_table_header *table;                 /* mapped */
    uint64_t table_bytes;                           /* of it */
    uint64_t arena_bytes;                           /* arenas and table, the base's not counted */
    uint64_t base_bytes;                            /* arenas of the base that are mapped here */
    uint64_t pool_bytes; /* all slabs, rooms, states on accelerators, as they are charged */
    uint64_t populated;  /* bytes, of arena_bytes + pool_bytes */
    uint64_t logged;     /* value of populated at the last line in the log */
    uint64_t started_ns; /* when it was opened */
    struct cst_population population; /* of all segments of host memory */
    struct cst_err err;               /* the first that went wrong while populating */
    bool parked;            /* The pools are given back: they have no slabs, but their numbers. */
    cst_memory_cb on_ready; /* all is populated, or err says why not; never from within a call */
    cst_memory_cb on_gone;  /* all is given back; never from within a call */
    struct cst_later ready, gone;
};

void cst_memory_init(struct cst_memory *memory, struct cst_daemon *daemon, const char *name);

/* The pool that a rank is to have. */
struct cst_memory_pool {
    struct cst_gpu *gpu; /* whose memory; NULL: the host's */
    struct cst_pools_blocks blocks;
};

/* What a job's memory is to be. */
struct cst_memory_wish {
    const struct cst_layout *layout;
    uint32_t world;                      /* ranks */
    struct cst_quota_account *account;   /* of the job's owner: all is charged to it */
    const struct cst_memory_pool *pools; /* one per rank */
    const struct cst_room *rooms;        /* on different accelerators */
    uint32_t n_rooms;                    /* at most CST_CORE_MAX_ROOMS */
    bool manager;                        /* a manager asks: a refusal may name anybody's jobs */
    const struct cst_memory
        *base; /* ready; has the layout's segments that are a base's; NULL: there are none */
};

/* Make the memory that @wish describes and have it populated. Engines of its accelerators are up.
 * CST_EBUDGET: with all numbers; CST_ENOMEM. On failure there is nothing to close. */
int cst_memory_open(struct cst_memory *memory, const struct cst_memory_wish *wish,
                    struct cst_err *err);

/* Fill @header with what the job table of @layout has; total_bytes is what it takes. */
void cst_memory_size_table(const struct cst_layout *layout, struct cst_table_header *header);

/* Of what slabs on @gpu (NULL: the host) are multiples, bytes, and what they are charged to. */
uint64_t cst_memory_grain(const struct cst_daemon *daemon, const struct cst_gpu *gpu);
struct cst_budget *cst_memory_budget(struct cst_daemon *daemon, struct cst_gpu *gpu);

/* The workers of ranks on @gpu (NULL: the host) copy weights into their pools themselves. @states:
 * of their job; not where gradients may be in the weights' places. */
bool cst_memory_worker_copies(const struct cst_daemon *daemon, const struct cst_gpu *gpu,
                              const struct cst_layout_states *states);

/* The pool of @rank is made anew on @gpu (NULL: the host), as large as it was; engines of @lost (a
 * bit each), whose accelerators are gone, map nothing that is made from now on. on_ready follows;
 * until then n_waiting > 0, and then err says whether it could be. CST_EBUDGET, CST_ENOMEM: all is
 * as it was. CST_EMISMATCH: no rank's pool was on @gpu, so that its engine does not map the arenas.
 */
int cst_memory_move(struct cst_memory *memory, const struct cst_layout *layout, uint32_t rank,
                    uint32_t lost, struct cst_gpu *gpu, struct cst_err *err);

/* Give the slabs of all pools back; all else stays. Nobody uses them. */
void cst_memory_park(struct cst_memory *memory);

/* Make the pools anew, as large as they were, rank r's on @gpus[r] (NULL: the host), where it was.
 * on_ready follows; until then n_waiting > 0, and then err says whether they could be. CST_EBUDGET,
 * CST_ENOMEM: they stay parked. */
int cst_memory_unpark(struct cst_memory *memory, const struct cst_layout *layout,
                      struct cst_gpu *const *gpus, struct cst_err *err);

/* Give it all back. on_gone follows. */
void cst_memory_close(struct cst_memory *memory);

/* Slab @i of @rank's pool. */
struct cst_segment *cst_memory_slab(const struct cst_memory *memory, uint32_t rank, uint32_t i);

/* Number of slabs in @rank's pool. */
uint32_t cst_memory_n_slabs(const struct cst_memory *memory, uint32_t rank);

/* All arenas are locked. */
bool cst_memory_is_locked(const struct cst_memory *memory);

#endif
