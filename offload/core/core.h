/* SPDX-License-Identifier: Apache-2.0 */
/* The state machine of one job. It takes an event and fills a list of actions. It does no I/O,
 * starts no threads and reads no clock: the daemon drives it with real engines, tests/sim and the
 * planner drive it with a virtual clock. Only one thread may use a core at a time.
 *
 *   event (request, completion, death, tick) -> cst_core_step() -> actions (commands, replies)
 *
 * Engines. Which engine executes a command:
 *
 *   - UPDATE, CONVERT and copies between arenas and staging segments: the engine of the chunk's
 *     node.
 *   - NORM: engine 0.
 *   - Copies between a pool and an arena: the engine of the pool's GPU; for a pool in host memory,
 *     the engine of the chunk's node.
 *   - REDUCE: the engine that offload/gradient/reduce_site.h chooses.
 *
 * Therefore a command's `after` can name tickets of other engines. The driver gives the command to
 * its engine only when those tickets are complete. If a command fails, the commands that wait for
 * it fail with CST_ECANCELLED, unless it is `may_fail`. A ticket that is not in flight counts as
 * complete.
 *
 * Replies and completions. Each request carries a tag, which gets exactly one CST_ACT_REPLY, from
 * the same call or from a later one. Each command carries a ticket; tickets increase. The driver
 * must send exactly one CST_EV_DONE for each ticket, whatever happens to the engine in the
 * meantime.
 *
 * The phases of a job, as the core sees them:
 *
 *   all ranks SYNC --> RUNNING (attempt a, step s) --all ranks STEP--> commit: step s + 1
 *        ^                |                                            (same attempt)
 *        |                |
 *        +- INTERRUPTED <-+  A rank dies or leaves during a step, the accelerator of its pool is
 *        |                |  lost, a deadline passes, or the ranks' hyper-parameters differ:
 *        |                |  waiting requests are answered, contributions are dropped, updates of
 *        |                |  committed steps go on.
 *        |                |
 *        +- IDLE <--------+  A rank leaves before any other rank has begun the next step: nothing
 *                            is lost. INTERRUPTED becomes IDLE when all ranks have left in good
 *                            order, unless early updates of the step have begun.
 *
 * Loss of an accelerator. The engine of a lost accelerator returns its commands with EENGINE or
 * ELOST. The pools and the device reservation in its memory are lost; states in host memory are
 * not.
 *
 *   - Any command that was to read or write a lost pool interrupts the attempt. If all ranks have
 *     asked for the step, it is committed first, unless a sum or a contribution to it is lost.
 *   - The ranks with pools there get the accelerator's name and the cause as the answer to every
 *     request, until they leave or die and attach again. Their pools may be elsewhere by then
 *     (cst_core_move_pool). The other ranks wait for them in SYNC.
 *   - Updates that were begun go on, including early updates of the current step.
 *   - The job fails if states were on the accelerator or on their way from it
 *     (offload/update/update_end.c).
 *
 * Loss of a node's engine (CST_EV_NODE_DOWN): the engine died too often to be restarted at once.
 * Everything that it works on lies in host memory, and the driver keeps its commands. An engine
 * that is started later first restores what was half changed and then executes these commands, so
 * no state is lost.
 *
 *   - The attempt is interrupted, whether or not all ranks have asked for the step.
 *   - All attached ranks get the cause as the answer to every request, until they attach again.
 *   - Commands to and from staging segments (`io`) are not kept, because their requests are
 *     answered: these commands fail.
 *   - A failed WRITE of master weights fails the job, and so does a command that the driver has
 *     kept too often.
 *
 * A failed job does not train any more. Its rows can still be READ, except those of chunks for
 * which a command failed that was to change them.
 *
 * Copies of weights into a pool. An engine makes them with COPY commands, unless the pool has
 * worker_copies: then the rank's worker makes them. In such a pool a FETCH_WEIGHT is answered as
 * soon as a block is free and the chunk's update and writes are done. The reply says where the row
 * is (`home`).
 *
 *   - The row is not written while the worker reads it. Updates are issued at a commit (early
 *     updates are issued before, and write the other weight row), a commit needs the STEP of every
 *     rank, and a worker sends STEP when all its copies are done. WRITEs are refused from the first
 *     fetch to the commit. A worker that breaks this rule, or an attempt that is interrupted, can
 *     leave torn weights only in blocks leased by that worker. These blocks are then STALE and are
 *     granted to nobody.
 *   - The block is leased until its release, so it cannot be evicted. If the rank fetches the chunk
 *     again before, the reply has `home` again and is not a hit.
 *   - RELEASE means that the weights are in the block: from then on the block is cached as if an
 *     engine had filled it.
 *   - A lease that ends by death, leave or sync does not mean that: its block becomes free. A
 *     worker that goes on sends SYNC after its copies have ended. The blocks of a worker that hung
 *     up stay in quarantine until it is dead.
 *   - Such a pool is loaded by fetches only. PREFETCH does nothing and the trace is not followed:
 *     the worker fetches ahead itself.
 *
 * Groups. The sum of a chunk waits only for the ranks in its group (chunk.ranks of the layout).
 * Other ranks can neither fetch the chunk nor hand in its gradient (CST_EINVAL). SYNC and STEP
 * concern all ranks. A frozen chunk has no gradient (CST_EINVAL), no sum and no update. Its MASTER,
 * moments and GRAD cannot be read (CST_EUNSUPPORTED); a WRITE of its MASTER sets the weights. A
 * chunk of a base job cannot be written (CST_EDENIED).
 *
 * Micro-batches. Each rank counts its own: ACCUMULATE ends a micro-batch, STEP ends the last one. A
 * chunk collects one micro-batch at a time: what a rank hands in during its micro-batch m is added
 * when the group's contributions to micro-batch m - 1 are all in the row. A rank that ends
 * micro-batch m without handing in contributes zero. A rank that is ahead and opens the gradient
 * again waits until its previous contribution is in the row.
 *
 * An fp32 row takes contributions as they come, in the order of micro-batches and, in each
 * micro-batch, of ranks. Each addition is rounded to fp32, whether it has a command of its own or
 * not. Therefore, if a pool is short of blocks, the contributions of the first ranks can be added
 * before the last ones have come, with the same bits. (They cannot be spilled like a contribution
 * to a bf16 row, because an fp32 row holds the sum so far.) No rank can be blocked by this: of the
 * ranks in the earliest micro-batch, the lowest one can always empty its pool.
 *
 * Gradients in the weight row (layout's states.grad_over_weight). A chunk's sum, or a contribution
 * that leaves a pool, is written to the weight row. From then until the chunk's UPDATE is issued,
 * weights are made from the master weights, of which they are the bf16 rounding, by a CONVERT into
 * the block or staging segment in place of a COPY. This stays so after an interrupted attempt or a
 * skipped step, until the next update. READ of GRAD gets CST_EUNSUPPORTED unless the row holds the
 * gradient. WRITE of WEIGHT gets CST_EUNSUPPORTED: a WRITE of MASTER sets the weights. WRITE of
 * MASTER gets CST_EBUSY while a gradient is being moved to the row. The gradients of fp32 tensors
 * have rows of their own all the same.
 *
 * fp32 tensors. Their weight row is the master row, too: READ and WRITE of MASTER use it, and an
 * UPDATE reads it as it reads the weights of split masters. Contributions to their gradients are
 * fp32, as their grad rows are, but what was said above of bf16 rows holds for these grad rows, if
 * there are no micro-batches: they keep one spilled contribution, and take a sum whole.
 *
 * Two weight rows (policy.overlap EARLY or DELAYED; layout->states.two_weights). Fetches read one
 * row, an update writes the other, and a commit switches the rows:
 *
 *   - EARLY. By PREPARE a rank announces the hyper-parameters of its STEP. If all ranks have
 *     announced the same ones and do not clip, a chunk is updated as soon as its gradient is
 *     complete. All other updates are issued at the commit. Fetches read the old row until the
 *     commit. If the attempt is interrupted before it, the step must be repeated with the same
 *     hyper-parameters (else EMISMATCH). The repetition reads the same weights, and gradients of
 *     chunks that are already updated are dropped (n_dropped). So the step has the same bits as in
 *     the first attempt, provided that the gradients have. Until the commit, MASTER and moments of
 *     an updated chunk cannot be read, and no state can be written (EBUSY). If the sum was made
 *     within the update, GRAD cannot be read (EUNSUPPORTED). A step that all ranks prepared is not
 *     skipped because of a gradient beyond proto/grad_limit.h: its tile keeps its states.
 *   - DELAYED, from step delay_from on (the number of steps committed before it). Commit i switches
 *     to the row that update i - 1 wrote, then update i is issued: step i + 1 reads weights without
 *     it. READ returns the newest weights. A WRITE of weights or master weights ends the delay
 *     once: all chunks switch to their last updates.
 *
 * Stages (model->n_stages > 0). The job is dispatched: by NEXT a rank asks what it may do, and the
 * core answers with a unit, which is a stage, a micro-batch and a direction
 * (offload/schedule/dispatch.h). The next NEXT names the unit, and says that it is done. Instead of
 * ACCUMULATE, units separate micro-batches. The differences to other jobs:
 *
 *   - Ranks come and go. An attempt begins when all ranks that are attached have sent SYNC, and
 *     goes on when a rank dies, leaves, or sends SYNC again: its unit is given to another one. A
 *     rank that sends SYNC later joins the attempt that runs. The attempt is interrupted when no
 *     rank is left in it, or for a reason other than a rank's end.
 *   - The process of a rank that hung up may still write to the memory for activations, as may
 *     another rank that does its unit again. Its unit is therefore kept until the process is dead,
 *     or the driver has given the ranks other memory (CST_EV_SHUT_OUT). The latter ends the
 *     attempt, because what was put in this step is in the old memory: the step is done again.
 *   - A chunk collects the contributions of units in a fixed order: those of the last stage that
 *     uses the chunk by micro-batch, then those of the stage before it. Each is one addition in
 *     fp32, so the sum depends neither on the number of ranks nor on who computed what. What a dead
 *     rank has handed in counts. If another rank does the unit again, it hands in the same bits,
 *     which are dropped (n_dropped).
 *   - STEP is accepted when all units are done. The step is committed when all ranks that take part
 *     have sent it. The loss is the mean over the micro-batches, from the NEXTs of the last stage.
 *   - The trace of a rank predicts units of the pass that it keeps, and nothing about its next
 *     pass: nothing is prefetched. When a rank gets a unit of a stage or direction that it does not
 *     keep, the weights in its pool are dropped. Therefore a rank loads as much for a pass as any
 *     other would; if the pool has room for the stage, its weights are loaded once.
 *   - Several micro-batches are needed, and updates that are not early. All ranks hold all tensors.
 *
 * In INTERRUPTED and IDLE, requests of the old attempt get EPEERDIED. Before the first SYNC they
 * get EINVAL ("sync first"). The blocks of a surviving rank stay leased until its SYNC, because
 * only then is it known that the worker no longer uses them. */
