/* SPDX-License-Identifier: Apache-2.0 */
/* The data structures of the simulator and the functions that its parts share. Private to
 * offload/simulate/.
 *
 *   replay.c        opens everything, processes timers and ends of efforts in order, and drives
 *                   the core
 *   simulate.c      errors, timers and efforts; the devices of the simulated machine
 *   sim_engines.c   commands: dependencies, and lanes by priority
 *   command_cost.c  the work of a command
 *   sim_worker.c    a rank: operators in order, leases, batches
 *   worker_open.c   what a rank knows from the start
 *   stream.c        the stream of its device
 *   shared_rates.c  efforts that share cores, memory and links
 *   timers.c        messages in flight
 *
 * The worker's order of requests is that of offload/worker/sequence.h, which is pure: the code that
 * runs in a worker also decides here what is asked for, and when. */
#ifndef CST_PLAN_SIMULATE_H
#define CST_PLAN_SIMULATE_H

#include "offload/core/core_state.h"
#include "offload/worker/sequence.h"
#include "offload/simulate/shared_rates.h"
#include "offload/simulate/replay.h"
#include "offload/simulate/timers.h"
#include "proto/ticket_graph.h"

struct cst_core;

/* Segment numbers of places. Those of arenas are the lowest. */
#define CST_SIM_POOL_SEGMENT                                                                       \
    (1u << 20) /* + rank x CST_SIM_POOL_STRIDE + number of the slab in the rank's pool. */
#define CST_SIM_POOL_STRIDE CST_LAYOUT_MAX_CLASSES
#define CST_SIM_RESERVATION_SEGMENT (1u << 19) /* + number of the device reservation. */

/* Tags of requests consist of rank + 1, batch and item. This is the batch of single requests. */
#define CST_SIM_NO_BATCH UINT16_MAX
enum cst_sim_single {
    CST_SIM_TAG_STEP = 1,
    CST_SIM_TAG_SYNC,
    CST_SIM_TAG_PREPARE,
    CST_SIM_TAG_NEXT
};

enum cst_sim_timer {
    CST_SIM_BATCH,     /* A batch of a rank reaches the daemon. */
    CST_SIM_BATCH_END, /* The reply to a batch reaches the worker. */
    CST_SIM_PREPARE,   /* PREPARE of a rank reaches the daemon. */
    CST_SIM_STEP,      /* STEP of a rank reaches the daemon. */
    /* The reply to STEP reaches the worker. */
    CST_SIM_STEP_END,
    CST_SIM_NEXT, /* NEXT of a rank reaches the daemon. */
    CST_SIM_UNIT, /* The reply to NEXT reaches the worker. */
    /* A command reaches its engine; or another engine's command that it waited for is complete. */
    CST_SIM_COMMAND,
    CST_SIM_DONE,   /* The completion of a command reaches the daemon. */
    CST_SIM_SEALED, /* The record of a step is on the drives. */
};

/* -- engines -------------------------------------------------------------------------------- */

enum cst_sim_lane_kind {
    CST_SIM_UP,
    CST_SIM_DOWN,
    CST_SIM_TEAM,
    CST_SIM_DEVICE_UPDATES, /* Device updates. */
    CST_SIM_LANES
};

struct cst_sim_command {
    struct cst_ticket ticket; /* Also waits for the arrival of its own message. */
    struct cst_ticket_edge edges[CST_COMMAND_MAX_AFTER]; /* For ticket. */
    uint32_t engine;
    enum cst_sim_lane_kind lane;
    unsigned class; /* The priority. */
    enum cst_flight_kind kind;
    uint32_t chunk, rank; /* rank is that of cst_flight, which can be a device reservation. */
    bool after_ack;       /* As in cst_command, like newest_first. */
    bool newest_first;
    struct cst_sim_command *next; /* Next command in the queue of its lane. */
    bool begun;
    uint64_t begin;     /* In ns. */
    bool ended;         /* The completion is on its way to the daemon. */
    uint64_t copied_to; /* Bytes moved over the link between devices. */
    struct cst_effort effort;
};

struct cst_sim_lane {
    struct cst_sim_command *running; /* The command that was begun last. */
    uint32_t n_running, width;       /* Number of running commands, and its maximum. */
    struct cst_sim_command *head[CST_PRIORITY_EVICTION + 1], *tail[CST_PRIORITY_EVICTION + 1];
};

struct cst_sim_engine {
    uint32_t node;   /* Node of the memory that it uses. */
    uint32_t device; /* Engine of a GPU or drive: its link. CST_NONE: a node's engine. */
    const struct cst_rates_device *rates; /* NULL: a node's engine. */
    bool is_drive;                        /* Engine of a drive. */
    struct cst_sim_lane lanes[CST_SIM_LANES];
};

/* -- workers -------------------------------------------------------------------------------- */

