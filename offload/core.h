/* SPDX-License-Identifier: Apache-2.0 */
/* The brain of one job: it takes an event and fills a list of actions. No I/O, no threads, no
 * clock: the daemon drives it with real engines, tests/sim with a virtual clock. Inside: residency
 * (blocks, leases, eviction, prefetch), schedule (contributions, reduce, norm, commit, updates),
 * trace.
 *
 *   event (request, completion, death, tick) -> cst_core_step() -> actions (engine commands,
 * replies)
 *
 * Who does what: UPDATE, NORM, CONVERT and copies between arenas and staging segments go to the
 * engine of the chunk's node (NORM: to engine 0). A copy between a pool and an arena goes to the
 * pool's engine, a REDUCE where offload/way.h says. So `after` may name tickets of other engines:
 * the driver gives an engine such a command only when those are complete. One that failed fails
 * what comes after it (CST_ECANCELLED), unless it is `forgiven`; one that is not under way any more
 * counts as complete.
 *
 * Requests carry a tag; each tag gets exactly one CST_ACT_REPLY, in this step or in a later one.
 * Commands carry a ticket, increasing; each gets exactly one CST_EV_DONE from the driver, whatever
 * happens to the engine in between.
 *
 * A job's life, as the core sees it:
 *
 *   all ranks SYNC ---> RUNNING (attempt a, step s) --all ranks STEP, norm finite--> commit: step
 * s+1, updates issued, same attempt ^                 | a rank dies, or leaves with others still in
 * the step, |                 | or the accelerator of its pool is gone, |                 | or the
 * ranks' hyper-parameters differ
 *        +--- INTERRUPTED <+  waits answered EPEERDIED; contributions dropped; committed updates go
 * on |                 | a rank leaves, and nobody has begun the next step
 *        +--- IDLE <-------+  nothing is lost; INTERRUPTED turns into it when all ranks left and no
 * gradient was lost
 *
 * An accelerator that is gone (its engine gives commands back with EENGINE or ELOST) takes the
 * pools in its memory with it, and a room, but no state that is in host memory. Whatever was to
 * read or write such a pool, the attempt is interrupted; a step that all ranks have asked for is
 * committed first, unless a sum or a contribution to it is lost. The ranks with those pools hear
 * which accelerator and why, whatever they ask, until they leave (or die) and attach again, their
 * pools perhaps in another place (cst_core_move_pool); the others wait for them in SYNC. Updates
 * that were begun go on, the early ones of the step too. The job fails where states were there, or
 * on their way from there (offload/fallback.c).
 *
 * The engine of a node may die too often to be started again at once (NODE_DOWN). All that it works
 * on lies in host memory, and the driver keeps its commands: an engine that is started later does
 * them, and first puts back what was half changed. So no state is lost. The attempt is interrupted,
 * whether or not all ranks have asked for the step. All ranks that are attached hear why, whatever
 * they ask, until they attach again. Commands to and from staging segments (io) are not kept,
 * because those who wait for them are answered: such a command fails. A WRITE of master weights
 * that fails, or a command that the driver has kept too often, fails the job.
 *
 * A job that has failed trains no more. Its rows can still be READ, except those of chunks in which
 * a command failed that was to change them.
 *
 * Who copies weights up. An engine does, by a COPY command; or, in a pool with worker_copies, the
 * rank's worker does itself. There a FETCH_WEIGHT is answered as soon as a block is free and the
 * chunk's update and writes are done, and the reply says where the row is (home):
 *
 *   - The row is not written while the worker reads it. Updates are issued at a commit (early ones,
 * before it, write the other row), a commit needs STEP of every rank, and a worker sends STEP when
 * all its copies are done. WRITEs are refused from the first fetch to the commit. A worker that
 * breaks this, or an attempt that is void, brings torn weights to that worker's own leased blocks,
 * which then are STALE: nobody is granted those.
 *   - Until it is released, the block is the worker's alone: it is leased, so it is no victim. Who
 * fetches the chunk again meanwhile (the same rank) gets home again, and no hit.
 *   - RELEASE says that the weights are in the block: from then on it is cached as if an engine had
 * filled it.
 *   - A lease that ends otherwise (death, leave, sync) says nothing: its block is free, not cached.
 * A worker that goes on syncs when its copies have ended; one that hung up keeps its blocks in
 * quarantine until it is dead.
 *   - Nothing is loaded into such a pool but for a fetch: PREFETCH does nothing, nor is the trace
 * followed. The worker fetches ahead.
 *
 * Groups. A chunk's sum waits for the ranks in its group (layout's chunk.ranks) alone; nobody else
 * fetches it or hands it in (CST_EINVAL). SYNC and STEP are everybody's. A frozen chunk has no
 * gradient (CST_EINVAL), no sum, no update; its MASTER, moments and GRAD cannot be read
 * (CST_EUNSUPPORTED), and a WRITE of its MASTER sets the weights. A chunk of a base job is not
 * written (CST_EDENIED).
 *
 * Micro-batches. A rank counts its own: ACCUMULATE ends one, STEP the last. A chunk collects one at
 * a time: what a rank hands in during its micro-batch m is added when all of the group's m - 1 is
 * in the row. Who ended m without handing in contributed zero. Who is ahead and opens the gradient
 * again waits until its block's contribution is in the row. An fp32 row takes contributions as they
 * come, always in the order micro-batch by micro-batch, in each rank by rank, and each addition is
 * rounded to fp32 whether it has a command of its own or not: so where a pool runs short, the
 * contributions of the first ranks are added before the last have come, and the bits are the same.
 * (They cannot be staged, as a bf16 row's one is: an fp32 row holds the sum so far.) No rank is
 * stuck by that: of the ranks in the earliest micro-batch, the lowest can always empty its pool.
 *
 * Gradients over the weights (layout's states.grad_over_weight). A chunk's sum, or a contribution
 * that leaves a pool, is written where its weights were; from then until its UPDATE is issued they
 * are made from its master weights, of which they are the bf16: by a CONVERT into the block or
 * staging segment where a COPY would have brought them. An attempt that is void and a step that is
 * skipped leave it at that until the next update. READ of GRAD: CST_EUNSUPPORTED unless the
 * gradient is there; WRITE of WEIGHT: CST_EUNSUPPORTED, master weights set them; WRITE of MASTER:
 * CST_EBUSY while a gradient is being moved to the row.
 *
 * Two weight rows (policy.overlap EARLY, DELAYED; layout->states.two_weights). Fetches read one, an
 * update writes the other, a commit turns:
 *
 *   - EARLY. Ranks say by PREPARE what their STEP will say. Where all have, equally, and do not
 * clip, a chunk is updated as soon as its gradient is complete; the others at the commit, as is
 * everything where not all have. Fetches go on reading the old row until the commit. If the attempt
 * ends before it, the step is to be done again with the same hyper-parameters (else EMISMATCH): it
 * reads the same weights, and gradients of chunks that have had their update are dropped
 * (n_dropped); so the step has the bits of the first time, if gradients have. Until the commit
 * MASTER and moments of such a chunk cannot be read, nor any state be written (EBUSY). Where a sum
 * was made in its update its GRAD cannot be read (EUNSUPPORTED). A step that all prepared is not
 * skipped for a gradient beyond proto/limit.h: its tile keeps its states.
 *   - DELAYED, from step delay_from on (steps committed before it). Commit i turns to what update i
 * - 1 wrote, then update i is issued: step i + 1 reads weights without it. READ sees it. A WRITE of
 * weights or master weights ends the delay once: all chunks turn to their last updates.
 *
 * In INTERRUPTED and IDLE (and before the first SYNC) requests of the old attempt get EPEERDIED
 * (before the first: EINVAL, "sync first"). A surviving rank's blocks stay leased until its SYNC:
 * only then is it known that it no longer touches them. */
