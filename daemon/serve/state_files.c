/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/state_files.h"

#include "daemon/budget/arena.h"
#include "daemon/job/job.h"
#include "daemon/memory/device_reservation.h"
#include "daemon/memory/files.h"
#include "daemon/memory/tiers/tier.h"
#include "proto/optimizers.h"
#include "proto/text.h"

bool cstd_state_files_on(const struct cstd_job *job, uint32_t tier)
{
    uint32_t i = 0;

    while (i < job->files.n && job->files.v[i].tier->number != tier) {
        i++;
    }
    return i < job->files.n;
}

uint64_t cstd_state_files_bytes(const struct cstd_job *job)
{
    const uint32_t n = cstd_job_has_layout(job) ? job->layout.n_segments : 0;
    uint64_t bytes = 0;

    for (uint32_t s = 0; s < n; s++) {
        const struct cst_layout_segment *segment = &job->layout.segments[s];

        bytes += cstd_state_files_on(job, segment->tier) ? segment->bytes : 0;
    }
    return bytes;
}

/* Set the path of the file of @tier: that of @fd or, after the death of a daemon, of a segment. */
static void find_path(const struct cstd_job *job, const struct cstd_file *file,
                      Cistern__StateFile *out, char path[], size_t size)
{
    const uint32_t n = job->memory.n_segments > 0 ? job->layout.n_segments : 0;
    int fd = file->fd;

    for (uint32_t s = 0; s < n && fd < 0; s++) {
        if (job->layout.segments[s].tier == file->tier->number) {
            fd = job->memory.segments[s]->fd;
        }
    }
    out->has_unnamed = out->unnamed = cstd_files_name(fd, path, size);
    cst_text_clean(path, size);
    out->path = path;
}

/* Bytes of the buffers in host memory for the states in @tier. */
static uint64_t buffer_bytes(const struct cstd_job *job, const struct cstd_tier *tier)
{
    struct cstd_device_reservation list[CST_CORE_MAX_UPDATE_DEVICES];
    uint32_t n = cstd_device_reservation_list(job, list);

    for (uint32_t i = 0; i < n; i++) {
        if (list[i].tier == tier) {
            return list[i].bytes;
        }
    }
    return 0;
}

static void describe(const struct cstd_job *job, const struct cstd_tier *tier,
                     Cistern__StateFile *out)
{
    const bool laid_out = cstd_job_has_layout(job);
    const uint32_t n_chunks = laid_out ? job->layout.n_chunks : 0;
    const uint32_t n_segments = laid_out ? job->layout.n_segments : 0;

    out->drive = (char *)(uintptr_t)tier->label;
    out->uuid = (char *)(uintptr_t)tier->uuid;
    out->buffer_bytes = buffer_bytes(job, tier);
    for (uint32_t s = 0; s < n_segments; s++) {
        out->bytes +=
            job->layout.segments[s].tier == tier->number ? job->layout.segments[s].bytes : 0;
    }
    for (uint32_t c = 0; c < n_chunks; c++) {
        out->n_chunks += job->layout.chunks[c].tier == tier->number;
    }
}

void cstd_state_files_describe(const struct cstd_job *job, struct cstd_state_files *out)
{
    out->n = job->files.n;
    for (uint32_t i = 0; i < out->n; i++) {
        cistern__state_file__init(&out->files[i]);
        out->pointers[i] = &out->files[i];
        out->tiers[i] = job->files.v[i].tier;
        describe(job, out->tiers[i], &out->files[i]);
        find_path(job, &job->files.v[i], &out->files[i], out->paths[i], sizeof out->paths[i]);
    }
}

/* The index in @files of the file on the drive with the number @tier; files->n: there is none. */
static uint32_t file_on(const struct cstd_state_files *files, uint32_t tier)
{
    uint32_t i = 0;

    while (i < files->n && files->tiers[i]->number != tier) {
        i++;
    }
    return i;
}

static const char *row_name(int row)
{
    return row == CST_ROW_WEIGHT_OTHER ? "weight"
           : row == CST_ROW_MASTER     ? "master"
                                       : cst_moment_names[row - CST_ROW_MOMENT];
}

void cstd_state_files_places(const struct cstd_job *job, const struct cstd_state_files *files,
                             uint32_t chunk, struct cstd_state_places *out)
{
    const struct cst_layout_chunk *at = &job->layout.chunks[chunk];

    out->n = 0;
    for (int r = CST_ROW_MASTER; r < cst_layout_rows_apart(&job->layout); r++) {
        const struct cst_layout_row *row = cst_layout_row(at, r);
        Cistern__StatePlace *place = &out->places[out->n];
        uint32_t file = files->n;

        if (row->segment != CST_LAYOUT_NO_ROW) {
            file = file_on(files, job->layout.segments[row->segment].tier);
        }
        if (file == files->n) {
            continue;
        }
        cistern__state_place__init(place);
        place->row = (char *)(uintptr_t)row_name(r);
        place->file = file;
        place->offset = job->memory.segments[row->segment]->file_offset + row->offset;
        place->bytes = cst_layout_chunk_row_bytes(&job->layout, at, r, at->n_elems);
        place->has_twin_offset = job->layout.segments[row->segment].twin > 0;
        place->twin_offset = place->offset + job->layout.segments[row->segment].twin;
        out->pointers[out->n++] = place;
    }
}

bool cstd_state_files_recorded(const struct cstd_job *job, uint64_t *step)
{
    struct cst_core_stats stats = {0};

    if (job->core != NULL && job->spec.states.durable) {
        cst_core_stats(job->core, &stats);
    }
    *step = stats.sealed_step;
    return stats.sealed_step > 0;
}