enum cst_sim_state {
    CST_SIM_SYNCING,
    CST_SIM_BEGIN,   /* The next operator begins, and may wait for what it needs. */
    CST_SIM_COMPUTE, /* The processor computes. */
    CST_SIM_FLUSH,   /* The micro-batch or step ends: hand in and give back what is left. */
    CST_SIM_ASK,     /* Dispatched: likewise for a unit, before the worker asks for the next one. */
    CST_SIM_STEPPING, /* A STEP or NEXT is under way. */
    CST_SIM_OVER,
};

struct cst_sim_op {
    uint32_t op;
    bool backward;
};

struct cst_sim_batch {
    struct cst_lease_item *items; /* Owned. */
    uint32_t n_items, capacity;
    uint32_t n_left; /* Items without a reply from the core. */
    bool awaited, used;
    struct cst_reply *replies; /* `capacity` elements; owned. */
};

/* An entry of a device's stream. */
struct cst_sim_entry {
    bool is_mark;
    /* Number of the mark; or number of the copy that must have ended before the computation. */
    uint64_t number;
    struct cst_sim_op at;
    uint32_t step;
    double work; /* Time at full speed, in ns. */
};

/* A copy that the worker makes itself. */
struct cst_sim_copy {
    uint64_t number;
    uint32_t chunk;
    double work; /* Time at full speed, in ns. */
};

struct cst_sim_worker {
    struct cst_sim *sim;
    uint32_t rank;
    uint32_t node;
    uint32_t device; /* Link of the device; CST_NONE: the rank computes on the processor. */
    const struct cst_rates_device *rates;
    /* The device works asynchronously to the worker; else it is the worker's processor. */
    bool stream;
    double stands_for; /* Number of ranks that it represents. */
    double cores;      /* Cores of the node that it uses while it computes. */
    double flops;      /* Flops per ns. */
    enum cst_sim_state state;
    uint64_t attempt;
    /* Number of completed steps, and of completed micro-batches of the current step. */
    uint32_t step, micro;
    bool has_unit; /* Dispatched: the reply to NEXT has the unit `unit`, else the step ends. */
    struct cst_work_unit unit;
    /* Operators of the current micro-batch or unit, forward and backward; owned. */
    struct cst_sim_op *ops;
    uint32_t n_ops, at;
    struct cst_lease_operator *operators; /* Owned. */
    uint32_t *tensor_chunk;               /* Owned. */
    struct cst_lease_trait *traits;       /* Owned. */
    struct cst_sequence sequence;
    struct cst_sim_batch *batches; /* Owned. */
    uint32_t n_batches;

    /* The fields from here on describe the stream. */

    struct cst_sim_entry *entries; /* A ring; owned. */
    uint32_t first, n_entries, entries_capacity;
    struct cst_effort compute;
    struct cst_sim_entry computing;
    uint64_t compute_begin;

    /* The fields from here on describe the copies by the worker. */

    struct cst_sim_copy *copies; /* A ring; owned. */
    uint32_t first_copy, n_copies, copies_capacity;
    uint64_t copied; /* Number of the last copy that has ended. */
    struct cst_effort copying;
    uint64_t copy_begin;

    /* The fields from here on belong to the current step. */

    uint64_t idle_since; /* End of the last computation, or time of the last step's reply. */
    uint64_t compute_ns, wait_ns;
    uint64_t last_backward;
};

/* -- the simulation --------------------------------------------------------------------------- */

struct cst_sim {
    const struct cst_replay_config *config;
    struct cst_core *core;
    struct cst_actions actions;
    struct cst_timers timers;
    struct cst_shared_rates machine;
    uint32_t *arena_segments; /* Owned. */
    uint32_t *slabs;          /* Owned. */
    uint64_t now;
    uint64_t hop_ns; /* Time of a message, one way. */
    int status;
    struct cst_err err;
    uint64_t n_events;              /* Events that the core processed. */
    uint64_t n_turns;               /* Timers and ends of efforts that were processed. */
    struct cst_sim_engine *engines; /* Owned. */
    /* Engines of nodes come first, then those of GPUs, then those of drives. */
    uint32_t n_engines, n_nodes, n_drives;
    struct cst_rates_device drive;   /* Rates of a drive. */
    struct cst_ticket_graph tickets; /* Tickets of the commands in flight, which are owned. */
    struct cst_sim_worker *workers;  /* Owned. */
    uint32_t world;
    uint64_t peer_bytes; /* Bytes between devices so far. */
    /* Bytes so far, from commands: what the core must have counted. */
    uint64_t moved_up, moved_down;
    /* Bytes of device updates so far; not included in moved_up and moved_down. */
    uint64_t states_up, states_down;
    uint64_t states_up_before, states_down_before; /* Values at the last commit. */
    /* Bytes read from drives, read there before the commit, and written there so far. */
    uint64_t disk_read, disk_ahead, disk_written;
    uint64_t disk_read_before, disk_ahead_before, disk_written_before; /* At the last commit. */
    uint64_t commit_at; /* Time of the last commit. */
    uint64_t n_commits;
    uint64_t attempt;
    struct cst_replay_counts before;                          /* Counters at the last commit. */
    uint64_t moved_up_before, moved_down_before, peer_before; /* Values at the last commit. */
    /* Maximum number of used blocks since the last commit. */
    uint32_t peak_blocks[CST_CORE_MAX_WORLD];
    struct cst_replay_result result;
    /* Pass an event to the core and carry out its actions; of replay.c. */
    void (*event)(struct cst_sim *sim, struct cst_event *event);
};

