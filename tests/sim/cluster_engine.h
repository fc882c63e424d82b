/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of a node of the cluster: when its commands end, and what sums are of. */
#ifndef SIM_CLUSTER_ENGINE_H
#define SIM_CLUSTER_ENGINE_H

#include "offload/core.h"

struct ending; /* private */

/* Contributions of this step, per chunk. */
struct cluster_sum {
    uint32_t handed, added; /* by ranks; into the sum */
    uint64_t updated;       /* adam step of the chunk's last update */
};

struct cluster_engine {
    uint64_t lanes[2];        /* ns; free from then on: copies, the others */
    struct ending *endings;   /* when commands end: a ring; owned */
    uint32_t n_endings;       /* power of two */
    struct cluster_sum *sums; /* owned */
    uint32_t n_chunks;
    uint64_t n_tiles;
    uint64_t n_fused; /* updates that made the sum, too */
};

/* Of a node with that layout; ends the program where there is no memory. */
void cluster_engine_open(struct cluster_engine *engine, const struct cst_layout *layout);
void cluster_engine_close(struct cluster_engine *engine);

/* What was handed in is void, but not what updates have had. */
void cluster_engine_restart(struct cluster_engine *engine);

/* @command is the core's, at @now. When it ends, or 0: @words say what is wrong with it: an engine
 * has no such, each sum of a step has what was handed in, once, and each step updates each chunk
 * once. */
uint64_t cluster_engine_take(struct cluster_engine *engine, const struct cst_command *command,
                             uint64_t now, char words[96]);

#endif
