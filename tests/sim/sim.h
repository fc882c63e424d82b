/* SPDX-License-Identifier: Apache-2.0 */
/* Simulates a whole job in one thread: the core; engines that complete commands in any legal order;
 * workers that train, die, send invalid requests and return; and a tool that reads and writes
 * states. One seeded generator chooses everything that happens. */
#ifndef SIM_H
#define SIM_H

#include "tests/sim/memory.h"

#define SIM_MAX_CHUNKS 32
#define SIM_MAX_JOBS 1024
#define SIM_MAX_TAGS 512
#define SIM_MAX_OPS 24
#define SIM_MAX_RANKS 4
#define SIM_MAX_MICRO 4
#define SIM_MAX_SEGMENTS 64
#define SIM_NO_CHUNK UINT32_MAX

/* -- engines -------------------------------------------------------------------------------- */

/* State of a command at an engine. */
enum job_state { JOB_WAITING, JOB_RUNNING, JOB_FINISHED };

/* A command that was issued to an engine. */
struct job {
    enum job_state state;
    struct cst_command command;
    int status;   /* JOB_FINISHED: the status of the command */
    bool doomed;  /* the command will fail at its end */
    bool is_void; /* NORM: the attempt was interrupted, because a node's engine was given up */
    /* The command will not begin, because a command that it waits for has failed. */
    bool cancelled;
    /* The driver keeps the command until it was told the end of all commands that this one waits
     * for. */
    bool held;
    uint64_t value;   /* the number that the command will write; unused for UPDATE and SET_MASTER */
    uint64_t changes; /* `changes` of the command's sources when it began */
    bool begun;       /* UPDATE: the command has begun at least once */
    uint64_t order;   /* JOB_FINISHED: position among all finished commands */
    uint64_t sum;     /* UPDATE: the sum of gradients that the update must read */
    /* UPDATE: numbers of the tensors' newest weights before the update */
    uint64_t weights[SIM_MAX_CHUNKS];
    /* UPDATE, writes: numbers before the command, per row and per tensor of the chunk */
    uint64_t old[MEMORY_ROWS][SIM_MAX_CHUNKS];
};

/* -- reservations ------------------------------------------------------------------------------ */

#define SIM_MAX_RESERVATIONS 3
#define SIM_MAX_RESERVATION_ROWS 256

/* A row in a reservation's memory, or in lent blocks: what was copied there, or what an update
 * wrote there. */
struct reservation_row {
    uint32_t segment;
    uint64_t offset, bytes;
    uint64_t stamp;   /* lent blocks: `changes` of the blocks since the row was last written */
    uint64_t changes; /* counts the beginning and the end of each write */
    unsigned writers; /* writes under way */
    uint32_t chunk;   /* the chunk to which the row belongs */
    enum cst_row row;
    uint64_t values[SIM_MAX_CHUNKS]; /* one number per tensor of the chunk */
};

/* -- workers -------------------------------------------------------------------------------- */

/* State of a rank's worker. */
enum worker_state {
    WORKER_GONE, /* no process runs */
    WORKER_HUNG, /* the connection is closed, but the process still runs */
    WORKER_IDLE, /* attached; its next request is a sync */
    WORKER_SYNCING,
    WORKER_RUN,
    WORKER_STEPPING,
};

/* A worker's lease of a block. */
struct lease {
    bool held; /* The lease was granted and not yet released. */
    uint32_t block;
    uint64_t generation;
    /* Weights: the number that the block held when the lease was granted, or that it will hold
     * after the worker's own copy. */
    uint64_t value;
    bool filling;     /* Weights: the worker is copying them into the block. */
    enum cst_row row; /* The row from which the worker copies, while `filling` is set. */
    uint64_t changes; /* `changes` of that row when the worker's copy began */
    unsigned count;   /* how often the lease was granted */
};