/* Note a failure. The first one ends the simulation. */
void cst_sim_fail(struct cst_sim *sim, const struct cst_err *err);
/* End the simulation with CST_ENOMEM. */
void cst_sim_out_of_memory(struct cst_sim *sim);
/* Set a timer @delay ns from now; out of memory ends the simulation. */
void cst_sim_timer(struct cst_sim *sim, uint64_t delay, enum cst_sim_timer kind, uint64_t arg);
/* Start or resume @effort; out of memory ends the simulation. */
void cst_sim_start(struct cst_sim *sim, struct cst_effort *effort);
/* Report an interval from @begin to now, if the caller wants intervals. */
void cst_sim_interval(struct cst_sim *sim, enum cst_lane_kind lane, uint32_t number, uint32_t what,
                      bool backward, uint64_t begin);
/* Rates of the GPU or drive whose link is @device; CST_NONE: rates of the processor. */
const struct cst_rates_device *cst_sim_device(const struct cst_sim *sim, uint32_t device);
/* -- command_cost.c: work of commands ---------------------------------------------------------- */

/* Set the command's lane and effort. */
void cst_sim_cost(struct cst_sim *sim, struct cst_sim_command *c,
                  const struct cst_command *command);
/* Add the command's bytes to the numbers that the core must also count. */
void cst_sim_count(struct cst_sim *sim, const struct cst_sim_command *c,
                   const struct cst_command *command);

/* -- sim_engines.c: commands at engines -----------------------------------------------------------
 */

/* Allocate the engines and the graph of commands. CST_ENOMEM: the caller calls
 * cst_sim_engines_close nevertheless. */
int cst_sim_engines_open(struct cst_sim *sim);
void cst_sim_engines_close(struct cst_sim *sim);
/* The core has issued @command: send it to its engine. */
void cst_sim_submit(struct cst_sim *sim, const struct cst_command *command);
/* The message with the command, or the completion that it waited for, has reached its engine. */
void cst_sim_arrived(struct cst_sim *sim, uint64_t ticket);
/* The engine has executed the command: wake what waits for it and tell the daemon. */
void cst_sim_ended(struct cst_sim *sim, struct cst_sim_command *command);
/* The daemon sees the completion: pass it to the core and free the command. */
void cst_sim_done(struct cst_sim *sim, uint64_t ticket);

/* -- stream.c: a device's stream -------------------------------------------------------------- */

/* The worker copies the weights of @chunk into the block that it was granted. */
void cst_sim_copy_weights(struct cst_sim_worker *worker, uint32_t chunk, uint64_t bytes);
/* The worker's running copy has ended: start the next one. */
void cst_sim_copied(struct cst_sim_worker *worker);
/* Append an entry to the stream. */
void cst_sim_enqueue(struct cst_sim_worker *worker, const struct cst_sim_entry *entry);
/* Begin a computation now. */
void cst_sim_compute(struct cst_sim_worker *worker, const struct cst_sim_entry *entry);
/* Continue the stream. True: marks were passed. */
bool cst_sim_run_stream(struct cst_sim_worker *worker);

/* -- sim_worker.c: ranks --------------------------------------------------------------------------
 */

/* What a worker does for its sequence. The argument is the struct cst_sim_worker. */
extern const struct cst_sequence_calls cst_sim_worker_calls;

/* Initialise the worker of @rank. CST_EINVAL, CST_ENOMEM; the caller calls cst_sim_worker_close
 * nevertheless. */
int cst_sim_worker_open(struct cst_sim *sim, uint32_t rank, struct cst_err *err);
void cst_sim_worker_close(struct cst_sim_worker *worker);
/* All ranks have synced: begin. */
void cst_sim_worker_run(struct cst_sim_worker *worker, uint64_t attempt);
/* The core has answered an item of a batch. */
void cst_sim_worker_reply(struct cst_sim_worker *worker, uint32_t batch, uint32_t item,
                          const struct cst_reply *reply);
/* A message from or to the worker has arrived. */
void cst_sim_worker_timer(struct cst_sim_worker *worker, enum cst_sim_timer kind, uint32_t batch);
/* One of the worker's efforts has ended. */
void cst_sim_worker_ended(struct cst_sim_worker *worker, struct cst_effort *effort);

#endif
