/* SPDX-License-Identifier: Apache-2.0 */
/* A job on several machines, as the core of one of them sees it: which machines there are, and what
 * their cores tell each other. Each machine has a core of its own, which knows the ranks on that
 * machine alone, numbered from 0. All have the same model and the same chunks.
 * offload/core/agreement.h, offload/gradient/partials.h and offload/update/replicas.h send and
 * receive the messages.
 *
 * Words. The *home* of a chunk is the machine that adds its gradients and tells the others its
 * weights: the first of those with its states that is a member of the job. The others with its
 * states are its *buddies*: they make the same update, from the same sum. A *rank block* is a set
 * of consecutive ranks of the job, on one machine, whose contributions are added from left to
 * right; its sum is a *partial*. The gradient is the sum of the partials, from left to right.
 * Therefore it has the same bits however the rank blocks are distributed. In a job whose model is
 * cut into stages, a rank block has micro-batches of its own, as many as each other one, but no
 * ranks: any rank of the machine does them. What the ranks have contributed to them is added as on
 * one machine that has these micro-batches alone (offload/schedule/dispatched.c).
 *
 * Transfers. Only a machine that needs bytes moves them: by a COPY of the engine
 * cst_core_machines.engine whose source is a place in another machine's memory, which a message has
 * named, and whose destination is a row or a landing here. A transfer can be repeated. If it fails,
 * CST_EV_MACHINES follows, with the same members or with others, when the driver lets it be tried
 * again: then all is told again. The place may be
 * one that an earlier core of that machine has named: the transfer may then fail, or bring other
 * bytes, because no step is committed with them.
 *
 * Writes. What a client writes to states or restores, it writes on every machine, with the same
 * values: a machine without the states of a chunk makes only the weights of them.
 *
 * Messages. The driver carries them (CST_ACT_TELL), in their order, between each two machines. It
 * drops those of an earlier epoch than the last CST_EV_MACHINES, and keeps those of a later one
 * until it has given the core that epoch. It puts its own number of the segment into `place`. All
 * pointers of a message are borrowed until the next event of the core that gave it away, or while
 * the event CST_EV_TOLD lasts. */
#ifndef CST_MACHINES_H
#define CST_MACHINES_H

#include "cistern/status.h"
#include "offload/base/command.h"
#include "proto/table.h"

#include <stdbool.h>
#include <stdint.h>

#define CST_MACHINES_MAX 64         /* Machines of a job: bits of a word. */
#define CST_MACHINES_ALL UINT32_MAX /* CST_ACT_TELL: to all other members. */
#define CST_MACHINE_UNKNOWN UINT32_MAX
#define CST_RANK_BLOCKS_MAX 64 /* Rank blocks of a job: one command adds their partials. */

/* The bit of machine @machine in a set of machines. */
static inline uint64_t cst_machine_bit(uint32_t machine)
{
    return UINT64_C(1) << machine;
}

/* The machines of a job, for cst_core_config. */
struct cst_core_machines {
    uint32_t n;             /* Number of machines, 2..CST_MACHINES_MAX. */
    uint32_t self;          /* The number of this one. */
    uint32_t copies;        /* Machines that have the states of a chunk, 1..n. */
    uint32_t n_rank_blocks; /* Rank blocks of the job, n..CST_RANK_BLOCKS_MAX. */
    /* Bit b: rank block b of the job is here. All have equally many ranks, and those here are
     * numbered rank block by rank block. */
    uint64_t rank_blocks;
    uint32_t engine; /* The engine that copies from other machines. */
    /* Per machine: the name of its node, for texts of others; borrowed while the core is open.
     * NULL: texts have the numbers of machines. */
    const char *const *names;
};

/* What a commit does, the same on all machines. All bytes are set, so that two decisions can be
 * compared with memcmp. */
