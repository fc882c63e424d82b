/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/edge.h"

#include "client/lib/job.h"
#include "offload/layout/edge.h"

#include <stdlib.h>

bool cstc_edge_by_device(const struct cst_job *job)
{
    return job->device.calls != NULL && job->device.calls->copy_array != NULL;
}

static bool is_mine(const struct cst_job *job, uint32_t edge)
{
    return cst_layout_edge_has(&job->model.edges[edge], job->rank);
}

uint32_t cstc_edge_count(const struct cst_job *job)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->model.n_edges; i++) {
        n += is_mine(job, i);
    }
    return n;
}

int cstc_edge_map(struct cst_job *job, uint32_t number, int fd, uint64_t bytes, struct cst_err *why)
{
    const struct cst_layout_edge *e =
        number < job->model.n_edges ? &job->model.edges[number] : NULL;
    struct cstc_edge *edge;
    int rc;

    if (job->edges == NULL) {
        job->edges = calloc(job->model.n_edges, sizeof *job->edges);
        if (job->edges == NULL) {
            return cst_err_set(why, CST_ENOMEM, "job '%s': no memory for %u edges", job->name,
                               job->model.n_edges);
        }
    }
    edge = e != NULL ? &job->edges[number] : NULL;
    if (edge == NULL || !is_mine(job, number) || edge->memory.base != NULL ||
        bytes != cst_edge_bytes(e->slot_bytes, e->n_slots)) {
        return cst_err_set(why, CST_EPROTO, "%llu bytes for edge %u of %u",
                           (unsigned long long)bytes, number, job->model.n_edges);
    }
    edge->slots = calloc(e->n_slots, sizeof *edge->slots);
    if (edge->slots == NULL) {
        return cst_err_set(why, CST_ENOMEM, "no memory for the slots of edge '%s'", e->name);
    }
    rc = cstc_segment_map(&edge->memory, fd, bytes, why);
    if (rc == CST_OK && cstc_edge_by_device(job)) {
        rc = job->device.calls->map_host(job->device.arg, edge->memory.base, bytes, why);
        if (rc != CST_OK) {
            cstc_segment_unmap(&edge->memory);
        }
    }
    if (rc != CST_OK) {
        free(edge->slots);
        edge->slots = NULL;
        return cst_err_prefix(why, "edge '%s'", e->name);
    }
    return CST_OK;
}

static void unmap(const struct cst_job *job, struct cstc_segment *memory)
{
    if (memory->base != NULL && cstc_edge_by_device(job)) {
        job->device.calls->unmap_host(job->device.arg, memory->base, memory->bytes);
    }
    cstc_segment_unmap(memory);
}

void cstc_edge_close(struct cst_job *job)
{
    if (!job->client->forked) {
        cstc_edge_forget(job); /* Copies use the memory. */
        cstc_copier_close(&job->copier);
    }
    for (uint32_t i = 0; job->edges != NULL && i < job->model.n_edges; i++) {
        if (!job->client->forked) {
            unmap(job, &job->edges[i].memory);
        }
        free(job->edges[i].slots);
    }
    free(job->edges);
    job->edges = NULL;
}
