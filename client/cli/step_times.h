/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of each step went, by rank, from the intervals of a job (intervals.h). At each
 * moment a rank does one thing, the first of these that holds: it waits for the commit, for
 * weights, or for a block for a gradient; it computes, which is when it has a lease; it does
 * something else. */
#ifndef CLI_STEP_TIMES_H
#define CLI_STEP_TIMES_H

#include "client/cli/intervals.h"

/* In the order in which they are drawn. */
enum cli_step_part {
    CLI_STEP_COMPUTE,
    CLI_STEP_WEIGHTS, /* Wait for weights. */
    CLI_STEP_UPDATE,  /* The part of the waits by which updates made the step longer. */
    CLI_STEP_COMMIT,  /* Wait for a gradient's block, or for the commit. */
    CLI_STEP_OTHER,
    CLI_STEP_PARTS,
};

extern const char *const cli_step_part_names[CLI_STEP_PARTS + 1]; /* The last one is NULL. */

struct cli_step_time {
    uint64_t step; /* From 1. */
    uint32_t rank;
    double seconds;               /* From commit to commit; the sum of the parts. */
    double parts[CLI_STEP_PARTS]; /* Seconds. */
};

/* Compute the times of at most the last @most steps of which all intervals are there, for the ranks
 * below @n_ranks, step by step. *out is owned by the caller. NULL: there are none, or memory is
 * short, which *failed says. */
struct cli_step_time *cli_step_times(const struct cli_intervals *intervals, uint32_t n_ranks,
                                     size_t most, size_t *n, bool *failed);

/* True if all intervals of @step, which is an interval of kind STEP, are in @intervals. */
bool cli_step_is_whole(const struct cli_intervals *intervals, const Cistern__TraceInterval *step);

#endif
