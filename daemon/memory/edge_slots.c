/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/edge_slots.h"

#include "daemon/base/daemon_state.h"
#include "daemon/base/reason_lines.h"
#include "offload/layout/edge.h"
#include "proto/round_up.h"
#include "daemon/memory/tiers/tier.h"
#include "daemon/job/job.h"
#include "daemon/memory/memory.h"

#include <stdio.h>
#include <string.h>

struct cstd_edge_slots cstd_edge_slots_choose(const struct cstd_memory *memory,
                                              const struct cst_layout_edge *edge,
                                              const struct cstd_tier *from,
                                              const struct cstd_tier *to)
{
    struct cstd_edge_slots slots = {.tier = cstd_tiers_host(memory->daemon),
                                    .bytes = cst_edge_slots_bytes(edge->slot_bytes, edge->n_slots)};

    if (from->kind->apart && to->kind->apart && cstd_tier_reaches(from, to) &&
        cstd_slot_refusals_find(&memory->refusals, edge, from, to) == NULL) {
        slots.tier = to;
        slots.bytes = cst_round_up(slots.bytes, cstd_tier_grain(to));
    }
    return slots;
}

static struct cstd_edge_slots slots_of(const struct cstd_job *job,
                                       const struct cst_layout_edge *edge)
{
    return cstd_edge_slots_choose(&job->memory, edge, job->workers[edge->from].tier,
                                  job->workers[edge->to].tier);
}

static uint64_t slots_bytes(const struct cstd_job *job, bool apart)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < job->model.n_edges; i++) {
        if (job->model.edges[i].on_device) {
            struct cstd_edge_slots slots = slots_of(job, &job->model.edges[i]);

            bytes += slots.tier->kind->apart == apart ? slots.bytes : 0;
        }
    }
    return bytes;
}

uint64_t cstd_edge_slots_bytes(const struct cstd_job *job, const struct cstd_tier *tier)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; tier->kind->one_budget && i < job->model.n_edges; i++) {
        if (job->model.edges[i].on_device) {
            struct cstd_edge_slots slots = slots_of(job, &job->model.edges[i]);

            bytes += slots.tier == tier ? slots.bytes : 0;
        }
    }
    return bytes;
}

uint64_t cstd_edge_slots_host_bytes(const struct cstd_job *job)
{
    return cst_model_edge_bytes(&job->model) + slots_bytes(job, false);
}

uint64_t cstd_edge_slots_device_bytes(const struct cstd_job *job)
{
    return slots_bytes(job, true);
}

/* -- explain -------------------------------------------------------------------------------- */

/* Write where the slots of @edge are, and why, in @max lines at most. Returns their number. */
static unsigned explain_edge(const struct cstd_job *job, const struct cst_layout_edge *edge,
                             char lines[][192], unsigned max)
{
    const struct cstd_tier *from = job->workers[edge->from].tier, *to = job->workers[edge->to].tier;
    int n = snprintf(lines[0], 192, "edge '%s' from rank %u to rank %u: slots ", edge->name,
                     edge->from, edge->to);
    char *end = lines[0] + n;
    const size_t left = 192 - (size_t)n;
    const struct cstd_slot_refusal *refusal =
        cstd_slot_refusals_find(&job->memory.refusals, edge, from, to);

    if (slots_of(job, edge).tier->kind->apart) {
        (void)snprintf(end, left, "in the memory of %s", to->label);
    } else if (!from->kind->apart || !to->kind->apart) {
        (void)snprintf(end, left, "in host memory, because the pool of rank %u is in host memory",
                       !to->kind->apart ? edge->to : edge->from);
    } else if (refusal != NULL) {
        (void)snprintf(end, left,
                       "in host memory, because rank %u cannot map them on %s:", refusal->rank,
                       to->label);
        return 1 + cstd_reason_lines(refusal->reason, lines + 1, max - 1);
    } else {
        (void)snprintf(end, left, "in host memory, because %s cannot access %s", from->label,
                       to->label);
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
