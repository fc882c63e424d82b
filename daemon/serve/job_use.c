/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/job_use.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/job.h"
#include "daemon/memory/memory.h"
#include "daemon/memory/tiers/tier.h"

#include <string.h>

/* Return what people call the memory of @segment. */
static const char *place_of(const struct cstd_daemon *daemon, const struct cstd_segment *segment)
{
    if (segment->budget == daemon->pool) {
        return "pools";
    }
    return cstd_tiers_of_segment(daemon, segment)->label;
}

/* Return the entry of @place, which is added if there is none. */
static Cistern__JobMemory *find(struct cstd_job_use *use, const char *place, Cistern__JobInfo *out)
{
    Cistern__JobMemory *found;

    for (size_t i = 0; i < out->n_memory; i++) {
        if (strcmp(use->places[i].place, place) == 0) {
            return &use->places[i];
        }
    }
    found = &use->places[out->n_memory];
    cistern__job_memory__init(found);
    found->place = (char *)(uintptr_t)place;
    use->pointers[out->n_memory++] = found;
    return found;
}

/* Add up what is charged for each place. The memory of a base job is charged for that job alone. */
static void fill_memory(const struct cstd_job *job, struct cstd_job_use *use, Cistern__JobInfo *out)
{
    const struct cstd_memory *memory = &job->memory;

    out->memory = use->pointers;
    for (uint32_t i = 0; i < memory->n_segments; i++) {
        const struct cstd_segment *segment = memory->segments[i];

        if (segment != NULL && segment->budget != NULL && segment->charged > 0) {
            find(use, place_of(job->daemon, segment), out)->bytes += segment->charged;
        }
    }
}

/* Add up what the ranks have fetched and moved. */
static void fill_traffic(const struct cstd_job *job, Cistern__JobInfo *out)
{
    struct cst_rank_stats stats;

    out->has_hits = out->has_late = out->has_misses = out->has_weight_wait_seconds = 1;
    out->has_bytes_up = out->has_bytes_down = out->has_bytes_peer = 1;
    for (uint32_t r = 0; r < job->world; r++) {
        cst_core_rank_stats(job->core, r, &stats);
        out->hits += stats.hits;
        out->late += stats.late;
        out->misses += stats.misses;
        out->weight_wait_seconds += (double)stats.weight_wait_ns * 1e-9;
        out->bytes_up += stats.bytes_up;
        out->bytes_down += stats.bytes_down;
        out->bytes_peer += stats.bytes_peer;
    }
}

void cstd_job_use_fill(const struct cstd_job *job, struct cstd_job_use *use, Cistern__JobInfo *out)
{
    fill_memory(job, use, out);
    if (job->core != NULL && job->state != CSTD_JOB_REVIVING) {
        fill_traffic(job, out);
    }
    out->has_drive_read_bytes = out->has_drive_written_bytes = job->files.n > 0;
    out->drive_read_bytes = job->drive_read_bytes;
    out->drive_written_bytes = job->drive_written_bytes;
}