#ifndef CST_CORE_H
#define CST_CORE_H

#include "offload/base/command.h"
#include "offload/schedule/dispatch.h"
#include "offload/base/stats.h"
#include "offload/layout/layout.h"
#include "cistern/status.h"
#include "proto/table.h"

#define CST_CORE_NEVER UINT64_MAX
#define CST_CORE_NO_PREFETCH UINT32_MAX /* Value of prefetch_depth: no prefetch. */

struct cst_core;
struct cst_core_record;

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
    /* Engine of the GPU whose memory the pool is. 0: host memory, which is served by the engine of
     * each chunk's node. */
    uint32_t engine;
    bool worker_copies; /* The rank's worker copies weights into the pool itself. */
    /* Engines of GPUs whose memory the pool's GPU cannot access, one bit each. */
    uint64_t unreachable;
};

enum cst_core_eviction {
    /* Evict the block that is used again last, weighted by the cost to bring it back. */
    CST_EVICT_NEXT_USE,
    CST_EVICT_LRU, /* Evict the least recently used block; for comparisons. */
};

/* Eviction, prefetch and times of updates. */
struct cst_core_policy {
    /* Number of expected weights to load before they are asked for. 0: as many as blocks allow. */
    uint32_t prefetch_depth;
    enum cst_core_eviction eviction;
    enum cst_overlap overlap; /* EARLY and DELAYED need layout->states.two_weights. */
    uint64_t delay_from; /* DELAYED: the first step, counted from 0, whose update is delayed. */
    /* GPUs that want the same weights load one piece each, of at least this many bytes, and
     * exchange the pieces. 0: each GPU loads everything itself. */
    uint64_t gather_bytes;
};

