/* SPDX-License-Identifier: Apache-2.0 */
/* What a replay is made of, and what its parts share. Private to offload/plan/.
 *
 *   replay.c    opens everything, takes timers and ends of efforts one after the other, feeds the
 *               core, counts
 *   engines.c   commands: what they wait for, lanes in order of priority
 *   costs.c     how much work one is
 *   worker.c    a rank: operators in order, leases, batches
 *   stream.c    its device's stream
 *   machine.c   efforts that share cores, memory and links
 *   timers.c    messages on their way
 *
 * The worker's books are client/lease.h and client/fence.h themselves, which are pure: what is
 * asked for, and when, is decided by the code that runs in a worker. */
#ifndef CST_PLAN_PLAY_H
#define CST_PLAN_PLAY_H

#include "client/fence.h"
#include "client/lease.h"
#include "offload/parts.h"
#include "offload/plan/machine.h"
#include "offload/plan/replay.h"
#include "offload/plan/timers.h"

/* Segments that places name. */
#define CST_PLAY_POOL_SEGMENT                                                                      \
    (1u << 20) /* + rank x CST_PLAY_POOL_STRIDE + slab; arenas are below */
#define CST_PLAY_POOL_STRIDE CST_LAYOUT_MAX_CLASSES
#define CST_PLAY_ROOM_SEGMENT (1u << 19) /* + number of the room */

/* Tags of requests: rank + 1, batch, item. What is in no batch: */
#define CST_PLAY_NO_BATCH UINT16_MAX
enum cst_play_single { CST_PLAY_TAG_STEP = 1, CST_PLAY_TAG_SYNC, CST_PLAY_TAG_PREPARE };

enum cst_play_timer {
    CST_PLAY_BATCH,     /* a batch reaches the daemon: rank, batch */
    CST_PLAY_BATCH_END, /* its reply reaches the worker */
    CST_PLAY_PREPARE,   /* PREPARE reaches the daemon: rank */
    CST_PLAY_STEP,      /* STEP reaches the daemon: rank */
    CST_PLAY_STEP_END,
    CST_PLAY_COMMAND, /* a command reaches its engine, its dependencies with other engines done:
                         ticket */
    CST_PLAY_DONE,    /* its end reaches the daemon */
};

/* -- engines -------------------------------------------------------------------------------- */

enum cst_play_lane_kind {
    CST_PLAY_UP,
    CST_PLAY_DOWN,
    CST_PLAY_TEAM,
    CST_PLAY_ROOM, /* updates in an accelerator's room */
    CST_PLAY_LANES
};

struct cst_play_command {
    uint64_t ticket; /* 0: the slot is empty */
    uint32_t engine;
    enum cst_play_lane_kind lane;
    unsigned class; /* priority */
    enum cst_flight_kind kind;
    uint32_t chunk, rank; /* rank: as cst_flight.rank, which may be a room */
    bool told;            /* as cst_command.told, and so newest_first */
    bool newest_first;
    uint32_t n_waits;  /* commands, and its own message, that it waits for */
    uint64_t after_me; /* list of commands that wait for it: ticket x 4 + index, 0: none */
    uint64_t next_after[CST_COMMAND_MAX_AFTER]; /* links of those lists */
    struct cst_play_command *next;              /* in its lane's queue */
    bool begun;
    bool queued;
    uint64_t begin;     /* ns */
    bool ended;         /* its end is on its way to the daemon */
    uint64_t copied_to; /* bytes on the link between devices */
    struct cst_effort effort;
};

struct cst_play_lane {
    struct cst_play_command *running; /* the last one begun of n_running */
    uint32_t n_running, width;        /* commands at a time: now, at most */
    struct cst_play_command *head[CST_PRIORITY_EVICTION + 1], *tail[CST_PRIORITY_EVICTION + 1];
};

struct cst_play_engine {
    uint32_t node;                        /* its memory's */
    uint32_t device;                      /* link; of a GPU's engine */
    const struct cst_rates_device *rates; /* NULL: a node's engine */
    struct cst_play_lane lanes[CST_PLAY_LANES];
};

