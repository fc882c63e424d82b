/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/load.h"

#include "client/lib/job.h"

#include <stdlib.h>

/* -- arenas --------------------------------------------------------------------------------- */

int cstc_load_init(struct cstc_loads *loads, uint32_t n_arenas, struct cst_err *err)
{
    cstc_load_close(loads);
    if (n_arenas == 0) {
        return CST_OK;
    }
    loads->segments = calloc(n_arenas, sizeof *loads->segments);
    loads->arenas = calloc(n_arenas, sizeof *loads->arenas);
    if (loads->segments == NULL || loads->arenas == NULL) {
        cstc_load_close(loads);
        return cst_err_set(err, CST_ENOMEM, "no memory for %u arenas", n_arenas);
    }
    loads->n_arenas = n_arenas;
    return CST_OK;
}

void cstc_load_close(struct cstc_loads *loads)
{
    free(loads->segments);
    free(loads->arenas);
    *loads = (struct cstc_loads){0};
}

int cstc_load_map(struct cst_job *job, uint32_t segment, int fd, uint64_t bytes,
                  struct cst_err *err)
{
    struct cstc_loads *loads = &job->device.loads;
    struct cstc_segment *arena = &loads->arenas[loads->n_mapped];
    int rc = cstc_segment_map(arena, fd, bytes, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = job->device.calls->map_host(job->device.arg, arena->base, arena->bytes, err);
    if (rc != CST_OK) {
        cstc_segment_unmap(arena);
        return rc;
    }
    loads->segments[loads->n_mapped++] = segment;
    return CST_OK;
}

void cstc_load_unmap(struct cst_job *job)
{
    struct cstc_loads *loads = &job->device.loads;

    while (loads->n_mapped > 0) {
        struct cstc_segment *arena = &loads->arenas[--loads->n_mapped];

        job->device.calls->unmap_host(job->device.arg, arena->base, arena->bytes);
        cstc_segment_unmap(arena);
    }
}

static const struct cstc_segment *find_arena(const struct cstc_loads *loads, uint32_t segment)
{
    for (uint32_t i = 0; i < loads->n_mapped; i++) {
        if (loads->segments[i] == segment) {
            return &loads->arenas[i];
        }
    }
    return NULL;
}

int cstc_load_find(const struct cst_job *job, uint32_t chunk, const struct cstc_load_home *home,
                   const void **row, struct cst_err *why)
{
    const struct cstc_segment *arena = find_arena(&job->device.loads, home->segment);
    uint64_t block_bytes = 2 * job->plan.classes[job->traits[chunk].size_class].chunk_elems;

    /* A wrong place would copy other memory of this process to the block. */
    if (arena == NULL || home->bytes > block_bytes || home->bytes > arena->bytes ||
        home->offset > arena->bytes - home->bytes) {
        return cst_err_set(
            why, CST_EPROTO, "weights of %llu bytes at segment %u, offset %llu, which no arena has",
            (unsigned long long)home->bytes, home->segment, (unsigned long long)home->offset);
    }
    *row = (const char *)arena->base + home->offset;
    return CST_OK;
}

/* -- copies --------------------------------------------------------------------------------- */

int cstc_load_start(struct cst_job *job, uint32_t chunk, const void *row, uint64_t bytes,
                    const struct cst_lease *lease)
{
    char *block = (char *)job->slabs[lease->slab].base + lease->offset;
    uint64_t number = 0;
    struct cst_err why = {0};
    int rc;

    /* The daemon may take the block away during a sync; a copy could overwrite its next
     * contents. */
    if (job->device.loads.over) {
        rc = cst_err_set(&why, CST_ESTALE, "the step was given up");
        cstc_job_void(job, &why);
        return rc;
    }
    rc = job->device.calls->copy(job->device.arg, block, row, bytes, &number, &why);
    if (rc != CST_OK) {
        cstc_device_failed(job, &why);
        return rc;
    }
    cst_sequence_copied(&job->sequence, chunk, number);
    return CST_OK;
}