#define CST_CORE_MAX_UPDATE_DEVICES 8

/* Device reservation: an accelerator's memory for device updates. The states of a chunk are copied
 * there, updated, and copied back. */
struct cst_core_device_reservation {
    uint32_t engine;  /* The accelerator's engine, numbered as in cst_command.node. */
    uint32_t segment; /* Id of the segment that is this memory. */
    uint64_t bytes;   /* Size of the memory. */
    /* The memory is that of empty blocks of the pool of rank `rank`, which is on the same
     * accelerator (offload/gradient/lent_memory.c); segment and bytes are not used. Chunks whose
     * states stay on the accelerator need another device reservation. */
    bool lent;
    uint32_t rank; /* With `lent`: the rank. */
};

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
     * layout->grad_bytes == 4. */
    uint32_t micro_batches;
    const struct cst_core_device_reservation *reservations; /* Copied. */
    uint32_t n_reservations;                                /* 0..CST_CORE_MAX_UPDATE_DEVICES. */
    /* Initial k: one of every k chunks of a node gets a device update; 0: none. See
     * cst_core_set_interleave. */
    uint32_t interleave;
    /* The host memory of the job's own arenas is new, and therefore zero. Moments are not cleared
     * there before they are first written. */
    bool arenas_are_new;
    uint64_t seed;              /* Seed of stochastic rounding, for the job table. */
    enum cst_rounding rounding; /* Rounding of weights, for the job table. */
};

