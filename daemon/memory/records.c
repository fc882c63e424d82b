/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/records.h"

#include "daemon/base/daemon_state.h"
#include "daemon/engine/engines.h"
#include "daemon/memory/memory_pools.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

uint32_t cstd_records_file(const struct cstd_records *records, uint32_t engine)
{
    uint32_t i = 0;

    while (i < records->n_files && records->engines[i] != engine) {
        i++;
    }
    return i;
}

/* The sizes for a job of @layout with states in @n_files files, without segments. */
static struct cstd_records size(const struct cst_layout *layout, uint32_t n_files,
                                uint64_t description_bytes)
{
    return (struct cstd_records){.n_files = n_files,
                                 .start_bytes = cst_durable_reserve(layout->n_chunks),
                                 .seal_bytes = cst_durable_seal_bytes(layout->n_chunks),
                                 .description_bytes =
                                     cst_round_up(description_bytes, CST_DURABLE_BLOCK)};
}

static uint64_t buffer_bytes(const struct cstd_records *records)
{
    return cstd_records_text(records) + records->description_bytes;
}

uint64_t cstd_records_buffer_bytes(const struct cst_layout *layout, uint32_t n_files,
                                   uint64_t description_bytes)
{
    const struct cstd_records records = size(layout, n_files, description_bytes);

    return buffer_bytes(&records);
}

/* -- segments of files ------------------------------------------------------------------------ */

/* Make a segment of @bytes at @offset of the file of @rows, a segment of rows of states. What an
 * earlier daemon has written there is kept. */
static int open_part(struct cstd_memory *memory, const struct cstd_segment *rows, uint64_t offset,
                     uint64_t bytes, struct cstd_segment **out, struct cst_err *err)
{
    const uint32_t id = cstd_engines_segment_id(memory->daemon->engines);
    int fd, rc;

    if (memory->kept == NULL) {
        rc = cstd_segment_open_file(out, id, bytes, rows->fd, rows->budget, memory->account,
                                    (unsigned)rows->populate, memory->name, err);
    } else {
        fd = fcntl(rows->fd, F_DUPFD_CLOEXEC, 0);
        rc = fd < 0 ? cst_err_errno(err, CST_ENOMEM, errno, "a file for states")
                    : cstd_segment_adopt_device(out, id, bytes, fd, rows->budget, memory->account,
                                                (unsigned)rows->populate, err);
    }
    if (rc == CST_OK) {
        (*out)->file = true;
        (*out)->file_offset = offset;
    }
    return rc;
}

/* Find the files that have rows of states, in the order of the arenas, and make a segment of the
 * beginning of each. *end receives where the rows of the first file end. */
static int open_starts(struct cstd_memory *memory, const struct cst_layout *layout, uint64_t *end,
                       struct cst_err *err)
{
    struct cstd_records *records = &memory->records;
    int rc = CST_OK;

    for (uint32_t s = 0; s < memory->n_arenas && rc == CST_OK; s++) {
        const struct cstd_segment *rows = memory->segments[s];
        uint32_t i;

        if (!cst_tier_is_apart(layout->segments[s].tier)) {
            continue;
        }
        i = cstd_records_file(records, layout->segments[s].tier);
        if (i == records->n_files) {
            rc = open_part(memory, rows, 0, records->start_bytes, &records->starts[i], err);
            records->engines[i] = layout->segments[s].tier;
            records->n_files += rc == CST_OK;
        }
        if (i == 0) {
            *end = rows->file_offset + rows->bytes;
        }
    }
    return rc;
}

/* Make the segment of the description, which begins at @offset of the first file. If an earlier
 * daemon has made the file, the segment is what the file has behind the rows. */
static int open_description(struct cstd_memory *memory, uint64_t offset, struct cst_err *err)
{
    struct cstd_records *records = &memory->records;
    const struct cstd_segment *first = records->starts[0];
    uint64_t bytes = records->description_bytes;
    struct stat st;

    if (memory->kept != NULL) {
        if (fstat(first->fd, &st) != 0) {
            return cst_err_errno(err, CST_EIO, errno, "fstat of a file for states");
        }
        if ((uint64_t)st.st_size < offset + bytes) {
            bytes = (uint64_t)st.st_size > offset ? (uint64_t)st.st_size - offset : 0;
        }
        bytes -= bytes % CST_DURABLE_BLOCK;
    }
    return bytes > 0 ? open_part(memory, first, offset, bytes, &records->description, err) : CST_OK;
}