#ifndef CST_CORE_H
#define CST_CORE_H

#include "offload/layout.h"
#include "cistern/status.h"
#include "proto/table.h"

#define CST_CORE_MAX_WORLD 64
#define CST_CORE_NEVER UINT64_MAX
#define CST_CORE_NO_PREFETCH UINT32_MAX /* as prefetch_depth: none */

struct cst_core; /* opaque */

/* Blocks of one size class in a rank's pool. Slabs are numbered through all classes; each has
 * blocks of one class. */
struct cst_core_part {
    uint32_t n_blocks; /* 0: the layout has no such class */
    uint32_t
        blocks_per_slab; /* the class's block i lies in slab first_slab + i / blocks_per_slab */
    uint32_t first_slab;
};

struct cst_core_pool {
    struct cst_core_part parts[CST_LAYOUT_MAX_CLASSES]; /* per size class of the layout */
    const uint32_t *segments; /* segment id of each slab; borrowed for the core's life, changed with
                                 cst_core_move_pool alone */
    uint32_t engine;    /* of the GPU whose memory it is; 0: host memory, which the engine of each
                           chunk's node serves */
    bool worker_copies; /* the rank's worker copies weights in, no engine */
};

enum cst_core_eviction {
    CST_EVICT_NEXT_USE, /* what is wanted again last and is cheap to bring back */
    CST_EVICT_LRU,      /* what was used longest ago; for comparisons */
};