/* -- events --------------------------------------------------------------------------------- */

/* Each comment names the fields of struct cst_event that the event uses in addition to kind and
 * now, and special statuses of its reply. */
enum cst_event_kind {
    /* rank. The rank has a worker (again). After HANGUP without DEAD it is the same process, whose
     * quarantine lasts until its SYNC. */
    CST_EV_ATTACH,
    /* rank. The rank's connection is closed, but its process may still run: grant nothing more and
     * quarantine its blocks. */
    CST_EV_HANGUP,
    /* rank. The rank's process is dead: reclaim its blocks. Comes after HANGUP or alone. */
    CST_EV_DEAD,
    /* rank. Only after HANGUP, in a dispatched job; else it has no effect. What the ranks of the
     * next attempt use as memory for activations is memory that the rank's process cannot write.
     * The attempt ends, and no attempt waits for the rank. Its blocks stay in quarantine. */
    CST_EV_SHUT_OUT,
    CST_EV_LEAVE,        /* rank, tag. The rank leaves in good order. */
    CST_EV_SYNC,         /* rank, tag. The rank is ready for the next attempt. */
    CST_EV_FETCH_WEIGHT, /* rank, tag, attempt, chunk, ahead. */
    CST_EV_FETCH_GRAD,   /* rank, tag, attempt, chunk, ahead. */
    /* rank, tag, attempt, chunk, generation. The release of a gradient changes nothing, because its
     * lease lasts until it is handed in. */
    CST_EV_RELEASE,
    CST_EV_HAND_IN, /* rank, tag, attempt, chunk, generation. The request REDUCE_SCATTER. */
    /* rank, tag, attempt. Ends the rank's micro-batch, its waiting gradient fetches and its open
     * gradients. EINVAL: it is the last micro-batch of the step. */
    CST_EV_ACCUMULATE,
    /* rank, tag, attempt, chunk. The worker now waits for weights that it fetched ahead. */
    CST_EV_WANT,
    CST_EV_PREFETCH, /* rank, tag, attempt, chunk. */
    CST_EV_EVICT,    /* rank, tag, attempt, chunk. */
    /* rank, tag, attempt, hyper, factors. Announces the hyper-parameters of the next STEP; has an
     * effect with EARLY only. EMISMATCH, and the attempt is over: another rank has announced other
     * ones, or updates were begun with other ones. */
    CST_EV_PREPARE,
    /* rank, tag, attempt, hyper, factors, loss, without, discarded. Ends the rank's waiting fetches
     * and open gradients; nothing more of the step is granted to it. */
    CST_EV_STEP,
    /* rank, tag, attempt, unit, names_unit, loss. The rank has done `unit`, whose loss counts if it
     * is of the last stage; answered when there is another one, or when all are done. If the rank
     * has said so before, it gets the same answer again. ETIMEDOUT: no rank has done a unit in
     * peer_timeout_ns. EINVAL: the job has no stages, or the rank has not had this unit last. */
    CST_EV_NEXT,
    /* tag, tensor, row, first, n_elems, raw, exponents, bf16, place (staging segment). Allowed at
     * any time. EBUSY: the grad row holds a contribution, not a sum. */
    CST_EV_READ,
    /* The fields of READ. EBUSY from the first fetch, hand-in or STEP of any rank until the commit
     * or the end of the attempt, and during a save. */
    CST_EV_WRITE,
    /* tag. Begin a save: the reply comes when READs see the states of one committed step, `step`,
     * until SAVE_END. EBUSY: a save exists already. */
    CST_EV_SAVE,
    /* tag. ETIMEDOUT: the save read nothing for peer_timeout_ns while a commit waited for it, and
     * was ended then. */
    CST_EV_SAVE_END,
    /* tag, counters, record. The states were written from a checkpoint: the job goes on with these
     * counters. record: of the job that they were copied from, whose last step is reported as the
     * last one; or NULL. EBUSY as WRITE. */
    CST_EV_RESTORE,
    /* tag, first, n_elems, missed. The tensors [first, first + n_elems) have missed so many of the
     * Adam steps of the next RESTORE. Those of all others are 0 after an event with first 0. Has no
     * effect if the job does not skip tensors. */
    CST_EV_MISSED,
    /* record, table. The first event of a core: go on with a job whose memory was kept
     * (offload/core/revival.h). The stats are `initialised` afterwards, unless memory is short. */
    CST_EV_REVIVE,
    /* rank, tag, cancel (the tag to cancel). The cancelled request is answered first, then this
     * one. */
    CST_EV_CANCEL,
    CST_EV_DONE, /* ticket, status, value, text. A command is complete. */
    CST_EV_TICK, /* Only the time has changed. */
    /* text. The engine of a node with commands of this job was given up. The driver keeps those
     * commands that are not io. */
    CST_EV_NODE_DOWN,
};