/* The worker of a rank. */
struct worker {
    enum worker_state state;
    uint64_t attempt;
    uint64_t step;  /* the last committed step that the worker was told of */
    uint32_t micro; /* index of the current micro-batch */
    /* Operators of the current micro-batch: forward, then backward. */
    uint32_t ops[2 * SIM_MAX_OPS];
    uint32_t n_ops;
    uint32_t n_forward;
    uint32_t at;         /* index of the current operator in `ops` */
    bool last;           /* The current micro-batch is the last of this step. */
    bool begun;          /* The fetches of ops[at] were sent. */
    bool prepared;       /* The worker has sent PREPARE for the current step. */
    uint32_t prepare_at; /* index in `ops` of the operator before which the worker sends PREPARE */
    bool keeps[SIM_MAX_CHUNKS]; /* The worker does not hand in the chunk's gradient. */
    bool wanted;                /* The worker has sent WANT for a weight of ops[at]. */
    bool lost;                  /* The worker was told that its accelerator is lost. */
    struct lease weights[SIM_MAX_CHUNKS];
    struct lease grads[SIM_MAX_CHUNKS];
    /* Leases of weights of earlier steps that are not yet released. */
    struct lease old[SIM_MAX_CHUNKS];
    bool weight_asked[SIM_MAX_CHUNKS]; /* a fetch of the chunk's weights is under way */
    bool grad_asked[SIM_MAX_CHUNKS];
    /* Backward uses left until the chunk's gradient is complete. */
    uint32_t uses_left[SIM_MAX_CHUNKS];
    uint32_t surprise; /* chunk that is fetched out of order; SIM_NO_CHUNK: none */
};

/* A request that is not yet answered. */
struct pending {
    uint64_t tag; /* 0: this entry is unused */
    enum cst_event_kind kind;
    uint32_t rank; /* the requesting rank, or `world` for the tool */
    uint32_t chunk;
    /* The process of the rank that sent the request. A reply to a dead process is ignored. */
    uint64_t process;
    bool lie;      /* the request must be refused */
    uint32_t slot; /* READ, WRITE: the staging slot */
    uint32_t tensor;
    enum cst_row row;
    /* READ: the least number that is correct, which is the expected number at the time of the
     * request */
    uint64_t at_least;
};

/* A version of the weights that the core calls readable. */
struct version {
    bool readable;
    unsigned n_kept;                  /* readers that keep it */
    uint64_t changes[SIM_MAX_CHUNKS]; /* `changes` of the row of each chunk since then */
};

/* Options of a run. */
struct sim_options {
    uint64_t seed;
    uint64_t n_steps; /* number of steps to commit */
    bool verbose;
};

/* Counts of all runs. */
struct sim_totals {
    uint64_t turns, deaths;
    uint64_t gpu_runs; /* runs in which a rank has its pool on a GPU */
    uint64_t crossing; /* commands that waited for a command of another engine */
    uint64_t fills;    /* copies of weights made by workers */
    uint64_t landed;   /* gradients that were copied to landings */
    uint64_t shared;   /* sums in host memory of landed gradients of several ranks */
    uint64_t gathered; /* parts of weights that were copied into gathered blocks */
    /* Runs with several groups, frozen chunks, a base job, several size classes, several
     * micro-batches, fp32 tensors that are trained, chunks that Muon updates. */
    uint64_t group_runs, frozen_runs, base_runs, class_runs, micro_runs, fp32_runs, muon_runs;
    uint64_t muon_nodes,
        muon_reservations; /* updates by Muon that nodes and accelerators completed */
    /* over_runs: runs with gradients in weight rows; made: weights made from master weights */
    uint64_t over_runs, made;
    /* early_runs, delayed_runs: runs with this overlap; ahead: updates before their commit; fused:
     * updates before their commit that also summed the gradient; dropped: gradients that were
     * dropped because their chunk was already updated */
    uint64_t early_runs, delayed_runs, ahead, fused, dropped;
    uint64_t idle;        /* chunks that steps have skipped, because they had no gradient */
    uint64_t through;     /* copies to and from reservations */
    uint64_t device_runs; /* runs with states in device memory */
    uint64_t slow;        /* updates of states on an engine that only copies */
    uint64_t kept;        /* gradients that stayed in device memory */
    uint64_t replaces;    /* commands that replaced failed commands in reservations */
    /* Device updates that were lost with their engine while the chunk's rows in host memory were
     * whole. */
    uint64_t lost;
    uint64_t lent;      /* device updates in lent memory */
    uint64_t recalled;  /* commands in lent memory that were recalled */
    uint64_t given_up;  /* reservations that were given up */
    uint64_t lost_sums; /* sums that were lost with their engine */
    /* Workers that left because they were told that their accelerator is lost. */
    uint64_t lost_ranks;
    uint64_t moved;  /* pools that moved to another device */
    uint64_t redone; /* commands that an engine had completed before it died, and executed again */
    /* Sums of contributions that began before all ranks of the group had handed in. */
    uint64_t early;
    uint64_t versions; /* versions of the weights that were readable */
    uint64_t two_runs; /* runs with updates at the commit and two weight rows, for readers */
    uint64_t pauses, released; /* pauses, and those in which the pools were taken away */
};

