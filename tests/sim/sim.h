/* SPDX-License-Identifier: Apache-2.0 */
/* A whole job in one thread: the core, engines that complete commands in any legal order, workers
 * that train, die, lie and come back, and a tool that reads and writes states. Everything that
 * happens is chosen by one seeded generator. */
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

enum job_state { JOB_WAITING, JOB_RUNNING, JOB_FINISHED };

/* A command at an engine. */
struct job {
    enum job_state state;
    struct cst_command command;
    int status;                                /* FINISHED */
    bool doomed;                               /* fails when it ends */
    bool cancelled;                            /* it will not begin: what it comes after failed */
    bool held;                                 /* by the driver, until all before it was told */
    uint64_t value;                            /* what it will write; UPDATE, CONVERT: nothing */
    uint64_t changes;                          /* of the sources when it began */
    bool begun;                                /* UPDATE: at least once */
    uint64_t order;                            /* FINISHED: of all that finished */
    uint64_t sum;                              /* UPDATE: of the gradients that it takes */
    uint64_t weights[SIM_MAX_CHUNKS];          /* UPDATE: tensors' newest weights before */
    uint64_t old[MEMORY_ROWS][SIM_MAX_CHUNKS]; /* UPDATE, WRITE: tensors' numbers before, per row,
                                                  per tensor of the chunk */
};

/* -- rooms ---------------------------------------------------------------------------------- */

#define SIM_MAX_ROOMS 3
#define SIM_MAX_ROOM_ROWS 256

/* What was copied to a place in a room, or updated there. */
struct room_row {
    uint32_t room;
    uint64_t offset, bytes;
    uint64_t changes; /* writes begun and ended */
    unsigned writers; /* under way */
    uint32_t chunk;   /* of which it is a row */
    enum cst_row row;
    uint64_t values[SIM_MAX_CHUNKS]; /* per tensor of the chunk */
};

/* -- workers -------------------------------------------------------------------------------- */

enum worker_state {
    WORKER_GONE, /* no process */
    WORKER_HUNG, /* connection gone, process runs */
    WORKER_IDLE, /* attached, must sync */
    WORKER_SYNCING,
    WORKER_RUN,
    WORKER_STEPPING,
};

struct lease {
    bool held; /* granted, not given back */
    uint32_t block;
    uint64_t generation;
    uint64_t value;   /* weights: what the block held when it was granted, or is to hold */
    bool filling;     /* weights: the worker copies them in itself ... */
    enum cst_row row; /* ... out of this row */
    uint64_t changes; /* of their row when that began */
    unsigned count;   /* times that it was granted */
};

struct worker {
    enum worker_state state;
    uint64_t attempt;
    uint64_t step;                 /* committed, as told */
    uint32_t micro;                /* micro-batch that it is in */
    uint32_t ops[2 * SIM_MAX_OPS]; /* operators of this micro-batch: forward, then backward */
    uint32_t n_ops;
    uint32_t n_forward;
    uint32_t at;                /* index into ops */
    bool last;                  /* micro-batch of the step: it will not be another one's turn */
    bool begun;                 /* the fetches of ops[at] were sent */
    bool prepared;              /* it said what its step will say ... */
    uint32_t prepare_at;        /* ... before this one of the ops */
    bool keeps[SIM_MAX_CHUNKS]; /* it does not hand the gradient in */
    bool wanted;                /* and that they are waited for */
    bool lost;                  /* it heard that its accelerator is gone */
    struct lease weights[SIM_MAX_CHUNKS];
    struct lease grads[SIM_MAX_CHUNKS];
    struct lease old[SIM_MAX_CHUNKS];  /* weights of earlier steps, not yet given back */
    bool weight_asked[SIM_MAX_CHUNKS]; /* a fetch is under way */
    bool grad_asked[SIM_MAX_CHUNKS];
    uint32_t uses_left[SIM_MAX_CHUNKS]; /* backward uses until the gradient is complete */
    uint32_t surprise;                  /* chunk fetched out of order, SIM_NO_CHUNK: none */
};

/* A request without an answer yet. */
struct pending {
    uint64_t tag; /* 0: unused */
    enum cst_event_kind kind;
    uint32_t rank; /* world: the tool's */
    uint32_t chunk;
    uint64_t process; /* of the worker that asked: an answer to a dead one is not looked at */
    bool lie;         /* must be refused */
    uint32_t slot;    /* READ, WRITE */
    uint32_t tensor;
    enum cst_row row;
    uint64_t at_least; /* READ: what the row held, or was going to, when it was asked */
};

struct sim_options {
    uint64_t seed;
    uint64_t n_steps; /* to commit */
    bool verbose;
};

