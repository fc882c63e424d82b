/* SPDX-License-Identifier: Apache-2.0 */
/* Which processors an engine may use: the cores of one NUMA node that the cpuset and the affinity
 * of the process allow. This module also pins threads to them. It does not read OMP_NUM_THREADS or
 * any other variable that belongs to a library. */
#ifndef CST_CPUS_H
#define CST_CPUS_H

#include "cistern/status.h"

#include <hwloc.h>
#include <stdint.h>

/* The processors of one NUMA node. Constant between open and close. */
struct cste_cpus {
    hwloc_topology_t topology;
    /* PUs of the node that this process may use. If there are none, the PUs of all nodes. */
    hwloc_bitmap_t usable;
    hwloc_bitmap_t *cores; /* Owned array of n_cores sets: the usable PUs of each core. */
    unsigned n_cores;      /* Number of cores, at least 1. */
    /* False if the machine has no such node with a usable PU. usable then covers all nodes. */
    bool node_found;
};

/* Inspect the machine. @node is the number that the system gives to the NUMA node. CST_EINTERNAL:
 * hwloc failed; CST_ENOMEM. */
int cste_cpus_open(struct cste_cpus *cpus, unsigned node, struct cst_err *err);
/* Release what cste_cpus_open allocated. */
void cste_cpus_close(struct cste_cpus *cpus);

/* Pin the calling thread to core @core modulo n_cores. Returns false if the system refuses; the
 * affinity of the thread is then unchanged. */
bool cste_cpus_pin(const struct cste_cpus *cpus, unsigned core);

/* Restrict the calling thread to the usable PUs of the node. Returns false if the system refuses;
 * the affinity of the thread is then unchanged. */
bool cste_cpus_stay(const struct cste_cpus *cpus);

/* Bind the memory at @addr (page-aligned) to NUMA node @node. Called before the memory is first
 * touched. CST_EINVAL: there is no such node, or the system refuses; the memory is then unchanged.
 * Any thread. */
int cste_cpus_bind(const struct cste_cpus *cpus, void *addr, size_t bytes, unsigned node,
                   struct cst_err *err);

#endif