/* How weights come and go in a rank's pool. */
struct cst_core_policy {
    uint32_t prefetch_depth; /* weights expected next that are loaded before they are asked for; 0:
                                as many as blocks allow */
    enum cst_core_eviction eviction;
    enum cst_overlap overlap; /* EARLY, DELAYED: layout->states.two_weights */
    uint64_t delay_from;      /* DELAYED: the first step that is, counted from 0 */
    uint64_t gather_bytes; /* GPUs that want the same weights load pieces of at least so many bytes
                              and exchange them; 0: each loads all */
};

#define CST_CORE_MAX_ROOMS 8

/* Memory of an accelerator in which chunks can be updated: their states go up, are updated there,
 * and come down. */
struct cst_core_room {
    uint32_t engine;  /* of the accelerator, as in cst_command.node */
    uint32_t segment; /* id of its memory */
    uint64_t bytes;   /* of it */
};

struct cst_core_config {
    const struct cst_model *model; /* borrowed for the core's life, as is layout */
    const struct cst_layout *layout;
    uint32_t world;                    /* ranks, 1..CST_CORE_MAX_WORLD */
    const uint32_t *arena_segments;    /* segment id per layout segment; borrowed */
    uint32_t table_segment;            /* segment id of the job table */
    const struct cst_core_pool *pools; /* one per rank; copied */
    uint64_t first_ticket;             /* tickets count up from here */
    uint64_t
        peer_timeout_ns; /* how long SYNC and STEP wait for other ranks; CST_CORE_NEVER: for ever */
    uint64_t step;       /* steps committed before (0 for a new job) */
    struct cst_core_policy policy;
    uint32_t micro_batches; /* per step, at most; 0 and 1: one. With more, layout->grad_bytes must
                               be 4 */
    const struct cst_core_room *rooms; /* copied */
    uint32_t n_rooms;                  /* 0..CST_CORE_MAX_ROOMS */
    uint32_t interleave; /* k: of each k chunks of a node in a row one is updated in a room; 0:
                            none. See cst_core_set_interleave */
    uint64_t seed;       /* of stochastic rounding; for the table */
    enum cst_rounding rounding; /* same */
};

struct cst_hyper {
    float lr, beta1, beta2, eps, weight_decay;
    float clip_norm;  /* 0: none */
    float grad_scale; /* 1: gradients as they are */
};

