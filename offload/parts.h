/* SPDX-License-Identifier: Apache-2.0 */
/* What the core is made of, and what its parts share. Private to offload/.
 *
 *   core.c       takes an event apart and hands it to the part that knows
 *   ranks.c      who is attached, synced, late, dead; attempts
 *   loss.c       engines that are gone
 *   fetch.c      requests for weights and gradients: granted, or waiting
 *   residency.c  weights and gradients in blocks: load, release, evict, expire
 *   prefetch.c   loads that nobody has asked for yet
 *   group.c      whose a chunk is, in words
 *   schedule.c   contributions, micro-batches, reductions
 *   staging.c    gradients that leave a pool that is short before their sum can be made
 *   over.c       gradients that take the place of their weights
 *   instant.c    how much later a step is because of its updates
 *   hyper.c      hyper-parameters that are allowed, that are the same
 *   updates.h    what ends a step, with parts of its own
 *   states.c     READ and WRITE of a tensor's rows */
#ifndef CST_PARTS_H
#define CST_PARTS_H

#include "offload/block.h"
#include "offload/buffers.h"
#include "offload/core.h"
#include "offload/flight.h"
#include "offload/request.h"
#include "offload/trace.h"
#include "offload/way.h"

/* How far a rank is into the step that is not committed yet. */
enum cst_rank_begun { CST_BEGUN_NOTHING, CST_BEGUN_READING, CST_BEGUN_WRITING };

struct cst_rank {
    enum cst_rank_state state;
    uint64_t state_step; /* steps committed when it got into this state */
    bool joined;         /* takes part in the attempt that runs */
    uint32_t sync;       /* its waiting SYNC, CST_NO_REQUEST: none */
    uint32_t step;       /* its waiting STEP, CST_NO_REQUEST: none */
    struct cst_err
        gone; /* status != 0: the accelerator of its pool is, and why; until it attaches */
    enum cst_rank_begun
        begun;           /* it fetched; it opened or handed in a gradient, or asked for the step */
    uint32_t micro;      /* micro-batch of the step that it is in, from 0 */
    bool stepped;        /* it asked for the step, whether or not it still waits for the reply */
    bool wants_prefetch; /* look for something to load at the end of this event */
    bool prepared;       /* it said what its STEP will say; EARLY alone */
    struct cst_hyper promised; /* that, where prepared */
    struct cst_hyper hyper;    /* of its STEP */
    double loss;               /* of its STEP */
    struct cst_pool pool;
    struct cst_trace trace;
    uint64_t hits, misses, late, prefetches, evictions, waits; /* fetches; loads; blocks; fetches */
    uint64_t weight_wait_ns; /* in which its worker waited for weights */
    uint64_t bytes_up, bytes_down, bytes_peer;
    /* On both clocks, see instant.c. stream, device and shift: of a GPU alone. */
    struct cst_moment thread;  /* the worker's last request, or the answer that it waited for */
    struct cst_moment resumed; /* the last answer that it waited for */
    struct cst_moment stream;  /* what the device did last, as far as the worker gave it back */
    struct cst_moment device;  /* when it will have done all that it was granted, as foreseen */
    uint64_t shift;            /* by which that was corrected so far, ns modulo 2^64 */
    uint64_t ahead_instant;    /* when all that it asked for ahead would be there, ns */
};

#define CST_CLOCK_ENGINES 127 /* with lanes of their own; those behind them share one more */

enum cst_clock_lane { CST_CLOCK_UP, CST_CLOCK_DOWN, CST_CLOCK_TEAM, CST_CLOCK_LANES };

/* The second clock, on which updates take no time, see instant.c. */
struct cst_clock {
    uint64_t now;    /* of the event, ns */
    uint64_t commit; /* the latest of what the commit waits for */
    uint64_t lag;    /* ns by which the last commit was earlier than on the first clock */
    uint64_t idle_ns[CST_CLOCK_ENGINES +
                     1]; /* in which it would have no sum to make, and had none yet */
    struct cst_moment lanes[CST_CLOCK_ENGINES + 1][CST_CLOCK_LANES]; /* end of the last command */
};

