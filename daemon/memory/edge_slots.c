/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/edge_slots.h"

#include "daemon/base/daemon_state.h"
#include "daemon/base/reason_lines.h"
#include "offload/layout/edge.h"
#include "proto/round_up.h"
#include "daemon/engine/gpus.h"
#include "daemon/job/job.h"
#include "daemon/memory/memory.h"

#include <stdio.h>
#include <string.h>

/* Return whether the GPU @from, or the worker of a simulated accelerator, can write to @to. */
static bool can_access(const struct cstd_daemon *daemon, const struct cstd_gpu *from,
                       const struct cstd_gpu *to)
{
    return from == to || (cstd_gpus_unreachable(daemon->gpus, from) >> to->engine & 1) == 0;
}

struct cstd_edge_slots cstd_edge_slots_choose(const struct cstd_memory *memory,
                                              const struct cst_layout_edge *edge,
                                              const struct cstd_gpu *from, struct cstd_gpu *to)
{
    struct cstd_edge_slots slots = {.bytes = cst_edge_slots_bytes(edge->slot_bytes, edge->n_slots)};

    if (from != NULL && to != NULL && can_access(memory->daemon, from, to) &&
        cstd_slot_refusals_find(&memory->refusals, edge, from, to) == NULL) {
        uint64_t grain = cstd_memory_grain(memory->daemon, to);

        slots.gpu = to;
        slots.bytes = cst_round_up(slots.bytes, grain);
    }
    return slots;
}

static struct cstd_edge_slots slots_of(const struct cstd_job *job,
                                       const struct cst_layout_edge *edge)
{
    return cstd_edge_slots_choose(&job->memory, edge, job->workers[edge->from].gpu,
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

/* Write where the slots of @edge are, and why, in @max lines at most. Returns their number. */
static unsigned explain_edge(const struct cstd_job *job, const struct cst_layout_edge *edge,
                             char lines[][192], unsigned max)
{
    const struct cstd_gpu *from = job->workers[edge->from].gpu, *to = job->workers[edge->to].gpu;
    int n = snprintf(lines[0], 192, "edge '%s' from rank %u to rank %u: slots ", edge->name,
                     edge->from, edge->to);
    char *end = lines[0] + n;
    const size_t left = 192 - (size_t)n;
    const struct cstd_slot_refusal *refusal =
        cstd_slot_refusals_find(&job->memory.refusals, edge, from, to);

    if (slots_of(job, edge).gpu != NULL) {
        (void)snprintf(end, left, "in the memory of %s:%u", kind_of(to), to->index);
    } else if (from == NULL || to == NULL) {
        (void)snprintf(end, left, "in host memory, because the pool of rank %u is in host memory",
                       to == NULL ? edge->to : edge->from);
    } else if (refusal != NULL) {
        (void)snprintf(end, left,
                       "in host memory, because rank %u cannot map them on %s:%u:", refusal->rank,
                       kind_of(to), to->index);
        return 1 + cstd_reason_lines(refusal->reason, lines + 1, max - 1);
    } else {
        (void)snprintf(end, left, "in host memory, because %s:%u cannot access %s:%u",
                       kind_of(from), from->index, kind_of(to), to->index);
    }
    return 1;
}

unsigned cstd_edge_slots_explain(const struct cstd_job *job, char lines[][192], unsigned max)
{
    unsigned n = 0;

    for (uint32_t i = 0; i < job->model.n_edges && n < max; i++) {
        if (job->model.edges[i].on_device) {
            n += explain_edge(job, &job->model.edges[i], lines + n, max - n);
        }
    }
    return n;
}
