/* SPDX-License-Identifier: Apache-2.0 */
/* Predicts the time and memory of a step with a pipeline schedule. Each rank does one action at a
 * time, in the order of its list. An action begins as soon as the rank is free and the message that
 * it needs has arrived. Messages are sent while the rank goes on; those on the way from one rank to
 * another one follow each other. Pure; only allocates memory. */
#ifndef CST_SCHEDULE_TIME_H
#define CST_SCHEDULE_TIME_H

#include "offload/parallel/schedule.h"

/* What one micro-batch costs in one stage. Times are in seconds, or in any other unit. */
struct cst_stage_cost {
    double forward;
    double backward;  /* Gradients of the inputs, I. B takes this and `weight`. */
    double weight;    /* Gradients of the weights, W. */
    double recompute; /* The forward pass again. Does not count for stages that do not recompute. */
    double send;      /* To the next stage, and of gradients back from it; 0 within a rank. */
    uint64_t kept_bytes; /* Kept from the forward pass to the end of the backward pass. */
    /* Kept instead from the forward pass to the repeated one, in a stage that recomputes. */
    uint64_t input_bytes;
};

struct cst_schedule_times {
    double makespan; /* From the first action's begin to the last one's end. */
    double busy;     /* Of all ranks together: time in actions. */
    /* Share of the ranks' time in which they wait: 1 - busy / (ranks * makespan). */
    double bubble;
};

/* Simulate @schedule, which is legal (schedule_check.h). @costs has an entry for each stage. If
 * @peak_bytes is not NULL, it gets for each rank the most bytes that its stages keep at any time.
 * If
 * @begin is not NULL, it gets the time at which each action begins, in the order of
 * schedule->actions. CST_ENOMEM; CST_EINVAL: the schedule is not legal. */
int cst_schedule_time(struct cst_schedule_times *out, const struct cst_schedule *schedule,
                      const struct cst_stage_cost *costs, uint64_t *peak_bytes, double *begin,
                      struct cst_err *err);

#endif
