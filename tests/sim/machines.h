/* SPDX-License-Identifier: Apache-2.0 */
/* Simulates a job on several machines under virtual time: a real core for each machine, engines
 * that execute commands on symbolic memory, ranks that train, and a network with random delays that
 * keeps the order between each two machines. Ranks, machines and links fail at random. An oracle in
 * place of the membership of daemons gives all machines the epochs.
 *
 * In some runs the model is cut into stages, and the ranks of each machine ask for units. They come
 * and go in the middle of an attempt then.
 *
 * What each step must compute is known in advance: contributions depend on the seed, the rank or
 * the unit, the step and the weights alone. Each command and each fetch is compared with that, and
 * at the end all rows are. A job on one machine is simulated in the same way, and has the same
 * values. */
#ifndef SIM_MACHINES_H
#define SIM_MACHINES_H

#include "offload/core/core.h"
#include "offload/core/revival.h"
#include "tests/sim/memory.h"
#include "tests/sim/moments.h"

#define MACHINES_MOST 8
#define MACHINES_CHUNKS 8
#define MACHINES_RANKS 18 /* of a machine */
#define MACHINES_STEPS 12
#define MACHINES_JOBS 256
#define MACHINES_MESSAGES 4096
/* Segment ids: those of machine m begin at (m + 1) x MACHINES_SEGMENTS: arenas, then pools, one for
 * each rank, staging, and the job table. */
#define MACHINES_SEGMENTS 100000
#define MACHINES_POOLS 50000
#define MACHINES_STAGING 80000
#define MACHINES_TABLE 90000
#define MACHINES_TAG_SHIFT 9
#define MACHINES_TAG_WRITE 14 /* the same: a WRITE */
#define MACHINES_TAG_READ 15  /* in the low bits of a tag: a READ of weights */

/* Properties of a run. */
struct machines_options {
    uint64_t seed;
    uint32_t n_machines; /* 0: drawn. */
    uint64_t n_steps;
    bool verbose;
};

/* Counts of all runs. */
struct machines_totals {
    uint64_t runs, events, commands, messages;
    uint64_t reads;    /* READs of weights that were answered with the weights */
    uint64_t bytes;    /* copied from other machines */
    uint64_t versions; /* versions of the weights that were readable */
    uint64_t exact;    /* runs without failures, in which the bytes are those of the formula */
    uint64_t deaths, kills, cuts, faults;
    uint64_t hangups;     /* ranks whose processes went on; part of the deaths */
    uint64_t shut_out;    /* of them those that others did not wait for */
    uint64_t fatal;       /* jobs that failed, on all machines */
    uint64_t without;     /* epochs without a machine that came back later */
    uint64_t losses;      /* machines that were lost for good */
    uint64_t replaced;    /* and others that took their places */
    uint64_t interrupted; /* attempts that were begun and not finished */
    uint64_t skipped;     /* steps without updates */
    uint64_t copies;      /* runs with several copies of states */
    uint64_t fp32;        /* runs with fp32 partials */
    uint64_t tensors;     /* fp32 tensors that are trained */
    uint64_t single;      /* tensors of one rank of each machine */
    uint64_t alone;       /* runs on one machine */
    uint64_t skips;       /* runs that skip tensors without a gradient */
    uint64_t idle;     /* chunks without a gradient in a step of such a run, on several machines */
    uint64_t lone;     /* chunks of which one rank of a job on several machines has a gradient */
    uint64_t discards; /* chunks whose gradients are discarded by all ranks that have one */
    uint64_t lies;     /* attempts that ended because a rank alone has discarded one */
    uint64_t unused;   /* messages of tensors without a gradient */
    uint64_t staged;   /* runs with stages, on several machines */
    uint64_t several;  /* of them with several rank blocks on a machine */
    uint64_t tied;     /* of them with a tensor of several stages */
    uint64_t units;    /* units that were done */
    uint64_t rejoined; /* ranks that came back to the attempt in which they had ended */
};

/* A command that was given to an engine. */
struct mjob {
    struct cst_command command; /* ticket 0: the slot is unused. */
    bool begun, runs, ended, failed, cancelled;
    uint32_t other;   /* the machine from which it copies, or this one */
    uint64_t link;    /* how often the link to that one was down when it was issued */
    uint64_t value;   /* what it will write */
    uint64_t changes; /* of its sources when it began */
};

