/* SPDX-License-Identifier: Apache-2.0 */
/* Tiers: the kinds of memory in which rows, pools and slots lie. There is one tier of host memory,
 * and one for each GPU, each simulated accelerator and each drive. A kind of tier is a table of
 * functions and properties, one file per kind; whoever has a tier asks the table, and no other file
 * asks which kind it is. Tiers live as long as the daemon, and are constant except for their
 * budgets.
 *
 * The number of a tier is what layouts and cores call it (offload/layout/tier.h). Loop thread
 * only. */
#ifndef CSTD_TIER_H
#define CSTD_TIER_H

#include "daemon/budget/arena.h"
#include "proto/rates.h"

struct cstd_daemon;
struct cstd_drive;
struct cstd_gpu;
struct cstd_memory;
struct cstd_tier;

/* What a piece of memory is for. */
enum cstd_tier_use {
    CSTD_TIER_STATES,      /* Rows of chunks. */
    CSTD_TIER_POOL,        /* A slab of a pool. */
    CSTD_TIER_RESERVATION, /* Buffers for updates. */
    CSTD_TIER_SLOTS,       /* Slots of an edge. */
};

/* A piece of memory that is to be made. */
struct cstd_tier_piece {
    enum cstd_tier_use use;
    uint64_t bytes; /* A multiple of the tier's grain. */
    uint32_t node;  /* The NUMA node of host memory, from 0. */
    bool sparse;    /* STATES: nothing is charged, because the pages are missing. */
};

/* A kind of tier. Functions have no state besides the tier. */
struct cstd_tier_kind {
    const char *name; /* "host", "cuda", "paced" or "disk". */
    /* The memory belongs to one engine. It is lost with its device, and only that engine and those
     * that can access it map it. False: all engines that need it map it, and it survives them. */
    bool apart;
    /* Reservations, states and slots are charged to the budget of the tier's pools. */
    bool one_budget;
    /* Descriptors of the memory are handles of a driver, which workers import. False: they are
     * files, which workers map. */
    bool handles;
    /* Workers can copy weights into pools here themselves. */
    bool workers_copy;
    /* Rate of products that a worker here is assumed to reach, flop/s; 0: that of a node's cores.
     */
    double flops;
    /* Add a segment for @piece to @memory: create and charge it, and say which engines share it.
     * The next segment that was kept is taken, if the memory was kept. Statuses are those of
     * cstd_memory_open. */
    int (*create)(struct cstd_memory *memory, const struct cstd_tier *tier,
                  const struct cstd_tier_piece *piece, struct cst_err *err);
    /* Count again what of the tier's budget is not for jobs. */
    void (*count)(const struct cstd_tier *tier);
    /* The engines of the tiers whose memory the engine of @tier cannot access. */
    struct cst_set (*unreachable)(const struct cstd_tier *tier);
    /* The tiers on which ranks with pools here have their updates, and their number; 0: there is
     * none besides @tier itself, which is the result of `updater`. */
    unsigned (*n_updaters)(const struct cstd_tier *tier);
    const struct cstd_tier *(*updater)(const struct cstd_tier *tier, uint32_t rank);
    /* The tier of the buffers in which states of @tier are updated: @tier itself or, if its engine
     * does not compute, host memory. */
    const struct cstd_tier *(*buffers)(const struct cstd_tier *tier);
    /* The others, and `unreachable` and the two after it, are NULL in a kind whose engine does not
     * compute: no pool can be there. */
    /* Fill in guessed rates of a device on whose tier the pools of workers are. @node: the rates of
     * the host's node. */
    void (*rates)(const struct cstd_tier *tier, const struct cst_rates_node *node,
                  struct cst_rates_device *out);
    /* Write what people want to know of the tier with the pool of @rank, at most @max lines.
     * Returns the number of lines. */
    unsigned (*explain)(const struct cstd_tier *tier, uint32_t rank, char lines[][192],
                        unsigned max);
};

