/* SPDX-License-Identifier: Apache-2.0 */
/* UPDATE by Muon: the phases of a chunk, batch after batch (kernels/math/muon.h). The pieces of a
 * phase are one turn of the command's task; the thread that does the last piece begins the next
 * phase.
 *
 *            +----------------------------------------------+
 *            v                                              |
 *   batch: DIRECTIONS -> SUMS -> SCALE -> ITERATE ... -> [complete] -> apply --(last)--> over
 *                                                            ^
 *            begun again by another engine: complete --------+
 *
 * In place, the scratch is that of the chunk's node, and has a header. Until the header says that
 * the directions are complete, no state of the batch has changed. From then on the directions are
 * read from the scratch, which outlives the engine.
 *
 * Out of place, the scratch is named by the command and is memory of the device. Nothing that is
 * read changes, and a command that is repeated begins again: the header is not used.
 *
 * The daemon has one chunk updated at a time with each scratch. */
#include "kernels/engine/work_kinds.h"

#include "proto/clock.h"

#include <inttypes.h>

/* The phase after the last one of kernels/math/muon.h: tiles are updated. */
#define APPLY CST_MUON_PHASES

static bool is_done(const struct cste_work *work, const struct cst_muon_batch *batch)
{
    const struct cst_table_tile *tiles = cst_table_tiles(work->chunk.work.table);
    bool done = true;

    for (uint32_t i = 0; i < batch->n_spans && done; i++) {
        const struct cst_table_span *span = &batch->spans[i];

        for (uint64_t k = 0; k < cst_table_n_tiles(span->n_elems) && done; k++) {
            done = tiles[span->first_tile + k].update_mark == (uint32_t)work->mark;
        }
    }
    return done;
}

/* Returns whether the present phase goes through the tiles of the chunk. */
static bool is_of_tiles(const struct cste_work *work)
{
    return work->phase == CST_MUON_DIRECTIONS || work->phase == APPLY;
}

/* Returns the number of pieces of the present phase. */
static uint64_t cut_phase(struct cste_work *work)
{
    return is_of_tiles(work) ? cste_work_cut_tiles(work, work->batch.n_tiles)
                             : cste_work_cut(work, cst_muon_pieces(&work->batch, work->phase),
                                             work->context->device->ops->compute->max_products);
}

/* Returns the address of the scratch: of host memory, or of memory of the device. */
static void *scratch_of(const struct cste_work *work)
{
    const struct cste_mem *mem = work->scratch.mem;

    return mem->base != NULL ? cste_addr_host(work->scratch)
                             : (void *)(uintptr_t)(mem->device + work->scratch.offset);
}

/* Begin the first batch from span number @span on that is not done. @tile is the number of tiles of
 * the spans before. Returns its number of pieces; 0: there is none. */
static uint64_t begin_batch(struct cste_work *work, uint32_t span, uint64_t tile)
{
    const struct cst_table_chunk *entry = work->chunk.entry;
    struct cst_muon_batch *batch = &work->batch;

    for (; span < entry->n_spans; span += batch->n_spans, tile += batch->n_tiles) {
        cst_muon_batch_at(batch, work->chunk.work.table, entry, span, tile, scratch_of(work));
        if (work->marks && is_done(work, batch)) {
            continue;
        }
        if (work->marks && cst_muon_is_complete(batch, work->chunk_index, work->mark)) {
            work->phase = APPLY;
            return cut_phase(work);
        }
        if (work->marks) {
            cst_muon_clear(batch);
        }
        work->phase = CST_MUON_DIRECTIONS;
        return cut_phase(work);
    }
    /* The next update must not find directions of this one, even if it had the same mark: states
     * can have been written in between. */
    if (work->marks) {
        cst_muon_clear(batch);
    }
    return 0;
}

/* Resolve the scratch. Out of place, the command names it: it is in the segment of the rows that
 * are written, and overlaps no row. */
