/* SPDX-License-Identifier: Apache-2.0 */
/* Drives a core by hand. The model has one tensor and one operator per chunk. Tests send requests,
 * each with a tag, and decide when each command completes. The rig checks the core's invariants
 * after every event, and fails the test if one is broken. */
#ifndef CORE_RIG_H
#define CORE_RIG_H

#include "offload/core/core.h"

#define RIG_CHUNK_ELEMS 4096
#define RIG_MAX 512
#define RIG_ARENA_SEGMENT 100 /* The RIG_*_SEGMENT are segment ids. */
#define RIG_POOL_SEGMENT 200  /* plus the rank */
#define RIG_TABLE_SEGMENT 300
#define RIG_STAGING_SEGMENT 900
#define RIG_STAGING_OFFSET 128

/* Options of a job for rig_open_job. A field that is 0 or NULL has the value that rig_open uses. */
struct rig_job {
    uint32_t n_chunks, world, n_blocks;
    const uint64_t *ranks;    /* per chunk: bit mask of its group's ranks; 0: all ranks */
    const uint32_t *patterns; /* per chunk: an enum cst_pattern_kind; NULL: CST_PATTERN_SHARD */
    uint32_t n_nodes;         /* number of NUMA nodes; 0: 1 */
    bool with_base;           /* a base job holds all frozen chunks */
    uint32_t n_stages; /* stages into which the operators are cut; 0: the job is not dispatched */
    bool tied;         /* the last operator uses tensor 0, too */
    uint32_t prefetch_depth; /* as in rig_open */
    uint32_t micro_batches;  /* micro-batches of a step; with more than one, grad rows are fp32 */
    bool grad_fp32;
    enum cst_layout_landings landings; /* chunks for which landings are laid out on the nodes */
    const uint64_t
        *unreachable; /* per rank: bit mask of engines that its GPU cannot access, or NULL */
    const struct cst_core_device_reservation *reservations;
    uint32_t n_reservations;
    uint32_t interleave;
    const struct cst_layout_device *device; /* accelerator that holds states; NULL: none */
    bool grad_over; /* the gradient's sum takes the place of the chunk's weights */
    enum cst_optimizer optimizer;
    enum cst_moments moments;
    const uint32_t *engines; /* per rank: the engine of the rank's pool, as in rig_open_on */
    bool worker_copies;
    bool arenas_are_new;
    uint64_t gather_bytes;    /* gather_bytes of the core's policy */
    enum cst_overlap overlap; /* with EARLY and DELAYED there are two weight rows */
    uint64_t delay_from;
    bool skips_unused;              /* tensors without a gradient are skipped */
    uint64_t first_ticket;          /* the first command's ticket; 0: 1 */
    struct cst_table_header *table; /* job table, in which device updates are marked; may be NULL */
};

/* The core under test, with its model, commands and replies. */
struct rig {
    struct cst_model model;
    struct cst_layout layout;
    struct cst_model base_model; /* model of the base job, if rig_job.with_base is set */
    struct cst_layout base_layout;
    struct cst_core *core;
    struct cst_actions actions;
    struct cst_core_pool pools[CST_CORE_MAX_WORLD];
    uint32_t pool_segments[CST_CORE_MAX_WORLD];
    /* Commands that are not completed, in the order of tickets. */
    struct cst_command commands[RIG_MAX];
    unsigned n_commands;
    struct cst_reply replies[RIG_MAX]; /* all replies since rig_open or the last rig_whole_step */
    unsigned n_replies;
    unsigned n_logs;
    uint64_t recalls[RIG_MAX]; /* the tickets of all recalls since rig_open */
    unsigned n_recalls;
    uint64_t tag;     /* the last tag that was given to a request */
    uint64_t now;     /* ns; the time of the next event */
    uint64_t attempt; /* attempt of the requests */
    double norm;      /* the sum of squares with which rig_done answers NORM */
};

/* Open a core with @world ranks whose pools have @n_blocks each in host memory. @prefetch_depth 0
 * means no prefetch, not the core's own choice. Close the rig with rig_close. */
void rig_open(struct rig *rig, uint32_t n_chunks, uint32_t world, uint32_t n_blocks,
              uint32_t prefetch_depth);