/* -- workers -------------------------------------------------------------------------------- */

enum cst_play_state {
    CST_PLAY_SYNCING,
    CST_PLAY_BEGIN,   /* the next operator is to begin */
    CST_PLAY_AWAIT,   /* it waits for its batch */
    CST_PLAY_COMPUTE, /* the processor computes */
    CST_PLAY_FLUSH,   /* of a micro-batch or step */
    CST_PLAY_SETTLE,
    CST_PLAY_STEPPING,
    CST_PLAY_OVER,
};

struct cst_play_op {
    uint32_t op;
    bool backward;
};

struct cst_play_batch {
    struct cst_lease_item *items; /* owned */
    uint32_t n_items, capacity;
    uint32_t n_left; /* without a reply of the core */
    bool awaited, used;
    struct cst_reply *replies; /* capacity; owned */
};

/* What a device's stream has to do, in order. */
struct cst_play_entry {
    bool is_mark;
    uint64_t number; /* of the mark; else copies that must have ended */
    struct cst_play_op at;
    uint32_t step;
    double work; /* ns */
};

/* A copy that the worker makes itself. */
struct cst_play_copy {
    uint64_t number;
    uint32_t chunk;
    double work; /* ns */
};

struct cst_play_worker {
    struct cst_play *play;
    uint32_t rank;
    uint32_t node;
    uint32_t device; /* link */
    const struct cst_rates_device *rates;
    bool stream;       /* the device works behind the worker's back, else it is the worker */
    double stands_for; /* ranks */
    double cores;      /* of the node, while it computes */
    double flops;      /* per ns */
    enum cst_play_state state;
    uint64_t attempt;
    uint32_t step, micro;    /* steps, micro-batches of it, done */
    struct cst_play_op *ops; /* of this micro-batch; owned */
    uint32_t n_ops, at;
    struct cst_lease_operator *operators; /* owned */
    uint32_t *tensor_chunk;               /* owned */
    struct cst_lease_trait *traits;       /* owned */
    struct cst_leases leases;
    struct cst_fences fences;
    struct cst_play_batch *batches; /* owned */
    uint32_t n_batches;
    uint32_t n_awaited;
    bool wanted; /* the daemon was told that this operator waits for what was asked for ahead */
    /* the stream */
    struct cst_play_entry *entries; /* a ring; owned */
    uint32_t first, n_entries, entries_capacity;
    bool marked;
    uint64_t mark, passed;
    struct cst_effort compute;
    struct cst_play_entry computing;
    uint64_t compute_begin;
    /* copies by the worker */
    struct cst_play_copy *copies; /* a ring; owned */
    uint32_t first_copy, n_copies, copies_capacity;
    uint64_t *copy_of;          /* per chunk: number of its last copy; owned */
    uint64_t last_copy, copied; /* numbers: begun, ended */
    uint64_t waited_copy;       /* the stream has been told to wait for */
    struct cst_effort copying;
    uint64_t copy_begin;
    /* of this step */
    uint64_t idle_since; /* end of the last computation, or the step's reply */
    uint64_t compute_ns, wait_ns;
    uint64_t last_backward;
};

/* -- the whole ------------------------------------------------------------------------------ */