struct cst_decision {
    /* Steps, Adam steps, skipped steps and overflows after the commit. step 0: no decision. */
    uint64_t step, adam_step, n_skipped, n_overflows;
    uint64_t attempt; /* The attempt that is committed. */
    struct cst_hyper hyper;
    double sum_squares; /* Of the gradients, before they are scaled. */
    /* The mean of the losses of all ranks that gave one; else 0. With stages: the mean of those of
     * the rank blocks. */
    double loss;
    uint32_t skipped; /* 1: no update is made. */
    uint32_t guard;   /* 1: tiles beyond proto/grad_limit.h keep their states. */
};

/* Each comment names the fields of struct cst_machine_message that the message uses in addition to
 * kind and epoch, who tells it, and to whom. */
enum cst_message_kind {
    /* attempt, decision, rank_blocks. A member tells all at the begin of an epoch: the last attempt
     * that it knows of, the last decision that it has recorded, and whose ranks it has. */
    CST_MESSAGE_RECORD,
    /* attempt, step. A member tells the coordinator, the lowest member: all ranks here are in SYNC,
     * and wait for an attempt after this one. */
    CST_MESSAGE_SYNCED,
    /* attempt, step, waited_for. The coordinator tells all: the attempt begins. */
    CST_MESSAGE_START,
    /* attempt, step, chunk, block, empty, place. A member tells the home: the partial is complete,
     * and stays at `place` until the attempt ends or the step is committed. */
    CST_MESSAGE_PARTIAL,
    /* attempt, step, chunk, place, squares, n_squares, waited_for. The home tells all: the gradient
     * is complete, and is at `place`. `squares` are those of the chunk's tiles, in their order. */
    CST_MESSAGE_SUMMED,
    /* attempt, step, decision (without loss), losses, n_losses, rank_blocks. A member tells the
     * coordinator: nothing is missing here for the commit. From now on this machine does not end
     * the attempt by itself. */
    CST_MESSAGE_READY,
    /* attempt, step, decision, waited_for. The coordinator tells all: all members were READY. */
    CST_MESSAGE_COMMIT,
    /* attempt, step. A member tells the coordinator: it has recorded the decision. The coordinator
     * goes on after the first one: then two members have recorded it. */
    CST_MESSAGE_RECORDED,
    /* step (the Adam step), chunk, place. The home tells all: the weights are at `place` until all
     * members are READY for the next step. */
    CST_MESSAGE_WRITTEN,
    /* attempt, step, idle, failed, why. A member that is not READY tells all: the attempt is over.
     * failed: the job is. */
    CST_MESSAGE_ABORT,
    /* attempt, step, unused, n_unused. A member of a job that skips tensors without a gradient
     * tells all: all ranks here have asked for the step. */
    CST_MESSAGE_UNUSED,
    CST_MESSAGE_KINDS,
};

struct cst_machine_message {
    enum cst_message_kind kind;
    uint64_t epoch;
    uint64_t attempt, step; /* step: steps committed before the one that the message is about. */
    uint32_t chunk;
    uint32_t block;         /* Number of the rank block in the job. */
    bool empty;             /* No rank of the rank block has contributed: there is no partial. */
    struct cst_place place; /* In the memory of the machine that tells. */
    const double *squares;
    uint32_t n_squares;
    uint64_t rank_blocks; /* Of that machine. */
    const double *losses; /* Of its rank blocks. */
    uint32_t n_losses;
    struct cst_decision decision;
    /* The machine whose message was the last for which the sender has waited before it told this
     * one; the sender itself if its own work ended later; or CST_MACHINE_UNKNOWN. */
    uint32_t waited_for;
    /* A bit for each tensor, 0 in the bytes that are left out: no rank there has a gradient of it,
     * or all that have one discard it. */
    const uint8_t *unused;
    uint32_t n_unused; /* Bytes. */
    bool idle;         /* A rank has left, and no rank of that machine had begun the step. */
    bool failed;
    struct cst_err why;
};

#endif