struct sim_totals {
    uint64_t turns, deaths;
    uint64_t gpu_runs; /* with a rank on a GPU */
    uint64_t crossing; /* commands that waited for another engine's */
    uint64_t fills;    /* copies by workers */
    uint64_t landed;   /* gradients that were copied to landings */
    uint64_t gathered; /* parts of weights that went into pools */
    uint64_t group_runs, frozen_runs, base_runs, class_runs, micro_runs; /* with such a thing */
    uint64_t over_runs, made; /* runs with gradients over weights; weights that came from masters */
    uint64_t early_runs, delayed_runs, ahead, fused, dropped; /* updates before their commit; of
                                                                 them, with the sum; gradients */
    uint64_t through;                                         /* copies to and from rooms */
    uint64_t device_runs;                                     /* with states on accelerators */
    uint64_t kept;                                            /* gradients that stayed in rooms */
    uint64_t instead;    /* commands that came in place of such as failed in rooms */
    uint64_t lost;       /* updates in rooms that were lost with their engine, of chunks at home */
    uint64_t given_up;   /* rooms */
    uint64_t lost_sums;  /* sums that were lost with their engine */
    uint64_t lost_ranks; /* workers that heard so and went */
    uint64_t moved;      /* pools that moved to another place */
    uint64_t redone;     /* commands that an engine had ended when it died, and did again */
    uint64_t early;      /* reductions of the first ranks' contributions alone */
};

struct sim {
    struct sim_options options;
    uint64_t rng;
    struct cst_model model;
    struct cst_layout layout;
    struct cst_model base_model; /* of the base job; no tensors: there is none */
    struct cst_layout base_layout;
    struct cst_core *core;
    struct cst_actions actions;
    uint32_t arena_segments[SIM_MAX_SEGMENTS];
    uint32_t micro_batches;
    bool grad_fp32;
    bool grad_over;                  /* gradients take their weights' places */
    bool holds_grad[SIM_MAX_CHUNKS]; /* such a row was last written to as the gradient's */
    bool has_base;
    uint32_t world;
    uint32_t n_nodes;   /* engines 0 to n_nodes - 1 are the host's ... */
    uint32_t n_engines; /* ... the others a GPU's each */
    uint32_t stopped;   /* engines that do nothing for now, a bit each */
    uint32_t lost;      /* accelerators' engines that do nothing any more, a bit each */
    uint32_t ever_lost; /* those that ever gave back a command undone */
    bool ever_down;     /* engines of nodes were given up */
    bool excused;       /* one of them had what the job cannot do without */
    uint64_t n_lost;    /* updates in rooms that were lost with their engine, of chunks at home */
    uint64_t n_lost_sums, n_lost_ranks, n_moved;
    uint64_t n_crossing; /* commands that waited for another engine's */
    uint64_t n_fills;    /* copies by workers */
    uint64_t n_landed;   /* gradients that were copied to landings */
    uint64_t n_gathered; /* parts of weights that went into pools */
    uint64_t n_early;    /* reductions of some contributions */
    uint64_t n_made;     /* loads of weights made from the master weights */
    struct cst_core_room rooms[SIM_MAX_ROOMS];
    uint32_t n_rooms;
    bool has_devices;         /* that have states */
    uint64_t device_rooms[2]; /* bytes, per accelerator, if it has */
    struct room_row room_rows[SIM_MAX_ROOM_ROWS];
    unsigned n_room_rows;
    uint64_t n_through, n_redone, n_kept, n_instead;
    uint64_t n_finished; /* jobs */
    uint64_t told[8];    /* per engine: order of the last job whose end was told */
    struct memory memory;
    struct job *jobs; /* SIM_MAX_JOBS */
    unsigned n_jobs;
    struct worker workers[CST_CORE_MAX_WORLD];
    uint64_t process[CST_CORE_MAX_WORLD];      /* counts processes per rank */
    uint64_t asleep_until[CST_CORE_MAX_WORLD]; /* turn: a worker that is slow, or stopped */
    struct pending pending[SIM_MAX_TAGS];
    uint64_t tag;
    uint64_t now;
    uint64_t timeout; /* CST_CORE_NEVER: waits do not end */
    /* what the run is made of, chosen by the seed; chances are in 1/10000 a turn */
    unsigned p_death, p_lie, p_cancel, p_copy_fail, p_room_fail, p_engine_death, p_down, p_io,
        p_hint, p_skip, p_nan, p_return, p_mismatch, p_fatal, p_hold, p_sleep, p_stop,
        p_worker_copies, p_patterns, p_big, p_idle, p_interleave, p_quiet, p_prepare, p_lost;
    enum cst_overlap overlap;
    uint64_t delay_from;
    float clip_norm;
    bool steady; /* a step that is done again has the same gradients */
    bool loose;  /* pools hold everything: any order of operators may run */
    bool plain;  /* so may they, for another reason: each has a chunk of its own */
    bool ending; /* no new work */
    bool failed; /* the job has: a command that must not fail did */
    /* what should be */
    struct cell
        *expected[CST_ROW_COUNT]; /* per tensor: number after all that is committed and accepted */
    uint64_t handed[SIM_MAX_CHUNKS][SIM_MAX_RANKS]
                   [SIM_MAX_MICRO]; /* contributions of this collection, 0: none */
    uint64_t sums[SIM_MAX_CHUNKS];  /* of the last commit */
    uint64_t tiles[SIM_MAX_CHUNKS]; /* of what sums the tiles' squares are */
    struct cell *reads;             /* per tensor: number of the weights that fetches must bring */
    bool ahead[SIM_MAX_CHUNKS];     /* updated before the commit ... */
    uint64_t ahead_sum[SIM_MAX_CHUNKS]; /* ... with this */
    uint64_t n_ahead, n_fused;
    uint64_t attempt;         /* seen */
    uint64_t step, n_skipped; /* seen committed */
    uint64_t n_deaths, n_turns;
    uint64_t last_progress; /* turn of the last commit */
};

