/* What the core is made of, and what its parts share. Private to offload/.
 *
 *   core.c       takes an event apart and hands it to the part that knows
 *   ranks.c      who is attached, synced, late, dead; attempts
 *   residency.c  weights and gradients in blocks: fetch, release, evict, prefetch
 *   schedule.c   contributions, staging, reductions
 *   commit.c     norm, commit, updates
 *   states.c     READ and WRITE of a tensor's rows */
#ifndef CST_PARTS_H
#define CST_PARTS_H

#include "offload/block.h"
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
    enum cst_rank_begun
        begun;           /* it fetched; it opened or handed in a gradient, or asked for the step */
    bool stepped;        /* it asked for the step, whether or not it still waits for the reply */
    bool wants_prefetch; /* look for something to load at the end of this event */
    struct cst_hyper hyper;  /* of its STEP */
    double loss;             /* of its STEP */
    struct cst_pool pool;
    struct cst_trace trace;
    uint64_t hits, misses, prefetches, evictions, waits; /* fetches; loads; blocks; fetches */
    uint64_t bytes_up, bytes_down;
};

struct cst_chunk {
    uint64_t update_ticket; /* last UPDATE, while not done; else 0 */
    uint64_t reduce_ticket; /* REDUCE under way, of this or an earlier collection; else 0 */
    uint64_t stage_ticket;  /* COPY into the grad row under way, of this or an earlier collection */
    uint64_t write_ticket;  /* last WRITE, while not done; else 0 */
    uint32_t n_writes;      /* WRITEs not done */
    bool torn;              /* the grad row holds no sum since a contribution was staged to it */
    uint32_t staged_rank;   /* whose contribution is in the grad row, CST_NONE: nobody's */
    uint64_t handed;        /* ranks that handed in, a bit each */
    bool reduced;           /* in this collection */
    bool ordered;           /* scratch of the order of updates */
    uint64_t version;       /* grows when a write to the weights or states is issued */
    uint64_t grad_version;  /* same, the grad row */
    uint64_t evicted_step;  /* step in which a rank last evicted it, for explain */
    uint32_t evicted_rank;  /* which, CST_NONE: never */
    uint32_t evicted_for;   /* chunk that wanted the block */
};

struct cst_core {
    const struct cst_model *model;
    const struct cst_layout *layout;
    const uint32_t *arena_segments;
    uint32_t table_segment;
    uint32_t world;
    uint32_t n_chunks;
    uint64_t everybody; /* a bit per rank */
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
    uint64_t adam_step;
    uint64_t collection; /* counts collections of gradients: one per step and attempt */
    uint32_t n_reduced;  /* chunks, in this collection */
    uint32_t n_writes;   /* WRITEs not done, of all chunks */
    uint64_t last_ticket;
    uint64_t generation; /* last lease given */
    uint64_t uses;       /* counts grants, for LRU */
    uint64_t now;        /* of the event, ns */
    uint64_t commit_ns;  /* when the last step was committed; 0: none yet */
    uint64_t last_step_ns;
    double last_loss, last_grad_norm;
    uint32_t *order;          /* scratch: chunks in the order of their updates; owned */
    uint64_t n_blocks;        /* of all pools */
    struct cst_rank *ranks;   /* owned */
    struct cst_chunk *chunks; /* owned */
    struct cst_requests requests;
    struct cst_flights flights;
    struct cst_actions *actions; /* of the event that is digested */
};

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

/* -- residency.c: blocks -------------------------------------------------------------------- */

void cst_residency_fetch_weight(struct cst_core *core, const struct cst_event *event);
void cst_residency_fetch_grad(struct cst_core *core, const struct cst_event *event);
void cst_residency_release(struct cst_core *core, const struct cst_event *event);
void cst_residency_prefetch(struct cst_core *core, const struct cst_event *event);
void cst_residency_evict(struct cst_core *core, const struct cst_event *event);

/* A fetch of the rank waits for a block. */
bool cst_residency_waits(const struct cst_rank *rank);

/* Take a waiting fetch out of its queue. */
void cst_residency_unqueue(struct cst_core *core, uint32_t request);

/* Completions. */
void cst_residency_loaded(struct cst_core *core, const struct cst_flight *flight,
                          const struct cst_event *event);
/* Of an update: workers that copy themselves may read the row now. */
void cst_residency_updated(struct cst_core *core, const struct cst_flight *flight,
                           const struct cst_event *event);

/* The arena has, or will have, newer weights of @chunk: no block's copy is current any more. */
void cst_residency_expire(struct cst_core *core, uint32_t chunk);

/* The rank's leases end. @quarantine: its process may still use them; else the blocks are free or
 * cached. */
void cst_residency_end_leases(struct cst_core *core, uint32_t rank, bool quarantine);
/* The rank's process is gone: nothing of its blocks stays but contributions and what is being
 * copied. */
void cst_residency_reclaim(struct cst_core *core, uint32_t rank);

/* Serve waiting fetches and look for prefetches. At the end of each event. */
void cst_residency_pump(struct cst_core *core);

/* -- schedule.c: gradients -------------------------------------------------------------------- */

void cst_schedule_hand_in(struct cst_core *core, const struct cst_event *event);

/* Issue the reduction of @chunk if every rank has handed in or asked for the step and nothing is in
 * its way. */
void cst_schedule_reduce(struct cst_core *core, uint32_t chunk);
/* A pending gradient of @rank in a block of @part starts to move to its chunk's grad row; false:
 * there is none that may. */
bool cst_schedule_stage(struct cst_core *core, uint32_t rank, uint32_t part);
/* Contributions of this collection are void: their blocks are free, or will be when their command
 * is done. */
void cst_schedule_drop(struct cst_core *core);

/* How the contributions to @chunk come together: those that are there, or if @all, one of every
 * rank in its pool. */
struct cst_way cst_schedule_way(const struct cst_core *core, uint32_t chunk, bool all);

/* Completions. */
void cst_schedule_staged(struct cst_core *core, const struct cst_flight *flight,
                         const struct cst_event *event);
void cst_schedule_reduced(struct cst_core *core, const struct cst_flight *flight,
                          const struct cst_event *event);

/* -- commit.c: the step ----------------------------------------------------------------------- */

void cst_commit_step(struct cst_core *core, const struct cst_event *event);

/* All gradients reduced and nothing written any more: ask for the norm. */
void cst_commit_close(struct cst_core *core);

/* Completions. */
void cst_commit_normed(struct cst_core *core, const struct cst_flight *flight,
                       const struct cst_event *event);
void cst_commit_updated(struct cst_core *core, const struct cst_flight *flight,
                        const struct cst_event *event);

/* -- states.c: rows --------------------------------------------------------------------------- */

void cst_states_read(struct cst_core *core, const struct cst_event *event);
void cst_states_write(struct cst_core *core, const struct cst_event *event);
void cst_states_read_done(struct cst_core *core, const struct cst_flight *flight,
                          const struct cst_event *event);
void cst_states_written(struct cst_core *core, const struct cst_flight *flight,
                        const struct cst_event *event);

#endif