enum mrank_state { MRANK_GONE, MRANK_IDLE, MRANK_SYNCING, MRANK_RUNS, MRANK_STEPS, MRANK_RESTS };

struct mrank {
    enum mrank_state state;
    uint64_t turn;      /* Moments of earlier turns are ignored. */
    uint64_t first_tag; /* Replies to requests with a smaller tag are ignored. */
    uint64_t attempt, step;
    uint32_t micro, at, waiting;
    bool has_unit;
    struct cst_work_unit unit; /* the present one, or the last one; number 0: none */
    uint64_t weight, grad;     /* generations of the leases */
    uint32_t weight_block, grad_block;
    uint8_t without[(MACHINES_CHUNKS + 7) / 8], discarded[(MACHINES_CHUNKS + 7) / 8]; /* of STEP */
    bool hung_up; /* Its connection has ended, and its process goes on. */
    bool lies; /* It has discarded a gradient that others have: the step must not be committed. */
};

struct machine {
    struct cst_core *core; /* NULL: the machine is down. */
    struct cst_actions actions;
    struct cst_core_record record;
    struct cst_layout layout;
    struct cst_table_header *table;
    uint32_t *segments;
    uint32_t world, n_blocks;
    uint64_t rank_blocks; /* bit b: rank block b of the job is here */
    struct cst_core_pool pools[MACHINES_RANKS];
    uint32_t pool_segments[MACHINES_RANKS];
    struct mrank ranks[MACHINES_RANKS];
    struct cell weights[MACHINES_CHUNKS], grads[MACHINES_CHUNKS], states[MACHINES_CHUNKS];
    struct cell others[MACHINES_CHUNKS]; /* second weight rows, if there are two */
    bool readable[2];                    /* the weight row has a version for readers */
    struct cell *partials, *landings;    /* per chunk and rank block; per segment */
    struct cell staging;
    uint32_t n_nodes;
    struct cell *blocks[MACHINES_RANKS];
    struct mjob jobs[MACHINES_JOBS];
    uint32_t n_jobs; /* Only the first ones were ever used. */
    uint64_t life;   /* counts the lives of the core */
    uint64_t ticket;
    uint64_t epoch;         /* the last one that the core was told */
    bool lost;              /* for good */
    bool adopted;           /* It has got ranks of another one, and rows for them. */
    uint64_t restored_mark; /* The last update that was made before the states were restored. */
    bool restores;          /* It takes the place of a lost one: its states are being written. */
    uint32_t read_chunk;
    uint32_t n_writes; /* WRITEs that were not answered */
    bool reads;        /* a READ of the chunk's weights was not answered */
};

struct mmessage {
    bool used, held;
    uint32_t from, to;
    uint64_t link;  /* how often the link was down before */
    uint64_t order; /* the number of messages that were sent before */
    struct cst_machine_message m;
    double numbers[3 * MACHINES_RANKS];
    uint8_t bits[(MACHINES_CHUNKS + 7) / 8];
};

