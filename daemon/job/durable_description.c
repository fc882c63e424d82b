/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/durable_description.h"

#include "daemon/budget/arena.h"
#include "daemon/job/job.h"
#include "daemon/ledger/describe.h"
#include "proto/cistern.pb-c.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

/* Places of rows, which point into each other. */
struct places {
    Cistern__DurableLayout message;
    Cistern__DurableChunk *chunks, **chunk_list;
    Cistern__DurableRow *rows, **row_list;
    uint64_t *offsets;
};

/* -- places of rows --------------------------------------------------------------------------- */

static void free_places(struct places *places)
{
    free(places->chunks);
    free(places->chunk_list);
    free(places->rows);
    free(places->row_list);
    free(places->offsets);
}

/* Rows with one place were written before: the seal has their checksums. */
static void describe_chunk(const struct cstd_job *job, struct places *places, uint32_t c)
{
    const struct cstd_records *records = &job->memory.records;
    const struct cst_durable_seal *seal = (void *)(records->at + cstd_records_seal(records));
    const struct cst_layout_chunk *chunk = &job->layout.chunks[c];
    Cistern__DurableChunk *out = &places->chunks[c];

    cistern__durable_chunk__init(out);
    out->n_elems = chunk->n_elems;
    out->rows = &places->row_list[(size_t)c * CST_DURABLE_ROWS];
    for (int i = 0; i < CST_DURABLE_ROWS; i++) {
        const int r = CST_ROW_MASTER + i;
        const struct cst_layout_row *row = cst_layout_row(chunk, r);
        Cistern__DurableRow *to = &places->rows[(size_t)c * CST_DURABLE_ROWS + out->n_rows];

        if (row->segment == CST_LAYOUT_NO_ROW) {
            continue;
        }
        cistern__durable_row__init(to);
        to->row = (uint32_t)r;
        to->file = cstd_records_file(records, job->layout.segments[row->segment].tier);
        to->offset = job->memory.segments[row->segment]->file_offset + row->offset;
        to->twin = job->layout.segments[row->segment].twin;
        to->bytes = cst_layout_chunk_row_bytes(&job->layout, chunk, r, chunk->n_elems);
        to->has_sum = to->twin == 0;
        to->sum = to->has_sum ? seal->sums[(size_t)c * CST_DURABLE_ROWS + (size_t)i] : 0;
        out->rows[out->n_rows++] = to;
    }
}

static bool make_places(const struct cstd_job *job, struct places *places)
{
    const size_t n = job->layout.n_chunks, n_rows = n * CST_DURABLE_ROWS;

    *places = (struct places){.chunks = calloc(n + 1, sizeof *places->chunks),
                              .chunk_list = calloc(n + 1, sizeof(void *)),
                              .rows = calloc(n_rows + 1, sizeof *places->rows),
                              .row_list = calloc(n_rows + 1, sizeof(void *)),
                              .offsets = calloc(job->model.n_tensors + 1u, sizeof(uint64_t))};
    if (places->chunks == NULL || places->chunk_list == NULL || places->rows == NULL ||
        places->row_list == NULL || places->offsets == NULL) {
        return false;
    }
    cistern__durable_layout__init(&places->message);
    for (uint32_t c = 0; c < n; c++) {
        describe_chunk(job, places, c);
        places->chunk_list[c] = &places->chunks[c];
    }
    for (uint32_t t = 0; t < job->model.n_tensors; t++) {
        places->offsets[t] = job->model.tensors[t].offset;
    }
    places->message.n_chunks = n;
    places->message.chunks = places->chunk_list;
    places->message.n_offset = job->model.n_tensors;
    places->message.offset = places->offsets;
    return true;
}

/* -- the description -------------------------------------------------------------------------- */

