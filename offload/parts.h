/* SPDX-License-Identifier: Apache-2.0 */
/* The data structures of the core and the functions that its parts share. Private to offload/.
 *
 *   core.c       checks an event and passes it to the part that handles it
 *   actions.c    commands, replies and log lines; places of rows
 *   ranks.c      attached, synced, late and dead ranks; attempts
 *   device_loss.c       lost engines
 *   fetch.c      requests for weights and gradients: granted, or waiting
 *   residency.c  weights and gradients in blocks: load, release, evict, expire
 *   multi_gpu_load.c     weights that several GPUs load together
 *   prefetch.c   loads that nobody has asked for yet
 *   group.c      the ranks of a chunk, and error messages about them
 *   gradient_collection.c   contributions, micro-batches, reductions
 *   spill.c    spills: gradients that leave a pool before their sum can be made
 *   grad_in_weight.c       gradients in weight rows
 *   instant.c    exposed update time
 *   hyper.c      valid and equal hyper-parameters
 *   states.c     READ and WRITE of a tensor's rows
 *   updates.h    the parts that end a step */
#ifndef CST_PARTS_H
#define CST_PARTS_H

#include "offload/block.h"
#include "offload/buffers.h"
#include "offload/core.h"
#include "offload/facts.h"
#include "offload/flight.h"
#include "offload/request.h"
#include "offload/trace.h"
#include "offload/reduce_site.h"

/* How far a rank is in the step that is not committed yet: nothing yet; it has fetched weights; it
 * has opened or handed in a gradient, ended a micro-batch, or asked for the step. */
enum cst_rank_begun { CST_BEGUN_NOTHING, CST_BEGUN_READING, CST_BEGUN_WRITING };

struct cst_rank {
    enum cst_rank_state state;
    uint64_t state_step; /* Number of committed steps when the rank entered this state. */
    bool joined;         /* The rank takes part in the running attempt. */
    uint32_t sync;       /* The rank's waiting SYNC request, or CST_NO_REQUEST. */
    uint32_t step;       /* The rank's waiting STEP request, or CST_NO_REQUEST. */
    /* If status != 0: an engine that the rank depends on is lost, and why. Cleared when the rank
     * attaches. */
    struct cst_err gone;
    enum cst_rank_begun begun; /* What the rank has done in the current step. */
    uint32_t micro;            /* Current micro-batch of the step, from 0. */
    bool stepped; /* The rank has asked for the step, whether or not the request still waits. */
    bool wants_prefetch;       /* Look for something to load at the end of this event. */
    bool prepared;             /* EARLY: the rank has announced the hyper-parameters of its STEP. */
    struct cst_hyper promised; /* The announced hyper-parameters, if `prepared`. */
    struct cst_hyper hyper;    /* Hyper-parameters of the rank's STEP. */
    double loss;               /* Loss of the rank's STEP. */
    struct cst_pool pool;
    struct cst_trace trace;
    /* hits, misses, late, waits: fetches. prefetches: loads. evictions: blocks. */
    uint64_t hits, misses, late, prefetches, evictions, waits;
    uint64_t weight_wait_ns; /* Time for which the worker waited for weights. */
    uint64_t bytes_up, bytes_down, bytes_peer;

    /* Times on both clocks, see instant.c. stream, device and shift are used for GPUs only. */

    /* The worker's last request, or the last answer that it waited for. */
    struct cst_moment thread;
    struct cst_moment resumed; /* The last answer that the worker waited for. */
    /* The last known end of work of the GPU, from what the worker has given back. */
    struct cst_moment stream;
    /* Predicted time when the GPU has finished everything that it was granted. */
    struct cst_moment device;
    uint64_t shift; /* Sum of the corrections of `device` so far, in ns modulo 2^64. */
    /* Instant when everything that the worker fetched ahead would be there, in ns. */
    uint64_t ahead_instant;
};

/* Engines with lanes of their own; all further engines share one more set of lanes. */
#define CST_CLOCK_ENGINES 127

enum cst_clock_lane { CST_CLOCK_UP, CST_CLOCK_DOWN, CST_CLOCK_TEAM, CST_CLOCK_LANES };

/* State of the second clock, on which updates take no time; see instant.c. */
struct cst_clock {
    uint64_t now;    /* Instant of the current event, in ns. */
    uint64_t commit; /* Latest instant of the events that the commit waits for. */
    /* By how many ns the last commit was earlier on this clock than on the first one. */
    uint64_t lag;
    /* Per engine: time without a sum on this clock that no delayed sum has used yet. */
    uint64_t idle_ns[CST_CLOCK_ENGINES + 1];
    /* End of the last command of each lane. */
    struct cst_moment lanes[CST_CLOCK_ENGINES + 1][CST_CLOCK_LANES];
};