struct cstd_tier {
    const struct cstd_tier_kind *kind;
    struct cstd_daemon *daemon;
    /* The number of its engine; of host memory CST_TIER_HOST. */
    uint32_t number;
    const char *name;    /* "host", or the UUID of the device. */
    const char *uuid;    /* The UUID of the device; NULL: host memory has none. */
    const char *product; /* "host", "NVIDIA H200": devices of one product have the same rates. */
    char label[64];      /* "host", "cuda:0", "paced:0" or "nvme0n1p1". */
    int os_node;         /* The nearest NUMA node (OS number); -1: none or unknown. */
    struct cstd_budget *budget; /* Of pools. Borrowed. */
    struct cstd_gpu *gpu;       /* For gpu.c. */
};

/* The kinds that a daemon has, by what its tiers are made from. */
struct cstd_tier_kinds {
    const struct cstd_tier_kind *host;
    const struct cstd_tier_kind *gpu;   /* Of the GPUs that the daemon finds. */
    const struct cstd_tier_kind *paced; /* Of the devices in [paced]. */
    const struct cstd_tier_kind *disk;  /* Of drives with files of users. */
};

/* The tiers of a daemon, by number. */
struct cstd_tiers {
    struct cstd_daemon *daemon;
    const struct cstd_tier_kinds *kinds;
    struct cstd_tier v[CSTD_ARENA_MAX_ENGINES];
};

/* Initialise the tiers of @daemon, which have @kinds; they stay valid. Tiers of accelerators are
 * filled in when they are looked up. */
void cstd_tiers_init(struct cstd_tiers *tiers, struct cstd_daemon *daemon,
                     const struct cstd_tier_kinds *kinds);

/* The tier of host memory. */
const struct cstd_tier *cstd_tiers_host(const struct cstd_daemon *daemon);

/* The tier of @gpu, of @drive, of the device whose engine has the index @number, with the UUID
 * @uuid (NULL: host memory), and that of a segment. NULL: there is no such device. The drive @uuid
 * is added to the daemon's if it was not known. */
const struct cstd_tier *cstd_tiers_of_gpu(const struct cstd_daemon *daemon, struct cstd_gpu *gpu);
const struct cstd_tier *cstd_tiers_of_drive(const struct cstd_daemon *daemon,
                                            struct cstd_drive *drive);
const struct cstd_tier *cstd_tiers_of_number(const struct cstd_daemon *daemon, uint32_t number);
const struct cstd_tier *cstd_tiers_of_uuid(const struct cstd_daemon *daemon, const char *uuid);
const struct cstd_tier *cstd_tiers_of_segment(const struct cstd_daemon *daemon,
                                              const struct cstd_segment *segment);

/* Find the tier that JobOpen.device @device names for @rank. Statuses are those of
 * cstd_gpus_choose; CST_EUNSUPPORTED: no pool can be there. */
int cstd_tiers_choose(const struct cstd_daemon *daemon, const char *device, uint32_t rank,
                      const struct cstd_tier **out, struct cst_err *err);

/* The number of bytes that segments of @tier must be multiples of; 0: its engine has not been up
 * yet. */
uint64_t cstd_tier_grain(const struct cstd_tier *tier);

/* The budget of @tier's pools, from which what contexts and workers need is set aside as it is
 * now. */
struct cstd_budget *cstd_tier_budget(const struct cstd_tier *tier);

/* The engine that the memory of @tier belongs to, alone; empty: it belongs to none. */
struct cst_set cstd_tier_engines(const struct cstd_tier *tier);

/* True if the engine that the memory of @tier belongs to was given up. */
bool cstd_tier_is_lost(const struct cstd_tier *tier);

/* True if the engine of @from, or a worker there, can write to the memory of @to. Both are apart.
 */
bool cstd_tier_reaches(const struct cstd_tier *from, const struct cstd_tier *to);

/* The tier of the buffers in which states of @tier are updated, and true if that is @tier itself,
 * because its engine computes. */
static inline const struct cstd_tier *cstd_tier_buffers(const struct cstd_tier *tier)
{
    return tier->kind->buffers(tier);
}

static inline bool cstd_tier_computes(const struct cstd_tier *tier)
{
    return cstd_tier_buffers(tier) == tier;
}

/* Count a use of the engine that the memory of @tier belongs to, and the end of this use. */
void cstd_tier_use(const struct cstd_tier *tier);
void cstd_tier_unuse(const struct cstd_tier *tier);

/* The kinds. */
extern const struct cstd_tier_kind cstd_tier_host, cstd_tier_cuda, cstd_tier_paced, cstd_tier_disk;

#endif