/* A simulated job with everything that belongs to it. */
struct sim {
    struct sim_options options;
    uint64_t rng;
    struct cst_model model;
    struct cst_layout layout;
    /* Model of the base job. It has no tensors if the run has no base job. */
    struct cst_model base_model;
    struct cst_layout base_layout;
    struct cst_core *core;
    struct cst_actions actions;
    uint32_t arena_segments[SIM_MAX_SEGMENTS];
    uint32_t micro_batches;
    bool grad_fp32;
    bool grad_over; /* the gradient's sum takes the place of the chunk's weights */
    /* With `grad_over`: the weight row was last written as a gradient row. */
    bool holds_grad[SIM_MAX_CHUNKS];
    bool has_base;
    uint32_t world;
    uint32_t n_nodes;   /* Engines 0 to n_nodes - 1 are the engines of NUMA nodes. */
    uint32_t n_engines; /* Engines n_nodes and n_nodes + 1 belong to one GPU each. */
    /* The last engine only copies and fills: states can lie there, and are updated in host memory.
     */
    uint32_t slow;
    /* GPUs: bit mask of the engines whose GPU's memory each of them cannot access */
    uint32_t unreachable[3];
    uint32_t stopped; /* bit mask of the engines that do nothing for now */
    uint32_t lost;    /* bit mask of the accelerators' engines that are lost at present */
    /* Bit mask of the engines that have ever refused a command because they were lost. */
    uint32_t ever_lost;
    bool ever_down; /* the engines of the nodes were given up at least once */
    bool excused;   /* A lost command was vital for the job: the job is allowed to fail. */
    /* Device updates that were lost with their engine while the chunk's rows in host memory were
     * whole. */
    uint64_t n_lost;
    uint64_t n_lost_sums, n_lost_ranks, n_moved;
    uint64_t n_crossing; /* commands that waited for a command of another engine */
    uint64_t n_fills;    /* copies of weights made by workers */
    uint64_t n_landed;   /* gradients that were copied to landings */
    uint64_t n_shared;   /* sums of landed gradients of several ranks */
    uint64_t n_gathered; /* parts of weights that were copied into gathered blocks */
    uint64_t n_early;    /* sums that began before all ranks of the group had handed in */
    uint64_t n_made;     /* loads of weights that were made from master weights */
    struct cst_core_device_reservation reservations[SIM_MAX_RESERVATIONS];
    uint32_t n_reservations;
    bool has_devices; /* an accelerator holds states of chunks */
    /* Bytes of each reservation for an engine after those of the nodes, if it may hold states. */
    uint64_t device_reservations[3];
    struct reservation_row reservation_rows[SIM_MAX_RESERVATION_ROWS];
    unsigned n_reservation_rows;
    uint64_t n_recalled;
    /* Per node: an update by Muon runs, and uses the node's scratch. */
    bool scratch_used[8];
    uint64_t n_muon_nodes, n_muon_reservations;
    uint64_t n_through, n_redone, n_kept, n_replaces, n_slow;
    uint64_t n_finished; /* finished commands */
    /* Per engine: the largest `order` of a command whose end was told to the core. */
    uint64_t told[8];
    struct memory memory;
    struct job *jobs; /* array of SIM_MAX_JOBS; owned */
    unsigned n_jobs;
    struct worker workers[CST_CORE_MAX_WORLD];
    uint64_t process[CST_CORE_MAX_WORLD]; /* per rank: counts the processes of the rank */
    /* The turn until which the rank's worker does nothing. */
    uint64_t asleep_until[CST_CORE_MAX_WORLD];
    struct pending pending[SIM_MAX_TAGS];
    uint64_t tag;
    uint64_t now;
    uint64_t pause_rng;            /* state of the generator of pauses */
    unsigned p_pause;              /* the chance of a pause in 1/10000 */
    uint64_t n_pauses, n_released; /* pauses, and those in which the pools were taken away */
    uint64_t timeout;              /* ns that a request may wait; CST_CORE_NEVER: without limit */
    /* Properties of the run, chosen by the seed. Each p_* is the chance of an event in 1/10000. */
    unsigned p_death, p_lie, p_cancel, p_copy_fail, p_reservation_fail, p_engine_death, p_down,
        p_io, p_hint, p_skip, p_nan, p_return, p_mismatch, p_fatal, p_hold, p_sleep, p_stop,
        p_worker_copies, p_patterns, p_big, p_fp32, p_idle, p_interleave, p_quiet, p_prepare,
        p_lost;
    enum cst_overlap overlap;
    bool two_rows; /* chunks with states have two weight rows */
    struct version versions[2];
    uint64_t n_versions;
    bool writes; /* The event that is being handled writes states. */
    uint64_t delay_from;
    bool skips; /* chunks without a gradient in a step are skipped; only with COMMIT */
    float clip_norm;
    bool steady; /* A repeated attempt computes the gradients of the interrupted attempt again. */
    bool loose;  /* Pools hold the whole model: operators may run in any order. */
    /* Each tensor has a chunk and an operator of its own: operators may run in any order. */
    bool plain;
    bool ending; /* The run is ending: workers begin nothing new. */
    /* The job has failed, because a command failed without which the job cannot continue. */
    bool failed;
    /* The expected state of the job. */
    /* Per tensor: the number after all committed updates and all accepted writes. */
    struct cell *expected[CST_ROW_COUNT];
    uint64_t handed[SIM_MAX_CHUNKS][SIM_MAX_RANKS]
                   [SIM_MAX_MICRO]; /* contributions handed in during this attempt; 0: none */
    uint64_t sums[SIM_MAX_CHUNKS];  /* sum of each chunk's gradients at the last commit */
    uint64_t tiles[SIM_MAX_CHUNKS]; /* the sum to which the squares in the chunk's tiles belong */
    struct cell *reads;        /* per tensor: the number of the weights that a fetch must return */
    bool idle[SIM_MAX_CHUNKS]; /* the last committed step has skipped the chunk */
    uint64_t n_idle;
    bool ahead[SIM_MAX_CHUNKS]; /* the chunk was updated before the commit of the current step */
    uint64_t ahead_sum[SIM_MAX_CHUNKS]; /* the sum that the early update of the chunk used */
    uint64_t n_ahead, n_fused;
    uint64_t attempt;         /* the last attempt that the core reported */
    uint64_t step, n_skipped; /* committed and skipped steps that the core reported */
    uint64_t n_deaths, n_turns;
    uint64_t last_progress; /* turn of the last commit */
};

