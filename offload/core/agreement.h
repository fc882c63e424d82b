/* SPDX-License-Identifier: Apache-2.0 */
/* What the machines of a job agree on: begins and ends of attempts, and commits
 * (offload/base/machines.h). Owns what members have told of that. Called by core.c, commit and
 * ranks.
 *
 *   all ranks here in SYNC: SYNCED -> coordinator: START -> all
 *   norm known here:        READY  -> coordinator: COMMIT -> all: RECORDED -> coordinator
 *   not READY, a rank dies: ABORT  -> all
 *
 * A member that is READY waits for the word of the coordinator. It can only be COMMIT, unless a
 * member that is not READY tells ABORT before. So no attempt is aborted on one machine and
 * committed on another one.
 *
 * A new epoch (CST_EV_MACHINES) ends the attempt. First all members tell each other what they have
 * recorded. If any of them has recorded a decision about the step that the others were READY for,
 * it is committed by all, otherwise by none. This includes members whose cores were started anew,
 * or have ended the attempt because the one with the decision was no member for a while: no attempt
 * can begin without its ranks, so the sums are still in everybody's memory. */
#ifndef CST_AGREEMENT_H
#define CST_AGREEMENT_H

#include "offload/base/event.h"

struct cst_core;

/* What a member has told. */
struct cst_agreement_member {
    uint64_t
        synced; /* 1 + the last attempt that it knew of when all its ranks were in SYNC; or 0. */
    uint64_t synced_step;
    uint64_t last_attempt;        /* In its record of this epoch. */
    struct cst_decision recorded; /* In its record of this epoch. */
    struct cst_decision ready;    /* In its last READY. */
    uint64_t rank_blocks;         /* Those that it has, by its record of this epoch. */
};

struct cst_agreement {
    struct cst_agreement_member *members; /* Per machine; owned. NULL: the job has one machine. */
    uint64_t last;    /* The last attempt that was begun anywhere, as far as is known here. */
    uint64_t aborted; /* The last attempt that is known to be over on another machine. */
    uint64_t started; /* The attempt that the coordinator lets begin; 0: none. */
    uint64_t told;    /* 1 + `last` as told in the last SYNCED of this epoch; 0: none was told. */
    uint64_t records; /* Bit m: the record of member m of this epoch has come. */
    bool settled;     /* All have come. */
    uint64_t rank_blocks;     /* Rank blocks of all members, by their records. */
    bool ready;               /* READY was told for the step that runs. */
    bool decided;             /* This is the coordinator, which waits for RECORDED. */
    uint64_t n_ready;         /* Coordinator: bit m: member m is READY for the step that runs. */
    uint32_t last_synced;     /* Coordinator: the member that was SYNCED last. */
    uint32_t last_ready;      /* Coordinator: the member that was READY last. */
    struct cst_decision mine; /* If `ready`: what this machine expects, without the loss. */
    struct cst_decision last_decision; /* The last one that was recorded. */
    double *losses;                    /* Coordinator: of all rank blocks of the job; owned. */
    double *own_losses;                /* Of the ranks here, also on one machine; owned. */
    struct cst_err missing; /* If status != 0: no member has the states of the chunks named here. */
    /* 1 + the attempt for which this machine was READY last, with the step after the last committed
     * one, if none was begun since; else 0. UINT64_MAX: not known, because the core goes on after
     * an earlier one. The sums of that attempt are still in the rows. */
    uint64_t ready_for;
};

/* Fill core->agreement. CST_ENOMEM. */
int cst_agreement_open(struct cst_core *core);
void cst_agreement_close(struct cst_core *core);

/* Handle CST_EV_TOLD. */
void cst_agreement_told(struct cst_core *core, const struct cst_event *event);

/* All ranks here are in SYNC. Returns true if an attempt may begin now. Then core->attempt.number
 * is the number of the one before. */
bool cst_agreement_begin(struct cst_core *core);

/* The attempt that runs ends here, for the reason @why; @idle: a rank has left before any had begun
 * the step; @failed: the job fails. */
void cst_agreement_end(struct cst_core *core, bool idle, bool failed, const struct cst_err *why);

/* True if the attempt, whose step closes, must not be ended by this machine. */
bool cst_agreement_binds(const struct cst_core *core);

/* The mean of the losses here in the step that closes. */
double cst_agreement_own_loss(const struct cst_core *core);

/* Nothing is missing here for @decision. Returns true if it takes effect now, because there are no
 * other machines. Else the fact CST_FACT_DECIDED will follow. */
bool cst_agreement_ready(struct cst_core *core, const struct cst_decision *decision);

/* The step was committed. */
void cst_agreement_committed(struct cst_core *core);

/* The core goes on after an earlier one, which had recorded the decision *last. */
void cst_agreement_revived(struct cst_core *core, const struct cst_decision *last);

/* States were restored: decisions of the steps before do not count any more. */
void cst_agreement_restored(struct cst_core *core);

/* Tell all that attempt @attempt cannot be, or is over; @idle and @failed as in cst_agreement_end.
 */
void cst_agreement_tell_abort(struct cst_core *core, uint64_t attempt, bool idle, bool failed,
                              const struct cst_err *why);

#endif
