/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/work_kinds.h"

#include <inttypes.h>

#define READ_ROWS (CSTE_CHUNK_ROWS_STATES | CSTE_CHUNK_ROW(CST_ROW_GRAD))
#define WRITTEN_ROWS (CSTE_CHUNK_ROWS_STATES | CSTE_CHUNK_ROW(CST_ROW_WEIGHT))

static enum cst_dtype dtype_of(const struct cste_work *work)
{
    return cst_tile_dtype(&work->chunk.work);
}

static bool reads_weights(const struct cste_work *work)
{
    return cst_table_reads_weights(work->chunk.work.table, dtype_of(work));
}

static enum cst_optimizer optimizer_of(const struct cste_work *work)
{
    return cst_table_optimizer(work->chunk.work.table, work->chunk.entry);
}

static bool is_muon(const struct cste_work *work)
{
    return cst_optimizer_of_matrices(optimizer_of(work));
}

/* Returns the rows of @rows that this update has: those of the chunk, and the grad row only without
 * contributions. The chunk must have been found. */
static unsigned rows_here(const struct cste_work *work, unsigned rows)
{
    for (int row = 0; row < CST_ROW_COUNT; row++) {
        bool has = cst_table_has_row(optimizer_of(work), dtype_of(work), row);

        rows &= has ? ~0u : ~CSTE_CHUNK_ROW(row);
    }
    return work->n_src == 0 ? rows : rows & ~CSTE_CHUNK_ROW(CST_ROW_GRAD);
}

/* Returns the rows that this update reads. */
static unsigned rows_read(const struct cste_work *work)
{
    return rows_here(work, READ_ROWS) | (reads_weights(work) ? CSTE_CHUNK_ROW(CST_ROW_WEIGHT) : 0);
}

/* Check that each named row is one of @allowed and is named once. *named receives the bits of the
 * rows. */
static int check_names(struct cste_work *work, const struct cste_work_row *rows, uint32_t n,
                       unsigned allowed, const char *what, unsigned *named)
{
    *named = 0;
    for (uint32_t i = 0; i < n; i++) {
        unsigned bit = rows[i].row < CST_ROW_COUNT ? CSTE_CHUNK_ROW(rows[i].row) : 0;

        if ((bit & allowed) == 0 || (bit & *named) != 0) {
            return cst_err_set(&work->err, CST_EINVAL, "UPDATE of chunk %u: row %u cannot be %s%s",
                               work->chunk_index, rows[i].row, what,
                               (bit & *named) != 0 ? " twice" : "");
        }
        *named |= bit;
    }
    return CST_OK;
}

/* Returns whether states are updated in place. The message then names at most a place for the
 * weights. */
static bool is_in_place(const struct cste_work *work)
{
    return work->n_out == 0 || (work->n_out == 1 && work->out[0].row == CST_ROW_WEIGHT);
}

static int find_rows(struct cste_work *work, const struct cste_work_row *rows, uint32_t n,
                     const char *what, struct cste_addr *out)
{
    const struct cst_table_header *header = work->chunk.work.table;
    enum cst_dtype dtype = dtype_of(work);
    int rc = CST_OK;

    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        int row = (int)rows[i].row;

        rc = cste_work_find(work, rows[i].place,
                            cst_table_row_bytes(header, dtype, row, work->chunk.n_elems),
                            cst_table_row_align(header, dtype, row), what, &out[row]);
    }
    return rc;
}

static uint64_t row_bytes(const struct cste_work *work, int row)
{
    return cst_table_row_bytes(work->chunk.work.table, dtype_of(work), row, work->chunk.n_elems);
}

/* Check that the row written at @out[row] overlaps no other written row, no contribution, and, out
 * of place, no row that is read. */