/* What a job has done, as far as its future depends on it. */
struct cst_counters {
    uint64_t step;      /* Steps committed. */
    uint64_t adam_step; /* Steps of the optimizer: those that were not skipped. */
    uint64_t n_skipped, n_overflows;
};

struct cst_event {
    enum cst_event_kind kind;
    uint64_t now; /* Monotonic time in ns; never decreases. */
    uint64_t tag; /* Tag of the request; not 0 if a reply is wanted. */
    uint32_t rank;
    uint64_t attempt;
    uint32_t chunk;
    uint64_t generation;
    bool ahead;
    struct cst_hyper hyper;
    /* STEP, PREPARE: the factors of which hyper.factors is the digest; NULL: they are all 1. */
    const struct cst_table_factors *factors;
    double loss;
    /* NEXT: the number of the unit that the rank has done; 0: it has had none in this step. Without
     * `names_unit`: the one that it has. */
    uint64_t unit;
    bool names_unit;
    uint32_t tensor;
    enum cst_row row;
    uint64_t first, n_elems; /* Range of elements of the tensor. */
    /* READ, WRITE: the elements have the format of the row, not fp32. Moments only; the range
     * begins and ends at multiples of CST_MX8_BLOCK or at the end of the tensor. */
    bool raw;
    bool exponents; /* With `raw` and mx8: exponents of the blocks, instead of the codes. */
    bool bf16;      /* WRITE of MASTER: the elements at `place` are bf16, not fp32. */
    /* STEP: a bit for each tensor, in the order of declaration: this rank had no gradient of it in
     * the step; it had one and discards it. Bits that are left out are 0. */
    const uint8_t *without, *discarded;
    size_t n_without, n_discarded; /* Bytes. */
    const uint64_t *missed;        /* MISSED: a number for each tensor. */
    struct cst_counters counters;
    const struct cst_core_record *record;
    struct cst_table_header *table;
    struct cst_place place;
    uint64_t cancel;
    uint64_t ticket;
    int status;
    double value;
    const char *text; /* DONE with a status: the engine's message, or NULL. */
};

