/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts a chain of units into the stages of a pipeline, and chooses which units recompute. A unit is
 * what cuts do not divide, such as a layer.
 *
 * The cuts minimise  sum t + (n_micro - 1) max t  over the stages' times t for one micro-batch,
 * forward and backward: the time of a pipeline without waits in its steady state (Alpa, Zheng et
 * al. 2022, equation 2). A stage recomputes as few of its units as its memory allows, its first
 * ones; their forward passes count twice. With n micro-batches in flight a stage needs
 *
 *   fixed + (n - r) x (inputs of the units that recompute + what the others keep)
 *         + r x what all keep
 *
 * where r of them have been restored: 1 in most schedules, more if weight gradients are delayed.
 * Pure; only allocates memory. */
#ifndef CST_STAGES_H
#define CST_STAGES_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { CST_STAGES_MAX = 64, CST_STAGES_MAX_UNITS = 512 };

/* What a unit costs one rank for one micro-batch. */
struct cst_unit_cost {
    double forward, backward; /* Seconds. */
    double send;              /* Seconds to send its output to the next unit on another rank. */
    uint64_t kept_bytes;      /* Kept from its forward to its backward pass. */
    uint64_t input_bytes;     /* Kept instead if it recomputes; at most kept_bytes count. */
    uint64_t fixed_bytes;     /* For its weights and gradients, whatever is in flight. */
};

/* Weights that two units share: a stage with both has them once. They are among the fixed bytes of
 * both. */
struct cst_unit_tie {
    uint32_t first, last;
    uint64_t bytes;
};

struct cst_stages_input {
    const struct cst_unit_cost *units; /* In the order of the forward pass. */
    uint32_t n_units;
    const struct cst_unit_tie *ties;
    uint32_t n_ties;
    uint32_t n_stages, n_micro;
    /* For each stage: most micro-batches in flight, and most of them that are restored. */
    const uint32_t *in_flight, *restored;
    /* For each stage: all its units recompute, whatever the memory; NULL: none. */
    const bool *recomputes;
    /* Memory of a stage; several stages of a rank share its memory equally. */
    uint64_t stage_bytes;
};

struct cst_stage_cut {
    uint32_t first, n_units;  /* Its units. */
    uint32_t n_recomputed;    /* Number of units that recompute: the first ones. */
    double forward, backward; /* Seconds of all units; the repeated passes are not in them. */
    double recompute;         /* Seconds of the repeated forward passes. */
    double send;              /* Seconds for the output of its last unit. */
    uint64_t fixed_bytes;
    uint64_t kept_bytes;    /* What all units keep. */
    uint64_t reduced_bytes; /* What is kept between the forward pass and the repeated one. */
};

/* Find the best cuts: *seconds is the minimum, @out has an entry for each stage. Statuses:
 *   - CST_EINVAL: there are more stages than units, or more of either than can be.
 *   - CST_EBUDGET: no cuts fit in the memory, even if all units recompute; the words say which
 *     stage_bytes would be enough.
 *   - CST_ENOMEM. */
int cst_stages_cut(struct cst_stage_cut *out, double *seconds, const struct cst_stages_input *input,
                   struct cst_err *err);

/* Return the bytes that a stage needs with @in_flight micro-batches in flight, of which @restored
 * are restored. */
uint64_t cst_stage_bytes(const struct cst_stage_cut *stage, uint32_t in_flight, uint32_t restored);

#endif