/* -- commands to engines -------------------------------------------------------------------- */

enum cst_command_kind {
    CST_COMMAND_COPY = 1, /* numbers as in proto/engine.proto */
    CST_COMMAND_REDUCE = 2,
    CST_COMMAND_NORM = 3,
    CST_COMMAND_UPDATE = 4,
    CST_COMMAND_FILL = 5,
    CST_COMMAND_CONVERT = 6,
};

enum cst_priority { CST_PRIORITY_DEMAND = 0, CST_PRIORITY_PREFETCH = 1, CST_PRIORITY_EVICTION = 2 };

#define CST_COMMAND_MAX_AFTER 8
#define CST_COMMAND_MAX_ROWS 4
#define CST_COMMAND_MAX_INSTEAD 4

struct cst_command_row {
    enum cst_row row;
    struct cst_place place;
};

struct cst_command {
    enum cst_command_kind kind;
    enum cst_priority priority;
    bool newest_first; /* before those of its priority that its engine was given earlier and has not
                          begun */
    uint64_t ticket;
    uint64_t after[CST_COMMAND_MAX_AFTER]; /* tickets, of any engine, that must complete first */
    uint32_t n_after;
    bool told; /* those of its own engine, too, must have been told to be complete before the engine
                * is given it: it overwrites what they would read if they were sent again, after a
                * restart; or it must fail with them, which an engine forgets when it restarts */
    bool forgiven; /* that it failed is not passed on: what comes after it goes on, unless another
                    * command has come `instead`. So that comes, in its own engine, too, only when
                    * this one was told to be complete */
    uint64_t
        instead[CST_COMMAND_MAX_INSTEAD]; /* tickets under way, of commands that failed or will:
                                             what was to come after them comes after this one */
    uint32_t n_instead;
    bool io;       /* It reads or writes a staging segment, which may be gone once the request is
                      answered. */
    uint32_t node; /* which engine: a chunk's node's, or a pool's */
    struct cst_place src[CST_CORE_MAX_WORLD]; /* COPY: 1; REDUCE, fused UPDATE: contributions in
                                                 rank order; CONVERT: 1 */
    uint32_t n_src;
    struct cst_place dst[4]; /* COPY, FILL: 1; CONVERT: master, weight, exp_avg, exp_avg_sq (where
                                the optimizer has it) */
    uint32_t n_dst;
    uint64_t bytes;   /* COPY, FILL */
    uint64_t n_elems; /* CONVERT */
    uint32_t table;   /* REDUCE, NORM, UPDATE: segment id of the job table */
    uint32_t chunk;   /* all but NORM; engines are told it with REDUCE and UPDATE */
    uint64_t mark;    /* REDUCE: number of the reduction; UPDATE: adam step t, from 1 */
    bool accumulate;  /* REDUCE into an fp32 row: begin with what is there, then add the sources in
                         order */
    struct cst_command_row in[CST_COMMAND_MAX_ROWS]; /* UPDATE: rows that are not where the table
                                                        says; as in engine.proto */
    struct cst_command_row out[CST_COMMAND_MAX_ROWS];
    uint32_t n_in, n_out;
    bool guard;                /* UPDATE: as in engine.proto */
    enum cst_row row;          /* CONVERT with encode or decode, as are first and row_elems */
    bool encode, decode;       /* fp32 to a moments row of the format `moments`; back */
    enum cst_moments moments;  /* CONVERT: of moments that are encoded or decoded, or cleared where
                                  master and weight are written */
    uint64_t first, row_elems; /* 0, 0: all n_elems of fp32 rows are cleared, which begin at dst[2]
                                  and dst[3] */
    struct cst_hyper hyper;    /* UPDATE; grad_scale holds scale x clip */
};

/* -- events --------------------------------------------------------------------------------- */

