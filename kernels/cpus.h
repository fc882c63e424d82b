/* SPDX-License-Identifier: Apache-2.0 */
/* Which processors an engine may use: the cores of one NUMA node that the process's cpuset and
 * affinity allow. Pins threads to them. Does not read OMP_NUM_THREADS or any other variable of
 * somebody else's library. */
#ifndef CST_CPUS_H
#define CST_CPUS_H

#include "cistern/status.h"

#include <hwloc.h>
#include <stdint.h>

struct cst_cpus {
    hwloc_topology_t topology;
    hwloc_bitmap_t usable; /* PUs of the node that this process may use; of all nodes where the node
                              has none */
    hwloc_bitmap_t *cores; /* n_cores: the usable PUs of each core */
    unsigned n_cores;      /* at least 1 */
    bool node_found; /* false: this machine has no such node with a usable PU, usable is all nodes'
                      */
};

/* Look at the machine. @node is the NUMA node's number as the system counts. CST_EINTERNAL: hwloc
 * fails; CST_ENOMEM. */
int cst_cpus_open(struct cst_cpus *cpus, unsigned node, struct cst_err *err);
void cst_cpus_close(struct cst_cpus *cpus);

/* Pin the calling thread to core @core modulo n_cores. False: the system refused, it runs where it
 * ran. */
bool cst_cpus_pin(const struct cst_cpus *cpus, unsigned core);

/* Let the calling thread run on any usable PU of the node, no other. As cst_cpus_pin. */
bool cst_cpus_stay(const struct cst_cpus *cpus);

/* Bind the memory at @addr (page-aligned) to node @node before its first touch. CST_EINVAL: no such
 * node, or the system refuses; the memory is as before. Any thread. */
int cst_cpus_bind(const struct cst_cpus *cpus, void *addr, size_t bytes, unsigned node,
                  struct cst_err *err);

#endif