/* Random numbers. */
uint64_t sim_random(struct sim *sim);
uint32_t sim_below(struct sim *sim, uint32_t n);
bool sim_chance(struct sim *sim, unsigned per_10000);

/* No step was committed for long: no more mischief, nothing fails any more. */
bool sim_is_calm(const struct sim *sim);

/* Something is wrong: print the seed and what, and end the program. */
void sim_fail(const struct sim *sim, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), noreturn));

/* Run one seed to its end and add what happened to @totals. */
void sim_run(const struct sim_options *options, struct sim_totals *totals);

/* -- totals.c --------------------------------------------------------------------------------- */

/* What kind of job the run has, when it is open; and what it met, with what its core said last. */
void totals_add_kinds(struct sim_totals *totals, const struct sim *sim);
void totals_add(struct sim_totals *totals, const struct sim *sim,
                const struct cst_core_stats *stats);

/* Hand @event to the core; its actions go to engines and workers. */
void sim_event(struct sim *sim, struct cst_event event);
/* With a new tag that is remembered as @pending (tag and kind are filled in). */
void sim_ask(struct sim *sim, struct cst_event event, struct pending pending);

/* models.c */
/* Declare and lay out; what the rest of @sim decides is decided. */
void model_open(struct sim *sim);
void model_close(struct sim *sim);
/* A rank may leave the operator out. */
bool model_may_skip(const struct sim *sim, uint32_t op);
bool model_is_sparse(const struct sim *sim, uint32_t op);
/* The chunk is not frozen; it is the base's; the rank is in its group: as declared, not as laid
 * out. */
bool model_is_trained(const struct sim *sim, uint32_t chunk);
bool model_is_base(const struct sim *sim, uint32_t chunk);
bool model_holds(const struct sim *sim, uint32_t chunk, uint32_t rank);
/* Engine of the accelerator that has the row; 0: it is in host memory. */
uint32_t model_device(const struct sim *sim, const struct spot *spot);
/* Of all that was handed in: micro-batch by micro-batch, in each rank by rank. */
uint64_t model_sum(const struct sim *sim, uint32_t chunk);

/* commands.c */
/* It names what it may, and its engine can reach that. */
void command_check(const struct sim *sim, const struct cst_command *command);

/* driver.c */
void driver_submit(struct sim *sim, const struct cst_command *command);
/* The command that is not told to be complete; NULL: it is. */
const struct job *driver_find(const struct sim *sim, uint64_t ticket);
/* The driver has it still. */
bool driver_holds(const struct sim *sim, const struct job *job);
/* What comes after that command fails, however late its turn comes. */
void driver_failed(struct sim *sim, uint64_t ticket);

/* engines.c */
/* Begin, end or report one command. False: nothing can be done. */
bool engines_turn(struct sim *sim);
/* Memory that a command names; where its number is kept. */
struct spot engines_find(const struct sim *sim, const struct job *job, struct cst_place place);
struct cell *engines_cell(struct sim *sim, const struct spot *spot);
void engines_begin_write(struct sim *sim, const struct job *job, const struct spot *spot);
/* Sum of changes of all its sources. */
uint64_t engines_source_changes(struct sim *sim, const struct job *job);
/* The command is a copy, or a conversion that is as good as one. */
bool engines_copies(const struct job *job);
/* The death of its engine ends a command that runs; it may begin anew. */
void engines_tear(struct sim *sim, struct job *job);
/* An engine dies and comes back: what it had under way begins anew. */
void engines_restart(struct sim *sim);