enum cst_event_kind {
    CST_EV_ATTACH, /* rank has a worker (again). After HANGUP without DEAD: the same process, whose
                      quarantine lasts until its SYNC */
    CST_EV_HANGUP, /* rank's connection is gone, its process perhaps not: grant nothing more, its
                      blocks are quarantined */
    CST_EV_DEAD,   /* rank's process is gone: reclaim. After HANGUP or alone */
    CST_EV_LEAVE,  /* rank goes in good order, tag */
    CST_EV_SYNC,   /* rank, tag */
    CST_EV_FETCH_WEIGHT, /* rank, tag, attempt, chunk, ahead */
    CST_EV_FETCH_GRAD,   /* rank, tag, attempt, chunk, ahead */
    CST_EV_RELEASE, /* rank, tag, attempt, chunk, generation. Of a gradient: changes nothing, it is
                       leased until it is handed in */
    CST_EV_HAND_IN, /* rank, tag, attempt, chunk, generation: REDUCE_SCATTER */
    CST_EV_ACCUMULATE, /* rank, tag, attempt. Ends the rank's micro-batch: its waiting gradient
                          fetches and open gradients; EINVAL: it is the step's last */
    CST_EV_WANT, /* rank, tag, attempt, chunk: the worker waits now for the weights that it asked
                    for ahead */
    CST_EV_PREFETCH, /* rank, tag, attempt, chunk */
    CST_EV_EVICT,    /* rank, tag, attempt, chunk */
    CST_EV_PREPARE,  /* rank, tag, attempt, hyper: of the STEP to come; EARLY alone. EMISMATCH, and
                        the attempt is over: another rank's differs, or updates begun before */
    CST_EV_STEP,     /* rank, tag, attempt, hyper, loss. Ends the rank's waiting fetches and open
                        gradients; nothing more of the step is granted */
    CST_EV_READ,  /* tag, tensor, row, first, n_elems, place (staging): any time; EBUSY: a grad row
                     that holds a contribution, no sum */
    CST_EV_WRITE, /* same; EBUSY once a rank has fetched, handed in or asked for the step, until the
                     commit or the attempt's end */
    CST_EV_CANCEL, /* rank, tag, cancel (the tag to cancel): its reply comes first, then this one's
                    */
    CST_EV_DONE,   /* ticket, status, value */
    CST_EV_TICK,   /* nothing but the time */
    CST_EV_NODE_DOWN, /* text: the engine of a node, which has commands of this job, was given up;
                         it keeps those that are not io */
};

struct cst_event {
    enum cst_event_kind kind;
    uint64_t now; /* ns, monotonic; never decreases */
    uint64_t tag; /* of the request; != 0 where a reply is wanted */
    uint32_t rank;
    uint64_t attempt;
    uint32_t chunk;
    uint64_t generation;
    bool ahead;
    struct cst_hyper hyper;
    double loss;
    uint32_t tensor;
    enum cst_row row;
    uint64_t first, n_elems; /* elements of the tensor */
    struct cst_place place;
    uint64_t cancel;
    uint64_t ticket;
    int status;
    double value;
    const char *text; /* DONE with a status: the engine's words, may be NULL */
};

/* -- actions -------------------------------------------------------------------------------- */

enum cst_action_kind { CST_ACT_COMMAND, CST_ACT_REPLY, CST_ACT_LOG };

/* Final reply to a tag. Which fields count is told by the request. */
struct cst_reply {
    uint64_t tag;
    int status;
    uint32_t slab;       /* FETCH: slab number (not segment id) */
    uint64_t offset;     /* FETCH: bytes in the slab */
    uint64_t generation; /* FETCH */
    bool hit; /* FETCH_WEIGHT: no copy was needed; FETCH_GRAD: the block holds gradients of an
                 earlier lease */
    struct cst_place
        home; /* FETCH_WEIGHT with home_bytes: the row that the worker copies into the block */
    uint64_t home_bytes;    /* of it; 0: the weights are there */
    uint64_t attempt, step; /* SYNC; STEP: step */
    bool skipped;           /* STEP */
    double grad_norm, loss; /* STEP */
    float clip;             /* STEP */
    uint64_t n_skipped;     /* STEP */
    bool overflow; /* STEP: gradients were beyond proto/limit.h: skipped, or tiles spared */
    struct cst_err
        err; /* words, where status != 0. Last: the rest of it is not cleared for each reply */
};