static int find_scratch(struct cste_work *work)
{
    const struct cst_table_chunk *entry = work->chunk.entry;
    const struct cste_device_update *u = &work->update;
    uint64_t bytes = entry->scratch_bytes;
    int rc;

    if (work->n_dst != (work->marks ? 0 : 1)) {
        return cst_err_set(&work->err, CST_EINVAL, "UPDATE of chunk %u by Muon names %u scratches",
                           work->chunk_index, work->n_dst);
    }
    rc = cste_work_find(work, work->marks ? entry->scratch : work->dst_places[0], bytes, 64,
                        "scratch", &work->scratch);
    if (rc != CST_OK) {
        return rc;
    }
    if (work->marks && work->scratch.mem->base == NULL) {
        return cst_err_set(&work->err, CST_EINVAL, "the scratch of chunk %u is memory of a device",
                           work->chunk_index);
    }
    for (int row = 0; row < CST_ROW_COUNT && !work->marks; row++) {
        uint64_t row_bytes = cst_table_row_bytes(
            work->chunk.work.table, cst_tile_dtype(&work->chunk.work), row, work->chunk.n_elems);

        if (work->scratch.mem != u->out[CST_ROW_MOMENT].mem ||
            cste_work_overlap(work->scratch, bytes, u->in[row], row_bytes) ||
            cste_work_overlap(work->scratch, bytes, u->out[row], row_bytes)) {
            return cst_err_set(&work->err, CST_EINVAL,
                               "the scratch of chunk %u is in another segment than its rows, or "
                               "overlaps row %d",
                               work->chunk_index, row);
        }
    }
    return CST_OK;
}

int cste_work_find_muon(struct cste_work *work, uint64_t *pieces)
{
    const struct cst_table_chunk *entry = work->chunk.entry;
    int rc;

    if (work->n_src > 0) {
        return cst_err_set(&work->err, CST_EINVAL,
                           "UPDATE of chunk %u by Muon: its gradient is in a row",
                           work->chunk_index);
    }
    if (!cst_muon_check(work->chunk.work.table, entry)) {
        return cst_err_set(&work->err, CST_EINVAL,
                           "UPDATE of chunk %u by Muon: a tensor has no matrices or does not fit "
                           "in the scratch of %" PRIu64 " bytes",
                           work->chunk_index, entry->scratch_bytes);
    }
    rc = find_scratch(work);
    if (rc != CST_OK) {
        return rc;
    }
    work->chunk.work.batch = &work->batch;
    *pieces = work->marks && entry->update_mark == work->mark ? 0 : begin_batch(work, 0, 0);
    if (*pieces == 0) {
        cste_work_mark_chunk(work);
    }
    return CST_OK;
}

static void count_products(struct cste_work *work)
{
    const struct cst_muon_batch *batch = &work->batch;

    for (uint32_t i = 0; i < batch->n_spans; i++) {
        const struct cst_table_span *span = &batch->spans[i];

        work->product_flops += cst_muon_flops(span->n_elems, span->rows, span->columns);
    }
    work->product_ns += cst_clock_ns() - work->products_began_ns;
}

uint64_t cste_work_next_muon(struct cste_work *work)
{
    const struct cst_muon_batch *batch = &work->batch;

    if (work->phase == APPLY) {
        return begin_batch(work, batch->first_span + batch->n_spans,
                           batch->first_tile + batch->n_tiles);
    }
    work->phase++;
    if (work->phase == CST_MUON_ITERATE) {
        work->products_began_ns = cst_clock_ns();
    }
    if (work->phase == APPLY) {
        count_products(work);
    }
    if (work->phase == APPLY && work->marks) {
        cst_muon_set_complete(batch, work->chunk_index, work->mark);
    }
    return cut_phase(work);
}

int cste_work_muon_piece(struct cste_work *work, uint64_t piece, unsigned thread,
                         struct cst_err *err)
{
    struct cste_device *device = work->context->device;
    struct cst_tile_done done = {0};
    uint64_t all =
        is_of_tiles(work) ? work->batch.n_tiles : cst_muon_pieces(&work->batch, work->phase);
    uint64_t first, n = cste_work_share(work, piece, all, &first);
    int rc;

    first += is_of_tiles(work) ? work->batch.first_tile : 0;
    if (work->phase == APPLY) {
        rc = cste_device_update(device, thread, &work->update, first, n,
                                &work->context->slots[thread], &done, err);
    } else {
        rc = cste_device_orthogonalise(device, thread, &work->update, work->phase, first, n, err);
    }
    cste_work_add_done(work, &done);
    return rc;
}
