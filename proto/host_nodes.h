/* SPDX-License-Identifier: Apache-2.0 */
/* The host nodes of the machine: the NUMA nodes that have both processors and memory of their own.
 * Arenas, pools in host memory and engines are on host nodes only. Other NUMA nodes are not used:
 *
 * - Nodes without processors. On GH200, for example, the memory of the GPU is such a node, whose
 *   bytes would be lost to the GPU. Other examples are HBM and CXL memory. hwloc shows some of
 *   these nodes with the processors next to them, which are the processors of an earlier node
 *   already.
 * - Nodes without memory, because no module is plugged in next to their processors.
 *
 * The module also tells which host node is nearest to a device. It uses hwloc, and therefore obeys
 * the variables HWLOC_XMLFILE and HWLOC_SYNTHETIC. A thread may use one struct at a time. */
#ifndef CST_HOST_NODES_H
#define CST_HOST_NODES_H

#include "cistern/status.h"

#include <hwloc.h>
#include <stdint.h>

#define CST_HOST_NODES_MAX 64 /* Host nodes after these are ignored. */

struct cst_host_node {
    unsigned os_index;     /* Number that the system gives to the node. */
    uint64_t memory_bytes; /* Its memory; 0: hwloc does not know it. */
};

/* Constant between open and close. */
struct cst_host_nodes {
    hwloc_topology_t topology;                  /* Owned. */
    struct cst_host_node v[CST_HOST_NODES_MAX]; /* In ascending order of os_index. */
    unsigned n; /* Number of entries in v. 0: hwloc found no NUMA node with processors. */
    uint64_t others_bytes; /* Memory of all NUMA nodes that are not host nodes. */
};

/* What hwloc looks for, beginning with the least. */
enum cst_host_nodes_detail {
    CST_HOST_NODES_ONLY,        /* NUMA nodes. */
    CST_HOST_NODES_WITH_DEVICES /* Also PCI devices, for cst_host_nodes_nearest. */
};

/* Inspect the machine. CST_EINTERNAL: hwloc failed; there is nothing to close. */
int cst_host_nodes_open(struct cst_host_nodes *nodes, enum cst_host_nodes_detail detail,
                        struct cst_err *err);

/* Release what cst_host_nodes_open allocated. */
void cst_host_nodes_close(struct cst_host_nodes *nodes);

/* Returns the number (os_index) of the host node that is nearest to the PCI device at @slot, such
 * as "0009:01:00.0". -1: it is not known, because there is no such device, or because several host
 * nodes are equally near to it. A device at one of several nodes of a processor package is nearest
 * to the first of them if hwloc does not know better. */
int cst_host_nodes_nearest(const struct cst_host_nodes *nodes, const char *slot);

#endif
