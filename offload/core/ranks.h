/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks and attempts: attach, sync, leave and death of ranks; begin and end of attempts. Owns the
 * attempt. Called by core.c, and by the parts that end an attempt: prepare, commit, states and
 * device_loss. */
#ifndef CST_RANKS_H
#define CST_RANKS_H

#include "offload/base/stats.h"
#include "offload/base/event.h"

struct cst_core;
struct cst_rank;

/* The attempt that runs, or the last one. */
struct cst_attempt {
    enum cst_core_phase phase;
    uint64_t number;
    bool initialised;     /* A SYNC has completed, or the states were restored. */
    bool closing;         /* All ranks have asked for the step; it waits only for engines. */
    bool interrupt_later; /* Interrupt the attempt as soon as the closing step is committed. */
    struct cst_err why;   /* IDLE, INTERRUPTED, FAILED or interrupt_later: the cause. */
};

/* Handle CST_EV_ATTACH, HANGUP, DEAD, SHUT_OUT, LEAVE and SYNC. */
void cst_ranks_attach(struct cst_core *core, const struct cst_event *event);
void cst_ranks_hangup(struct cst_core *core, const struct cst_event *event);
void cst_ranks_dead(struct cst_core *core, const struct cst_event *event);
void cst_ranks_shut_out(struct cst_core *core, const struct cst_event *event);
void cst_ranks_leave(struct cst_core *core, const struct cst_event *event);
void cst_ranks_sync(struct cst_core *core, const struct cst_event *event);

/* True if @event belongs to the running attempt and its rank takes part in it. Else the request is
 * refused. */
bool cst_ranks_admit(struct cst_core *core, const struct cst_event *event);

/* True if the rank of @event has not asked for the step. Else the request is refused. */
bool cst_ranks_admit_before_step(struct cst_core *core, const struct cst_event *event);

/* All ranks have asked for the step: from now on it waits only for engines, and has no deadline. */
void cst_ranks_begin_closing(struct cst_core *core);
/* The step is committed. */
void cst_ranks_end_closing(struct cst_core *core);
/* The states were written from a checkpoint: workers that join must not write the weights. */
void cst_ranks_restored(struct cst_core *core);

/* The job goes on after the death of the daemon: all ranks must attach and sync. */
void cst_ranks_revived(struct cst_core *core);

/* The step is committed and its collection ended: end the attempt, if that was postponed. */
void cst_ranks_committed(struct cst_core *core);

/* Begin an attempt if all ranks for which it waits are in SYNC. If the schedule is elastic, let
 * the ranks in SYNC join the attempt that runs. Called at the end of each event. */
void cst_ranks_start(struct cst_core *core);

/* End the attempt: waiting requests are answered with @why (CST_EPEERDIED, CST_EMISMATCH, ...) and
 * contributions are dropped. While a step closes, this is postponed until its commit. */
void cst_ranks_interrupt(struct cst_core *core, const struct cst_err *why);

/* No attempt runs, because all ranks have left, but updates are still in flight, so the job is not
 * idle. */
void cst_ranks_interrupt_idle(struct cst_core *core, const struct cst_err *why);

/* End the attempt at once: the closing step cannot be committed, because a contribution is lost. */
void cst_ranks_abandon(struct cst_core *core, const struct cst_err *why);

/* End the attempt because of what another machine has told; @idle: one of its ranks has left. If no
 * rank here has begun the step, nothing is lost then. */
void cst_ranks_end_as_told(struct cst_core *core, bool idle, const struct cst_err *why);

/* The job fails: all waiting and all later requests are answered with @why. */
void cst_ranks_fail(struct cst_core *core, const struct cst_err *why);

/* True if an attempt waits for @rank to send SYNC. With an elastic schedule it does not wait for
 * ranks whose processes are gone or shut out; all others could still write to the memory for
 * activations. Its first attempt waits for all ranks, because one of them writes the weights before
 * it sends SYNC.
 */
bool cst_ranks_await(const struct cst_core *core, const struct cst_rank *rank);

/* CST_OK if a rank waits in SYNC, and an attempt that begins now waits for no other rank here.
 * CST_EPEERDIED: *err says for which one. */
int cst_ranks_wait_in_sync(const struct cst_core *core, struct cst_err *err);

/* Handle CST_EV_CANCEL. A request that an engine works on cannot be cancelled. */
void cst_ranks_cancel(struct cst_core *core, const struct cst_event *event);

#endif