/* -- actions -------------------------------------------------------------------------------- */

enum cst_action_kind {
    CST_ACT_COMMAND,
    CST_ACT_REPLY,
    CST_ACT_LOG,
    /* If the driver still holds the command `recall`, because it waits for others, the command need
     * not be executed: it fails with CST_ECANCELLED, in an event after this one. A driver may
     * ignore all recalls of an event, but not some of those that it could follow: the updates of a
     * buffer wait for each other, and one must not overtake those before it. */
    CST_ACT_RECALL,
};

/* Final reply to a tag. The request determines which fields are valid; the comments name it. */
struct cst_reply {
    uint64_t tag;
    int status;
    uint32_t slab;       /* FETCH: number of the slab (not its segment id). */
    uint64_t offset;     /* FETCH: offset of the block in the slab, in bytes. */
    uint64_t generation; /* FETCH: generation of the lease. */
    /* FETCH_WEIGHT: no copy was needed. FETCH_GRAD: the block already holds gradients of an earlier
     * lease. */
    bool hit;
    /* FETCH_WEIGHT with home_bytes != 0: the row that the worker must copy into the block. */
    struct cst_place home;
    /* FETCH_WEIGHT: bytes at `home` to copy; 0: the weights are in the block. */
    uint64_t home_bytes;
    bool has_unit;                 /* NEXT: there is a unit; false: all are done. */
    struct cst_dispatch_unit unit; /* NEXT, if has_unit. */
    uint64_t attempt, step;        /* SYNC: both. STEP, SAVE: step only. */
    bool skipped;                  /* STEP: the updates of the step were skipped. */
    double grad_norm, loss;        /* STEP. */
    float clip;                    /* STEP: the clip factor. */
    uint64_t n_skipped;            /* STEP: number of steps skipped so far. */
    /* STEP: gradients were beyond proto/grad_limit.h: the step was skipped, or the tiles kept their
     * states. */
    bool overflow;
    /* Error message, if status != 0. It is the last field because most of it is not cleared for
     * each reply. */
    struct cst_err err;
};

struct cst_action {
    enum cst_action_kind kind;
    union {
        struct cst_command command;
        struct cst_reply reply;
        struct cst_err log; /* One line for the daemon's log. */
        uint64_t recall;    /* A ticket. */
    };
};

struct cst_actions {
    struct cst_action *v;
    size_t n, capacity;
};

/* Initialise an empty list. */
void cst_actions_init(struct cst_actions *actions);
/* Free the list. The actions own nothing. */
void cst_actions_close(struct cst_actions *actions);

