/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/host_nodes.h"

#include <errno.h>
#include <stdbool.h>

static uint64_t bytes_of(hwloc_obj_t node)
{
    return node->attr->numanode.local_memory;
}

/* Returns the NUMA node with the lowest os_index above @after; NULL: there is none. */
static hwloc_obj_t next_node(hwloc_topology_t topology, int after)
{
    hwloc_obj_t node = NULL, next = NULL;

    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != NULL) {
        if ((int)node->os_index > after && (next == NULL || node->os_index < next->os_index)) {
            next = node;
        }
    }
    return next;
}

/* Returns whether hwloc knows the memory of any node. If it knows none, it is not the memory that
 * tells host nodes from others. */
static bool knows_memory(hwloc_topology_t topology)
{
    hwloc_obj_t node = NULL;
    bool any = false;

    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != NULL) {
        any = any || bytes_of(node) > 0;
    }
    return any;
}

/* The system numbers nodes with processors first. Of several nodes that hwloc shows with the same
 * processors, the first one is therefore the one that has them. */
static int find(struct cst_host_nodes *nodes, struct cst_err *err)
{
    hwloc_bitmap_t taken = hwloc_bitmap_alloc();
    bool knows = knows_memory(nodes->topology);
    hwloc_obj_t node = next_node(nodes->topology, -1);

    if (taken == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a set of processors");
    }
    for (; node != NULL; node = next_node(nodes->topology, (int)node->os_index)) {
        bool has_own =
            !hwloc_bitmap_iszero(node->cpuset) && !hwloc_bitmap_intersects(node->cpuset, taken);

        if (has_own && (bytes_of(node) > 0 || !knows) && nodes->n < CST_HOST_NODES_MAX) {
            nodes->v[nodes->n++] =
                (struct cst_host_node){.os_index = node->os_index, .memory_bytes = bytes_of(node)};
            (void)hwloc_bitmap_or(taken, taken, node->cpuset);
        } else {
            nodes->others_bytes += bytes_of(node);
        }
    }
    hwloc_bitmap_free(taken);
    return CST_OK;
}

/* Ask for the PCI devices that sysfs names, which is all that locality needs. hwloc's other
 * components for devices would open drivers of GPUs or a display in this process, and libpciaccess
 * does not give back all its memory. A component that hwloc does not have is left out already. */
static void look_for_devices(hwloc_topology_t topology)
{
    static const char *const unwanted[] = {"pci",  "cuda", "nvml",     "opencl",
                                           "rsmi", "gl",   "levelzero"};

    for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++) {
        (void)hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                            unwanted[i]);
    }
    (void)hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
}

int cst_host_nodes_open(struct cst_host_nodes *nodes, enum cst_host_nodes_detail detail,
                        struct cst_err *err)
{
    int rc;

    *nodes = (struct cst_host_nodes){.n = 0};
    if (hwloc_topology_init(&nodes->topology) != 0) {
        return cst_err_errno(err, CST_EINTERNAL, errno, "hwloc_topology_init");
    }
    /* No types are left out: a NUMA node has the processors of the object around it. */
    if (detail == CST_HOST_NODES_WITH_DEVICES) {
        look_for_devices(nodes->topology);
    }
    if (hwloc_topology_load(nodes->topology) != 0) {
        rc = cst_err_errno(err, CST_EINTERNAL, errno, "hwloc_topology_load");
    } else {
        rc = find(nodes, err);
    }
    if (rc != CST_OK) {
        cst_host_nodes_close(nodes);
    }
    return rc;
}

void cst_host_nodes_close(struct cst_host_nodes *nodes)
{
    hwloc_topology_destroy(nodes->topology);
}

/* Returns the number of host nodes in @object, and stores the first one's os_index in *first. */
static unsigned count_in(const struct cst_host_nodes *nodes, hwloc_obj_t object, int *first)
{
    unsigned n = 0;

    for (unsigned i = 0; i < nodes->n; i++) {
        if (hwloc_bitmap_isset(object->nodeset, nodes->v[i].os_index)) {
            *first = n == 0 ? (int)nodes->v[i].os_index : *first;
            n++;
        }
    }
    return n;
}

int cst_host_nodes_nearest(const struct cst_host_nodes *nodes, const char *slot)
{
    hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(nodes->topology, slot);
    hwloc_obj_t at = device != NULL ? hwloc_get_non_io_ancestor_obj(nodes->topology, device) : NULL;
    unsigned n = 0;
    int first = -1;

    /* The smallest object around the device that has a host node. */
    while (at != NULL && (n = count_in(nodes, at, &first)) == 0) {
        at = at->parent;
    }
    return at != NULL && (n == 1 || at->parent != NULL) ? first : -1;
}
