/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/processors.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

static int no_memory(struct cst_err *err)
{
    return cst_err_set(err, CST_ENOMEM, "no memory for sets of processors");
}

/* Load the topology of what this process may use. */
static int load(struct cli_processors *p, struct cst_err *err)
{
    hwloc_bitmap_t own = hwloc_bitmap_alloc();
    int rc = CST_OK;

    if (own == NULL) {
        return no_memory(err);
    }
    if (hwloc_topology_init(&p->topology) != 0) {
        hwloc_bitmap_free(own);
        return cst_err_errno(err, CST_EINTERNAL, errno, "hwloc_topology_init");
    }
    if (hwloc_topology_load(p->topology) != 0) {
        rc = cst_err_errno(err, CST_EINTERNAL, errno, "hwloc_topology_load");
    } else if (hwloc_get_cpubind(p->topology, own, HWLOC_CPUBIND_PROCESS) == 0 &&
               hwloc_topology_restrict(p->topology, own, 0) != 0) {
        rc = cst_err_errno(err, CST_EINTERNAL, errno, "hwloc_topology_restrict");
    }
    hwloc_bitmap_free(own);
    return rc;
}

/* Set set @i to all processors of the cores that it has a processor of. */
static void widen(struct cli_processors *p, unsigned i)
{
    hwloc_obj_t core = NULL;

    while ((core = hwloc_get_next_obj_by_type(p->topology, HWLOC_OBJ_CORE, core)) != NULL) {
        if (hwloc_bitmap_intersects(core->cpuset, p->sets[i])) {
            (void)hwloc_bitmap_or(p->sets[i], p->sets[i], core->cpuset);
        }
    }
}

/* Divide whole cores. hwloc divides by the number of processors, which differ from core to core on
 * some machines; so this divides a machine whose cores have one processor each. */
static int divide_cores(struct cli_processors *p, struct cst_err *err)
{
    hwloc_bitmap_t firsts = hwloc_bitmap_alloc();
    hwloc_topology_t simple = NULL;
    hwloc_obj_t core = NULL, root;
    int rc = no_memory(err);

    if (firsts == NULL || hwloc_topology_dup(&simple, p->topology) != 0) {
        goto out;
    }
    while ((core = hwloc_get_next_obj_by_type(p->topology, HWLOC_OBJ_CORE, core)) != NULL) {
        (void)hwloc_bitmap_set(firsts, (unsigned)hwloc_bitmap_first(core->cpuset));
    }
    if (hwloc_topology_restrict(simple, firsts, 0) != 0) {
        rc = cst_err_errno(err, CST_EINTERNAL, errno, "hwloc_topology_restrict");
        goto out;
    }
    root = hwloc_get_root_obj(simple);
    if (hwloc_distrib(simple, &root, 1, p->sets, p->n_ranks, INT_MAX, 0) != 0) {
        goto out;
    }
    for (unsigned i = 0; i < p->n_ranks; i++) {
        widen(p, i);
    }
    rc = CST_OK;
out:
    if (simple != NULL) {
        hwloc_topology_destroy(simple);
    }
    hwloc_bitmap_free(firsts);
    return rc;
}

static int divide(struct cli_processors *p, struct cst_err *err)
{
    hwloc_obj_t root = hwloc_get_root_obj(p->topology);

    p->sets = calloc(p->n_ranks, sizeof(hwloc_bitmap_t));
    if (p->sets == NULL) {
        return no_memory(err);
    }
    if (p->n_ranks <= p->n_cores) {
        return divide_cores(p, err);
    }
    return hwloc_distrib(p->topology, &root, 1, p->sets, p->n_ranks, INT_MAX, 0) == 0
               ? CST_OK
               : no_memory(err);
}

int cli_processors_open(struct cli_processors *processors, unsigned n_ranks, struct cst_err *err)
{
    int n, rc;

    *processors = (struct cli_processors){.n_ranks = n_ranks};
    rc = load(processors, err);
    if (rc != CST_OK) {
        cli_processors_close(processors);
        return rc;
    }
    n = hwloc_get_nbobjs_by_type(processors->topology, HWLOC_OBJ_PU);
    processors->n_processors = n > 0 ? (unsigned)n : 0;
    /* Some virtual machines show no cores. */
    n = hwloc_get_nbobjs_by_type(processors->topology, HWLOC_OBJ_CORE);
    processors->n_cores = n > 0 ? (unsigned)n : 0;
    if (n_ranks <= processors->n_processors) {
        rc = divide(processors, err);
    }
    if (rc != CST_OK) {
        cli_processors_close(processors);
    }
    return rc;
}

void cli_processors_close(struct cli_processors *processors)
{
    for (unsigned i = 0; processors->sets != NULL && i < processors->n_ranks; i++) {
        hwloc_bitmap_free(processors->sets[i]);
    }
    free(processors->sets);
    processors->sets = NULL;
    if (processors->topology != NULL) {
        hwloc_topology_destroy(processors->topology);
        processors->topology = NULL;
    }
}

unsigned cli_processors_share(const struct cli_processors *processors, unsigned rank)
{
    int n = 0;

    if (processors->sets != NULL) {
        n = hwloc_get_nbobjs_inside_cpuset_by_type(processors->topology, processors->sets[rank],
                                                   HWLOC_OBJ_CORE);
    }
    if (processors->sets != NULL && processors->n_cores == 0) {
        n = hwloc_bitmap_weight(processors->sets[rank]);
    }
    return n > 1 ? (unsigned)n : 1;
}

int cli_processors_enter(const struct cli_processors *processors, unsigned rank,
                         struct cst_err *err)
{
    if (hwloc_set_cpubind(processors->topology, processors->sets[rank], HWLOC_CPUBIND_THREAD) !=
        0) {
        return cst_err_errno(err, CST_EINTERNAL, errno, "the processors of rank %u", rank);
    }
    return CST_OK;
}

void cli_processors_leave(const struct cli_processors *processors)
{
    (void)hwloc_set_cpubind(processors->topology,
                            hwloc_topology_get_topology_cpuset(processors->topology),
                            HWLOC_CPUBIND_THREAD);
}
