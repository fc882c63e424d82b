/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/chunk.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Returns whether @at is a multiple of 64 and an array of @n entries of @size bytes at @at lies
 * between @low and @high. */
static bool fits(uint64_t at, uint64_t n, uint64_t size, uint64_t low, uint64_t high)
{
    return at % 64 == 0 && at >= low && at <= high && n <= (high - at) / size;
}

static int check_formats(uint32_t id, const struct cst_table_header *h, struct cst_err *err)
{
    if (h->grad_bytes != 0 && h->grad_bytes != 2 && h->grad_bytes != 4) {
        return cst_err_set(err, CST_EINVAL, "table %u: gradients of %u bytes", id, h->grad_bytes);
    }
    if (h->optimizer >= CST_OPTIMIZER_COUNT || h->moments >= CST_MOMENTS_COUNT ||
        h->rounding >= CST_ROUNDING_COUNT || h->masters >= CST_MASTERS_COUNT) {
        return cst_err_set(err, CST_EINVAL,
                           "table %u: optimizer %u, moments %u, rounding %u, masters %u", id,
                           h->optimizer, h->moments, h->rounding, h->masters);
    }
    return CST_OK;
}

int cste_chunk_table(const struct cste_segments *segments, uint32_t id,
                     struct cste_segment **segment, struct cst_table_header **out,
                     struct cst_err *err)
{
    struct cst_table_header *h;
    int rc = cste_segments_find(segments, (struct cst_place){.segment = id}, sizeof *h, 1, "table",
                                segment, err);

    if (rc != CST_OK) {
        return rc;
    }
    h = (*segment)->mem.base;
    if (h == NULL) {
        return cst_err_set(err, CST_EINVAL, "segment %u is memory of a GPU: no table is there", id);
    }
    if (h->magic != CST_TABLE_MAGIC || h->total_bytes > (*segment)->mem.bytes) {
        return cst_err_set(err, CST_EINVAL,
                           "segment %u holds no table: magic 0x%" PRIx64 ", %" PRIu64 " bytes", id,
                           h->magic, h->total_bytes);
    }
    /* Each part must end before the next one begins, which excludes overlaps as well. */
    if (!fits(h->chunks_bytes, h->n_chunks, sizeof(struct cst_table_chunk), sizeof *h,
              h->spans_bytes) ||
        !fits(h->spans_bytes, h->n_spans, sizeof(struct cst_table_span), sizeof *h,
              h->tiles_bytes) ||
        !fits(h->tiles_bytes, h->n_tiles, sizeof(struct cst_table_tile), sizeof *h,
              h->total_bytes) ||
        (h->has_steps != 0 &&
         !fits(cst_table_steps_bytes(h), 2ull * h->n_spans, sizeof(struct cst_table_steps),
               h->tiles_bytes, h->total_bytes))) {
        return cst_err_set(err, CST_EINVAL,
                           "table %u: %u chunks at %" PRIu64 ", %u spans at %" PRIu64 ", %" PRIu64
                           " tiles at %" PRIu64 " do not fit in %" PRIu64 " bytes",
                           id, h->n_chunks, h->chunks_bytes, h->n_spans, h->spans_bytes, h->n_tiles,
                           h->tiles_bytes, h->total_bytes);
    }
    *out = h;
    return check_formats(id, h, err);
}

/* Returns the number of elements of which the start of a span is a multiple. With mx8, an exponent
 * must belong to one span. */
static uint64_t span_align(const struct cst_table_header *header)
{
    return header->moments == CST_MOMENTS_MX8 ? CST_MX8_BLOCK : 1;
}

/* Check that the spans of the chunk are in order, do not overlap and lie within the chunk, and that
 * their tiles lie within the table. *n_tiles_out receives the number of tiles. */
static int check_spans(struct cst_table_header *header, const struct cst_table_chunk *entry,
                       uint32_t index, uint64_t *n_tiles_out, struct cst_err *err)
{
    const struct cst_table_span *spans = cst_table_spans(header) + entry->first_span;
    uint64_t end = 0, n_tiles = 0;

    if (entry->first_span > header->n_spans ||
        entry->n_spans > header->n_spans - entry->first_span) {
        return cst_err_set(err, CST_EINVAL, "chunk %u: %u spans from %u on, the table has %u",
                           index, entry->n_spans, entry->first_span, header->n_spans);
    }
    for (uint32_t i = 0; i < entry->n_spans; i++) {
        const struct cst_table_span *s = &spans[i];
        uint64_t n;

        if (s->start < end || s->start % span_align(header) != 0 || s->start > entry->n_elems ||
            s->n_elems > entry->n_elems - s->start) {
            return cst_err_set(err, CST_EINVAL,
                               "chunk %u, span %u: %" PRIu64 " elements at %" PRIu64
                               ", the one before ends at %" PRIu64 ", the chunk at %" PRIu64,
                               index, entry->first_span + i, s->n_elems, s->start, end,
                               entry->n_elems);
        }
        n = cst_table_n_tiles(s->n_elems);
        if (s->first_tile > header->n_tiles || n > header->n_tiles - s->first_tile) {
            return cst_err_set(err, CST_EINVAL,
                               "chunk %u, span %u: %" PRIu64 " tiles from %" PRIu64
                               " on, the table has %" PRIu64,
                               index, entry->first_span + i, n, s->first_tile, header->n_tiles);
        }
        end = s->start + s->n_elems;
        n_tiles += n;
    }
    *n_tiles_out = n_tiles;
    return CST_OK;
}

static const char *row_name(int row)
{
    return row == CST_ROW_WEIGHT      ? "weight"
           : row == CST_ROW_GRAD      ? "grad"
           : row == CST_ROW_MASTER    ? "master"
           : cst_table_is_moment(row) ? cst_moment_names[row - CST_ROW_MOMENT]
                                      : "second weight";
}

