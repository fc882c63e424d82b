/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/cpus.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Set cpus->usable to the PUs that the process may use on @node, or to all that it may use if there
 * are none on @node. */
static int find_usable(struct cste_cpus *cpus, unsigned node, struct cst_err *err)
{
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    hwloc_obj_t obj = hwloc_get_numanode_obj_by_os_index(cpus->topology, node);
    int rc = CST_OK;

    cpus->usable = hwloc_bitmap_alloc();
    if (allowed == NULL || cpus->usable == NULL) {
        rc = cst_err_set(err, CST_ENOMEM, "no memory for a set of processors");
        goto err_after_alloc;
    }
    (void)hwloc_bitmap_copy(allowed, hwloc_topology_get_allowed_cpuset(cpus->topology));
    /* The call fails with a synthetic topology. The set of the topology is then used. */
    if (hwloc_get_cpubind(cpus->topology, cpus->usable, HWLOC_CPUBIND_PROCESS) == 0 &&
        hwloc_bitmap_intersects(allowed, cpus->usable)) {
        (void)hwloc_bitmap_and(allowed, allowed, cpus->usable);
    }
    /* A node may have memory only, or none of its processors may be allowed. */
    cpus->node_found = obj != NULL && hwloc_bitmap_intersects(allowed, obj->cpuset);
    if (cpus->node_found) {
        (void)hwloc_bitmap_and(cpus->usable, allowed, obj->cpuset);
    } else {
        (void)hwloc_bitmap_copy(cpus->usable, allowed);
    }

err_after_alloc:
    hwloc_bitmap_free(allowed);
    return rc;
}

static int find_cores(struct cste_cpus *cpus, struct cst_err *err)
{
    int n = hwloc_get_nbobjs_by_type(cpus->topology, HWLOC_OBJ_CORE);
    /* Some virtual machines show no cores. Each PU then counts as a core. */
    hwloc_obj_type_t type = n > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    hwloc_obj_t obj = NULL;

    n = hwloc_get_nbobjs_by_type(cpus->topology, type);
    cpus->cores = calloc(n > 0 ? (size_t)n : 1, sizeof(hwloc_bitmap_t));
    if (cpus->cores == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %d cores", n);
    }
    while ((obj = hwloc_get_next_obj_by_type(cpus->topology, type, obj)) != NULL) {
        hwloc_bitmap_t core;

        if (!hwloc_bitmap_intersects(obj->cpuset, cpus->usable)) {
            continue;
        }
        core = hwloc_bitmap_alloc();
        if (core == NULL) {
            return cst_err_set(err, CST_ENOMEM, "no memory for a set of processors");
        }
        (void)hwloc_bitmap_and(core, obj->cpuset, cpus->usable);
        cpus->cores[cpus->n_cores++] = core;
    }
    if (cpus->n_cores == 0) {
        return cst_err_set(err, CST_EINTERNAL, "hwloc shows no processor that may be used");
    }
    return CST_OK;
}

int cste_cpus_open(struct cste_cpus *cpus, unsigned node, struct cst_err *err)
{
    int rc;

    *cpus = (struct cste_cpus){0};
    if (hwloc_topology_init(&cpus->topology) != 0) {
        return cst_err_errno(err, CST_EINTERNAL, errno, "hwloc_topology_init");
    }
    if (hwloc_topology_load(cpus->topology) != 0) {
        rc = cst_err_errno(err, CST_EINTERNAL, errno, "hwloc_topology_load");
        goto err_after_init;
    }
    rc = find_usable(cpus, node, err);
    if (rc == CST_OK) {
        rc = find_cores(cpus, err);
    }
    if (rc != CST_OK) {
        goto err_after_init;
    }
    return CST_OK;

err_after_init:
    cste_cpus_close(cpus);
    return rc;
}

void cste_cpus_close(struct cste_cpus *cpus)
{
    for (unsigned i = 0; i < cpus->n_cores; i++) {
        hwloc_bitmap_free(cpus->cores[i]);
    }
    free(cpus->cores);
    hwloc_bitmap_free(cpus->usable);
    hwloc_topology_destroy(cpus->topology);
}

bool cste_cpus_pin(const struct cste_cpus *cpus, unsigned core)
{
    return hwloc_set_cpubind(cpus->topology, cpus->cores[core % cpus->n_cores],
                             HWLOC_CPUBIND_THREAD) == 0;
}

bool cste_cpus_stay(const struct cste_cpus *cpus)
{
    return hwloc_set_cpubind(cpus->topology, cpus->usable, HWLOC_CPUBIND_THREAD) == 0;
}

int cste_cpus_bind(const struct cste_cpus *cpus, void *addr, size_t bytes, unsigned node,
                   struct cst_err *err)
{
    hwloc_obj_t obj = hwloc_get_numanode_obj_by_os_index(cpus->topology, node);

    if (obj == NULL) {
        return cst_err_set(err, CST_EINVAL, "this machine has no NUMA node %u", node);
    }
    if (hwloc_set_area_membind(cpus->topology, addr, bytes, obj->nodeset, HWLOC_MEMBIND_BIND,
                               HWLOC_MEMBIND_BYNODESET) != 0) {
        return cst_err_errno(err, CST_EINVAL, errno, "binding %zu bytes to NUMA node %u", bytes,
                             node);
    }
    return CST_OK;
}