/* Durations of updates; see exposure.c. */
struct cst_exposure {
    /* Updates in flight: UPDATEs in place, and COPYs down after device updates. */
    uint32_t n_updates;
    uint64_t since;         /* If n_updates > 0: update_ns includes the time up to here, in ns. */
    uint64_t quiet_since;   /* If n_updates == 0: end of the last update, in ns. */
    uint64_t update_ns;     /* Total time during which updates were in flight. */
    uint64_t round_from_ns; /* Value of update_ns when the current round began. */
    bool open;              /* A round is open: updates of a step have been issued. */
    bool all_issued; /* The round's step is committed: no further update of it will be issued. */
    uint32_t interleave;      /* k of the round's updates; 0: none is a device update. */
    uint64_t n_rounds;        /* Number of completed rounds. */
    uint32_t last_interleave; /* k of the last completed round. */
    /* Time during which updates of the last completed round were in flight. */
    uint64_t last_update_ns;
    uint64_t total_update_ns; /* Sum of last_update_ns over all rounds. */
    /* Exposed update time of the last step, and of all steps. */
    uint64_t last_exposed_ns, total_exposed_ns;
};

/* Contents of a chunk's weight row, if gradients are summed there (grad_in_weight.c). */
enum cst_over { CST_OVER_WEIGHTS, CST_OVER_GRADIENT, CST_OVER_DEBRIS };
#define CST_UPDATE_STATES 3 /* Rows that an update writes in addition to the weights. */

/* Parameters of an update of one chunk. */
struct cst_update {
    uint32_t chunk;
    uint64_t mark;           /* Adam step. */
    struct cst_hyper hyper;  /* grad_scale includes the clip factor. */
    struct cst_place weight; /* Where the new weights are written. */
    bool guard;              /* Tiles beyond proto/grad_limit.h keep their states. */
};

/* Kinds of commands of a chunk whose undisturbed duration is known: copies into pools in forward
 * and in backward passes, and sums. */
enum cst_quiet { CST_QUIET_FORWARD, CST_QUIET_BACKWARD, CST_QUIET_SUM, CST_QUIETS };

struct cst_chunk {
    /* The chunk's group, one bit for each rank: only these ranks fetch the chunk and contribute to
     * it. */
    uint64_t ranks;
    bool has_states; /* False: the chunk is frozen and has no gradient, sum or update. */
    /* Engine of the accelerator that has the chunk's states and makes all its updates; 0: the
     * states are in host memory. */
    uint32_t device;
    /* Command in flight that completes the weights of the last update: UPDATE in place, or COPY of
     * the weights down after a device update; else 0. */
    uint64_t update_ticket;
    /* If the last update was a device update: COPYs of its states down that are in flight; else
     * 0. */
    uint64_t states_tickets[CST_UPDATE_STATES];
    /* Device reservation of the last update; CST_NONE: the node's engine made it in place. */
    uint32_t room;
    uint32_t buffer; /* Buffer of the device reservation that the last update used. */
    /* If the last update was a device update: its UPDATE is done, so its COPYs down overwrite the
     * chunk's rows. */
    bool comes;
    struct cst_update away; /* If the last update was a device update: its parameters. */
    /* Slot of the device reservation that holds the chunk's gradient; CST_NONE: none does. */
    uint32_t held;
    bool turn; /* By the interleaving, the last update was to be a device update. */
    /* Command in flight that completes the weights that fetches read; else 0. */
    uint64_t weight_ticket;
    bool other_side; /* Fetches read the second weight row. */
    bool pending;    /* The last update's weights are in the row that fetches do not read yet. */
    bool ahead;      /* The chunk's update of the uncommitted step was issued; see overlap.c. */
    bool carried; /* The chunk's update of the uncommitted step was issued in an earlier attempt. */
    bool fused;   /* The last sum was made within the update, so the grad row does not hold it. */
    uint64_t reduce_ticket; /* REDUCE in flight, of this or an earlier collection; else 0. */
    /* COPY into the grad row in flight, of this or an earlier collection; else 0. */
    uint64_t stage_ticket;
    uint64_t write_ticket; /* Last WRITE, if it is in flight; else 0. */
    uint32_t n_writes;     /* Number of WRITEs in flight. */
    /* A command failed that was to change the weights or states, so their contents are unknown. */
    bool broken;
    /* The grad row holds one rank's contribution, or the sum of some micro-batches only. */
    bool torn;
    /* Rank whose contribution is spilled in the grad row; CST_NONE: none is. */
    uint32_t staged_rank;
    uint32_t micro; /* Micro-batch that the chunk collects; all before it are in the grad row. */
    /* Ranks that have handed in for this micro-batch or cannot any more, one bit each. */
    uint64_t handed;
    /* Ranks in `handed` whose contributions a REDUCE has taken or skipped, one bit each. */
    uint64_t added;
    bool summed;        /* A REDUCE of this collection was issued: the next one adds to the row. */
    bool reduced;       /* The whole gradient of this collection is in the grad row. */
    enum cst_over over; /* Contents of the weight row once all issued commands are done. */
    bool ordered;       /* Scratch for the order of updates. */
    /* Time that a GPU works on the chunk, forward and backward; 0: not known. */
    uint64_t work_ns[2];
    /* Duration of copies and sums while no update is in flight; 0: not known. */
    uint64_t quiet_ns[CST_QUIETS];
    struct cst_moment update_end; /* End of the last update. */
    struct cst_moment updated;    /* End of the last update whose weights fetches waited for. */
    struct cst_moment sum_end;    /* End of the last sum of the chunk's gradient. */
    struct cst_moment landed;     /* End of the last copy of the chunk's gradient to a landing. */
    uint64_t version;             /* Incremented when a write to the weights or states is issued. */
    uint64_t grad_version;        /* Incremented when a write to the grad row is issued. */
    uint64_t evicted_step; /* Step in which a rank last evicted the chunk; for cst_core_explain. */
    uint32_t evicted_rank; /* Rank that last evicted the chunk; CST_NONE: none has. */
    /* Chunk for which it was evicted; CST_NONE: the worker asked for the eviction. */
    uint32_t evicted_for;
};

