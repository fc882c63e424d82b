/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of one job: arenas, job table, slabs of each rank's pool, edges, and device
 * reservations. It is created as a whole, populated by the engines, and given back as a whole.
 * Arenas of a base job are mapped into this job too, with ids of their own; they remain the memory
 * of the base job.
 *
 *   closed --open--> populating --on_ready--> ready --close--> leaving --on_gone--> closed
 *                        \------------ close ------------------/
 *
 * While the memory is ready, all pools and edges can be given back and made again, and a pool whose
 * accelerator was lost can be made again on another device. on_ready reports the completion of
 * both. */
#ifndef CST_MEMORY_H
#define CST_MEMORY_H

#include "daemon/budget/arena.h"
#include "daemon/base/deferred.h"
#include "daemon/memory/pool_pages.h"
#include "daemon/memory/pools.h"
#include "daemon/memory/device_reservation.h"
#include "daemon/memory/records.h"
#include "daemon/memory/shared_heads.h"
#include "daemon/memory/slot_refusals.h"
#include "offload/core/core.h"

struct cstd_daemon;
struct cstd_files;
struct cstd_log_about;
struct cstd_memory;
struct cstd_tier;
typedef void (*cstd_memory_cb)(struct cstd_memory *memory);

struct cstd_memory {
    struct cstd_daemon *daemon;
    const char *name; /* Name of the job in messages. */
    /* Account of the job's owner, which everything is charged to. The job holds the reference. */
    struct cstd_quota_account *account;
    /* All segments: arenas by index in the layout, then the job table, then slabs rank by rank,
     * then edges, then device reservations. */
    struct cstd_segment **segments;
    uint32_t n_segments;
    /* Segments that still exist; a segment stays in the books until the last engine has released
     * it. */
    uint32_t n_open;
    uint32_t n_waiting; /* Segments that the engines have not all answered for. */
    uint32_t *ids;      /* Segment ids in the order of segments, for the core. */
    /* Number of arenas, which are the first of segments; includes arenas of the base. */
    uint32_t n_arenas;
    /* The arenas were made for this job, and no core has used them yet: they are zero. */
    bool arenas_are_new;
    /* Engines of accelerators with pools. They read each other's gradients. */
    struct cst_set pool_engines;
    /* Engines of all accelerators that the job uses, and that of its network. */
    struct cst_set gpu_engines;
    struct cst_set served; /* Engine of the network by which other machines read the arenas. */
    struct cst_core_pool *pools;    /* One pool per rank; its segments point into ids. */
    const struct cstd_tier **tiers; /* Tier of each rank's pool. */
    uint32_t world;                 /* Number of ranks. */
    const struct cst_model *model;  /* The job's model, whose edges are here. */
    struct cstd_files *files;       /* Files for states; they are the job's. */
    /* Index in segments of the first edge. The words of all edges come first, then the slots that
     * have memory of their own. */
    uint32_t first_edge;
    uint32_t slots_replaced; /* Number of times that slots were made again elsewhere. */
    struct cstd_slot_refusal_list refusals; /* Slots that workers cannot map on accelerators. */
    struct cstd_shared_heads heads;         /* Heads of the edges, unless the pools are parked. */
    /* Device reservations in the form that the core needs. */
    struct cst_core_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES];
    uint32_t n_reservations;        /* Number of device reservations. */
    struct cstd_records records;    /* Of a durable job: what its files have besides rows. */
    struct cst_table_header *table; /* The job table, mapped. */
    uint64_t table_bytes;           /* Size of the job table. */
    /* Bytes of arenas in host memory and of the job table, without the base's arenas. */
    uint64_t arena_bytes;
    /* Bytes of the base's arenas that are mapped here. */
    uint64_t base_bytes;
    /* Charged bytes of all slabs, edges, device reservations and states on accelerators. */
    uint64_t pool_bytes;
    uint64_t populated;  /* Populated bytes of arena_bytes + pool_bytes. */
    uint64_t logged;     /* Value of populated at the last progress line in the log. */
    uint64_t started_ns; /* Monotonic time of cstd_memory_open. */
    /* Engine deaths while host memory segments of the job were populated. */
    struct cstd_population population;
    struct cst_err err;            /* The first error of populating; status 0: none. */
    struct cstd_memory_kept *kept; /* In cstd_memory_open: the next one of the request's. */
    /* The pools are given back: they have numbers of blocks but no slabs, except slabs that were
     * adopted. The edges are given back too. */
    bool parked;
    /* Unless the pools are parked: whether their slabs have their pages. */
    struct cstd_pool_pages pool_pages;
    /* All segments are populated, or err has the reason why not. Never called inside a function of
     * this module. */
    cstd_memory_cb on_ready;
    /* All memory is given back. Never called inside a function of this module. */
    cstd_memory_cb on_gone;
    /* Slabs of parked pools are given back. May be NULL. Never called inside a function of this
     * module. */
    cstd_memory_cb on_less;
    struct cstd_deferred ready, gone;
};