/* Times of updates, see exposure.c. */
struct cst_exposure {
    uint32_t n_updates;       /* under way: UPDATEs in place, and what comes down from rooms */
    uint64_t since;           /* ns, n_updates > 0: what comes before is in update_ns */
    uint64_t quiet_since;     /* ns, n_updates == 0: the end of the last one */
    uint64_t update_ns;       /* in which updates were under way */
    uint64_t round_from_ns;   /* update_ns when the round began */
    bool open;                /* a round is */
    bool all_issued;          /* its step is committed: no update of it is still to come */
    uint32_t interleave;      /* k of the round's updates; 0: none goes through a room */
    uint64_t n_rounds;        /* that ended */
    uint32_t last_interleave; /* of the last one of them, as are these */
    uint64_t last_update_ns;
    uint64_t total_update_ns;                   /* of all of them */
    uint64_t last_exposed_ns, total_exposed_ns; /* of the last step, of all steps */
};

/* What the weight row of a chunk holds: something else where gradients take its place. */
enum cst_over { CST_OVER_WEIGHTS, CST_OVER_GRADIENT, CST_OVER_DEBRIS };
#define CST_UPDATE_STATES 3 /* rows that an update writes beside the weights */

/* An update of a chunk. */
struct cst_update {
    uint32_t chunk;
    uint64_t mark;           /* adam step */
    struct cst_hyper hyper;  /* grad_scale: with the clip factor */
    struct cst_place weight; /* where the weights go */
    bool guard;              /* tiles beyond proto/limit.h keep their states */
};

/* Of a chunk: copies into pools in forward and backward passes, and sums. */
enum cst_quiet { CST_QUIET_FORWARD, CST_QUIET_BACKWARD, CST_QUIET_SUM, CST_QUIETS };

struct cst_chunk {
    uint64_t ranks;         /* its group: who fetches it and contributes, a bit each */
    bool has_states;        /* else it is frozen: no gradient, no sum, no update */
    uint32_t device;        /* engine that has its states, and alone updates it; 0: its node's */
    uint64_t update_ticket; /* what brings the weights of its last update, UPDATE or, from a room,
                               COPY down, while not done; else 0 */
    uint64_t states_tickets[CST_UPDATE_STATES]; /* from a room: same, its states */
    uint32_t room;   /* of its last update, CST_NONE: its node's engine made it, in place */
    uint32_t buffer; /* of that room, which it went through */
    bool comes;      /* same: UPDATE is done, so that COPYs down overwrite the chunk's rows */
    struct cst_update away; /* same, as it was asked for */
    uint32_t held;          /* slot of that room that has the gradient, CST_NONE: none */
    bool turn;              /* the last update was one that should go through a room */
    uint64_t weight_ticket; /* what brings the weights that fetches read, while not done; else 0 */
    bool other_side;        /* fetches read the second weight row */
    bool pending; /* the last update's weights are in the row that fetches do not read yet */
    bool ahead;   /* its update of the step that is not committed was issued: see overlap.c */
    bool carried; /* in an attempt before this one */
    bool fused;   /* the last sum went into its update alone: the grad row does not have it */
    uint64_t reduce_ticket; /* REDUCE under way, of this or an earlier collection; else 0 */
    uint64_t stage_ticket;  /* COPY into the grad row under way, of this or an earlier collection */
    uint64_t write_ticket;  /* last WRITE, while not done; else 0 */
    uint32_t n_writes;      /* WRITEs not done */
    bool broken; /* A command failed that was to change its weights or states: nobody can tell what
                    they are. */
    bool torn;   /* the grad row holds one rank's contribution, or not all micro-batches */
    uint32_t staged_rank; /* whose contribution is in the grad row, CST_NONE: nobody's */
    uint32_t micro;       /* micro-batch that it collects; all before it are in the grad row */
    uint64_t handed;      /* ranks that handed in for it, or cannot any more, a bit each */
    uint64_t added;       /* of them: those that a REDUCE of it has taken or passed over */
    bool summed;          /* a REDUCE of this collection was issued: the next one adds */
    bool reduced;         /* all of this collection is in the grad row */
    enum cst_over over;   /* once what was issued is done */
    bool ordered;         /* scratch of the order of updates */
    uint64_t work_ns[2];  /* what a GPU takes for it, forward and backward; 0: not known */
    uint64_t
        quiet_ns[CST_QUIETS];     /* what copies and sums take while no update is under way; same */
    struct cst_moment update_end; /* end of its last update */
    struct cst_moment updated;    /* end of the last update whose weights fetches waited for */
    struct cst_moment sum_end;    /* end of the last sum of its gradient */
    struct cst_moment landed;     /* end of the last copy of its gradient to a landing */
    uint64_t version;             /* grows when a write to the weights or states is issued */
    uint64_t grad_version;        /* same, the grad row */
    uint64_t evicted_step;        /* step in which a rank last evicted it, for explain */
    uint32_t evicted_rank;        /* which, CST_NONE: never */
    uint32_t evicted_for;         /* chunk that wanted the block */
};