/* -- the buffer ------------------------------------------------------------------------------- */

static int open_buffer(struct cstd_memory *memory, struct cst_err *err)
{
    struct cstd_records *records = &memory->records;
    const uint64_t bytes = buffer_bytes(records);
    struct cst_set engines = cst_set_of(0);
    int rc = cstd_segment_open(&records->buffer, cstd_engines_segment_id(memory->daemon->engines),
                               bytes, NULL, NULL, memory->name, err);

    if (rc != CST_OK) {
        return rc;
    }
    for (uint32_t i = 0; i < records->n_files; i++) {
        cst_set_add(&engines, records->engines[i]);
    }
    records->buffer->engines = engines;
    records->buffer->populate = 0;
    records->buffer->population = &memory->population;
    records->at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, records->buffer->fd, 0);
    if (records->at == MAP_FAILED) {
        records->at = NULL;
        return cst_err_errno(err, CST_ENOMEM, errno, "mmap of a buffer for the records of steps");
    }
    return CST_OK;
}

/* -- weights ---------------------------------------------------------------------------------- */

/* Let the engines of drives read the weights that files have: those that no update has written are
 * copied from host memory (daemon/job/durable.h). */
static void show_weights(struct cstd_memory *memory, const struct cst_layout *layout)
{
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        if (chunk->other_weight.segment != CST_LAYOUT_NO_ROW) {
            cst_set_add(&memory->segments[chunk->rows[CST_ROW_WEIGHT].segment]->engines,
                        layout->segments[chunk->other_weight.segment].tier);
        }
    }
}

/* -- life ------------------------------------------------------------------------------------- */

int cstd_records_open(struct cstd_memory *memory, const struct cstd_memory_request *request,
                      struct cst_err *err)
{
    uint64_t end = 0;
    int rc;

    memory->records = size(request->layout, 0, request->description_bytes);
    show_weights(memory, request->layout);
    rc = open_starts(memory, request->layout, &end, err);
    rc = rc == CST_OK ? open_description(memory, cst_round_up(end, CST_DURABLE_BLOCK), err) : rc;
    return rc == CST_OK ? open_buffer(memory, err) : rc;
}

static void unmap(struct cstd_records *records)
{
    if (records->at != NULL) {
        (void)munmap(records->at, records->buffer->bytes);
    }
}

/* Write all segments to @out. Returns their number. */
static uint32_t list(const struct cstd_records *records,
                     struct cstd_segment *out[CST_LAYOUT_MAX_DEVICES + 2])
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < records->n_files; i++) {
        out[n++] = records->starts[i];
    }
    if (records->description != NULL) {
        out[n++] = records->description;
    }
    if (records->buffer != NULL) {
        out[n++] = records->buffer;
    }
    return n;
}

void cstd_records_undo(struct cstd_records *records)
{
    struct cstd_segment *all[CST_LAYOUT_MAX_DEVICES + 2];
    const uint32_t n = list(records, all);

    unmap(records);
    for (uint32_t i = 0; i < n; i++) {
        cstd_segment_unref(all[i]);
    }
    *records = (struct cstd_records){.n_files = 0};
}

void cstd_records_mount(struct cstd_memory *memory)
{
    struct cstd_segment *all[CST_LAYOUT_MAX_DEVICES + 2];
    const uint32_t n = list(&memory->records, all);

    for (uint32_t i = 0; i < n; i++) {
        cstd_memory_mount_apart(memory, all[i]);
    }
}

void cstd_records_close(struct cstd_memory *memory)
{
    struct cstd_segment *all[CST_LAYOUT_MAX_DEVICES + 2];
    const uint32_t n = list(&memory->records, all);

    unmap(&memory->records);
    memory->records = (struct cstd_records){.n_files = 0};
    for (uint32_t i = 0; i < n; i++) {
        (void)cstd_memory_release(memory, all[i]);
    }
}