#define CST_DEVICE_UPDATE_MAX_FAILURES                                                             \
    3 /* A device reservation is given up after this many failures. */
#define CST_DEVICE_UPDATE_MAX_TRIES                                                                \
    3 /* A COPY down after a device update is tried this many times. */
#define CST_DEVICE_UPDATE_COPIES_DOWN (1 + CST_UPDATE_STATES)
#define CST_DEVICE_UPDATE_COMMANDS                                                                 \
    (1 + CST_UPDATE_STATES + 1 + CST_DEVICE_UPDATE_COPIES_DOWN) /* Commands of one device update.  \
                                                                 */

/* Place in a device reservation for one gradient. */
struct cst_kept_gradients_slot {
    /* Chunk whose gradient the slot is reserved for; CST_NONE: no chunk needs it any more. */
    uint32_t chunk;
    uint32_t n_commands; /* Commands in flight that write or read the slot. */
};

struct cst_held {
    struct cst_kept_gradients_slot *slots; /* Owned, like `free`. */
    uint32_t *free;                        /* Numbers of the free slots. */
    uint32_t n_free;
};

/* An accelerator's memory for updates. Its buffers are used in turn. */
struct cst_room {
    uint32_t engine;
    uint32_t segment;
    struct cst_buffers buffers;
    struct cst_held held;
    uint32_t n_failures; /* Failed commands of device updates. */
    /* The device reservation is not used any more: it had too many failures, or its engine is
     * lost. */
    bool given_up;
    uint32_t next; /* Buffer that the next update uses. */
    /* Per buffer: the last COPYs out of it; 0: none. */
    uint64_t down[CST_BUFFERS_MAX][CST_DEVICE_UPDATE_COPIES_DOWN];
};

