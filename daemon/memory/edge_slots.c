/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/edge_slots.h"

#include "daemon/daemon.h"
#include "offload/layout/edge.h"

#include <stdio.h>

/* Return whether the GPU @from, or the worker of a simulated accelerator, can write to @to. */
static bool can_access(const struct cstd_daemon *daemon, const struct cstd_gpu *from,
                       const struct cstd_gpu *to)
{
    return from == to || (cstd_gpus_unreachable(&daemon->gpus, from) >> to->engine & 1) == 0;
}

struct cstd_edge_slots cstd_edge_slots_choose(const struct cstd_daemon *daemon,
                                              const struct cst_layout_edge *edge,
                                              const struct cstd_gpu *from, struct cstd_gpu *to)
{
    struct cstd_edge_slots slots = {.bytes = cst_edge_slots_bytes(edge->slot_bytes, edge->n_slots)};

    if (from != NULL && to != NULL && can_access(daemon, from, to)) {
        uint64_t grain = cstd_memory_grain(daemon, to);

        slots.gpu = to;
        slots.bytes = (slots.bytes + grain - 1) / grain * grain;
    }
    return slots;
}

static struct cstd_edge_slots slots_of(const struct cstd_job *job,
                                       const struct cst_layout_edge *edge)
{
    return cstd_edge_slots_choose(job->daemon, edge, job->workers[edge->from].gpu,
                                  job->workers[edge->to].gpu);
}

uint64_t cstd_edge_slots_bytes(const struct cstd_job *job, const struct cstd_gpu *gpu)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < job->model.n_edges; i++) {
        if (job->model.edges[i].on_device) {
            struct cstd_edge_slots slots = slots_of(job, &job->model.edges[i]);

            bytes += slots.gpu == gpu ? slots.bytes : 0;
        }
    }
    return bytes;
}

uint64_t cstd_edge_slots_host_bytes(const struct cstd_job *job)
{
    return cst_model_edge_bytes(&job->model) + cstd_edge_slots_bytes(job, NULL);
}

uint64_t cstd_edge_slots_device_bytes(const struct cstd_job *job)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < job->model.n_edges; i++) {
        if (job->model.edges[i].on_device) {
            struct cstd_edge_slots slots = slots_of(job, &job->model.edges[i]);

            bytes += slots.gpu != NULL ? slots.bytes : 0;
        }
    }
    return bytes;
}

/* -- explain -------------------------------------------------------------------------------- */

static const char *kind_of(const struct cstd_gpu *gpu)
{
    return gpu->paced ? "paced" : "cuda";
}

static void explain_edge(const struct cstd_job *job, const struct cst_layout_edge *edge,
                         char line[192])
{
    const struct cstd_gpu *from = job->workers[edge->from].gpu, *to = job->workers[edge->to].gpu;
    int n = snprintf(line, 192, "edge '%s' from rank %u to rank %u: slots ", edge->name, edge->from,
                     edge->to);

    if (slots_of(job, edge).gpu != NULL) {
        (void)snprintf(line + n, 192 - (size_t)n, "in the memory of %s:%u", kind_of(to), to->index);
    } else if (from == NULL || to == NULL) {
        (void)snprintf(line + n, 192 - (size_t)n,
                       "in host memory, because the pool of rank %u is in host memory",
                       to == NULL ? edge->to : edge->from);
    } else {
        (void)snprintf(line + n, 192 - (size_t)n,
                       "in host memory, because %s:%u cannot access %s:%u", kind_of(from),
                       from->index, kind_of(to), to->index);
    }
}

unsigned cstd_edge_slots_explain(const struct cstd_job *job, char lines[][192], unsigned max)
{
    unsigned n = 0;

    for (uint32_t i = 0; i < job->model.n_edges && n < max; i++) {
        if (job->model.edges[i].on_device) {
            explain_edge(job, &job->model.edges[i], lines[n++]);
        }
    }
    return n;
}