static int check_written(struct cste_work *work, int row)
{
    const struct cste_device_update *u = &work->update;
    bool in_place = cste_device_is_in_place(u);
    struct cste_addr at = u->out[row];

    for (int other = 0; other < CST_ROW_COUNT; other++) {
        bool clash =
            other < row && u->out[other].mem != NULL &&
            cste_work_overlap(at, row_bytes(work, row), u->out[other], row_bytes(work, other));

        clash = clash ||
                (!in_place && u->in[other].mem != NULL &&
                 cste_work_overlap(at, row_bytes(work, row), u->in[other], row_bytes(work, other)));
        if (clash) {
            return cst_err_set(&work->err, CST_EINVAL,
                               "UPDATE of chunk %u: row %d, written at %" PRIu64
                               ", overlaps row %d, %" PRIu64 " elements each",
                               work->chunk_index, row, at.offset, other, work->chunk.n_elems);
        }
    }
    for (uint32_t i = 0; i < u->n_src; i++) {
        if (cste_work_overlap(at, row_bytes(work, row), u->src[i], cste_work_src_bytes(work))) {
            return cst_err_set(&work->err, CST_EINVAL,
                               "contribution %u lies across row %d of chunk %u, which is written",
                               i, row, work->chunk_index);
        }
    }
    return CST_OK;
}

/* Choose the weight row that is written: one of the two weight rows of the chunk. If the weights
 * are read, too, as (a part of) the master weights, it is from the other one, if there are two. */
static int place_weight(struct cste_work *work)
{
    const struct cst_table_chunk *entry = work->chunk.entry;
    struct cst_place to = work->n_out > 0 ? work->out[0].place : entry->rows[CST_ROW_WEIGHT];
    const struct cst_place *rows[2] = {&entry->rows[CST_ROW_WEIGHT], &entry->other_weight};

    for (int i = 0; i < 2; i++) {
        if (rows[i]->segment == to.segment && rows[i]->offset == to.offset) {
            work->update.out[CST_ROW_WEIGHT] =
                work->chunk.rows[i == 0 ? CST_ROW_WEIGHT : CST_ROW_WEIGHT_OTHER];
            work->chunk.work.other_weight = i == 1;
        }
    }
    if (reads_weights(work)) {
        bool second =
            entry->other_weight.segment != CST_PLACE_NONE && !work->chunk.work.other_weight;

        work->update.in[CST_ROW_WEIGHT] =
            work->chunk.rows[second ? CST_ROW_WEIGHT_OTHER : CST_ROW_WEIGHT];
    }
    if (work->update.out[CST_ROW_WEIGHT].mem == NULL) {
        return cst_err_set(&work->err, CST_EINVAL,
                           "UPDATE of chunk %u in place: segment %u at %" PRIu64
                           " is neither of its weight rows",
                           work->chunk_index, to.segment, to.offset);
    }
    return CST_OK;
}

/* Set the places of all rows to those in the table. */
static void place_rows(struct cste_work *work)
{
    struct cste_device_update *u = &work->update;
    unsigned in = rows_read(work), out = rows_here(work, CSTE_CHUNK_ROWS_STATES);

    u->work = &work->chunk.work;
    u->hyper = &work->hyper;
    u->row_elems = work->chunk.n_elems;
    u->src = work->contributions;
    u->n_src = work->n_src;
    for (int row = 0; row < CST_ROW_COUNT; row++) {
        if ((in & CSTE_CHUNK_ROW(row)) != 0) {
            u->in[row] = work->chunk.rows[row];
        }
        if ((out & CSTE_CHUNK_ROW(row)) != 0 && work->marks) {
            u->out[row] = work->chunk.rows[row];
        }
    }
}

/* Resolve the rows. In place, one of two weight rows is chosen. Out of place, every written row is
 * named in the message. */
static int find_update_rows(struct cste_work *work)
{
    unsigned named_in, named_out = 0;
    int rc = check_names(work, work->in, work->n_in, rows_read(work), "read elsewhere", &named_in);

    if (rc == CST_OK) {
        rc = check_names(work, work->out, work->n_out, rows_here(work, WRITTEN_ROWS),
                         "written elsewhere", &named_out);
    }
    if (rc != CST_OK) {
        return rc;
    }
    if (work->marks ? named_in != 0 : named_out != rows_here(work, WRITTEN_ROWS)) {
        return cst_err_set(&work->err, CST_EINVAL,
                           "UPDATE of chunk %u reads rows 0x%x and writes rows 0x%x elsewhere: all "
                           "of 0x%x are written elsewhere, or the weight alone and none is read",
                           work->chunk_index, named_in, named_out, rows_here(work, WRITTEN_ROWS));
    }
    if (!work->marks && reads_weights(work) && (named_in & CSTE_CHUNK_ROW(CST_ROW_WEIGHT)) == 0) {
        return cst_err_set(&work->err, CST_EINVAL,
                           "UPDATE of chunk %u, whose weights are a part of the master weights, "
                           "does not say where the weights are read",
                           work->chunk_index);
    }
    place_rows(work);
    if (work->marks) {
        return place_weight(work);
    }
    rc = find_rows(work, work->in, work->n_in, "row that is read", work->update.in);
    return rc != CST_OK
               ? rc
               : find_rows(work, work->out, work->n_out, "row that is written", work->update.out);
}