struct cst_core {
    const struct cst_model *model;
    const struct cst_layout *layout;
    const uint32_t *arena_segments;
    uint32_t table_segment;
    uint32_t world;
    uint32_t n_chunks;
    uint64_t everybody; /* One bit for each rank. */
    /* GPUs into whose memory engines load weights; several ranks can share a GPU. */
    uint32_t n_gpus;
    uint32_t n_nodes;       /* Nodes whose engines have chunks. */
    uint32_t n_trained;     /* Chunks that are not frozen. */
    uint32_t micro_batches; /* Maximum number of micro-batches of a step; at least 1. */
    bool grad_fp32;   /* Grad rows are fp32, so contributions can be added to them one by one. */
    bool two_weights; /* Chunks with states have a second weight row. */
    uint64_t peer_timeout_ns;
    struct cst_core_policy policy;
    enum cst_core_phase phase;
    bool initialised;     /* A SYNC has completed. */
    bool closing;         /* All ranks have asked for the step; it waits only for engines. */
    bool norm_issued;     /* While closing: the NORM command was issued. */
    bool lost;            /* The attempt that ended last had gradients, which are lost. */
    bool interrupt_later; /* Interrupt the attempt as soon as the closing step is committed. */
    struct cst_err why;   /* IDLE, INTERRUPTED, FAILED or interrupt_later: the cause. */
    uint64_t attempt;
    uint64_t step; /* Number of committed steps. */
    uint64_t n_skipped;
    uint64_t n_overflows;
    uint64_t adam_step;
    /* Number of the current collection of gradients: there is one for each step and attempt. */
    uint64_t collection;
    uint32_t n_ahead;             /* Chunks with `ahead`. */
    struct cst_hyper early_hyper; /* If n_ahead > 0: hyper-parameters of the early updates. */
    uint64_t n_dropped;           /* Gradients that were handed in for chunks with `carried`. */
    uint32_t n_reduced;           /* Chunks whose gradient of this collection is complete. */
    uint32_t n_writes;            /* WRITEs in flight, of all chunks. */
    uint64_t last_ticket;
    uint64_t generation; /* Generation of the last granted lease. */
    uint64_t uses;       /* Number of grants, for LRU. */
    uint64_t now;        /* Time of the current event, in ns. */
    uint64_t commit_ns;  /* Time of the last commit, in ns; 0: none yet. */
    uint64_t last_step_ns;
    double last_loss, last_grad_norm;
    struct cst_exposure exposure;
    struct cst_clock clock;
    struct cst_room rooms[CST_CORE_MAX_UPDATE_DEVICES];
    uint32_t n_rooms;
    uint32_t next_room;
    uint32_t interleave;     /* k as set by the configuration or cst_core_set_interleave. */
    uint32_t interleave_now; /* k of the last issued updates; 0: none is a device update. */
    /* Per node: updates of its chunks issued since the current order of updates began; owned. */
    uint32_t *in_order;
    bool order_ended; /* The order of updates has ended: the next update begins a new one. */
    /* Completed updates of chunks, and those of them made on accelerators. */
    uint64_t n_updates, n_device_updates;
    /* Per landing of the layout: the last REDUCE that reads it; owned. */
    uint64_t *landing_readers;
    uint32_t *next_landing;   /* Per node: the landing to use next; owned. */
    uint32_t *order;          /* Scratch: chunks in the order of their updates; owned. */
    uint64_t n_blocks;        /* Number of blocks in all pools. */
    struct cst_rank *ranks;   /* Owned. */
    struct cst_chunk *chunks; /* Owned. */
    struct cst_requests requests;
    struct cst_flights flights;
    struct cst_facts facts;
    struct cst_actions *actions; /* Actions of the current event. */
};

/* -- instant.c: exposed update time ---------------------------------------------------------- */

/* Compute the instant of @event. Must be called before anything else handles the event. */
void cst_instant_begin(struct cst_core *core, const struct cst_event *event);
/* A command is issued: set @flight->issued. */
void cst_instant_issued(const struct cst_core *core, struct cst_flight *flight);
/* REDUCE @ticket, which was just issued, goes to @engine. */
void cst_instant_sent(struct cst_core *core, uint64_t ticket, uint32_t engine);
/* A command is complete: compute the instant. Must be called before anything else handles the
 * completion. */
void cst_instant_done(struct cst_core *core, const struct cst_flight *flight);
/* Block @b of @rank is granted. @ahead: the worker does not wait for it. */
void cst_instant_granted(struct cst_core *core, uint32_t rank, uint32_t b, bool ahead);
/* The step is committed. */
void cst_instant_committed(struct cst_core *core);
/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_instant_check(const struct cst_core *core);

/* -- actions.c: commands, replies, log lines -------------------------------------------------- */

/* Make room in @actions and in the core's tables for everything that one event can cause.
 * CST_ENOMEM. */
int cst_core_reserve(struct cst_core *core, struct cst_actions *actions);

/* Append a new command with a ticket to the actions and enter it as @flight, whose ticket is
 * set. */
struct cst_command *cst_core_command(struct cst_core *core, enum cst_command_kind kind,
                                     uint32_t node, struct cst_flight *flight);