static int check_size(const struct cstd_job *job, uint64_t bytes, struct cst_err *err)
{
    const struct cstd_segment *place = job->memory.records.description;
    const uint64_t has = place != NULL ? place->bytes : 0;

    return cst_round_up(bytes, CST_DURABLE_BLOCK) <= has
               ? CST_OK
               : cst_err_set(err, CST_ENOMEM,
                             "the description of job '%s' has %" PRIu64
                             " bytes, and its file has space for %" PRIu64
                             ": load the job's checkpoint into a new job",
                             job->name, bytes, has);
}

/* Put the packed JobDescription in the file @made and, behind it, @places into the buffer, with
 * zeros up to the next block. */
static int pack(struct cstd_job *job, const struct cstd_description *made,
                const struct places *places, struct cst_durable_head *head, struct cst_err *err)
{
    struct cstd_records *records = &job->memory.records;
    char *text = records->at + cstd_records_text(records);
    uint64_t bytes;
    int rc;

    head->job_bytes = made->bytes;
    head->layout_bytes = cistern__durable_layout__get_packed_size(&places->message);
    bytes = head->job_bytes + head->layout_bytes;
    rc = check_size(job, bytes, err);
    if (rc != CST_OK) {
        return rc;
    }
    if (pread(made->fd, text, made->bytes, 0) != (ssize_t)made->bytes) {
        return cst_err_errno(err, CST_EIO, errno, "the description of job '%s'", job->name);
    }
    (void)cistern__durable_layout__pack(&places->message, (uint8_t *)text + head->job_bytes);
    memset(text + bytes, 0, cst_round_up(bytes, CST_DURABLE_BLOCK) - bytes);
    head->description_sum = XXH3_64bits(text, bytes);
    return CST_OK;
}

static int make_description(struct cstd_job *job, const struct cstd_progress *progress,
                            struct cst_durable_head *head, struct cst_err *err)
{
    struct cstd_description made = {.fd = -1};
    struct places places = {.chunks = NULL};
    int rc = cstd_describe_make(job, progress, &made, err);

    if (rc == CST_OK) {
        rc = make_places(job, &places)
                 ? pack(job, &made, &places, head, err)
                 : cst_err_set(err, CST_ENOMEM, "no memory to describe job '%s'", job->name);
    }
    free_places(&places);
    if (made.fd >= 0) {
        (void)close(made.fd);
    }
    return rc;
}

/* -- heads ------------------------------------------------------------------------------------ */

static uint64_t head_sum(const struct cst_durable_head *head)
{
    return XXH3_64bits(head, offsetof(struct cst_durable_head, sum));
}

const struct cst_durable_head *cstd_durable_head_in(const char *start)
{
    for (int k = 0; k < CST_DURABLE_HEADS; k++) {
        const struct cst_durable_head *head = (const void *)(start + (size_t)k * CST_DURABLE_BLOCK);

        if (head->magic == CST_DURABLE_MAGIC && head->sum == head_sum(head)) {
            return head;
        }
    }
    return NULL;
}

int cstd_durable_describe(struct cstd_job *job, const struct cstd_progress *progress,
                          struct cst_err *err)
{
    const struct cstd_records *records = &job->memory.records;
    struct cst_durable_head head = {.magic = CST_DURABLE_MAGIC,
                                    .order = CST_DURABLE_ORDER,
                                    .format = CST_DURABLE_FORMAT,
                                    .n_files = records->n_files,
                                    .n_chunks = job->layout.n_chunks,
                                    .n_rows = CST_DURABLE_ROWS,
                                    .seal_bytes = records->seal_bytes};
    int rc;

    if (getrandom(head.id, sizeof head.id, 0) != sizeof head.id) {
        return cst_err_errno(err, CST_EIO, errno, "random bytes");
    }
    rc = make_description(job, progress, &head, err);
    if (rc == CST_OK) {
        head.description = records->description->file_offset;
    }
    for (uint32_t i = 0; i < records->n_files && rc == CST_OK; i++) {
        char *block = records->at + cstd_records_head(records, i);

        head.file = i;
        head.sum = head_sum(&head);
        memset(block, 0, CST_DURABLE_BLOCK);
        memcpy(block, &head, sizeof head);
    }
    return rc;
}
