/* SPDX-License-Identifier: Apache-2.0 */
/* Pipeline schedules: for each rank of a pipeline the list of its actions in a step, in their
 * order. A model is cut into stages; each stage belongs to one rank, and each micro-batch goes
 * forward through all stages and then backward. The lists are made here from a row of a few
 * numbers; schedule_check.h verifies lists of any origin, schedule_time.h predicts their time,
 * schedule_text.h reads and writes them.
 *
 * The functions are pure, keep no pointers and may be called by any thread. */
#ifndef CST_SCHEDULE_H
#define CST_SCHEDULE_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CST_SCHEDULE_MAX_STAGES = 1024,   /* Most stages, and most ranks. */
    CST_SCHEDULE_MAX_MICRO = 16384,   /* Most micro-batches. */
    CST_SCHEDULE_MAX_UNITS = 1 << 20, /* Most micro-batches times stages. */
    CST_SCHEDULE_NAME_BYTES = 16,
};

enum cst_stage_action_kind {
    CST_STAGE_FORWARD,         /* "F" */
    CST_STAGE_BACKWARD,        /* "B": gradients of the inputs and of the weights. */
    CST_STAGE_BACKWARD_INPUT,  /* "I": gradients of the inputs alone. */
    CST_STAGE_BACKWARD_WEIGHT, /* "W": gradients of the weights, some time after "I". */
    /* "R": the forward pass again, of which only the inputs were kept, some time before the
     * backward pass. It does not wait for the gradient from the next stage. */
    CST_STAGE_RECOMPUTE,
    CST_STAGE_ACTION_COUNT
};

struct cst_stage_action {
    uint16_t kind;  /* enum cst_stage_action_kind */
    uint16_t stage; /* Number of the stage. */
    uint32_t micro; /* Number of the micro-batch. */
};

struct cst_schedule {
    uint32_t n_ranks, n_stages, n_micro;
    struct cst_stage_action
        *actions;      /* Those of rank 0 in their order, then those of rank 1, ... Owned. */
    uint32_t *first;   /* Number of each rank's first action; one more entry: the end. Owned. */
    uint32_t *rank_of; /* The rank of each stage. Owned. */
    /* Whether a stage keeps only the inputs of its forward passes. A backward action without a
     * recompute action before it repeats the forward pass itself, once its gradient is there.
     * Owned.
     */
    bool *recomputes;
};

/* A kind of schedule. A rank does the first of these actions that it may do:
 *   1. a forward pass, if at most its warm-up number of micro-batches are in flight;
 *   2. a backward pass, preceded by its recompute action if `early`;
 *   3. after this, weight gradients if more than `weight_delay` are due; all of them at the end. */
struct cst_schedule_kind {
    char name[CST_SCHEDULE_NAME_BYTES];
    const char *words; /* What it is, for people. */
    /* Warm-up of the last rank: all its forward passes, or what its later stages need. */
    bool all_forward;
    uint32_t per_hop; /* Warm-up in addition for each rank that follows. */
    /* One more forward pass before the first backward pass of the rank before the last. */
    bool shifted;
    bool interleaves; /* A rank may have several stages: s, s + ranks, s + 2 ranks, ... */
    bool splits;      /* Backward passes are split into input and weight gradients. */
    bool late_ranks;  /* Weight gradients are delayed by the number of the rank; else not. */
    bool early;       /* All stages but the last recompute, before they wait for the gradient. */
};

/* Return the row @i of the table of kinds, which is static; NULL: there are no more. */
const struct cst_schedule_kind *cst_schedule_kind(uint32_t i);

/* Find the kind @name. CST_ENOTFOUND: the words list all names. */
int cst_schedule_find(const struct cst_schedule_kind **out, const char *name, struct cst_err *err);

/* What the lists are made for. */
struct cst_schedule_size {
    uint32_t n_ranks, n_stages, n_micro;
    /* Whether each of the n_stages stages recomputes; NULL: as the kind says. Borrowed. */
    const bool *recomputes;
};

/* Make the lists of @kind. The caller frees *out with cst_schedule_close. Statuses:
 *   - CST_EINVAL: a number is 0 or too large; the stages are not those of the ranks, once or, if
 *     the kind interleaves, several times; the micro-batches do not divide into its rounds. The
 *     words name the valid values.
 *   - CST_ENOMEM. */
int cst_schedule_make(struct cst_schedule *out, const struct cst_schedule_kind *kind,
                      const struct cst_schedule_size *size, struct cst_err *err);

/* Allocate an empty schedule for lists of @n_actions actions; first, rank_of and recomputes are
 * zeroed. CST_EINVAL: a number is 0 or too large. CST_ENOMEM. */
int cst_schedule_open(struct cst_schedule *out, const struct cst_schedule_size *size,
                      size_t n_actions, struct cst_err *err);

/* Free the lists. A zeroed schedule is allowed. */
void cst_schedule_close(struct cst_schedule *schedule);

#endif