/* Initialise closed memory. @name is the job's name and must stay valid. The caller sets on_ready
 * and on_gone. */
void cstd_memory_init(struct cstd_memory *memory, struct cstd_daemon *daemon, const char *name);

/* The planned pool of a rank. */
struct cstd_memory_pool {
    const struct cstd_tier *tier; /* Tier of the pool. */
    struct cstd_pools_blocks blocks;
    uint64_t bytes; /* What its slabs are charged with. */
};

/* A segment that an earlier daemon has made. */
struct cstd_memory_kept {
    uint32_t id;
    int fd; /* -1: the segment shares the memory of the base job, or has become a segment here. */
};

/* Description of a job's memory, for cstd_memory_open. */
struct cstd_memory_request {
    const struct cst_layout *layout;
    /* The model, with its edges. Stays valid until the memory is closed. */
    const struct cst_model *model;
    uint32_t world; /* Number of ranks. */
    /* Account of the job's owner, which everything is charged to. */
    struct cstd_quota_account *account;
    /* Files for states, which stay valid until the memory is closed. */
    struct cstd_files *files;
    const struct cstd_memory_pool *pools; /* One pool per rank. */
    /* Device reservations, each on another accelerator. */
    const struct cstd_device_reservation *reservations;
    uint32_t n_reservations;    /* At most CST_CORE_MAX_UPDATE_DEVICES. */
    uint64_t description_bytes; /* Most bytes of a durable job's description; else unused. */
    /* Memory of the base job, which is ready and has the base's segments of the layout; NULL: no
     * base. */
    const struct cstd_memory *base;
    /* Arenas, job table and device reservations that an earlier daemon made for the same layout, in
     * this order; NULL: all memory is made now. Descriptors that become segments are set to -1. */
    struct cstd_memory_kept *kept;
    /* Memory of the job that this one replaces, whose arenas have the same layout and become this
     * memory's (cstd_memory_inherit); NULL: new arenas are made. */
    const struct cstd_memory *inherited;
    /* The arenas have no pages and are not charged until cstd_memory_fill. Only without
     * accelerators and device reservations. */
    bool sparse;
    /* Engine of a network, which maps the arenas, too, and lets other machines read them; empty:
     * none. */
    struct cst_set serves;
};

/* Create the memory that @request describes and have the engines populate it. The engines of its
 * accelerators must be up. on_ready follows. The caller has checked the sums (pool_share.h).
 * Memory that an earlier daemon made (request->kept) is not populated again, its pools are parked,
 * and its engines may be started later. CST_EBUDGET: a budget is
 * exceeded, with all numbers; CST_ENOMEM: out of memory. After a failure there is nothing to close.
 */
int cstd_memory_open(struct cstd_memory *memory, const struct cstd_memory_request *request,
                     struct cst_err *err);

/* Take over the arenas of @from, which was `inherited` in the request. @from can only be closed
 * afterwards. */
void cstd_memory_inherit(struct cstd_memory *memory, struct cstd_memory *from);

/* Arenas that the job itself owns, which are in host memory, become sparse (page_work.h). */
void cstd_memory_make_sparse(struct cstd_memory *memory);

/* The states of @from have been moved here: the sparse arenas have all their pages now, and those
 * of @from have none. Charge the former, even beyond the limits, in place of the latter. */
void cstd_memory_fill(struct cstd_memory *memory, struct cstd_memory *from);

/* Arenas of @from whose files are also arenas of @heir belong to @heir alone from now on: an
 * earlier daemon ended when @heir had inherited them. @from can only be closed afterwards. */