/* sim_random returns 64 random bits, sim_below a number below @n, sim_chance true with the given
 * chance. */
uint64_t sim_random(struct sim *sim);
uint32_t sim_below(struct sim *sim, uint32_t n);
bool sim_chance(struct sim *sim, unsigned per_10000);

/* True when no step was committed for a long time. Workers then behave well, copies that may
 * fail do not fail, and lost engines return, because the job must recover. */
bool sim_is_calm(const struct sim *sim);

/* Print the seed and the error, and end the program. */
void sim_fail(const struct sim *sim, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), noreturn));

/* Run one seed to its end and add the counts of the run to @totals. */
void sim_run(const struct sim_options *options, struct sim_totals *totals);

/* -- job.c ------------------------------------------------------------------------------------ */

/* Draw a job and open its core; close it. */
void sim_open(struct sim *sim);
void sim_close(struct sim *sim);

/* Bit mask of the engines of GPUs whose memory the GPU of @engine cannot access. */
uint32_t sim_unreachable(const struct sim *sim, uint32_t engine);

/* -- totals.c --------------------------------------------------------------------------------- */

/* totals_add_kinds counts the kinds of the opened job. totals_add adds the counters of the finished
 * run and of its core, @stats. */
void totals_add_kinds(struct sim_totals *totals, const struct sim *sim);
void totals_add(struct sim_totals *totals, const struct sim *sim,
                const struct cst_core_stats *stats);

