/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/edge.h"

#include "client/lib/job.h"
#include "offload/layout/edge.h"
#include "proto/shared.h"

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

/* -- mapping ---------------------------------------------------------------------------------- */

static int map_host(struct cst_job *job, struct cstc_segment *memory, int fd, uint64_t bytes,
                    struct cst_err *why)
{
    int rc = cstc_segment_map(memory, fd, bytes, why);

    if (rc == CST_OK && cstc_edge_by_device(job)) {
        rc = job->device.calls->map_host(job->device.arg, memory->base, bytes, why);
        if (rc != CST_OK) {
            cstc_segment_unmap(memory);
        }
    }
    return rc;
}

static void unmap_host(const struct cst_job *job, struct cstc_segment *memory)
{
    if (memory->base != NULL && cstc_edge_by_device(job)) {
        job->device.calls->unmap_host(job->device.arg, memory->base, memory->bytes);
    }
    cstc_segment_unmap(memory);
}

/* Map the slots of @edge, which are in device memory. */
static int map_device(struct cst_job *job, struct cstc_edge *edge, const struct cstc_edge_fds *fds,
                      struct cst_err *why)
{
    int rc;

    if (!cstc_edge_by_device(job)) {
        return cst_err_set(why, CST_EUNSUPPORTED, "its slots are on %s, which copies no arrays",
                           job->device_name);
    }
    rc = job->device.calls->map(job->device.arg, fds->slots_fd, fds->slots_bytes, &edge->apart.base,
                                why);
    if (rc != CST_OK) {
        return rc;
    }
    edge->apart.bytes = fds->slots_bytes;
    edge->on_device = true;
    return CST_OK;
}

/* Map the slots of @edge, if they have memory of their own. */
static int map_slots(struct cst_job *job, struct cstc_edge *edge, const struct cstc_edge_fds *fds,
                     bool *refused, struct cst_err *why)
{
    int rc;

    if (fds->slots_fd < 0) {
        return CST_OK;
    }
    if (!fds->slots_device) {
        return map_host(job, &edge->apart, fds->slots_fd, fds->slots_bytes, why);
    }
    rc = map_device(job, edge, fds, why);
    if (rc == CST_EGPU) { /* A GPU that has failed does not copy to host memory either. */
        return cst_err_prefix(why, "its slots in device memory (on_device)");
    }
    *refused = rc != CST_OK;
    return rc;
}

static void unmap(const struct cst_job *job, struct cstc_edge *edge)
{
    if (edge->on_device) {
        job->device.calls->unmap(job->device.arg, edge->apart.base, edge->apart.bytes);
    } else {
        unmap_host(job, &edge->apart);
    }
    unmap_host(job, &edge->memory);
}

/* Return whether @fds can be the memory of edge @number. */
static bool fits(const struct cst_job *job, uint32_t number, const struct cstc_edge_fds *fds)
{
    const struct cst_layout_edge *e;

    if (number >= job->model.n_edges || !is_mine(job, number)) {
        return false;
    }
    e = &job->model.edges[number];
    return fds->bytes == cst_layout_edge_bytes(e) && (fds->slots_fd >= 0) == e->on_device &&
           (!e->on_device || fds->slots_bytes >= cst_edge_slots_bytes(e->slot_bytes, e->n_slots));
}

int cstc_edge_map(struct cst_job *job, uint32_t number, const struct cstc_edge_fds *fds,
                  bool *refused, struct cst_err *why)
{
    const struct cst_layout_edge *e;
    struct cstc_edge *edge;
    int rc;

    *refused = false;
    if (job->edges == NULL) {
        job->edges = calloc(job->model.n_edges, sizeof *job->edges);
        if (job->edges == NULL) {
            return cst_err_set(why, CST_ENOMEM, "job '%s': no memory for %u edges", job->name,
                               job->model.n_edges);
        }
    }
    if (!fits(job, number, fds) || job->edges[number].memory.base != NULL) {
        return cst_err_set(why, CST_EPROTO, "%llu and %llu bytes for edge %u of %u",
                           (unsigned long long)fds->bytes, (unsigned long long)fds->slots_bytes,
                           number, job->model.n_edges);
    }
    e = &job->model.edges[number];
    edge = &job->edges[number];
    edge->slots = calloc(e->n_slots, sizeof *edge->slots);
    if (edge->slots == NULL) {
        return cst_err_set(why, CST_ENOMEM, "no memory for the slots of edge '%s'", e->name);
    }
    rc = map_host(job, &edge->memory, fds->fd, fds->bytes, why);
    if (rc == CST_OK) {
        cst_shared_join(edge->memory.base);
        rc = map_slots(job, edge, fds, refused, why);
        if (rc != CST_OK) {
            unmap_host(job, &edge->memory);
        }
    }
    if (rc != CST_OK) {
        free(edge->slots);
        edge->slots = NULL;
        return *refused ? rc : cst_err_prefix(why, "edge '%s'", e->name);
    }
    return CST_OK;
}

void cstc_edge_close(struct cst_job *job)
{
    if (!job->client->forked) {
        cstc_edge_forget(job); /* Copies use the memory. */
        cstc_copier_close(&job->copier);
    }
    for (uint32_t i = 0; job->edges != NULL && i < job->model.n_edges; i++) {
        if (!job->client->forked) {
            unmap(job, &job->edges[i]);
        }
        free(job->edges[i].slots);
    }
    free(job->edges);
    job->edges = NULL;
}

/* -- questions -------------------------------------------------------------------------------- */

int cstc_edge_check(const struct cst_job *job, int edge, struct cst_err *err)
{
    return edge >= 0 && (uint32_t)edge < job->model.n_edges
               ? CST_OK
               : cst_err_set(err, CST_EINVAL, "there is no edge %d, %u are declared", edge,
                             job->model.n_edges);
}

int cst_edge_on_device(const struct cst_job *job, int edge, struct cst_err *err)
{
    int rc = cstc_job_check_committed(job, err);

    rc = rc == CST_OK ? cstc_edge_check(job, edge, err) : rc;
    if (rc == CST_OK && !is_mine(job, (uint32_t)edge)) {
        rc = cst_err_set(err, CST_EINVAL, "edge '%s': rank %u is no end of it",
                         job->model.edges[edge].name, job->rank);
    }
    /* There are none if a sync could not map them again. */
    return rc == CST_OK ? job->edges != NULL && job->edges[edge].on_device : rc;
}