/* Returns the rows of the table that may be needed. */
static unsigned table_rows(const struct cste_work *work)
{
    unsigned rows = CSTE_CHUNK_ROWS_STATES;

    rows |= work->n_src == 0 ? CSTE_CHUNK_ROW(CST_ROW_GRAD) : 0;
    if (is_in_place(work)) {
        return rows | CSTE_CHUNK_ROW(CST_ROW_WEIGHT) | CSTE_CHUNK_ROW(CST_ROW_WEIGHT_OTHER);
    }
    for (uint32_t i = 0; i < work->n_in; i++) {
        /* A row that is read elsewhere is not read at its place in the table. */
        rows &= work->in[i].row < CST_ROW_COUNT ? ~CSTE_CHUNK_ROW(work->in[i].row) : ~0u;
    }
    return rows;
}

static int find_update(struct cste_work *work, uint64_t *pieces)
{
    int rc = cste_work_find_chunk(work, table_rows(work));

    /* Marks describe the rows of the table, which an update out of place does not change. */
    work->marks = is_in_place(work);
    if (rc == CST_OK) {
        rc = find_update_rows(work);
    }
    for (uint32_t i = 0; i < work->n_src && rc == CST_OK; i++) {
        rc = cste_work_find_contribution(work, i);
    }
    for (int row = 0; row < CST_ROW_COUNT && rc == CST_OK; row++) {
        if (work->update.out[row].mem != NULL) {
            rc = check_written(work, row);
        }
    }
    if (rc != CST_OK) {
        *pieces = 0;
        return rc;
    }
    if (is_muon(work)) {
        return cste_work_find_muon(work, pieces);
    }
    if (work->n_dst > 0) {
        *pieces = 0;
        return cst_err_set(&work->err, CST_EINVAL, "UPDATE of chunk %u has no scratch",
                           work->chunk_index);
    }
    *pieces = cste_work_cut_chunk(work);
    return CST_OK;
}

static int update_piece(struct cste_work *work, uint64_t piece, unsigned thread,
                        struct cst_err *err)
{
    uint64_t first, n;
    struct cst_tile_done done;
    int rc;

    if (is_muon(work)) {
        return cste_work_muon_piece(work, piece, thread, err);
    }
    n = cste_work_share(work, piece, work->chunk.n_tiles, &first);
    rc = cste_device_update(work->context->device, thread, &work->update, first, n,
                            &work->context->slots[thread], &done, err);
    cste_work_add_done(work, &done);
    return rc;
}

static uint64_t next_phase(struct cste_work *work)
{
    return is_muon(work) ? cste_work_next_muon(work) : 0;
}

/* The counters give the rates of updates in one pass and of products, which plans rely on. Updates
 * by Muon are left out of the former. */
static void count_update(const struct cste_work *work)
{
    if (is_muon(work)) {
        work->context->product_flops += work->product_flops;
        work->context->product_ns += work->product_ns;
        return;
    }
    work->context->update_elems += work->done_elems;
    work->context->update_bytes += work->done_bytes;
    cste_work_was_busy(&work->context->updating, work);
}

const struct cste_work_kind cste_work_update = {.name = "UPDATE",
                                                .max_src = CST_TILE_MAX_SRC,
                                                .max_dst = 1,
                                                .compute = true,
                                                .marks = true,
                                                .may_be_under_way = true,
                                                .find = find_update,
                                                .piece = update_piece,
                                                .next = next_phase,
                                                .done = cste_work_mark_chunk,
                                                .count = count_update};