/* Pass @event to the core. Its actions go to engines and workers. */
void sim_event(struct sim *sim, struct cst_event event);
/* The request with @tag that waits; NULL: none does. 0 finds an unused entry. */
struct pending *sim_find_pending(struct sim *sim, uint64_t tag);
/* Pass the request @event to the core with a new tag. @pending is remembered until the reply; its
 * tag, kind and process are filled in. */
void sim_ask(struct sim *sim, struct cst_event event, struct pending pending);

/* models.c */
/* Declare the job's model and lay it out. All other properties of the run must be chosen before. */
void model_open(struct sim *sim);
/* Free the models and layouts. */
void model_close(struct sim *sim);
/* True if a rank may leave out the operator. */
bool model_may_skip(const struct sim *sim, uint32_t op);
/* True if the operator uses a tensor with a sparse pattern. */
bool model_is_sparse(const struct sim *sim, uint32_t op);
/* model_is_trained: @chunk is not frozen. model_is_fp32: its tensors are fp32. model_is_base:
 * @chunk belongs to the base job. model_holds: @rank is in the group of @chunk, according to the
 * declaration instead of the layout. */
bool model_is_trained(const struct sim *sim, uint32_t chunk);
bool model_is_fp32(const struct sim *sim, uint32_t chunk);
bool model_is_base(const struct sim *sim, uint32_t chunk);
/* True if @chunk is trained without the row: a master row of an fp32 tensor, the second moment of
 * one that Muon updates. */
bool model_lacks(const struct sim *sim, uint32_t chunk, enum cst_row row);
bool model_holds(const struct sim *sim, uint32_t chunk, uint32_t rank);
/* Engine of the accelerator that holds the row at @spot, or 0 if the row is in host memory. */
uint32_t model_device(const struct sim *sim, const struct spot *spot);
/* The sum of the contributions to @chunk that were handed in, in the order of micro-batches, and of
 * ranks within a micro-batch. */
uint64_t model_sum(const struct sim *sim, uint32_t chunk);

/* commands.c */
/* Fail unless @command names valid places, and its engine can access them. */
void command_check(const struct sim *sim, const struct cst_command *command);

/* driver.c */
/* Accept a command of the core. It begins when the commands that it waits for have ended. */
void driver_submit(struct sim *sim, const struct cst_command *command);
/* The command with @ticket, or NULL if the core was told that the command has ended. */
const struct job *driver_find(const struct sim *sim, uint64_t ticket);
/* True while the driver keeps the command because it was not yet told the end of a command that it
 * waits for. */
bool driver_holds(const struct sim *sim, const struct job *job);
/* Cancel the command @ticket, if the driver keeps it, without waiting for what it waits for. */
void driver_recall(struct sim *sim, uint64_t ticket);
/* Cancel the commands that wait for @ticket, which has failed. */
void driver_failed(struct sim *sim, uint64_t ticket);

