/* SPDX-License-Identifier: Apache-2.0 */
/* A core driven by hand: a model of one tensor and one operator per chunk, requests with tags,
 * commands that complete when told. After every event the core's invariants are checked. */
#ifndef CORE_RIG_H
#define CORE_RIG_H

#include "offload/core.h"

#define RIG_CHUNK_ELEMS 4096
#define RIG_MAX 512
#define RIG_ARENA_SEGMENT 100 /* segment ids */
#define RIG_POOL_SEGMENT 200  /* + rank */
#define RIG_TABLE_SEGMENT 300
#define RIG_STAGING_SEGMENT 900
#define RIG_STAGING_OFFSET 128

/* What rig_open_job can say of a job; what is 0 or NULL is as in rig_open. */
struct rig_job {
    uint32_t n_chunks, world, n_blocks;
    const uint64_t *ranks;    /* per chunk: its group, a bit each; 0: all */
    const uint32_t *patterns; /* per chunk */
    uint32_t n_nodes;         /* 0: 1 */
    bool with_base;           /* a base job has all frozen chunks */
    uint32_t micro_batches;   /* more than one: grad rows are fp32 */
    bool grad_fp32;
    bool landings; /* of the layout's configuration */
    const struct cst_core_room *rooms;
    uint32_t n_rooms;
    uint32_t interleave;
    const struct cst_layout_device *device; /* for states that stay there; NULL: none */
    bool grad_over;                         /* gradients take their weights' places */
    enum cst_optimizer optimizer;
    enum cst_moments moments;
    const uint32_t *engines; /* per rank: as in rig_open_on */
    bool worker_copies;
    uint64_t gather_bytes;    /* as in the policy */
    enum cst_overlap overlap; /* EARLY, DELAYED: two weight rows */
    uint64_t delay_from;
    uint64_t first_ticket; /* 0: 1 */
};

struct rig {
    struct cst_model model;
    struct cst_layout layout;
    struct cst_model base_model; /* with_base */
    struct cst_layout base_layout;
    struct cst_core *core;
    struct cst_actions actions;
    struct cst_core_pool pools[CST_CORE_MAX_WORLD];
    uint32_t pool_segments[CST_CORE_MAX_WORLD];
    struct cst_command commands[RIG_MAX]; /* not completed, in order of tickets */
    unsigned n_commands;
    struct cst_reply replies[RIG_MAX]; /* all that came */
    unsigned n_replies;
    unsigned n_logs;
    uint64_t tag;     /* last given */
    uint64_t now;     /* ns */
    uint64_t attempt; /* for requests */
    double norm;      /* what NORM answers: sum of squares */
};

/* @n_blocks in each rank's pool; @prefetch_depth 0: none. */
void rig_open(struct rig *rig, uint32_t n_chunks, uint32_t world, uint32_t n_blocks,
              uint32_t prefetch_depth);
void rig_open_policy(struct rig *rig, uint32_t n_chunks, uint32_t world, uint32_t n_blocks,
                     const struct cst_core_policy *policy);
/* The same with rank r's pool in the memory of engine @engines[r]'s GPU (0: host memory). */
void rig_open_on(struct rig *rig, uint32_t n_chunks, uint32_t world, uint32_t n_blocks,
                 uint32_t prefetch_depth, const uint32_t *engines);
/* The same on the GPU of engine 1, whose ranks' workers copy weights in themselves. */
void rig_open_worker_copies(struct rig *rig, uint32_t n_chunks, uint32_t world, uint32_t n_blocks,
                            uint32_t prefetch_depth);
/* All on the host, nothing asked ahead; chunk i has tensor i alone. */
void rig_open_job(struct rig *rig, const struct rig_job *job);
void rig_close(struct rig *rig);

/* Feed an event; returns its tag (a new one if it has none). */
uint64_t rig_event(struct rig *rig, struct cst_event event);
uint64_t rig_rank_event(struct rig *rig, enum cst_event_kind kind, uint32_t rank);
uint64_t rig_fetch(struct rig *rig, uint32_t rank, uint32_t chunk);
uint64_t rig_fetch_ahead(struct rig *rig, uint32_t rank, uint32_t chunk);
uint64_t rig_fetch_grad(struct rig *rig, uint32_t rank, uint32_t chunk);
uint64_t rig_release(struct rig *rig, uint32_t rank, uint32_t chunk, uint64_t generation);
uint64_t rig_hand_in(struct rig *rig, uint32_t rank, uint32_t chunk, uint64_t generation);
uint64_t rig_step(struct rig *rig, uint32_t rank);
/* READ or WRITE of elements [first, first + n), from or to RIG_STAGING_OFFSET of the staging
 * segment. */
uint64_t rig_io(struct rig *rig, enum cst_event_kind kind, uint32_t tensor, enum cst_row row,
                uint64_t first, uint64_t n);

/* The reply to @tag, NULL: none yet. */
const struct cst_reply *rig_reply(const struct rig *rig, uint64_t tag);
/* The same, fails the test if there is none. */
const struct cst_reply *rig_answer(const struct rig *rig, uint64_t tag);
/* Its status; fails the test if there is none. */
int rig_status(const struct rig *rig, uint64_t tag);
/* True if no reply to @tag came yet. */
bool rig_waits(const struct rig *rig, uint64_t tag);

/* The n-th command of @kind that is under way, NULL: fewer. */
const struct cst_command *rig_command(const struct rig *rig, enum cst_command_kind kind,
                                      unsigned n);
unsigned rig_count(const struct rig *rig, enum cst_command_kind kind);
/* The only command of @kind under way; fails the test if there are none, or more. */
struct cst_command rig_only(const struct rig *rig, enum cst_command_kind kind);
void rig_done(struct rig *rig, uint64_t ticket, int status, const char *text);
/* Complete commands in order until none is left. */
void rig_drain(struct rig *rig);

/* What the core says of itself, of a rank, of its pool. */
struct cst_core_stats rig_stats(const struct rig *rig);
struct cst_rank_stats rig_rank_stats(const struct rig *rig, uint32_t rank);
struct cst_books rig_books(const struct rig *rig, uint32_t rank);

/* Attach and sync all ranks; the attempt runs. */
void rig_start(struct rig *rig, uint32_t world);

/* Fetch that is granted at the latest when all commands are done; the generation. */
uint64_t rig_get(struct rig *rig, uint32_t rank, uint32_t chunk);
uint64_t rig_get_grad(struct rig *rig, uint32_t rank, uint32_t chunk);

/* A whole step by @world ranks: each chunk forward, each backward with its gradient, in lockstep.
 */
void rig_whole_step(struct rig *rig, uint32_t n_chunks, uint32_t world);

#endif