/* lost.c */
/* An accelerator's engine is lost, or is there again: what it has, and what it is given meanwhile,
 * comes back undone. */
void lost_begin(struct sim *sim);
void lost_end(struct sim *sim);
/* The engines of nodes are given up: what they had half done is done later, by others. */
void lost_node(struct sim *sim);
/* The pool of @rank, whose worker is gone, may be in another place from now on. */
void lost_move(struct sim *sim, uint32_t rank);
/* Nobody will do the command; it is over. False: it is not so. */
bool lost_refuses(struct sim *sim, struct job *job);
/* @rank was told @status: that an engine is gone nobody hears but whose pool is there. */
void lost_check(struct sim *sim, uint32_t rank, int status);

/* over.c */
/* The gradient of @chunk has no row but the weights'. */
bool over_shares(const struct sim *sim, uint32_t chunk);
/* @command makes weights out of master weights, in a block. */
bool over_makes(const struct sim *sim, const struct cst_command *command);
/* @spot, with which of the two @command means. */
struct spot over_resolve(const struct sim *sim, const struct cst_command *command,
                         struct spot spot);
/* Of the row, whatever it is. */
uint64_t over_changes(const struct sim *sim, uint32_t chunk);
/* @spot begins to be written: what it shares its memory with is lost. */
void over_begin_write(struct sim *sim, const struct spot *spot);
/* Weights of @chunk were written where its gradient was. */
void over_end_weights(struct sim *sim, uint32_t chunk);
/* What a write that adds @add (0: it is to begin anew) leaves in @row, which held @old. */
uint64_t over_weight(const struct sim *sim, uint32_t chunk, enum cst_row row, uint64_t old,
                     uint64_t add);
/* rooms.c */
/* The command reads or writes memory of a room, which its engine must have. */
bool room_has(const struct sim *sim, const struct cst_command *command);
void room_check(const struct sim *sim, const struct cst_command *command);
void room_begin(struct sim *sim, struct job *job);
/* @torn: an engine's death ended it. */
void room_end(struct sim *sim, struct job *job, bool torn);

/* updates.c */
void update_submit(struct sim *sim, struct job *job);
void update_begin(struct sim *sim, struct job *job);
/* @torn: an engine's death ended it; it will begin again. */
void update_end(struct sim *sim, struct job *job, bool torn);

/* workers.c */
/* One thing that the worker does next. False: it waits. */
bool worker_turn(struct sim *sim, uint32_t rank);
void worker_reply(struct sim *sim, const struct pending *asked, const struct cst_reply *reply);
void worker_die(struct sim *sim, uint32_t rank);
/* Who has a lease on the block; world: nobody. */
bool workers_lease_block(const struct sim *sim, uint32_t rank, uint32_t block);
/* A request of its attempt. */
void worker_ask(struct sim *sim, uint32_t rank, enum cst_event_kind kind, uint32_t chunk,
                uint64_t generation, bool ahead);
/* The pool has some for chunks of that size: it need not where no operator uses them. */
bool worker_has_blocks(const struct sim *sim, uint32_t rank, uint32_t chunk);

/* scripts.c */
/* Of the micro-batch that it is in. */
void script_write(struct sim *sim, uint32_t rank);
/* The same whenever the rank does that micro-batch of that step. */
uint64_t script_seed(const struct sim *sim, uint32_t rank);
/* What lr is in the step that is done. */
float script_lr(const struct sim *sim);
/* What it says at its step, mostly the same as the others. */
struct cst_hyper script_hyper(struct sim *sim);

/* mischief.c */
/* A request that must be refused, or a hint, or one taken back. */
void worker_lie(struct sim *sim, uint32_t rank);
void worker_hint(struct sim *sim, uint32_t rank);
void worker_cancel(struct sim *sim, uint32_t rank);

/* fills.c */
/* The worker begins to copy weights into the block that it was just granted. */
void fill_begin(struct sim *sim, uint32_t rank, uint32_t chunk, struct lease *lease,
                const struct cst_reply *reply);
/* The copy ends, if one is under way. */
void fill_end(struct sim *sim, uint32_t rank, uint32_t chunk, struct lease *lease);
/* All copies of the worker end. */
void fills_end(struct sim *sim, uint32_t rank);
/* One of them ends. False: none is under way. */
bool fills_turn(struct sim *sim, uint32_t rank);

/* tool.c */
void tool_turn(struct sim *sim);
void tool_reply(struct sim *sim, const struct pending *asked, const struct cst_reply *reply);

#endif