/* engines.c */
/* Begin, end or report one command. Returns false if nothing can be done. */
bool engines_turn(struct sim *sim);
/* engines_find decodes a place of a command. engines_cell returns the cell that holds its number.
 * engines_begin_write begins a write to it, and fails if another write is under way or a worker has
 * a lease on the block. */
struct spot engines_find(const struct sim *sim, const struct job *job, struct cst_place place);
struct cell *engines_cell(struct sim *sim, const struct spot *spot);
void engines_begin_write(struct sim *sim, const struct job *job, const struct spot *spot);
/* The sum of `changes` over all sources of the command. */
uint64_t engines_source_changes(struct sim *sim, const struct job *job);
/* True if the command is a copy or a fill, or a conversion with one destination, which is handled
 * as a copy. */
bool engines_copies(const struct job *job);
/* End a running command because its engine died. The caller may let it begin again. */
void engines_tear(struct sim *sim, struct job *job);
/* One engine dies and restarts: the commands that it was executing begin again. */
void engines_restart(struct sim *sim);

/* lost.c */
/* lost_begin: an accelerator's engine is lost. Its commands, and those that it receives until
 * lost_end, end with CST_EENGINE. */
void lost_begin(struct sim *sim);
void lost_end(struct sim *sim);
/* One engine restarts, and the core is told that a node's engine was given up. */
void lost_node(struct sim *sim);
/* Sometimes move the pool of @rank, which has no worker, to another device. */
void lost_move(struct sim *sim, uint32_t rank);
/* If the engine of @job is lost, end the command with CST_EENGINE and return true. */
bool lost_refuses(struct sim *sim, struct job *job);
/* Check a reply to @rank: CST_EENGINE is allowed only if the engine of the rank's pool was lost, or
 * a node's engines were. */
void lost_check(struct sim *sim, uint32_t rank, int status);

/* over.c */
/* True if the gradient of @chunk takes the place of its weights. */
bool over_shares(const struct sim *sim, uint32_t chunk);
/* True if @command makes weights in a block from master weights. */
bool over_makes(const struct sim *sim, const struct cst_command *command);
/* Return @spot with the row that @command means: the weight row or the gradient in the weight
 * row. */
struct spot over_resolve(const struct sim *sim, const struct cst_command *command,
                         struct spot spot);
/* `changes` of the row that weights and gradient share. */
uint64_t over_changes(const struct sim *sim, uint32_t chunk);
/* A write to @spot begins: the other content of the shared memory is lost. */
void over_begin_write(struct sim *sim, const struct spot *spot);
/* Weights of @chunk were written: the gradient in the shared row is lost. */
void over_end_weights(struct sim *sim, uint32_t chunk);
/* The number that a write of weights leaves in @row, whose number was @old. @add is the increment,
 * or 0 if the write was interrupted and will begin again. */
uint64_t over_weight(const struct sim *sim, uint32_t chunk, enum cst_row row, uint64_t old,
                     uint64_t add);
/* reservations.c */
/* True if the command copies to a reservation, or to lent blocks, for a device update. */
bool reservation_goes_up(const struct sim *sim, const struct cst_command *command);
/* reservation_has: @command uses memory of a reservation. reservation_check: fail unless each
 * reservation that @command names belongs to the command's engine. */
bool reservation_has(const struct sim *sim, const struct cst_command *command);
void reservation_check(const struct sim *sim, const struct cst_command *command);
void reservation_begin(struct sim *sim, struct job *job);
/* reservation_begin and reservation_end begin and end a command in a reservation. @torn: the death
 * of an engine ended it. */
void reservation_end(struct sim *sim, struct job *job, bool torn);

/* updates.c */
void update_submit(struct sim *sim, struct job *job);
void update_begin(struct sim *sim, struct job *job);
/* Begin and end an update by a node's engine; update_submit chooses the sum that it must read.
 * @torn: the death of the engine ended the update, which will begin again. */
