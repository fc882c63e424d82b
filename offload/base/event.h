/* SPDX-License-Identifier: Apache-2.0 */
/* What a core is told, and what it asks for: events in, actions out. core.h describes the phases of
 * a job, and which engine executes a command. */
#ifndef CST_EVENT_H
#define CST_EVENT_H

#include "cistern/status.h"
#include "offload/base/command.h"
#include "offload/base/machines.h"
#include "offload/layout/layout.h"
#include "offload/base/work_unit.h"
#include "proto/table.h"

struct cst_core_record;

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
    /* rank. Only after HANGUP, in a job whose schedule is elastic; else it has no effect. What the
     * ranks of the next attempt use as memory for activations is memory that the rank's process
     * cannot write. The attempt ends, and no attempt waits for the rank. Its blocks stay in
     * quarantine. */
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
    /* weight_row, of the job. A reader keeps the version in that row (offload/update/versions.h),
     * which is readable (cst_core_may_keep); or keeps it no more. */
    CST_EV_KEEP,
    CST_EV_UNKEEP,
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
    /* release. Hold the job after the step under way (offload/core/pause.h), also empty its pools
     * then. The stats say how far that is. With other machines it is not exact: not allowed. */
    CST_EV_PAUSE,
    CST_EV_RESUME, /* End the pause; without one nothing changes. */
    /* rank, tag, cancel (the tag to cancel). The cancelled request is answered first, then this
     * one. */
    CST_EV_CANCEL,
    CST_EV_DONE, /* ticket, status, value, text. A command is complete. */
    /* status, text. The answer to CST_ACT_SEAL: the step lasts, or cannot. */
    CST_EV_SEALED,
    CST_EV_TICK, /* Only the time has changed. */
    /* text. The engine of a node with commands of this job was given up. The driver keeps those
     * commands that are not io. */
    CST_EV_NODE_DOWN,
    /* epoch, members. With other machines: the members of the job are these from now on, or the
     * core of one of them was started anew, or a link was down. Epochs count up, and are the same
     * on all members. The core does nothing with other machines before the first one. A machine
     * whose rank blocks others have taken over does not become a member again with what it has
     * kept: its states are old. */
    CST_EV_MACHINES,
    CST_EV_TOLD, /* machine, message. Another machine's core has told this one something. */
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
    bool exponents;      /* With `raw` and mx8: exponents of the blocks, instead of the codes. */
    bool bf16;           /* WRITE of MASTER: the elements at `place` are bf16, not fp32. */
    uint32_t weight_row; /* KEEP, UNKEEP: 0, or 1 for the second weight row. */
    /* STEP: a bit for each tensor, in the order of declaration: this rank had no gradient of it in
     * the step; it had one and discards it. Bits that are left out are 0. */
    const uint8_t *without, *discarded;
    size_t n_without, n_discarded; /* Bytes. */
    const uint64_t *missed;        /* MISSED: a number for each tensor. */
    struct cst_counters counters;
    const struct cst_core_record *record;
    struct cst_table_header *table;
    struct cst_place place;
    bool release; /* PAUSE: empty the pools. */
    uint64_t cancel;
    uint64_t ticket;
    int status;
    double value;
    const char *text;        /* DONE with a status: the engine's message, or NULL. */
    uint64_t epoch, members; /* members: bit m is machine m. */
    uint32_t machine;
    const struct cst_machine_message *message;
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
    /* Make the last committed step last: flush all states, write a record of the step
     * (cst_core_seal_of), and flush it. CST_EV_SEALED follows, never within this event. */
    CST_ACT_SEAL,
    /* Tell other machines something (offload/base/machines.h). The record of the core
     * (offload/core/revival.h) is stored before. */
    CST_ACT_TELL,
    /* The weights of step `version.step` are readable in the weight row `version.row` of all chunks
     * that have several, and in the only one of the others. */
    CST_ACT_VERSION,
    /* The weight row is not readable any more. Commands that write to it follow. What is kept there
     * is kept no more. */
    CST_ACT_REVOKE,
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
    bool has_unit;             /* NEXT: there is a unit; false: all are done. */
    struct cst_work_unit unit; /* NEXT, if has_unit. */
    uint64_t attempt, step;    /* SYNC: both. STEP, SAVE: step only. */
    bool skipped;              /* STEP: the updates of the step were skipped. */
    double grad_norm, loss;    /* STEP. */
    float clip;                /* STEP: the clip factor. */
    uint64_t n_skipped;        /* STEP: number of steps skipped so far. */
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
        struct {
            uint32_t to; /* A machine, or CST_MACHINES_ALL. */
            struct cst_machine_message message;
        } tell;
        struct {
            uint32_t row; /* 0, or 1 for the second weight row. */
            uint64_t step;
        } version;
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

#endif