/* -- the core ------------------------------------------------------------------------------- */

/* CST_OK if a model that is cut into stages can be dispatched in a job with @micro_batches and
 * @overlap, or if the model has no stages. Else CST_EINVAL. */
int cst_core_check_stages(const struct cst_model *model, uint32_t micro_batches,
                          enum cst_overlap overlap, struct cst_err *err);

/* Bytes of the heap that one more entry of the record of a rank's requests can take, in the record
 * and in the phases that are learned from it. */
#define CST_CORE_TRACE_ENTRY_BYTES 68

/* Let the record of @rank's requests have at most @n entries between two steps. Requests beyond
 * that are not learned, and nothing else depends on it. Without this call there is no such limit
 * below CST_TRACE_MAX_RECORD (offload/books/trace.h), which also limits @n. */
void cst_core_limit_trace(struct cst_core *core, uint32_t rank, uint32_t n);

/* Return whether the record of @rank will soon have as many entries as it may. */
bool cst_core_trace_wants(const struct cst_core *core, uint32_t rank);

/* Bytes of the heap that a core of @layout and @world ranks takes, with @n_blocks blocks in all
 * pools, without what it learns from the workers' requests. */
uint64_t cst_core_heap_bytes(const struct cst_layout *layout, const struct cst_model *model,
                             uint32_t world, uint64_t n_blocks);

/* Open a core. The caller closes *out with cst_core_close. Statuses:
 *
 *   - CST_EINVAL: cst_core_check_stages; too many ranks or device reservations, or no rank;
 *     micro-batches without fp32
 *     grad rows; early or delayed updates without a second weight row; a pool smaller than
 *     min_blocks of a size class; gradients in weight rows with a pool whose worker copies; a chunk
 *     with states on an accelerator without a device reservation that fits it.
 *   - CST_ENOMEM. */
int cst_core_open(struct cst_core **out, const struct cst_core_config *config, struct cst_err *err);
/* Free the core; NULL is allowed. Commands in flight are forgotten. */
void cst_core_close(struct cst_core *core);

/* Process @event and replace the contents of @actions by the resulting actions, which the caller
 * must carry out in order. Never fails: errors of a request are in its reply. Use the same @actions
 * for all calls: its capacity covers what is in flight, so only a new request can run out of memory
 * (CST_ENOMEM).
 *
 * How waits end: a command by its CST_EV_DONE; all others after peer_timeout_ns at the latest, a
 * NEXT so long after the last unit was done. Then a SYNC is answered with the missing ranks; a STEP
 * is, too, and the attempt ends; a fetch that waits for a block is answered with the states of the
 * blocks.
 *
 * That last deadline can end a step in one case: bf16 grad rows, groups of three or more ranks,
 * pools near min_blocks, and ranks that open different gradients (an expert without tokens in some
 * ranks). A bf16 row takes only one contribution before its sum. Groups of one or two ranks are
 * safe, and so are all groups with fp32 rows. */
void cst_core_step(struct cst_core *core, const struct cst_event *event,
                   struct cst_actions *actions);

/* Bytes in a staging segment of @n_elems elements of row @row of a tensor of @dtype, with `raw` and
 * `exponents` as in struct cst_event. Elements that are `bf16` have 2 bytes instead. */
uint64_t cst_core_io_bytes(const struct cst_layout_states *states, enum cst_dtype dtype,
                           enum cst_row row, bool raw, bool exponents, uint64_t n_elems);

/* CST_OK if @rank's pool can be moved. CST_EBUSY: the rank is attached; a block of the pool is in
 * use or being copied; or its accelerator is lost (@gone) and another attached rank has a pool
 * there and has not been told. */
int cst_core_may_move(const struct cst_core *core, uint32_t rank, bool gone, struct cst_err *err);

/* Replace the place of @rank's pool by that of @pool: memory of another accelerator or of the host.
 * The blocks and slabs stay the same. The caller has changed the ids in the array `segments`. */
