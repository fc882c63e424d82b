/* SPDX-License-Identifier: Apache-2.0 */
/* Many nodes under virtual time, a core each, thousands of ranks between them: each trains the same
 * job, and a step begins when all nodes have committed the one before. Or one node with very many
 * chunks. No bytes, no values: what is looked at is that everybody goes on, that each sum has all
 * contributions once, and what deaths cost. */
#ifndef SIM_CLUSTER_H
#define SIM_CLUSTER_H

#include "cistern/optimizer.h"

#include <stdint.h>

struct cluster_options {
    uint64_t seed;
    uint32_t n_nodes, n_ranks; /* ranks of each node */
    uint32_t n_chunks;
    uint32_t micro_batches;
    enum cst_overlap overlap; /* EARLY: ranks prepare their steps */
    uint32_t n_deaths;        /* of ranks, in each step */
    uint64_t n_steps;         /* to commit */
};

struct cluster_totals {
    uint64_t n_events; /* digested by all cores */
    uint64_t n_commands;
    uint64_t n_deaths;
    uint64_t n_early;   /* updates before their step's commit */
    uint64_t n_fused;   /* of them, that made the sum too */
    uint64_t n_dropped; /* gradients handed in again for chunks that had had theirs */
    uint64_t ns;        /* virtual */
};

/* Run to the end, or print the seed and what is wrong and end the program. */
void cluster_run(const struct cluster_options *options, struct cluster_totals *out);

#endif