/* Like rig_open, with the pool of rank r in the memory of the GPU of engine @engines[r] (0: host
 * memory). */
void rig_open_on(struct rig *rig, uint32_t n_chunks, uint32_t world, uint32_t n_blocks,
                 uint32_t prefetch_depth, const uint32_t *engines);
/* Like rig_open, with all pools on the GPU of engine 1; the workers copy weights into them. */
void rig_open_worker_copies(struct rig *rig, uint32_t n_chunks, uint32_t world, uint32_t n_blocks,
                            uint32_t prefetch_depth);
/* Open a core for @job, without prefetch. Chunk i consists of tensor i. */
void rig_open_job(struct rig *rig, const struct rig_job *job);
/* Free everything that the rig owns. */
void rig_close(struct rig *rig);

/* Pass an event to the core. Returns the event's tag; an event without one gets a new tag. */
uint64_t rig_event(struct rig *rig, struct cst_event event);
/* These pass an event of a rank in the current attempt to the core, and return its tag. */
uint64_t rig_rank_event(struct rig *rig, enum cst_event_kind kind, uint32_t rank);
uint64_t rig_fetch(struct rig *rig, uint32_t rank, uint32_t chunk);
uint64_t rig_fetch_ahead(struct rig *rig, uint32_t rank, uint32_t chunk);
uint64_t rig_fetch_grad(struct rig *rig, uint32_t rank, uint32_t chunk);
uint64_t rig_release(struct rig *rig, uint32_t rank, uint32_t chunk, uint64_t generation);
uint64_t rig_hand_in(struct rig *rig, uint32_t rank, uint32_t chunk, uint64_t generation);
uint64_t rig_step(struct rig *rig, uint32_t rank);
/* Request to read or write (@kind) the elements [first, first + n) of a tensor's @row, to or from
 * RIG_STAGING_OFFSET of the staging segment. Returns the tag. */
uint64_t rig_io(struct rig *rig, enum cst_event_kind kind, uint32_t tensor, enum cst_row row,
                uint64_t first, uint64_t n);

/* The reply to @tag, or NULL if there is none yet. */
const struct cst_reply *rig_reply(const struct rig *rig, uint64_t tag);
/* The reply to @tag. Fails the test if there is none. */
const struct cst_reply *rig_answer(const struct rig *rig, uint64_t tag);
/* The status of the reply to @tag. Fails the test if there is none. */
int rig_status(const struct rig *rig, uint64_t tag);
/* True if there is no reply to @tag yet. */
bool rig_waits(const struct rig *rig, uint64_t tag);

/* The @n-th command of @kind that is not completed, or NULL if there are not that many. */
const struct cst_command *rig_command(const struct rig *rig, enum cst_command_kind kind,
                                      unsigned n);
/* Number of commands of @kind that are not completed. */
unsigned rig_count(const struct rig *rig, enum cst_command_kind kind);
/* The only command of @kind that is not completed. Fails the test unless there is exactly one. */
struct cst_command rig_only(const struct rig *rig, enum cst_command_kind kind);
/* Complete the command with @ticket. @text explains a failure and is NULL with CST_OK. */
void rig_done(struct rig *rig, uint64_t ticket, int status, const char *text);
/* Complete all commands, in the order of tickets, until none is left. */
void rig_drain(struct rig *rig);

/* Statistics of the core, of a rank, and of a rank's pool. */
struct cst_core_stats rig_stats(const struct rig *rig);
struct cst_rank_stats rig_rank_stats(const struct rig *rig, uint32_t rank);
struct cst_books rig_books(const struct rig *rig, uint32_t rank);

/* Attach and sync all ranks. The rig's requests then belong to the attempt that begins. */
void rig_start(struct rig *rig, uint32_t world);

/* Fetch weights or a gradient. If the fetch waits, all commands are completed. Returns the lease's
 * generation; fails the test if the fetch is not granted. */
uint64_t rig_get(struct rig *rig, uint32_t rank, uint32_t chunk);
uint64_t rig_get_grad(struct rig *rig, uint32_t rank, uint32_t chunk);

/* Run a whole step of @world ranks in lockstep: all chunks forward, all chunks backward with their
 * gradients, the commit. */
void rig_whole_step(struct rig *rig, uint32_t n_chunks, uint32_t world);

#endif