#define CST_ROOM_MAX_FAILURES 3 /* and it is given up */
#define CST_ROOM_MAX_TRIES 3    /* of a COPY down */
#define CST_ROOM_COPIES_DOWN (1 + CST_UPDATE_STATES)
#define CST_ROOM_COMMANDS                                                                          \
    (1 + CST_UPDATE_STATES + 1 + CST_ROOM_COPIES_DOWN) /* of an update: up, UPDATE, down */

/* A place in a room for a gradient. */
struct cst_held_slot {
    uint32_t chunk;      /* whose it is for, CST_NONE: nobody's any more */
    uint32_t n_commands; /* under way that write or read it */
};

struct cst_held {
    struct cst_held_slot *slots; /* owned, as is free */
    uint32_t *free;              /* numbers of those that are */
    uint32_t n_free;
};

/* Memory of an accelerator for updates. Its buffers take turns. */
struct cst_room {
    uint32_t engine;
    uint32_t segment;
    struct cst_buffers buffers;
    struct cst_held held;
    uint32_t n_failures;                                  /* of its commands */
    bool given_up;                                        /* too many, or its engine is gone */
    uint32_t next;                                        /* buffer */
    uint64_t down[CST_BUFFERS_MAX][CST_ROOM_COPIES_DOWN]; /* last COPYs out of each; 0: none */
};

struct cst_core {
    const struct cst_model *model;
    const struct cst_layout *layout;
    const uint32_t *arena_segments;
    uint32_t table_segment;
    uint32_t world;
    uint32_t n_chunks;
    uint64_t everybody; /* a bit per rank */
    uint32_t n_gpus;    /* into whose memory engines load weights; several ranks may share one */
    uint32_t n_nodes;   /* whose engines have chunks */
    uint32_t n_trained; /* chunks that are not frozen */
    uint32_t micro_batches; /* per step at most; at least 1 */
    bool grad_fp32;         /* grad rows are, and can be added to */
    bool two_weights;       /* chunks with states have a second weight row */
    uint64_t peer_timeout_ns;
    struct cst_core_policy policy;
    enum cst_core_phase phase;
    bool initialised;     /* a SYNC has completed */
    bool closing;         /* every rank asked for the step; only engines are waited for */
    bool norm_issued;     /* while closing */
    bool lost;            /* the attempt that ended last had gradients, which are void */
    bool interrupt_later; /* as soon as the step that closes is committed */
    struct cst_err why;   /* IDLE, INTERRUPTED, FAILED, interrupt_later: the words */
    uint64_t attempt;
    uint64_t step; /* committed */
    uint64_t n_skipped;
    uint64_t n_overflows;
    uint64_t adam_step;
    uint64_t collection;          /* counts collections of gradients: one per step and attempt */
    uint32_t n_ahead;             /* chunks that are ahead */
    struct cst_hyper early_hyper; /* n_ahead > 0: with which they were updated */
    uint64_t n_dropped;           /* gradients handed in for chunks that were carried */
    uint32_t n_reduced;           /* chunks whose gradient of this collection is complete */
    uint32_t n_writes;            /* WRITEs not done, of all chunks */
    uint64_t last_ticket;
    uint64_t generation; /* last lease given */
    uint64_t uses;       /* counts grants, for LRU */
    uint64_t now;        /* of the event, ns */
    uint64_t commit_ns;  /* when the last step was committed; 0: none yet */
    uint64_t last_step_ns;
    double last_loss, last_grad_norm;
    struct cst_exposure exposure;
    struct cst_clock clock;
    struct cst_room rooms[CST_CORE_MAX_ROOMS];
    uint32_t n_rooms;
    uint32_t next_room;
    uint32_t interleave;     /* as set */
    uint32_t interleave_now; /* of the updates that were issued last; 0: none goes through a room */
    uint32_t *in_order; /* per node, of its chunks: updates issued since their order began; owned */
    bool order_ended;   /* the next one begins another */
    uint64_t n_updates, n_device_updates; /* chunks, completed */
    uint64_t *landing_readers; /* per landing of the layout: the REDUCE that read it last; owned */
    uint32_t *next_landing;    /* per node: which of its landings is taken next; owned */
    uint32_t *order;           /* scratch: chunks in the order of their updates; owned */
    uint64_t n_blocks;         /* of all pools */
    struct cst_rank *ranks;    /* owned */
    struct cst_chunk *chunks;  /* owned */
    struct cst_requests requests;
    struct cst_flights flights;
    struct cst_actions *actions; /* of the event that is digested */
};

