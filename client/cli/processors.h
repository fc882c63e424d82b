/* SPDX-License-Identifier: Apache-2.0 */
/* Divides the processors that this process may use among the ranks of `cistern run`: disjoint sets
 * of whole cores, in the order of the machine. If nodes have about the same number of cores, a set
 * crosses the border of a NUMA node only if there are fewer ranks than nodes. */
#ifndef CLI_PROCESSORS_H
#define CLI_PROCESSORS_H

#include "cistern/status.h"

#include <hwloc.h>
#include <stdbool.h>

/* The processors of each rank. */
struct cli_processors {
    hwloc_topology_t topology; /* What this process may use of the machine. Owned. */
    hwloc_bitmap_t *sets;      /* Per rank; NULL: there are more ranks than processors. Owned. */
    unsigned n_ranks;          /* Number of entries in sets. */
    unsigned n_processors;     /* Hardware threads that this process may use. */
    unsigned n_cores;          /* Cores of them. */
};

/* Divide the processors among @n_ranks ranks. With fewer cores than ranks, ranks share a core, but
 * not a hardware thread. With fewer hardware threads than ranks, nothing is divided: sets is NULL.
 * If the environment has HWLOC_SYNTHETIC, the machine is the one that it describes. CST_ENOMEM;
 * CST_EINTERNAL: hwloc cannot see the machine. The caller closes @processors after success. */
int cli_processors_open(struct cli_processors *processors, unsigned n_ranks, struct cst_err *err);

void cli_processors_close(struct cli_processors *processors);

/* Return the number of cores for one rank's threads, at least 1. */
unsigned cli_processors_share(const struct cli_processors *processors, unsigned rank);

/* Restrict the calling thread, and what it starts, to the processors of @rank. CST_EINTERNAL: the
 * system refuses. */
int cli_processors_enter(const struct cli_processors *processors, unsigned rank,
                         struct cst_err *err);

/* Undo cli_processors_enter. */
void cli_processors_leave(const struct cli_processors *processors);

#endif