void cst_core_move_pool(struct cst_core *core, uint32_t rank, const struct cst_core_pool *pool);

/* The slabs of @rank's pool that can have the only results of device updates, because the pool
 * lends its memory: their number, from slab *@first on; 0: there are none. A driver whose job is to
 * go on after its own death keeps them, and gives the new core a pool with these slabs in their
 * places. */
uint32_t cst_core_lent_slabs(const struct cst_core *core, uint32_t rank, uint32_t *first);

/* Set prefetch_depth of cst_core_policy, from the next look ahead on. */
void cst_core_set_prefetch(struct cst_core *core, uint32_t depth);

/* Set k of device updates, from the next commit on: the last of every @k consecutive chunks of a
 * node, in the order of updates, gets a device update. 0: none (k = infinity); 1: all. Has no
 * effect without device reservations. A chunk that fits no device reservation is updated by its
 * node. Results do not depend on k. */
void cst_core_set_interleave(struct cst_core *core, uint32_t k);

/* The latest time at which the core needs a TICK, in ns; or CST_CORE_NEVER. */
uint64_t cst_core_deadline(const struct cst_core *core);

/* Check all invariants: NULL, or the name of one that does not hold. For tests; slow. */
const char *cst_core_check(const struct cst_core *core);

/* Number of the last attempt that is over; 0: none is. */
uint64_t cst_core_attempt_over(const struct cst_core *core);

/* Return whether the core has device reservation @what and has not given it up (stats.h). Compared
 * are `engine`, `lent` and, if the memory is lent, `rank`. */
bool cst_core_uses_reservation(const struct cst_core *core,
                               const struct cst_core_device_reservation *what);

/* Statistics of a rank, and of the job. */
void cst_core_rank_stats(const struct cst_core *core, uint32_t rank, struct cst_rank_stats *out);
void cst_core_stats(const struct cst_core *core, struct cst_core_stats *out);

/* Return CST_OK if @attempt runs. Otherwise *err says why not: CST_EPEERDIED if the attempt is
 * over, CST_EINVAL if it was never begun, or why the job failed. */
int cst_core_check_attempt(const struct cst_core *core, uint64_t attempt, struct cst_err *err);

/* Fill in how many Adam steps each tensor had no gradient in, in the order of declaration; 0 if the
 * job does not skip such tensors. */
void cst_core_missed_steps(const struct cst_core *core, uint64_t *missed);

/* True if other ranks wait for @rank, or will, which hung up: CST_EV_SHUT_OUT ends that. */
bool cst_core_held_up_by(const struct cst_core *core, uint32_t rank);

/* Write the ranks into @text for which others wait in SYNC or STEP: "rank 1 (died in step 4), rank
 * 3 (never attached)". Empty if no rank waits for another. */
void cst_core_waits(const struct cst_core *core, char *text, size_t size);

/* Write sentences for people into @lines, each NUL-terminated, at most @max: where chunk @chunk is
 * in host memory and in each rank, in which state, and why (next use, waiting fetches, last
 * eviction). Returns the number of lines. */
unsigned cst_core_explain(const struct cst_core *core, uint32_t chunk, char lines[][192],
                          unsigned max);

/* Fill the chunks, the spans and grad_bytes of the job table from the layout. Spans are the tensors
 * that are not frozen. cst_table_size has set the counts in the header. @table has
 * header->total_bytes. */
void cst_core_write_table(const struct cst_core_config *config, struct cst_table_header *table);

/* True if a new core over the same rows would read the same states: fetches read the first weight
 * row of every chunk, and it has the newest weights. Updates may be in flight. */
bool cst_core_is_plain(const struct cst_core *core);

/* The job is restored to Adam step @adam_step: clear the marks of later UPDATEs, so that none of
 * the updates to come is taken for one that is done. No UPDATE is in flight. */
void cst_core_forget_updates(struct cst_table_header *table, uint64_t adam_step);

#endif
