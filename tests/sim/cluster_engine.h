/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated engine of one cluster node. It determines when each command ends, and counts the
 * contributions in each sum. */
#ifndef SIM_CLUSTER_ENGINE_H
#define SIM_CLUSTER_ENGINE_H

#include "offload/core/core.h"

struct ending; /* private to cluster_engine.c */

/* Contributions to one chunk in the current step. */
struct cluster_sum {
    uint32_t handed, added; /* handed: contributions of ranks; added: contributions in the sum */
    uint64_t updated;       /* Adam step of the chunk's last update */
};

/* The engine of one node. */
struct cluster_engine {
    /* Time in ns at which a lane becomes free: lanes[0] copies, lanes[1] executes other commands.
     */
    uint64_t lanes[2];
    /* End times of the last n_endings commands, indexed by ticket modulo n_endings; owned. */
    struct ending *endings;
    uint32_t n_endings;       /* a power of two */
    struct cluster_sum *sums; /* one per chunk; owned */
    uint32_t n_chunks;
    uint64_t n_tiles;
    uint64_t n_fused; /* updates that also summed the contributions */
};

/* Open the engine of a node with @layout. Ends the program if memory is exhausted. */
void cluster_engine_open(struct cluster_engine *engine, const struct cst_layout *layout);
/* Free what the engine owns, but not @engine itself. */
void cluster_engine_close(struct cluster_engine *engine);

/* Forget the contributions that ranks have handed in, because their attempt was interrupted. The
 * steps of past updates are kept. */
void cluster_engine_restart(struct cluster_engine *engine);

/* Give the engine a command that the core issued at @now. Returns the time at which the command
 * ends, or 0 if the command is wrong; @words then describes the error. Errors are a command kind
 * that the cluster does not use, a sum that does not contain each contribution of the step once,
 * and a chunk that is not updated exactly once per step. */
uint64_t cluster_engine_take(struct cluster_engine *engine, const struct cst_command *command,
                             uint64_t now, char words[96]);

#endif