struct cst_action {
    enum cst_action_kind kind;
    union {
        struct cst_command command;
        struct cst_reply reply;
        struct cst_err log; /* one line for the daemon's log */
    };
};

struct cst_actions {
    struct cst_action *v;
    size_t n, capacity;
};

void cst_actions_init(struct cst_actions *actions);
void cst_actions_close(struct cst_actions *actions);

/* -- the core ------------------------------------------------------------------------------- */

/* CST_EINVAL: micro-batches without fp32 grad rows; early or delayed updates without a second
 * weight row; a pool smaller than its class's min_blocks; gradients over the weights with a pool
 * whose worker copies; CST_ENOMEM. */
int cst_core_open(struct cst_core **out, const struct cst_core_config *config, struct cst_err *err);
void cst_core_close(struct cst_core *core);

/* Digest @event. @actions is emptied first. Carry the actions out in order. Never fails: what is
 * wrong with a request is in its reply. Give the same @actions each time: room in it is kept for
 * what is under way, so that only a new request can be short of memory (CST_ENOMEM).
 *
 * Ends of waits: DONE of every command; else peer_timeout_ns, at which a SYNC names the missing
 * ranks, a STEP does and ends the attempt, and a fetch that waits for a block says where the blocks
 * are. With bf16 grad rows, three ranks and more in a group, pools near min_blocks and ranks that
 * open different gradients (an expert without tokens in some of them), that last deadline can be
 * what ends the step: a bf16 row takes one contribution before its sum. Groups of one or two are
 * safe, as is everybody with fp32 rows. */
void cst_core_step(struct cst_core *core, const struct cst_event *event,
                   struct cst_actions *actions);

/* Nothing is in the way of another place for @rank's pool. CST_EBUSY: the rank is attached, or
 * something is still copied to or from a block of it; or its accelerator is @gone, and another rank
 * is attached whose pool is there and who has not heard so. */
int cst_core_may_move(const struct cst_core *core, uint32_t rank, bool gone, struct cst_err *err);

/* It is @pool now: another accelerator's memory, or the host's. Its parts are as they were, the
 * segments' ids are where they were. */
void cst_core_move_pool(struct cst_core *core, uint32_t rank, const struct cst_core_pool *pool);

/* Prefetch as deep as @depth, as in cst_core_policy, from the next look ahead on. */
void cst_core_set_prefetch(struct cst_core *core, uint32_t depth);

/* From the next commit on, of each @k chunks of a node in a row, in the order of the updates, the
 * last one is updated in a room; 0: none (k = infinity), 1: all. No effect without rooms; a chunk
 * that does not fit in any is updated by its node. The result does not depend on it. */
void cst_core_set_interleave(struct cst_core *core, uint32_t k);

/* When the core next wants a TICK at the latest (ns), or CST_CORE_NEVER. */
uint64_t cst_core_deadline(const struct cst_core *core);

/* NULL, or the name of an invariant that does not hold. For tests; O(everything). */
const char *cst_core_check(const struct cst_core *core);

/* Blocks of a pool by state; they sum to capacity. */
struct cst_books {
    uint32_t capacity, free, cached, leased, moving, pending, quarantined;
};

enum cst_rank_state {
    CST_RANK_ABSENT,
    CST_RANK_ATTACHED,
    CST_RANK_LEFT,
    CST_RANK_HUNG_UP,
    CST_RANK_DEAD
};