/* -- instant.c: how much later a step is because of its updates ---------------------------------
 */

/* An event begins: when it would have happened if updates took no time. Before anything else. */
void cst_instant_begin(struct cst_core *core, const struct cst_event *event);
/* A command is issued: @flight->issued. Its end, before anything else is done with it. */
void cst_instant_issued(const struct cst_core *core, struct cst_flight *flight);
/* REDUCE @ticket, which was just issued, goes to @engine. */
void cst_instant_sent(struct cst_core *core, uint64_t ticket, uint32_t engine);
void cst_instant_done(struct cst_core *core, const struct cst_flight *flight);
/* Block @b is granted; @ahead: the rank's worker does not wait for it. */
void cst_instant_granted(struct cst_core *core, uint32_t rank, uint32_t b, bool ahead);
/* The step is committed. */
void cst_instant_committed(struct cst_core *core);
/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_instant_check(const struct cst_core *core);

/* -- actions.c ------------------------------------------------------------------------------ */

/* Room in @actions and in the core's tables for whatever one event can cause. CST_ENOMEM. */
int cst_core_reserve(struct cst_core *core, struct cst_actions *actions);

/* A new command with a ticket, at the end of the actions, entered as @flight (whose ticket is set).
 */
struct cst_command *cst_core_command(struct cst_core *core, enum cst_command_kind kind,
                                     uint32_t node, struct cst_flight *flight);
/* The command waits for @ticket; 0 is none. */
void cst_command_after(struct cst_command *command, uint64_t ticket);