struct machines {
    struct machines_options options;
    struct machines_totals *totals;
    uint64_t rng, now, tag;
    struct cst_model model;
    uint32_t n, n_ranks, n_blocks, n_chunks, copies, micro_batches, block_ranks;
    bool grad_fp32, ending;
    uint32_t n_stages; /* 0: each rank does all of the model, in micro-batches of its own */
    uint32_t n_operators, tensors[MACHINES_CHUNKS + 1]; /* per operator: the tensor that it uses */
    uint64_t stages[MACHINES_CHUNKS];                   /* of each chunk, one bit each */
    unsigned p_leave_out; /* chance of a rank without a gradient, per 10000 */
    uint32_t slow;    /* by how much copies from other machines are slower than other commands */
    unsigned p_skip;  /* chance of a chunk that nobody uses in a step, per 10000 */
    bool split;       /* Master weights are split. */
    bool two_weights; /* Chunks with states have two weight rows, for readers. */
    bool skips;       /* Tensors without a gradient are skipped. */
    /* If so, chances per 10000: that one rank of the job alone has a gradient of a chunk, that all
     * ranks discard it, that a rank hands in zeros and has none. */
    unsigned p_lone, p_discard, p_zeros;
    uint64_t told;     /* the last step that a rank was told as committed */
    uint32_t quiet;    /* chance of a delay of 0 in four */
    uint32_t n_faults; /* Transfers that are still to fail. */
    /* What a machine that takes the place of a lost one restores. */
    struct cst_core_record restored;
    uint64_t restored_missed[MACHINES_CHUNKS];
    bool harmless;  /* Nothing fails in this run. */
    uint32_t fatal; /* So many updates until one fails, and the job with it; 0: none does. */
    bool failed;    /* That has happened. */
    bool unheard;   /* And the machine was killed, perhaps before it could tell the others. */
    bool loses;     /* A machine can be lost for good in this run. */
    bool single[MACHINES_CHUNKS]; /* Of each machine, only the first rank holds the chunk. */
    uint64_t epoch, members;
    uint64_t cut[MACHINES_MOST];                    /* bit m: the link to machine m is cut */
    uint64_t links[MACHINES_MOST][MACHINES_MOST];   /* how often each was down */
    uint64_t arrives[MACHINES_MOST][MACHINES_MOST]; /* time of the last message on its way */
    struct machine machines[MACHINES_MOST];
    struct mmessage messages[MACHINES_MESSAGES];
    uint64_t n_sent;
    struct moments moments;
    /* What the steps compute: by step, and by Adam step. */
    uint64_t adam[MACHINES_STEPS + 1];
    uint64_t weights[MACHINES_STEPS + 1][MACHINES_CHUNKS];
    uint64_t states[MACHINES_STEPS + 1][MACHINES_CHUNKS];
    uint64_t sums[MACHINES_STEPS + 1][MACHINES_CHUNKS]; /* [s]: of step s, from 0 */
    double squares[MACHINES_STEPS + 1];
    /* Of each chunk, after so many steps. */
    struct cst_table_steps steps[MACHINES_STEPS + 1][MACHINES_CHUNKS];
};

void machines_run(const struct machines_options *options, struct machines_totals *totals);

/* Print the seed and the error, and end the program. */
void machines_fail(const struct machines *sim, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), noreturn));

uint64_t machines_random(struct machines *sim);
uint32_t machines_below(struct machines *sim, uint32_t n);
/* A random delay, in ns. */
uint64_t machines_delay(struct machines *sim, uint32_t most);

/* Give @event to the core of machine @m, and carry out its actions. */
void machines_feed(struct machines *sim, uint32_t m, struct cst_event event);

/* Begin an epoch with the present members. Each of them is told at a time of its own. */
void machines_new_epoch(struct machines *sim);

/* The answer to a READ. */
void machines_read(struct machines *sim, uint32_t m, const struct cst_reply *reply);

/* -- machine_job.c ---------------------------------------------------------------------------- */

/* Draw what the job is like; declare its model; open one of its machines; close all. */
void job_draw(struct machines *sim);
void job_declare(struct machines *sim);
void job_open_machine(struct machines *sim, uint32_t m);
void job_close(struct machines *sim);
/* Open the core of machine @m, again, without ranks. */
void job_open_core(struct machines *sim, uint32_t m);
/* Open machine @m anew, with nothing in its memory. */
void job_renew(struct machines *sim, uint32_t m);
/* Write the master weights of all tensors to machine @m: before the first step, or when it takes
 * the place of a lost one. */
void job_write(struct machines *sim, uint32_t m);
/* Make rows for rank blocks that have come to machine @m. All other rows stay where they are. */
void job_adopt(struct machines *sim, uint32_t m);

/* -- machine_network.c ------------------------------------------------------------------------ */

/* Send @message of machine @from to machine @to, or to CST_MACHINES_ALL. */
void network_tell(struct machines *sim, uint32_t from, uint32_t to,
                  const struct cst_machine_message *message);
/* Message number @i arrives. One of a later epoch is kept. */
void network_deliver(struct machines *sim, uint32_t i);
/* Machine @m has begun an epoch: what was kept for it arrives, in its order. */
void network_deliver_held(struct machines *sim, uint32_t m);

/* -- machine_values.c: what is computed ------------------------------------------------------- */

/* Fill in what all steps compute. */
void values_open(struct machines *sim);
/* True if rank @rank of the job hands in a gradient of @chunk. With stages: if the backward pass of
 * stage @micro over micro-batch @rank of the job has one. values_contribution is its value. */
