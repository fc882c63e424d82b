/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of micro-batches and of steps: norm, commit, order of updates. Owns the step. Called by
 * core.c, states and save. */
#ifndef CST_COMMIT_H
#define CST_COMMIT_H

#include "offload/base/event.h"
#include "offload/base/flight.h"

struct cst_core;
struct cst_commit {
    /* Collection whose NORM was issued last, counted from 1; 0: none was. */
    uint64_t normed;
    uint64_t n_skipped;
    uint64_t n_overflows;
    uint64_t adam_step;
    uint64_t restored_adam_step; /* adam_step when states were restored last; 0: never. */
    uint64_t last_ns;            /* Time of the last commit, in ns; 0: none yet. */
    uint64_t last_step_ns;
    double last_loss, last_grad_norm;
    bool has_hyper;         /* There was a step. */
    struct cst_hyper hyper; /* Hyper-parameters of the last step. */
    float factor;           /* Factor of the gradients in the updates of the last step. */
    bool guard;             /* The updates of the last step are guarded (overlap.c). */
    uint64_t sealed_step;   /* The last step whose seal this core was told of; 0: none. */
    uint64_t held_ns; /* Time since which the commit waits for the end of a save; 0: it does not. */
    uint32_t *order;  /* Scratch: chunks in the order of their updates; owned. */
};

/* Handle CST_EV_ACCUMULATE and STEP. */
void cst_commit_accumulate(struct cst_core *core, const struct cst_event *event);
void cst_commit_step(struct cst_core *core, const struct cst_event *event);

/* A rank has asked for the step, or does not take part any more: if no other rank is missing, the
 * step closes. */
void cst_commit_look(struct cst_core *core);

/* The states were written from a checkpoint: go on with these counters. @record: the job from which
 * they were copied, whose last step is reported as the last one; NULL: none. */
void cst_commit_restore(struct cst_core *core, const struct cst_counters *counters,
                        const struct cst_core_record *record);

/* Issue the NORM if all gradients are reduced, no WRITE is in flight, no save is active,
 * and no reader keeps the weight row that the updates write. */
void cst_commit_close(struct cst_core *core);

/* No save is active any more: let the commit go on. Returns the time that it has waited, in ns; 0:
 * it has not. */
uint64_t cst_commit_release(struct cst_core *core);

/* Handle CST_EV_SEALED: the next step may be committed; or the job fails. */
void cst_commit_sealed(struct cst_core *core, const struct cst_event *event);

/* Handle the completion of the NORM: commit, if there are no other machines. */
void cst_commit_normed(struct cst_core *core, const struct cst_flight *flight,
                       const struct cst_event *event);

/* All machines of the job commit @decision: handle CST_FACT_DECIDED. */
void cst_commit_decided(struct cst_core *core, const struct cst_decision *decision);

#endif
