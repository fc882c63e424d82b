/* SPDX-License-Identifier: Apache-2.0 */
/* With what a core is opened: its pools, policies and device reservations. core.h says how the
 * parts act together. */
#ifndef CST_CORE_CONFIG_H
#define CST_CORE_CONFIG_H

#include "offload/base/machines.h"
#include "offload/layout/layout.h"
#include "proto/table.h"

#define CST_CORE_NEVER UINT64_MAX
#define CST_CORE_NO_PREFETCH UINT32_MAX /* Value of prefetch_depth: no prefetch. */

/* Blocks of one size class in a rank's pool. Slabs are numbered through all classes; each slab has
 * blocks of one class only. */
struct cst_core_part {
    uint32_t n_blocks; /* 0 if the layout has no such class. */
    /* Block i of the class is in slab first_slab + i / blocks_per_slab. */
    uint32_t blocks_per_slab;
    uint32_t first_slab;
};

struct cst_core_pool {
    struct cst_core_part parts[CST_LAYOUT_MAX_CLASSES]; /* One for each size class of the layout. */
    /* Segment id of each slab. Borrowed for the core's life; changed only by cst_core_move_pool. */
    const uint32_t *segments;
    /* Number of the tier whose memory the pool is. Host memory is served by the engine of each
     * chunk's node. */
    uint32_t tier;
    bool worker_copies;         /* The rank's worker copies weights into the pool itself. */
    struct cst_set unreachable; /* Engines of GPUs whose memory the pool's GPU cannot access. */
};

/* Prefetch and times of updates. */
struct cst_core_policy {
    /* Number of expected weights to load before they are asked for. 0: as many as blocks allow. */
    uint32_t prefetch_depth;
    enum cst_overlap overlap; /* EARLY and DELAYED need layout->states.two_weights. */
    uint64_t delay_from; /* DELAYED: the first step, counted from 0, whose update is delayed. */
    /* GPUs that want the same weights load one piece each, of at least this many bytes, and
     * exchange the pieces. 0: each GPU loads everything itself. */
    uint64_t gather_bytes;
};

#define CST_CORE_MAX_UPDATE_DEVICES 8

/* Device reservation: memory for staged updates. The rows of a chunk are brought there, updated,
 * and brought back. */
struct cst_core_device_reservation {
    /* The number of the tier whose memory it is. An accelerator's engine updates there; in host
     * memory the engine of the chunk's node does. */
    uint32_t engine;
    /* If `engine` is host memory: the number of the tier whose states are updated here. Otherwise
     * not used: those of the accelerator are. */
    uint32_t home;
    uint32_t segment; /* Id of the segment that is this memory. */
    uint64_t bytes;   /* Size of the memory. */
    /* The memory is that of empty blocks of the pool of rank `rank`, which is on the same
     * accelerator (offload/gradient/lent_memory.c); segment and bytes are not used. Chunks whose
     * states stay on the accelerator need another device reservation. */
    bool lent;
    uint32_t rank; /* With `lent`: the rank. */
};

/* The number of the tier whose states are updated in @reservation. */
static inline uint32_t
cst_core_reservation_home(const struct cst_core_device_reservation *reservation)
{
    return cst_tier_is_apart(reservation->engine) ? reservation->engine : reservation->home;
}

struct cst_core_config {
    const struct cst_model *model; /* Borrowed for the core's life, like layout. */
    const struct cst_layout *layout;
    uint32_t world;                 /* Number of ranks, 1..CST_CORE_MAX_WORLD. */
    const uint32_t *arena_segments; /* Segment id of each segment of the layout; borrowed. */
    uint32_t table_segment;         /* Segment id of the job table. */
    /* The job table, in which the core marks device updates that are complete; NULL: it does not.
     * Must stay valid. */
    struct cst_table_header *table;
    const struct cst_core_pool *pools; /* One for each rank; copied. */
    uint64_t first_ticket;             /* Tickets count up from this one. */
    /* How long SYNC, STEP and a fetch that lacks a block wait for other ranks. CST_CORE_NEVER:
     * forever. */
    uint64_t peer_timeout_ns;
    uint64_t step; /* Number of steps committed before; 0 for a new job. */
    struct cst_core_policy policy;
    /* Maximum number of micro-batches of a step; 0 and 1 mean one. More than one needs
     * layout->grad_bytes == 4. With stages: of each rank block. */
    uint32_t micro_batches;
    const struct cst_core_device_reservation *reservations; /* Copied. */
    uint32_t n_reservations;                                /* 0..CST_CORE_MAX_UPDATE_DEVICES. */
    /* Initial k: one of every k chunks of a node gets a device update; 0: none. See
     * cst_core_set_interleave. */
    uint32_t interleave;
    /* The host memory of the job's own arenas is new, and therefore zero. Moments are not cleared
     * there before they are first written. */
    bool arenas_are_new;
    /* Ranks of a rank block (offload/base/machines.h), which divide those here. 0: all ranks here
     * are one. */
    uint32_t block_ranks;
    /* The other machines; NULL: there are none. Copied. Needs a table. */
    const struct cst_core_machines *machines;
    uint64_t seed;              /* Seed of stochastic rounding, for the job table. */
    enum cst_rounding rounding; /* Rounding of weights, for the job table. */
};

#endif