/* A reply with status CST_OK; NULL where @tag is 0: nobody wants it. */
struct cst_reply *cst_core_reply(struct cst_core *core, uint64_t tag);
void cst_core_refuse(struct cst_core *core, uint64_t tag, int status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void cst_core_refuse_err(struct cst_core *core, uint64_t tag, const struct cst_err *err);
void cst_core_log(struct cst_core *core, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Why a completion failed: the engine's words, or the status's. */
const char *cst_event_words(const struct cst_event *event);

/* Place of element @elem of a chunk's row, on the wire. */
struct cst_place cst_core_row_place(const struct cst_core *core, uint32_t chunk, enum cst_row row,
                                    uint64_t elem);

/* The engine that has @row of @chunk, for READ and WRITE. */
uint32_t cst_core_keeper(const struct cst_core *core, uint32_t chunk, enum cst_row row);

/* The engine that copies between @rank's pool and the rows of @chunk. */
uint32_t cst_core_copier(const struct cst_core *core, uint32_t rank, uint32_t chunk);

/* -- ranks.c: attempts ---------------------------------------------------------------------- */

void cst_ranks_attach(struct cst_core *core, const struct cst_event *event);
void cst_ranks_hangup(struct cst_core *core, const struct cst_event *event);
void cst_ranks_dead(struct cst_core *core, const struct cst_event *event);
void cst_ranks_leave(struct cst_core *core, const struct cst_event *event);
void cst_ranks_sync(struct cst_core *core, const struct cst_event *event);

/* A request of the attempt that runs may go on; else it is refused and false comes back. */
bool cst_ranks_admit(struct cst_core *core, const struct cst_event *event);

/* Begin an attempt if every rank waits in SYNC. At the end of each event. */
void cst_ranks_start(struct cst_core *core);

/* Rank @rank is at least that far into the step. */
void cst_ranks_begin(struct cst_core *core, uint32_t rank, enum cst_rank_begun begun);

/* How far the ranks are into the step: the farthest of them. */
enum cst_rank_begun cst_ranks_begun(const struct cst_core *core);

/* A step is committed, or an attempt begins. */
void cst_ranks_reset_begun(struct cst_core *core);

/* The attempt is over: waiting requests are answered with @why (CST_EPEERDIED or CST_EMISMATCH...),
 * contributions dropped. While the step closes, it is put off until the commit. */
void cst_ranks_interrupt(struct cst_core *core, const struct cst_err *why);

/* Same, at once: the step that closes cannot be committed, a contribution to it is lost. */
void cst_ranks_abandon(struct cst_core *core, const struct cst_err *why);

/* All that waits of the rank's requests is answered with @why. */
void cst_ranks_refuse(struct cst_core *core, uint32_t rank, const struct cst_err *why);

/* The job is over: everything that waits, and everything that will come, is answered with @why. */
void cst_ranks_fail(struct cst_core *core, const struct cst_err *why);

/* Same, because a command about @chunk failed that nothing can stand in for; @what names it. */
void cst_ranks_fail_command(struct cst_core *core, const struct cst_event *event, const char *what,
                            uint32_t chunk);

/* Answer what has waited too long. */
void cst_ranks_expire(struct cst_core *core);

/* CST_EV_CANCEL. What an engine works on cannot be cancelled. */
void cst_ranks_cancel(struct cst_core *core, const struct cst_event *event);

/* The rank asked for the step: its waiting fetches are answered CST_ECANCELLED. */
void cst_ranks_cancel_fetches(struct cst_core *core, uint32_t rank);
/* The rank ended its micro-batch: same, those of gradients. */
void cst_ranks_cancel_grads(struct cst_core *core, uint32_t rank);

/* -- loss.c: engines that are gone --------------------------------------------------------------
 */

/* The engine gave the command of @event back, and will not do anything else either. */
bool cst_loss_is(const struct cst_event *event);

/* A command of @engine for a pool in its accelerator's memory came back so: the attempt is over,
 * and the ranks whose pools are there hear why until they attach again. @needed: the step could not
 * be committed without it; else one that closes is first. */
void cst_loss_of_pools(struct cst_core *core, uint32_t engine, const struct cst_event *event,
                       bool needed);

/* CST_EV_NODE_DOWN: the attempt is over, and all ranks hear why until they attach again. */
void cst_loss_of_node(struct cst_core *core, const struct cst_event *event);

/* -- group.c: who and what -------------------------------------------------------------------- */

/* @event's rank may fetch @event's chunk and, where @grad, has a gradient of it; else it is refused
 * with the group, or the pattern, in the words. */
bool cst_group_admit(struct cst_core *core, const struct cst_event *event, bool grad);

/* "rank 3", "ranks 0, 2", "ranks 0, 1, 2, 3 and 60 more": the bits of @ranks. */
#define CST_GROUP_TEXT 80
const char *cst_group_words(uint64_t ranks, char out[CST_GROUP_TEXT]);

/* Number of the group of @chunk's tensors in the model. */
uint32_t cst_group_number(const struct cst_core *core, uint32_t chunk);

/* -- fetch.c: requests for blocks ------------------------------------------------------------- */

void cst_fetch_weight(struct cst_core *core, const struct cst_event *event);
void cst_fetch_grad(struct cst_core *core, const struct cst_event *event);
void cst_fetch_want(struct cst_core *core, const struct cst_event *event);

/* A lease on block @b of @rank; the answer to @tag. @ahead: its worker does not wait for it. */
void cst_fetch_grant(struct cst_core *core, uint32_t rank, uint32_t b, uint64_t tag, bool hit,
                     bool ahead);

/* The same for request @i, which ends, and counts. @again: the block holds its gradients already.
 */
void cst_fetch_answer(struct cst_core *core, uint32_t i, uint32_t b, bool again);

/* A fetch of the rank waits for a block. */
bool cst_fetch_waits(const struct cst_rank *rank);

/* A fetch that is in no queue waits for a block. */
void cst_fetch_enqueue(struct cst_core *core, uint32_t request);
/* Take a waiting fetch out of its queue. */
void cst_fetch_unqueue(struct cst_core *core, uint32_t request);

/* Serve waiting fetches and look for prefetches. At the end of each event. */
void cst_fetch_pump(struct cst_core *core);

/* -- residency.c: what is in the blocks ------------------------------------------------------- */

void cst_residency_release(struct cst_core *core, const struct cst_event *event);
void cst_residency_prefetch(struct cst_core *core, const struct cst_event *event);
void cst_residency_evict(struct cst_core *core, const struct cst_event *event);

/* A block for @chunk in @state: a free one, else a victim's that is wanted behind @limit
 * (CST_VICTIM_ANY: any). CST_NONE: neither. */
uint32_t cst_residency_take(struct cst_core *core, uint32_t rank, enum cst_block_state state,
                            uint32_t chunk, uint64_t limit);

/* The weights of @chunk come into block @b, which was just taken for them. */
void cst_residency_load(struct cst_core *core, uint32_t rank, uint32_t chunk, uint32_t b,
                        enum cst_priority priority);
/* Load weights that nobody has asked for, but for which something wanted behind @time is given up
 * at most. False: there is no block. */
bool cst_residency_load_ahead(struct cst_core *core, uint32_t rank, uint32_t chunk, uint64_t time);

/* Completions. */
void cst_residency_loaded(struct cst_core *core, const struct cst_flight *flight,
                          const struct cst_event *event);
/* Of an update: workers that copy themselves may read the row now. */
void cst_residency_updated(struct cst_core *core, const struct cst_flight *flight,
                           const struct cst_event *event);

/* Workers that copy themselves and wait for the update @from of @chunk wait for @to. */
void cst_residency_replaced(struct cst_core *core, uint32_t chunk, uint64_t from, uint64_t to);

/* The arena has, or will have, newer weights of @chunk: no block's copy is current any more. */
void cst_residency_expire(struct cst_core *core, uint32_t chunk);

/* The rank's leases end. @quarantine: its process may still use them; else the blocks are free or
 * cached. */
void cst_residency_end_leases(struct cst_core *core, uint32_t rank, bool quarantine);
/* The rank's process is gone: nothing of its blocks stays but contributions and what is being
 * copied. */
void cst_residency_reclaim(struct cst_core *core, uint32_t rank);

/* What block @b of @rank waited for has happened. */
void cst_residency_end_load(struct cst_core *core, uint32_t rank, uint32_t b,
                            const struct cst_event *event);

/* -- gather.c: several GPUs load together ----------------------------------------------------- */

#define CST_GATHER_MAX 8u /* GPUs */

/* How many GPUs may take part; 0: none. */
uint32_t cst_gather_most(const struct cst_core *core);

/* The weights of @chunk come into block @b, which was just taken for them, and into those of other
 * GPUs that expect them; false: nobody else does, and nothing is begun. */
bool cst_gather_load(struct cst_core *core, uint32_t rank, uint32_t chunk, uint32_t b,
                     enum cst_priority priority);

/* Completion of a copy into, or out of, a gathered block. */
void cst_gather_done(struct cst_core *core, uint32_t rank, uint32_t b,
                     const struct cst_event *event);

/* -- prefetch.c: what the trace expects ---------------------------------------------------------
 */

#define CST_PREFETCH_IN_FLIGHT 16 /* loads of a part that nobody asked for, at most */

/* The rank asked for weights, or opened a gradient, that it had not: the trace goes on. */
void cst_prefetch_follow(struct cst_rank *rank, uint32_t chunk, bool grad);
/* The gradient of @chunk has its block now, or will not want it. */
void cst_prefetch_opened(struct cst_pool *pool, uint32_t chunk);
/* Weights that are wanted at @next are not in a block of @part any more. */
void cst_prefetch_evicted(struct cst_pool *pool, uint32_t part, uint64_t next);
/* A block for weights of @chunk that @rank expects, for which nothing is given up that is wanted
 * sooner; foreseen. CST_NONE: it does not expect them, or has no block to spare. */
uint32_t cst_prefetch_take(struct cst_core *core, uint32_t rank, uint32_t chunk);
/* Begin what can be begun. */
void cst_prefetch_look_ahead(struct cst_core *core, uint32_t rank);

/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_prefetch_check(const struct cst_rank *rank);

/* -- schedule.c: gradients -------------------------------------------------------------------- */

void cst_schedule_hand_in(struct cst_core *core, const struct cst_event *event);
void cst_schedule_accumulate(struct cst_core *core, const struct cst_event *event);

/* Issue the next reduction of @chunk if all of its group have handed in or gone on and nothing is
 * in its way; go on to the next micro-batch, and to the end, where nothing is left to add. */
void cst_schedule_reduce(struct cst_core *core, uint32_t chunk);
/* Issue a reduction of the contributions that are next in rank order, up to a rank whose own is not
 * known yet. fp32 rows, or all have come. */
void cst_schedule_add(struct cst_core *core, uint32_t chunk);
/* What @rank contributes to the micro-batch that @chunk collects is known: it handed in, or it went
 * on. */
bool cst_schedule_has_come(const struct cst_core *core, uint32_t chunk, uint32_t rank);
/* @rank's gradient of the micro-batch that it is in was handed in, or is not waited for any more.
 */
bool cst_schedule_handed(const struct cst_core *core, uint32_t chunk, uint32_t rank);
/* @rank's contribution to the micro-batch that @chunk collects lies in a block of its pool and
 * nothing moves it. */
bool cst_schedule_holds(const struct cst_core *core, uint32_t chunk, uint32_t rank);
/* Gradients that the rank opened and did not hand in do not count. */
void cst_schedule_drop_open(struct cst_core *core, uint32_t rank);
/* Who waits for a block is to look again: somebody's contribution may leave its pool now. */
void cst_schedule_wake(struct cst_core *core);
/* Contributions of this collection are void: their blocks are free, or will be when their command
 * is done. */
void cst_schedule_drop(struct cst_core *core);

/* How the contributions to @chunk come together: those that are there, or if @all, one of every
 * rank in its pool. */
struct cst_way cst_schedule_way(const struct cst_core *core, uint32_t chunk, bool all);

/* The contributions that are next in rank order, as sources of @command; their blocks go with it.
 */
void cst_schedule_add_sources(struct cst_core *core, uint32_t chunk, struct cst_command *command);

/* Completion of an update that made the sum too. */
void cst_schedule_fused(struct cst_core *core, const struct cst_flight *flight,
                        const struct cst_event *event);
/* Completion. */
void cst_schedule_reduced(struct cst_core *core, const struct cst_flight *flight,
                          const struct cst_event *event);

/* -- staging.c: pools that are short ---------------------------------------------------------- */

/* A pending gradient of @rank in a block of @part starts to leave it: to a bf16 grad row, as the
 * one that is kept there, or into the sum in an fp32 one. False: there is none that may. */
bool cst_staging_begin(struct cst_core *core, uint32_t rank, uint32_t part);

/* Completion. */
void cst_staging_done(struct cst_core *core, const struct cst_flight *flight,
                      const struct cst_event *event);

/* -- over.c: gradients in the weights' places ------------------------------------------------- */

/* CST_EINVAL: they are not to be had with @config's pools. */
int cst_over_admit(const struct cst_core_config *config, struct cst_err *err);

/* @command, which was just issued, writes to the grad row of chunk @c. */
void cst_over_begin(struct cst_core *core, uint32_t c, struct cst_command *command);
/* An update was issued: behind it the weights are in their row. */
void cst_over_end(struct cst_chunk *chunk);
/* A write of some master weights was issued, which writes those weights too. */
void cst_over_write_master(struct cst_chunk *chunk);

/* @command brings weights [@first, @first + @n_elems) of chunk @c's weight row @row: its kind,
 * source and length. */
void cst_over_read_weights(const struct cst_core *core, uint32_t c, enum cst_row row,
                           uint64_t first, uint64_t n_elems, struct cst_command *command);

/* Changes when something that writes to @row, or to what it is read from, is issued. */
uint64_t cst_over_row_version(const struct cst_core *core, uint32_t c, enum cst_row row);

/* CST_EUNSUPPORTED: the row holds something else, or will; CST_EBUSY: it is being written. */
int cst_over_check_read(const struct cst_core *core, uint32_t c, enum cst_row row,
                        struct cst_err *err);
int cst_over_check_write(const struct cst_core *core, uint32_t c, enum cst_row row,
                         struct cst_err *err);

/* -- states.c: rows --------------------------------------------------------------------------- */

/* The rows of @chunk are another job's memory. */
bool cst_states_is_base(const struct cst_core *core, uint32_t chunk);

void cst_states_read(struct cst_core *core, const struct cst_event *event);
void cst_states_write(struct cst_core *core, const struct cst_event *event);
void cst_states_read_done(struct cst_core *core, const struct cst_flight *flight,
                          const struct cst_event *event);
void cst_states_written(struct cst_core *core, const struct cst_flight *flight,
                        const struct cst_event *event);

#endif