/* Find row @row of @chunk. */
static int find_row(const struct cste_segments *segments, struct cste_chunk *chunk, int row,
                    struct cst_err *err)
{
    const struct cst_table_header *header = chunk->work.table;
    enum cst_dtype dtype = cst_tile_dtype(&chunk->work);
    struct cst_place place =
        row == CST_ROW_WEIGHT_OTHER ? chunk->entry->other_weight : chunk->entry->rows[row];
    struct cste_segment *segment;
    char what[40];
    int rc;

    /* A chunk has a second weight row only if updates are early or delayed. */
    if (place.segment == CST_PLACE_NONE && row == CST_ROW_WEIGHT_OTHER) {
        return CST_OK;
    }
    if (place.segment == CST_PLACE_NONE) {
        return cst_err_set(err, CST_EINVAL, "chunk %u is frozen: it has no %s row",
                           chunk->work.chunk, row_name(row));
    }
    (void)snprintf(what, sizeof what, "%s row", row_name(row));
    rc =
        cste_segments_find(segments, place, cst_table_row_bytes(header, dtype, row, chunk->n_elems),
                           cst_table_row_align(header, dtype, row), what, &segment, err);
    if (rc == CST_OK) {
        chunk->rows[row] = (struct cste_addr){.mem = &segment->mem, .offset = place.offset};
        chunk->on_device = chunk->on_device || segment->mem.base == NULL;
        chunk->segments[chunk->n_segments++] = segment;
    }
    return rc;
}

/* Returns whether rows @a and @b, which begin at one offset, may share memory. In some jobs the
 * bf16 gradient takes the place of the weights, unless they are needed for the master weights. */
static bool may_be_one(const struct cste_chunk *chunk, int a, int b)
{
    return a == CST_ROW_WEIGHT && b == CST_ROW_GRAD && chunk->work.table->grad_bytes != 4 &&
           !cst_table_reads_weights(chunk->work.table, cst_tile_dtype(&chunk->work)) &&
           chunk->rows[a].offset == chunk->rows[b].offset;
}

static int check_overlap(const struct cste_chunk *chunk, struct cst_err *err)
{
    const struct cst_table_header *header = chunk->work.table;
    enum cst_dtype dtype = cst_tile_dtype(&chunk->work);

    for (int b = 1; b < CSTE_CHUNK_N_ROWS; b++) {
        for (int a = 0; a < b; a++) {
            struct cste_addr x = chunk->rows[a], y = chunk->rows[b];

            if (x.mem != NULL && x.mem == y.mem && !may_be_one(chunk, a, b) &&
                x.offset < y.offset + cst_table_row_bytes(header, dtype, b, chunk->n_elems) &&
                y.offset < x.offset + cst_table_row_bytes(header, dtype, a, chunk->n_elems)) {
                return cst_err_set(err, CST_EINVAL,
                                   "chunk %u: %s row at %" PRIu64 " and %s row at %" PRIu64
                                   " overlap, with %" PRIu64 " elements",
                                   chunk->work.chunk, row_name(a), x.offset, row_name(b), y.offset,
                                   chunk->n_elems);
            }
        }
    }
    return CST_OK;
}

static int find_rows(const struct cste_segments *segments, struct cste_chunk *chunk, unsigned rows,
                     struct cst_err *err)
{
    enum cst_optimizer optimizer = cst_table_optimizer(chunk->work.table, chunk->entry);
    enum cst_dtype dtype = cst_tile_dtype(&chunk->work);
    int rc = CST_OK;

    for (int row = 0; row < CSTE_CHUNK_N_ROWS && rc == CST_OK; row++) {
        if ((rows & CSTE_CHUNK_ROW(row)) != 0 && cst_table_has_row(optimizer, dtype, row)) {
            rc = find_row(segments, chunk, row, err);
        }
    }
    if (rc == CST_OK) {
        rc = check_overlap(chunk, err);
    }
    cste_device_rows(&chunk->work.rows, &chunk->work, chunk->rows, chunk->n_elems);
    return rc;
}

int cste_chunk_find(const struct cste_segments *segments, uint32_t table, uint32_t index,
                    unsigned rows, struct cste_chunk *out, struct cst_err *err)
{
    struct cst_table_header *header;
    struct cste_chunk chunk = {.n_segments = 1};
    int rc = cste_chunk_table(segments, table, &chunk.segments[0], &header, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (index >= header->n_chunks) {
        return cst_err_set(err, CST_EINVAL, "table %u has %u chunks, no chunk %u", table,
                           header->n_chunks, index);
    }
    chunk.entry = &cst_table_chunks(header)[index];
    chunk.n_elems = chunk.entry->n_elems;
    chunk.work = (struct cst_tile_work){.table = header, .table_id = table, .chunk = index};
    if (chunk.entry->dtype > CST_FP32) {
        return cst_err_set(err, CST_EINVAL, "table %u, chunk %u: dtype %u", table, index,
                           chunk.entry->dtype);
    }
    if (chunk.n_elems > CSTE_CHUNK_MAX_ELEMS || chunk.n_elems % span_align(header) != 0) {
        return cst_err_set(err, CST_EINVAL,
                           "chunk %u has %" PRIu64 " elements, at most %llu, multiples of %" PRIu64,
                           index, chunk.n_elems, CSTE_CHUNK_MAX_ELEMS, span_align(header));
    }
    rc = check_spans(header, chunk.entry, index, &chunk.n_tiles, err);
    if (rc == CST_OK) {
        rc = find_rows(segments, &chunk, rows, err);
    }
    if (rc != CST_OK) {
        return cst_err_prefix(err, "table %u", table);
    }
    *out = chunk;
    return CST_OK;
}
