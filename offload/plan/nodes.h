/* SPDX-License-Identifier: Apache-2.0 */
/* A job on several machines in a plan: what each pulls over its link in a step, under which passes
 * that hides, and what rows it has. Every machine has the model and as many ranks as the plan.
 *
 * With N machines and r copies, the home of a chunk (cst_layout_keeper) pulls a partial sum
 * from each other machine; its r - 1 buddies pull the sum, and all others the new weights. If a
 * partial sum and the sum of a parameter take b and 2 bytes, a machine pulls (b + 2) (N - 1) / N
 * bytes per parameter. A partial sum is 2 bytes if it is the bf16 gradient of one rank in one
 * micro-batch, and otherwise 4. Pure functions. */
#ifndef CST_PLAN_NODES_H
#define CST_PLAN_NODES_H

#include "offload/plan/plan.h"

struct cst_plan_nodes_config {
    uint32_t n_nodes;   /* 2 to CST_SET_MAX. */
    uint32_t n_copies;  /* 1 to n_nodes. */
    double bytes_per_s; /* What a machine can receive, while it sends as much. */
    uint64_t tokens;    /* Of a micro-batch of one rank; 0: not known. */
};

/* Of the machine that pulls most, and of the one that has most rows. */
struct cst_plan_nodes {
    uint64_t sum_bytes;    /* Partial sums that it pulls as a home. */
    uint64_t copy_bytes;   /* Sums that it pulls as a buddy. */
    uint64_t weight_bytes; /* New weights that it pulls. */
    /* Seconds of sums and copies, which begin in the last backward pass of a step, until the
     * machine that pulls or serves most of them is done, and seconds of this pass. */
    double sum_s, sum_under_s;
    /* Seconds of weights, in the same way, and of the first forward pass of the next step, which
     * needs them. */
    double weight_s, weight_under_s;
    /* By how much sums and copies, and weights, make a step longer, and the step. The first chunk
     * has to be computed before it can be sent, and the last one is used after it has come. A node
     * updates a part of the chunks: the exposed time of updates is shorter than on one node. */
    double sum_exposed_s, weight_exposed_s, step_s;
    /* Tokens of all ranks of a machine, in a micro-batch, from which on both hide; 0: not known. */
    double hidden_tokens;
    uint64_t row_bytes; /* Weights, gradients and states of a machine. */
};

/* Compute it for the plan @choice of @config. CST_ENOMEM, and the statuses of cst_layout_build. */
int cst_plan_nodes(struct cst_plan_nodes *out, const struct cst_plan_nodes_config *nodes,
                   const struct cst_plan_config *config, const struct cst_plan_choice *choice,
                   struct cst_err *err);

#endif