struct cst_play {
    const struct cst_replay_config *config;
    struct cst_core *core;
    struct cst_actions actions;
    struct cst_timers timers;
    struct cst_machine machine;
    uint32_t *arena_segments; /* owned */
    uint32_t *slabs;          /* owned */
    uint64_t now;
    uint64_t hop_ns; /* of a message, one way */
    int status;
    struct cst_err err;
    uint64_t n_events;               /* that the core digested */
    uint64_t n_turns;                /* things that happened at all */
    struct cst_play_engine *engines; /* owned */
    uint32_t n_engines, n_nodes;
    struct cst_play_command **commands; /* a ring by ticket; owned, as are they */
    uint64_t commands_capacity;         /* power of two */
    uint32_t n_commands;
    struct cst_play_worker *workers; /* owned */
    uint32_t world;
    uint64_t peer_bytes;             /* so far */
    uint64_t moved_up, moved_down;   /* so far, as commands say: what the core must have counted */
    uint64_t states_up, states_down; /* so far, of updates in rooms; not among moved */
    uint64_t states_up_before, states_down_before; /* at the last commit */
    uint64_t commit_at;                            /* of the last commit */
    uint64_t n_commits;
    uint64_t attempt;
    struct cst_replay_counts before;           /* at the last commit */
    uint64_t host_up, host_down;               /* so far, of moved: to and from host memory */
    uint64_t host_up_before, host_down_before; /* at the last commit */
    uint64_t peer_before;                      /* same */
    uint32_t peak_blocks[CST_CORE_MAX_WORLD];  /* since then */
    struct cst_replay_result result;
};

/* The first failure ends the replay. */
void cst_play_fail(struct cst_play *play, const struct cst_err *err);
void cst_play_out_of_memory(struct cst_play *play);
void cst_play_timer(struct cst_play *play, uint64_t delay, enum cst_play_timer kind, uint64_t arg);
void cst_play_start(struct cst_play *play, struct cst_effort *effort);
/* Hand an event to the core and carry its actions out. */
void cst_play_event(struct cst_play *play, struct cst_event *event);
void cst_play_interval(struct cst_play *play, enum cst_lane_kind lane, uint32_t number,
                       uint32_t what, bool backward, uint64_t begin);
/* What is known of the GPU whose link is @device; CST_NONE: of the host as a device. */
const struct cst_rates_device *cst_play_device(const struct cst_play *play, uint32_t device);
/* States of the chunk stay on the device of a rank: which; CST_NONE: they do not. */
uint32_t cst_play_owner(const struct cst_play *play, uint32_t chunk);

/* costs.c */
/* Its lane and its effort. */
void cst_play_cost(struct cst_play *play, struct cst_play_command *c,
                   const struct cst_command *command);
/* Add up what the core must have counted. */
void cst_play_count(struct cst_play *play, const struct cst_play_command *c,
                    const struct cst_command *command);

/* engines.c */
int cst_play_engines_open(struct cst_play *play);
void cst_play_engines_close(struct cst_play *play);
void cst_play_submit(struct cst_play *play, const struct cst_command *command);
void cst_play_arrived(struct cst_play *play, uint64_t ticket);
void cst_play_ended(struct cst_play *play, struct cst_play_command *command);
void cst_play_done(struct cst_play *play, uint64_t ticket);

/* stream.c */
/* The worker copies the weights of @chunk into the block that it was granted. */
void cst_play_copy_weights(struct cst_play_worker *worker, uint32_t chunk, uint64_t bytes);
void cst_play_copied(struct cst_play_worker *worker);
void cst_play_enqueue(struct cst_play_worker *worker, const struct cst_play_entry *entry);
/* Begin to compute now. */
void cst_play_compute(struct cst_play_worker *worker, const struct cst_play_entry *entry);
/* Go on with the stream. True: marks were passed. */
bool cst_play_run_stream(struct cst_play_worker *worker);

/* worker.c */
int cst_play_worker_open(struct cst_play *play, uint32_t rank, struct cst_err *err);
void cst_play_worker_close(struct cst_play_worker *worker);
/* Everybody has synced. */
void cst_play_worker_run(struct cst_play_worker *worker, uint64_t attempt);
void cst_play_worker_reply(struct cst_play_worker *worker, uint32_t batch, uint32_t item,
                           const struct cst_reply *reply);
void cst_play_worker_timer(struct cst_play_worker *worker, enum cst_play_timer kind,
                           uint32_t batch);
/* One of its efforts ended. */
void cst_play_worker_ended(struct cst_play_worker *worker, struct cst_effort *effort);

#endif