struct cst_rank_stats {
    enum cst_rank_state state;
    struct cst_books books;                               /* of all size classes together */
    struct cst_books class_books[CST_LAYOUT_MAX_CLASSES]; /* of each */
    /* Fetches of weights, each counted once. */
    uint64_t hits;   /* the weights were in a block before the worker waited for them */
    uint64_t late;   /* they were on their way there when they were asked for, and the worker waited
                        for the rest of it */
    uint64_t misses; /* they were neither */
    uint64_t weight_wait_ns; /* in which the worker waited for weights, whichever of the three they
                                were */
    uint64_t prefetches, evictions, surprises, waits;
    uint64_t bytes_up, bytes_down;
    uint64_t bytes_peer; /* out of peers' pools, beside bytes_up */
    uint32_t micro;      /* micro-batch of the step that it is in, from 0 */
};

enum cst_core_phase {
    CST_PHASE_READY,
    CST_PHASE_RUNNING,
    CST_PHASE_IDLE,
    CST_PHASE_INTERRUPTED,
    CST_PHASE_FAILED
};

struct cst_core_stats {
    enum cst_core_phase phase;
    bool initialised; /* a SYNC has completed */
    bool closing; /* every rank asked for the step; it is committed as soon as engines are done */
    uint64_t attempt, step, n_skipped;
    uint64_t n_overflows; /* steps whose gradients were beyond proto/limit.h, the skipped ones among
                             them */
    uint64_t adam_step;   /* updates applied */
    uint32_t chunks_clean, chunks_updating, chunks_reducing;
    uint32_t chunks_ahead; /* EARLY: whose update of the step that is not committed was issued */
    uint64_t n_dropped; /* EARLY: gradients handed in again for chunks that had their update before
                           the step was interrupted */
    uint64_t commands_in_flight;
    double last_loss, last_grad_norm;
    uint64_t last_step_ns;     /* commit to commit */
    uint32_t interleave;       /* k that is in force; 0: none */
    uint64_t n_updates;        /* of chunks, completed */
    uint64_t n_device_updates; /* of them, in rooms or on device states */
    uint64_t n_room_failures;  /* commands of updates in rooms that failed and were made good */
    uint32_t n_rooms_given_up; /* rooms in which too many did, or whose engine is gone: no chunk
                                  goes there any more but those whose states are there */
    uint64_t n_rounds; /* steps whose updates are all done, or were when the next one's began */
    uint32_t last_interleave; /* k of the last of them; 0: none. (`interleave` can be of the next
                                 one already) */
    uint64_t last_update_ns;  /* of the last step whose updates are all done: in which at least one
                                 of them was under way, issued and not done */
    uint64_t last_exposed_ns; /* by which the last committed step would have been shorter if updates
                                 took no time, see instant.c */
    uint64_t update_ns, exposed_ns; /* both, over all steps */
};

void cst_core_rank_stats(const struct cst_core *core, uint32_t rank, struct cst_rank_stats *out);
void cst_core_stats(const struct cst_core *core, struct cst_core_stats *out);

/* For whom ranks wait that have asked for a sync, or for the step's commit: "rank 1 (died in step
 * 4), rank 3 (never attached)". "": none waits for another. */
void cst_core_waits(const struct cst_core *core, char *text, size_t size);

/* Write sentences, for a person, into @lines (each NUL-terminated, at most @max): where chunk
 * @chunk is in every tier and rank, in which state, and why (next use, who waits, why it was
 * evicted last). Returns how many were written. */
unsigned cst_core_explain(const struct cst_core *core, uint32_t chunk, char lines[][192],
                          unsigned max);

/* Fill the job table's chunks and spans (header counts set by cst_table_size; spans: tensors that
 * are not frozen) and grad_bytes from the layout. @table has header->total_bytes. */
void cst_core_write_table(const struct cst_core_config *config, struct cst_table_header *table);

#endif