void cstd_memory_disown(struct cstd_memory *from, const struct cstd_memory *heir);

/* Return the bytes of host memory that a job of @layout takes without pools: arenas and job table.
 */
uint64_t cstd_memory_host_bytes(const struct cst_layout *layout);

/* Fill @header with the sizes of the job table of @layout; total_bytes is its size. */
void cstd_memory_size_table(const struct cst_layout *layout, struct cst_table_header *header);

/* True if workers of ranks with pools in @tier copy weights into their pools themselves. @states:
 * the rows of the job. If gradients may be in the weights' places, engines must copy. */
bool cstd_memory_worker_copies(const struct cstd_tier *tier,
                               const struct cst_layout_states *states);

/* Make the pool of @rank again in @tier, with as many blocks as before, and the
 * slots of its edges where they belong then. @lost: engines whose accelerators are
 * gone; new segments are not mapped in them. on_ready follows, and then err has the outcome;
 * n_waiting > 0 until then. CST_EBUDGET, CST_ENOMEM: nothing was changed. CST_EMISMATCH: no rank's
 * pool was in @tier before, and its engine therefore does not map the arenas. */
int cstd_memory_move(struct cstd_memory *memory, const struct cst_layout *layout, uint32_t rank,
                     struct cst_set lost, const struct cstd_tier *tier, struct cst_err *err);

/* The pools are parked. Add slab @i of @rank's pool in @tier, which is the memory @fd of an earlier
 * daemon's engine. @fd is owned by the memory, on failure too. CST_ENOMEM. */
int cstd_memory_adopt_slab(struct cstd_memory *memory, const struct cst_layout *layout,
                           uint32_t rank, uint32_t i, const struct cstd_tier *tier, int fd,
                           struct cst_err *err);

/* Give the slabs of all pools, with @adopted also those that were adopted, and the edges back, and
 * keep all other memory. Nobody may be using them. */
void cstd_memory_park(struct cstd_memory *memory, bool adopted);

/* True if a slab or an edge exists, and is not being given back. */
bool cstd_memory_has_pools(const struct cstd_memory *memory);

/* True if the slabs of parked pools still exist, because an engine has not released them. */
bool cstd_memory_is_leaving(const struct cstd_memory *memory);

/* Make the slabs and edges that are not there again, with as many blocks as before, rank r's in
 * @tiers[r], its previous one. on_ready follows, and then err has the outcome;
 * n_waiting > 0 until then. CST_EBUDGET, CST_ENOMEM: the pools stay parked. */
int cstd_memory_unpark(struct cstd_memory *memory, const struct cst_layout *layout,
                       const struct cstd_tier *const *tiers, struct cst_err *err);

/* Give all memory back, if there is any. on_gone follows, also for closed memory; once, if it is
 * called again before that. */
void cstd_memory_close(struct cstd_memory *memory);

/* Returns slab number @i of @rank's pool. */
struct cstd_segment *cstd_memory_slab(const struct cstd_memory *memory, uint32_t rank, uint32_t i);

/* Returns the number of slabs in @rank's pool. */
uint32_t cstd_memory_n_slabs(const struct cstd_memory *memory, uint32_t rank);

/* Returns the memory of edge @i of the model. cstd_memory_edge_slots returns that of its slots;
 * NULL: they are in the former. The pools must not be parked. */
struct cstd_segment *cstd_memory_edge(const struct cstd_memory *memory, uint32_t i);
struct cstd_segment *cstd_memory_edge_slots(const struct cstd_memory *memory, uint32_t i);

/* The memory is ready. Make the memory of the edges of all ranks again, in place of the old one,
 * which is released: a rank maps it after its next SYNC. on_ready follows. CST_EAGAIN: other
 * segments are being made, or the pools are parked. CST_EBUDGET, CST_ENOMEM. Nothing was changed
 * then. */
int cstd_memory_renew_edges(struct cstd_memory *memory, struct cst_err *err);

/* Log that the memory of the job @about is populated, how long that has taken, and a warning if its
 * arenas should be locked and are not. */
void cstd_memory_tell_populated(const struct cstd_memory *memory,
                                const struct cstd_log_about *about);

#endif
