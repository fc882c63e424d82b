/* SPDX-License-Identifier: Apache-2.0 */
/* REDUCE and NORM, and what UPDATE (work_update.c) shares with REDUCE. The loop thread runs find
 * and count, the team runs pieces, and the thread of the last piece runs done. */
#include "kernels/engine/work_kinds.h"

#include "kernels/math/norm.h"

#include <inttypes.h>

/* Smallest piece in tiles. Such a piece takes about as long as waking a thread. */
#define MIN_TILES 4
/* Number of pieces per thread of the team, at least, for threads to end together. */
#define TEAM_PIECES 4

/* -- REDUCE and UPDATE ---------------------------------------------------------------------- */

int cste_work_find_chunk(struct cste_work *work, unsigned rows)
{
    int rc = cste_chunk_find(work->context->segments, work->table, work->chunk_index, rows,
                             &work->chunk, &work->err);

    if (rc != CST_OK) {
        return rc;
    }
    for (uint32_t i = 0; i < work->chunk.n_segments; i++) {
        cste_work_hold(work, work->chunk.segments[i]);
    }
    work->chunk.work.mark = work->mark;
    work->chunk.work.accumulate = work->accumulate;
    work->chunk.work.partials = work->partials;
    return CST_OK;
}

uint64_t cste_work_src_bytes(const struct cste_work *work)
{
    return work->chunk.n_elems * cst_dtype_bytes(cst_tile_src_dtype(&work->chunk.work));
}

int cste_work_find_contribution(struct cste_work *work, uint32_t i)
{
    return cste_work_find(work, work->src_places[i], cste_work_src_bytes(work),
                          cst_dtype_bytes(cst_tile_src_dtype(&work->chunk.work)), "contribution",
                          &work->contributions[i]);
}

/* Returns where the chunk stores the mark of the last command of this kind. */
static uint64_t *chunk_mark(struct cste_work *work)
{
    return work->kind == ENGINE__COMMAND_KIND__REDUCE ? &work->chunk.entry->reduce_mark
                                                      : &work->chunk.entry->update_mark;
}

/* Store the mark of the chunk after the marks of all its tiles. With release order, a reader who
 * sees the mark of the chunk sees its tiles. */
void cste_work_mark_chunk(struct cste_work *work)
{
    if (!work->marks) {
        return;
    }
    /* The sums of squares of the tiles were not made by a REDUCE. */
    if (work->kind == ENGINE__COMMAND_KIND__UPDATE && work->n_src > 0) {
        __atomic_store_n(&work->chunk.entry->reduce_mark, CST_MARK_NONE, __ATOMIC_RELEASE);
    }
    __atomic_store_n(chunk_mark(work), work->mark, __ATOMIC_RELEASE);
}

/* The pieces are small enough for all threads to end together, and large enough to be worth waking
 * a thread. */
uint64_t cste_work_cut_tiles(struct cste_work *work, uint64_t n)
{
    uint64_t grain = n / (work->context->n_threads * TEAM_PIECES);
    uint64_t most = work->context->device->ops->compute->max_tiles;

    grain = grain < MIN_TILES ? MIN_TILES : grain;
    return cste_work_cut(work, n, grain > most ? most : grain);
}

/* A chunk that carries the mark was done by an earlier engine. A chunk without tiles is
 * done by marking it. */
uint64_t cste_work_cut_chunk(struct cste_work *work)
{
    uint64_t pieces = 0;

    if (!work->marks || *chunk_mark(work) != work->mark) {
        pieces = cste_work_cut_tiles(work, work->chunk.n_tiles);
    }
    if (pieces == 0) {
        cste_work_mark_chunk(work);
    }
    return pieces;
}

void cste_work_add_done(struct cste_work *work, const struct cst_tile_done *done)
{
    (void)atomic_fetch_add_explicit(&work->done_elems, done->n_elems, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&work->done_bytes, done->bytes, memory_order_relaxed);
}

/* -- REDUCE --------------------------------------------------------------------------------- */

/* Returns whether source @src of @bytes overlaps the grad row without being that row. A source may
 * be the grad row itself if both have the same format. */
static bool across(const struct cste_work *work, struct cste_addr src, uint64_t bytes)
{
    struct cste_addr grad = work->chunk.rows[CST_ROW_GRAD];
    uint64_t grad_bytes =
        cst_table_row_bytes(work->chunk.work.table, cst_tile_dtype(&work->chunk.work), CST_ROW_GRAD,
                            work->chunk.n_elems);

    return (grad_bytes != bytes || src.offset != grad.offset) &&
           cste_work_overlap(src, bytes, grad, grad_bytes);
}

static int check_grad_row(struct cste_work *work)
{
    if (work->chunk.on_device) {
        return cst_err_set(&work->err, CST_EINVAL,
                           "grad row of chunk %u: segment %u is memory of a device",
                           work->chunk_index, work->chunk.entry->rows[CST_ROW_GRAD].segment);
    }
    if ((work->accumulate || work->partials) && work->chunk.work.rows.grad_f32 == NULL) {
        return cst_err_set(&work->err, CST_EINVAL,
                           "REDUCE is to add %s the grad row of chunk %u, which is bf16",
                           work->accumulate ? "to" : "partials in", work->chunk_index);
    }
    return CST_OK;
}