void update_end(struct sim *sim, struct job *job, bool torn);

/* worker_replies.c */
/* Give the worker the reply to its request @asked. */
void worker_reply(struct sim *sim, const struct pending *asked, const struct cst_reply *reply);
/* The attempt is over: forget the pending fetches. The leases are given up at the next sync. */
void worker_give_up(struct worker *w);

/* workers.c */
/* Let the worker do one thing. Returns false if the worker waits. */
bool worker_turn(struct sim *sim, uint32_t rank);
/* The worker leaves, is killed, or closes its connection while its process still runs. */
void worker_die(struct sim *sim, uint32_t rank);
/* True if the worker of @rank has a lease on the block. */
bool workers_lease_block(const struct sim *sim, uint32_t rank, uint32_t block);
/* Send a request of the worker's current attempt. */
void worker_ask(struct sim *sim, uint32_t rank, enum cst_event_kind kind, uint32_t chunk,
                uint64_t generation, bool ahead);
/* True if the pool of @rank has blocks for the size class of @chunk. It needs none if no operator
 * of the rank uses the class. */
bool worker_has_blocks(const struct sim *sim, uint32_t rank, uint32_t chunk);

/* scripts.c */
/* Choose the operators of the worker's current micro-batch. */
void script_write(struct sim *sim, uint32_t rank);
/* A seed that depends on the rank, the step and the micro-batch only. */
uint64_t script_seed(const struct sim *sim, uint32_t rank);
/* The learning rate of the current step. */
float script_lr(const struct sim *sim);
/* The hyper-parameters that a worker sends with its step; sometimes they differ from those of the
 * other ranks. */
struct cst_hyper script_hyper(struct sim *sim);

/* pauses.c */
/* Choose whether a run has pauses. */
void pauses_open(struct sim *sim);
/* Now and then begin or end a pause. */
void pauses_turn(struct sim *sim);
/* End the pause. False: there is none. */
bool pauses_end(struct sim *sim);
/* The core has processed an event, before which its statistics were @before, and its actions are
 * not carried out yet: check what a pause promises. */
void pauses_follow(struct sim *sim, const struct cst_core_stats *before);

/* mischief.c */
/* worker_lie sends a request that must be refused. worker_hint sends PREFETCH or EVICT.
 * worker_cancel cancels a pending request. */
void worker_lie(struct sim *sim, uint32_t rank);
void worker_hint(struct sim *sim, uint32_t rank);
void worker_cancel(struct sim *sim, uint32_t rank);

/* fills.c */
/* The worker begins to copy weights into the block of the lease that it was granted. */
void fill_begin(struct sim *sim, uint32_t rank, uint32_t chunk, struct lease *lease,
                const struct cst_reply *reply);
/* End the worker's copy into the block of @lease, if one is under way. */
void fill_end(struct sim *sim, uint32_t rank, uint32_t chunk, struct lease *lease);
/* End all copies of the worker. */
void fills_end(struct sim *sim, uint32_t rank);
/* End one copy of the worker. Returns false if none is under way. */
bool fills_turn(struct sim *sim, uint32_t rank);

/* tool.c */
/* The tool sends one read or write of a tensor's state. */
void tool_turn(struct sim *sim);
/* Check the reply to the tool's request @asked. */
void tool_reply(struct sim *sim, const struct pending *asked, const struct cst_reply *reply);

/* -- readers -------------------------------------------------------------------------------- */

/* Carry out CST_ACT_VERSION or CST_ACT_REVOKE. */
void readers_act(struct sim *sim, const struct cst_action *a);

/* Fail if something has written to a row that is readable. Called after each event. */
void readers_look(const struct sim *sim);

/* Let readers keep a version, or keep it no more. */
void readers_turn(struct sim *sim);

/* No reader keeps a version any more. False: none did before. */
bool readers_leave(struct sim *sim);

#endif