/* Make the command wait for @ticket; 0: for nothing. */
void cst_command_after(struct cst_command *command, uint64_t ticket);

/* Append a reply with status CST_OK. NULL if @tag is 0: nobody wants a reply. */
struct cst_reply *cst_core_reply(struct cst_core *core, uint64_t tag);
/* Append an error reply, or a line for the daemon's log. */
void cst_core_refuse(struct cst_core *core, uint64_t tag, int status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void cst_core_refuse_err(struct cst_core *core, uint64_t tag, const struct cst_err *err);
void cst_core_log(struct cst_core *core, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Why a command failed: the engine's message, or the text of the status. */
const char *cst_event_words(const struct cst_event *event);

/* Segment and offset of element @elem of a chunk's row. */
struct cst_place cst_core_row_place(const struct cst_core *core, uint32_t chunk, enum cst_row row,
                                    uint64_t elem);

/* The engine that executes READ and WRITE of @row of @chunk. */
uint32_t cst_core_keeper(const struct cst_core *core, uint32_t chunk, enum cst_row row);

/* The engine that copies between @rank's pool and the rows of @chunk. */
uint32_t cst_core_copier(const struct cst_core *core, uint32_t rank, uint32_t chunk);

/* -- ranks.c: ranks and attempts ------------------------------------------------------------ */

/* Handle CST_EV_ATTACH, HANGUP, DEAD, LEAVE and SYNC. */
void cst_ranks_attach(struct cst_core *core, const struct cst_event *event);
void cst_ranks_hangup(struct cst_core *core, const struct cst_event *event);
void cst_ranks_dead(struct cst_core *core, const struct cst_event *event);
void cst_ranks_leave(struct cst_core *core, const struct cst_event *event);
void cst_ranks_sync(struct cst_core *core, const struct cst_event *event);

/* True if @event belongs to the running attempt and its rank takes part in it. Else the request is
 * refused. */
bool cst_ranks_admit(struct cst_core *core, const struct cst_event *event);

/* Begin an attempt if all ranks wait in SYNC. Called at the end of each event. */
void cst_ranks_start(struct cst_core *core);

/* Note that rank @rank is at least @begun far into the step. */
void cst_rank_begin(struct cst_core *core, uint32_t rank, enum cst_rank_begun begun);

/* How far the ranks are into the step: the maximum of all. */
enum cst_rank_begun cst_rank_furthest(const struct cst_core *core);

/* Reset `begun` of all ranks, when a step is committed or an attempt begins. */
void cst_rank_reset_begun(struct cst_core *core);

/* End the attempt: waiting requests are answered with @why (CST_EPEERDIED, CST_EMISMATCH, ...) and
 * contributions are dropped. While a step closes, this is postponed until its commit. */
void cst_ranks_interrupt(struct cst_core *core, const struct cst_err *why);

/* End the attempt at once: the closing step cannot be committed, because a contribution is lost. */
void cst_ranks_abandon(struct cst_core *core, const struct cst_err *why);

/* Answer all waiting requests of the rank with @why. */
void cst_waiting_refuse_rank(struct cst_core *core, uint32_t rank, const struct cst_err *why);

/* The job fails: all waiting and all later requests are answered with @why. */
void cst_ranks_fail(struct cst_core *core, const struct cst_err *why);

/* Answer the requests whose deadline has passed. */
void cst_ranks_expire(struct cst_core *core);

/* Handle CST_EV_CANCEL. A request that an engine works on cannot be cancelled. */
void cst_ranks_cancel(struct cst_core *core, const struct cst_event *event);

/* The rank has asked for the step: answer its waiting fetches with CST_ECANCELLED. */
void cst_waiting_cancel_fetches(struct cst_core *core, uint32_t rank);
/* The rank has ended its micro-batch: answer its waiting fetches of gradients with
 * CST_ECANCELLED. */
void cst_waiting_cancel_grads(struct cst_core *core, uint32_t rank);

/* -- device_loss.c: lost engines --------------------------------------------------------------- */

/* True if the engine returned the command of @event because it is lost and executes nothing
 * more. */
bool cst_event_engine_lost(const struct cst_event *event);

/* A command of @engine for a pool in its accelerator's memory was returned because the engine is
 * lost. The attempt ends, and the ranks whose pools are there get the cause until they attach
 * again. @needed: the closing step cannot be committed without the command; else it is committed
 * first. */
void cst_device_loss_of_pools(struct cst_core *core, uint32_t engine, const struct cst_event *event,
                              bool needed);

/* Handle CST_EV_NODE_DOWN: the attempt ends, and all ranks get the cause until they attach
 * again. */
void cst_device_loss_of_node(struct cst_core *core, const struct cst_event *event);

/* -- group.c: the ranks of a chunk ------------------------------------------------------------ */

/* True if @event's rank may fetch @event's chunk and, with @grad, its gradient. Else the request is
 * refused with a message about the group, the pool or the pattern. */
bool cst_group_admit(struct cst_core *core, const struct cst_event *event, bool grad);

/* Write the ranks of the bit set @ranks into @out and return it: "rank 3", "ranks 0, 2", "ranks 0,
 * 1, 2, 3 and 60 more". */
#define CST_GROUP_TEXT 80
const char *cst_group_words(uint64_t ranks, char out[CST_GROUP_TEXT]);

/* Number of the group of @chunk's tensors in the model. */
uint32_t cst_group_number(const struct cst_core *core, uint32_t chunk);

/* -- fetch.c: requests for blocks ------------------------------------------------------------- */

/* Handle CST_EV_FETCH_WEIGHT, FETCH_GRAD and WANT. */
void cst_fetch_weight(struct cst_core *core, const struct cst_event *event);
void cst_fetch_grad(struct cst_core *core, const struct cst_event *event);
void cst_fetch_want(struct cst_core *core, const struct cst_event *event);

/* Grant a lease on block @b of @rank and answer @tag. @ahead: the worker does not wait for it. */
void cst_waiting_grant(struct cst_core *core, uint32_t rank, uint32_t b, uint64_t tag, bool hit,
                       bool ahead);

/* Grant block @b to request @i, which ends and is counted. @again: the block already holds its
 * gradient. */
void cst_waiting_answer(struct cst_core *core, uint32_t i, uint32_t b, bool again);

bool cst_waiting_part(const struct cst_part *part);
void cst_waiting_refuse(struct cst_core *core, uint32_t i, const struct cst_err *err);
void cst_waiting_refuse_all(struct cst_core *core, const struct cst_err *why);
void cst_waiting_refuse_step(struct cst_core *core, const struct cst_err *fetches,
                             const struct cst_err *steps);
void cst_eviction_evict(struct cst_core *core, uint32_t rank, uint32_t b, uint32_t wanted_by);
void cst_lookahead_claim(struct cst_pool *pool, uint32_t chunk);
bool cst_lookahead_catch_up(struct cst_pool *pool);
uint32_t cst_lookahead_most_in_flight(const struct cst_part *part);
bool cst_lookahead_has_room(const struct cst_part *part);
/* True if a fetch of the rank waits for a block. */
bool cst_waiting_for_block(const struct cst_rank *rank);

/* Put a fetch that is in no queue into the queue of fetches that wait for a block. */
void cst_waiting_enqueue(struct cst_core *core, uint32_t request);
/* Take a waiting fetch out of its queue. */
void cst_waiting_unqueue(struct cst_core *core, uint32_t request);

/* Serve waiting fetches and start prefetches. Called at the end of each event. */
void cst_fetch_pump(struct cst_core *core);

/* -- residency.c: contents of blocks ---------------------------------------------------------- */

/* Handle CST_EV_RELEASE, PREFETCH and EVICT. */
void cst_residency_release(struct cst_core *core, const struct cst_event *event);
void cst_load_prefetch(struct cst_core *core, const struct cst_event *event);
void cst_residency_evict(struct cst_core *core, const struct cst_event *event);

/* Take a block for @chunk and set it to @state: a free one, or a victim that is used again after
 * @limit (CST_VICTIM_ANY: any victim). CST_NONE: there is none. */
uint32_t cst_eviction_take(struct cst_core *core, uint32_t rank, enum cst_block_state state,
                           uint32_t chunk, uint64_t limit);

/* Load the weights of @chunk into block @b, which was just taken for them. */
void cst_load_weights(struct cst_core *core, uint32_t rank, uint32_t chunk, uint32_t b,
                      enum cst_priority priority);
/* Load weights that nobody has asked for. Evicts only blocks that are used again after @time.
 * False: no block is available. */
bool cst_load_ahead(struct cst_core *core, uint32_t rank, uint32_t chunk, uint64_t time);

/* Handle the completion of a load. */
void cst_load_done(struct cst_core *core, const struct cst_flight *flight,
                   const struct cst_event *event);
/* Handle the completion of an update: workers that copy themselves may now read the row. */
void cst_residency_updated(struct cst_core *core, uint32_t chunk, uint64_t ticket,
                           const struct cst_event *event);

/* Workers that copy themselves and wait for update @from of @chunk now wait for @to. */
void cst_residency_replaced(struct cst_core *core, uint32_t chunk, uint64_t from, uint64_t to);

/* The arena has, or will have, newer weights of @chunk: no copy in a block is current any more. */
void cst_residency_expire(struct cst_core *core, uint32_t chunk);

/* End all leases of the rank. @quarantine: its process may still use the blocks; else they become
 * free or cached. */
void cst_residency_end_leases(struct cst_core *core, uint32_t rank, bool quarantine);
/* The rank's process is gone: free its blocks, except contributions and blocks that are being
 * copied. */
void cst_residency_reclaim(struct cst_core *core, uint32_t rank);

/* What block @b of @rank waited for has happened: answer the fetches that wait for it. */
void cst_residency_end_load(struct cst_core *core, uint32_t rank, uint32_t b,
                            const struct cst_event *event);

/* -- multi_gpu_load.c: several GPUs load together ---------------------------------------------- */

#define CST_GATHER_MAX 8u /* Maximum number of GPUs that load together. */

/* How many GPUs may load together; 0: none. */
uint32_t cst_multi_gpu_load_most(const struct cst_core *core);

/* Load the weights of @chunk into block @b, which was just taken for them, and into blocks of other
 * GPUs that expect them. False: no other GPU does, and nothing was issued. */
bool cst_multi_gpu_load(struct cst_core *core, uint32_t rank, uint32_t chunk, uint32_t b,
                        enum cst_priority priority);

/* Handle the completion of a copy into, or out of, a gathered block. */
void cst_multi_gpu_load_done(struct cst_core *core, uint32_t rank, uint32_t b,
                             const struct cst_event *event);

/* -- prefetch.c: loads ahead of requests ----------------------------------------------------- */

#define CST_PREFETCH_IN_FLIGHT 16 /* Maximum number of unrequested loads of a part in flight. */

/* The rank has asked for weights, or opened a gradient, that it did not have: advance the trace. */
void cst_lookahead_follow(struct cst_rank *rank, uint32_t chunk, bool grad);
/* The gradient of @chunk has a block now, or does not need one any more. */
void cst_lookahead_opened(struct cst_pool *pool, uint32_t chunk);
/* Weights that are used next at @next are no longer in a block of @part. */
void cst_lookahead_evicted(struct cst_pool *pool, uint32_t part, uint64_t next);
/* Take a block for weights of @chunk that @rank expects, without evicting anything that is used
 * sooner, and mark it foreseen. CST_NONE: the rank does not expect them, or has no block to
 * spare. */
uint32_t cst_eviction_take_expected(struct cst_core *core, uint32_t rank, uint32_t chunk);
/* Start the loads that can be started. */
void cst_prefetch_look_ahead(struct cst_core *core, uint32_t rank);

/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_lookahead_check(const struct cst_rank *rank);

/* -- gradient_collection.c: gradients ---------------------------------------------------------- */

/* Handle CST_EV_HAND_IN and ACCUMULATE. */
void cst_collection_hand_in(struct cst_core *core, const struct cst_event *event);
void cst_commit_accumulate(struct cst_core *core, const struct cst_event *event);

/* What a chunk's collection needs next. */
enum cst_collection_next {
    CST_COLLECTION_WAITS, /* Nothing: ranks or commands have to come first. */
    /* A sum of all contributions to the micro-batch that are not added yet. */
    CST_COLLECTION_SUM,
    CST_COLLECTION_ZERO,     /* A sum of nothing, because no rank contributed. */
    CST_COLLECTION_COMPLETE, /* Nothing is left to add: cst_collection_complete. */
};

/* What @chunk needs next. Ends its micro-batches that are over. */
enum cst_collection_next cst_collection_next(struct cst_core *core, uint32_t chunk);
/* The rank whose contribution, in a block, is the whole sum that is about to be issued; CST_NONE:
 * there is no such rank. */
uint32_t cst_collection_only(const struct cst_core *core, uint32_t chunk);
/* Issue a reduction of the next contributions in rank order, up to the first rank whose
 * contribution is not known yet. Needs fp32 rows, or all contributions. */
void cst_sum_add(struct cst_core *core, uint32_t chunk);
/* Nothing is left to add to the sum of the step. */
void cst_collection_complete(struct cst_core *core, uint32_t chunk);
/* True if it is known what @rank contributes to the micro-batch that @chunk collects: it has handed
 * in or gone on. */
bool cst_collection_has_come(const struct cst_core *core, uint32_t chunk, uint32_t rank);
/* True if @rank has handed in its gradient for its current micro-batch, or cannot any more. */
bool cst_collection_handed(const struct cst_core *core, uint32_t chunk, uint32_t rank);
/* True if @rank's contribution to the micro-batch that @chunk collects is in a block of its pool
 * and no command moves it. */
bool cst_collection_holds(const struct cst_core *core, uint32_t chunk, uint32_t rank);
/* Discard the gradients that the rank opened and did not hand in. */
void cst_collection_drop_open(struct cst_core *core, uint32_t rank);
/* Let all ranks look for blocks again, because a contribution may be able to leave its pool now. */
void cst_collection_wake(struct cst_core *core);
/* End the collection: its contributions are dropped, and their blocks are free now or when their
 * command is done. */
void cst_collection_drop(struct cst_core *core);

/* How the contributions to @chunk are summed: those that a REDUCE reads now or, with @all, one of
 * each rank, from its pool. */
struct cst_reduce_site cst_sum_site(const struct cst_core *core, uint32_t chunk, bool all);

/* Add the next contributions in rank order as sources to @command, which also frees their
 * blocks. */
void cst_sum_add_sources(struct cst_core *core, uint32_t chunk, struct cst_command *command);

/* Handle the completion of an update that also made the sum. */
void cst_sum_fused(struct cst_core *core, const struct cst_flight *flight,
                   const struct cst_event *event);
/* Handle the completion of a REDUCE. */
void cst_sum_done(struct cst_core *core, const struct cst_flight *flight,
                  const struct cst_event *event);

/* -- spill.c: spills of gradients --------------------------------------------- */

/* Spill a pending gradient of @rank from a block of @part: to a bf16 grad row, which can keep one
 * contribution, or into the sum in an fp32 row. False: no gradient can be moved. */
bool cst_spill_begin(struct cst_core *core, uint32_t rank, uint32_t part);

/* Handle the completion of a copy to the grad row. */
void cst_spill_done(struct cst_core *core, const struct cst_flight *flight,
                    const struct cst_event *event);

/* -- grad_in_weight.c: gradients in weight rows ------------------------------------------------ */

/* CST_EINVAL: gradients in weight rows are impossible with @config's pools. */
int cst_weight_row_admit(const struct cst_core_config *config, struct cst_err *err);

/* @command, which was just issued, writes to the grad row of chunk @c. */
void cst_weight_row_begin_gradient(struct cst_core *core, uint32_t c, struct cst_command *command);
/* An update was issued: after it the weight row holds weights. */
void cst_weight_row_end_gradient(struct cst_chunk *chunk);
/* A write of some master weights was issued, which also writes these weights. */
void cst_weight_row_write_master(struct cst_chunk *chunk);

/* Set kind, source and length of @command so that it brings the weights [@first, @first + @n_elems)
 * of weight row @row of chunk @c. */
void cst_weight_row_read(const struct cst_core *core, uint32_t c, enum cst_row row, uint64_t first,
                         uint64_t n_elems, struct cst_command *command);

/* A number that changes when a write to @row, or to what the row is made from, is issued. */
uint64_t cst_weight_row_version(const struct cst_core *core, uint32_t c, enum cst_row row);

/* CST_EUNSUPPORTED: the row holds something else, or will. CST_EBUSY: the row is being written. */
int cst_weight_row_check_read(const struct cst_core *core, uint32_t c, enum cst_row row,
                              struct cst_err *err);
int cst_weight_row_check_write(const struct cst_core *core, uint32_t c, enum cst_row row,
                               struct cst_err *err);

/* -- states.c: READ and WRITE ---------------------------------------------------------------- */

/* True if the rows of @chunk belong to the base job. */
bool cst_states_is_base(const struct cst_core *core, uint32_t chunk);

/* Handle CST_EV_READ and WRITE. */
void cst_states_read(struct cst_core *core, const struct cst_event *event);
void cst_states_write(struct cst_core *core, const struct cst_event *event);
/* Handle the completion of a READ's copy, and of a WRITE. */
void cst_states_read_done(struct cst_core *core, const struct cst_flight *flight,
                          const struct cst_event *event);
void cst_states_written(struct cst_core *core, const struct cst_flight *flight,
                        const struct cst_event *event);

#endif
