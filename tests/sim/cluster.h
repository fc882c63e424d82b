/* SPDX-License-Identifier: Apache-2.0 */
/* Simulates one job on many nodes under virtual time, with one core per node and up to thousands of
 * ranks. A step begins when all nodes have committed the step before it. A cluster of one node
 * tests a core with very many chunks. Neither bytes nor values are simulated: the test checks that
 * all ranks make progress, that each sum contains every contribution once, and what deaths of ranks
 * cost. */
#ifndef SIM_CLUSTER_H
#define SIM_CLUSTER_H

#include "cistern/optimizer.h"

#include <stdint.h>

/* Properties of a cluster and of its run. */
struct cluster_options {
    uint64_t seed;
    uint32_t n_nodes, n_ranks; /* n_ranks: of each node */
    uint32_t n_chunks;
    uint32_t micro_batches;
    enum cst_overlap overlap; /* With CST_OVERLAP_EARLY ranks prepare their steps. */
    uint32_t n_deaths;        /* number of ranks that die in each step */
    uint64_t n_steps;         /* number of steps to commit */
};

/* Counts of a run. */
struct cluster_totals {
    uint64_t n_events; /* events processed by all cores */
    uint64_t n_commands;
    uint64_t n_deaths;
    uint64_t n_early;   /* updates issued before the commit of their step */
    uint64_t n_fused;   /* updates that also summed the contributions */
    uint64_t n_dropped; /* gradients handed in again for chunks that were already updated */
    uint64_t ns;        /* virtual time of the run */
};

/* Run the cluster to its last step. An error prints the seed and the failed check, and ends the
 * program. */
void cluster_run(const struct cluster_options *options, struct cluster_totals *out);

#endif