bool values_hands_in(const struct machines *sim, uint64_t step, uint32_t rank, uint32_t micro,
                     uint32_t chunk);
/* What rank @rank of the job says of @chunk in its STEP: it has no gradient, or it discards it. */
bool values_is_without(const struct machines *sim, uint64_t step, uint32_t rank, uint32_t chunk);
bool values_discards(const struct machines *sim, uint64_t step, uint32_t rank, uint32_t chunk);
/* True if rank @rank is the first one of several with a gradient of @chunk that is not discarded:
 * it must not discard its own. */
bool values_can_lie(const struct machines *sim, uint64_t step, uint32_t rank, uint32_t chunk);
/* True if the update of @step, which is not skipped, leaves @chunk as it is. */
bool values_is_idle(const struct machines *sim, uint64_t step, uint32_t chunk);
uint64_t values_contribution(const struct machines *sim, uint64_t step, uint32_t rank,
                             uint32_t micro, uint32_t chunk, uint64_t weights);
/* With stages: of micro-batch @rank of the job. */
double values_loss(uint64_t step, uint32_t rank);
/* The mean of the losses of all ranks, or of all micro-batches. */
double values_mean_loss(const struct machines *sim, uint64_t step);
/* The squares of tile @tile of a chunk whose gradient is @sum; those of all tiles give the norm. */
double values_square(uint64_t sum, uint32_t tile);
double values_norm(double squares);
uint64_t values_add(uint64_t sum, uint64_t next);
/* The master weights of @chunk that every machine writes before the first step. */
uint64_t values_initial(const struct machines *sim, uint32_t chunk);
/* @number: which of the updates of the chunk it is. */
uint64_t values_state(uint64_t state, uint64_t sum, uint64_t number);
uint64_t values_weight(uint64_t state);
/* The number in the job of rank @rank of machine @m. */
uint32_t values_rank(const struct machines *sim, uint32_t m, uint32_t rank);
/* The number in the job of micro-batch @micro of machine @m, with stages. */
uint32_t values_micro(const struct machines *sim, uint32_t m, uint32_t micro);
/* True if the rank with number @rank on its machine uses @chunk in @step. */
bool values_uses(const struct machines *sim, uint64_t step, uint32_t rank, uint32_t chunk);
/* Bytes of an element of the weights, or of a partial and of the sum, of @chunk. */
uint64_t values_bytes(const struct machines *sim, uint32_t chunk, bool weights);
/* True if @chunk is trained. */
bool values_trained(const struct machines *sim, uint32_t chunk);
/* True if a weight row of chunk @chunk of machine @m has the weights after @step. */
bool values_has_weights(const struct machines *sim, uint32_t m, uint32_t chunk, uint64_t step);

/* -- machine_engine.c ------------------------------------------------------------------------- */

void engine_submit(struct machines *sim, uint32_t m, const struct cst_command *command);
void engine_recall(struct machines *sim, uint32_t m, uint64_t ticket);
/* Moments: the command begins, ends, and its end is told. */
void engine_begin(struct machines *sim, uint32_t m, uint32_t job);
void engine_end(struct machines *sim, uint32_t m, uint32_t job);
void engine_tell(struct machines *sim, uint32_t m, uint32_t job);
/* The machine is killed: its commands end in their middle. */
void engine_kill(struct machines *sim, uint32_t m);

/* -- machine_ranks.c -------------------------------------------------------------------------- */

void ranks_answer(struct machines *sim, uint32_t m, const struct cst_reply *reply);
void ranks_turn(struct machines *sim, const struct moment *moment);
void ranks_die(struct machines *sim, uint32_t m, uint32_t rank);
/* Let the rank return later. */
void ranks_return(struct machines *sim, uint32_t m, uint32_t rank, uint64_t delay);

/* -- machine_replace.c ------------------------------------------------------------------------ */

/* Try soon to let machine @m, which was lost, take its place again, with nothing in its memory. */
void replace_soon(struct machines *sim, uint32_t m);
/* Let it restore the states of the members, once these can neither begin nor commit a step. */
void replace_machine(struct machines *sim, uint32_t m);
/* A WRITE or RESTORE of machine @m is answered. After the last one @m is a member. */
void replace_written(struct machines *sim, uint32_t m);

#endif