/* Let the row at dst[0] take the place of the grad row. */
static int find_row(struct cste_work *work)
{
    struct cste_chunk *chunk = &work->chunk;
    uint64_t bytes = cst_table_row_bytes(chunk->work.table, cst_tile_dtype(&chunk->work),
                                         CST_ROW_GRAD, chunk->n_elems);
    int rc = cste_work_find(
        work, work->dst_places[0], bytes,
        cst_table_row_align(chunk->work.table, cst_tile_dtype(&chunk->work), CST_ROW_GRAD),
        "row of a partial", &chunk->rows[CST_ROW_GRAD]);

    if (rc == CST_OK) {
        chunk->work.row = work->dst_places[0];
        cste_device_rows(&chunk->work.rows, &chunk->work, chunk->rows, chunk->n_elems);
    }
    return rc;
}

/* Resolve the places of a REDUCE. A source must be the grad row itself or must not overlap it.
 * Otherwise one thread would read what another thread has written. */
static int find_reduce(struct cste_work *work, uint64_t *pieces)
{
    int rc = cste_work_find_chunk(work, CSTE_CHUNK_ROWS_REDUCE);

    work->marks = true;
    if (rc == CST_OK && work->n_dst > 0) {
        rc = find_row(work);
    }
    if (rc == CST_OK) {
        rc = check_grad_row(work);
    }
    for (uint32_t i = 0; i < work->n_src && rc == CST_OK; i++) {
        rc = cste_work_find_contribution(work, i);
        if (rc == CST_OK && across(work, work->contributions[i], cste_work_src_bytes(work))) {
            rc = cst_err_set(&work->err, CST_EINVAL,
                             "contribution %u lies across the grad row of chunk %u", i,
                             work->chunk_index);
        }
    }
    *pieces = rc == CST_OK ? cste_work_cut_chunk(work) : 0;
    return rc;
}

static int reduce_piece(struct cste_work *work, uint64_t piece, unsigned thread,
                        struct cst_err *err)
{
    uint64_t first, n = cste_work_share(work, piece, work->chunk.n_tiles, &first);
    struct cst_tile_done done;
    int rc = cste_device_reduce(work->context->device, thread, &work->chunk.work, work->n_src,
                                work->contributions, first, n, &work->context->slots[thread], &done,
                                err);

    cste_work_add_done(work, &done);
    return rc;
}

static void count_reduce(const struct cste_work *work)
{
    work->context->reduce_elems += work->done_elems;
    work->context->reduce_bytes += work->done_bytes;
    cste_work_was_busy(&work->context->reducing, work);
}

/* -- NORM ----------------------------------------------------------------------------------- */

/* Check that the tiles of spans that may be cleared lie within the table. */
static int check_span_tiles(struct cste_work *work)
{
    const struct cst_table_span *spans = cst_table_spans(work->header);
    uint64_t n_tiles = work->header->n_tiles;

    for (uint32_t i = 0; work->header->has_steps != 0 && i < work->header->n_spans; i++) {
        uint64_t n = cst_table_n_tiles(spans[i].n_elems);

        if (spans[i].first_tile > n_tiles || n > n_tiles - spans[i].first_tile) {
            return cst_err_set(&work->err, CST_EINVAL,
                               "NORM: span %u has %" PRIu64 " tiles from %" PRIu64
                               " on, the table has %" PRIu64,
                               i, n, spans[i].first_tile, n_tiles);
        }
    }
    return CST_OK;
}

static int find_norm(struct cste_work *work, uint64_t *pieces)
{
    struct cste_segment *segment;
    int rc =
        cste_chunk_table(work->context->segments, work->table, &segment, &work->header, &work->err);

    if (rc == CST_OK) {
        cste_work_hold(work, segment);
        rc = check_span_tiles(work);
    }
    /* The order of the additions is fixed, which leaves nothing to divide. */
    *pieces = 1;
    return rc;
}

static int norm_piece(struct cste_work *work, uint64_t piece, unsigned thread, struct cst_err *err)
{
    (void)piece;
    (void)thread;
    (void)err;
    work->value = cst_norm_of_step(work->header, work->mark);
    return CST_OK;
}

/* -- the kinds ------------------------------------------------------------------------------ */

const struct cste_work_kind cste_work_reduce = {.name = "REDUCE",
                                                .max_src = CST_TILE_MAX_SRC,
                                                .max_dst = 1,
                                                .compute = true,
                                                .marks = true,
                                                .may_be_under_way = true,
                                                .find = find_reduce,
                                                .piece = reduce_piece,
                                                .done = cste_work_mark_chunk,
                                                .count = count_reduce};

const struct cste_work_kind cste_work_norm = {
    .name = "NORM", .compute = true, .find = find_norm, .piece = norm_piece};
