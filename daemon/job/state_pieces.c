/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/state_pieces.h"

#include "daemon/job/job.h"
#include "offload/core/core.h"

/* The rows of a tensor with states, in the order in which they are written: master weights first,
 * because they change the others. */
static const struct cstd_state_piece rows[] = {
    {.row = CST_ROW_MASTER},
    {.row = CST_ROW_WEIGHT},
};

/* The rows of each moment, which follow them. */
static const struct cstd_state_piece moment_rows[] = {
    {.row = CST_ROW_MOMENT},
    {.row = CST_ROW_MOMENT, .raw = true},
    {.row = CST_ROW_MOMENT, .raw = true, .exponents = true},
};

enum {
    N_FIRST = sizeof rows / sizeof rows[0],
    N_OF_MOMENT = sizeof moment_rows / sizeof moment_rows[0],
    N_ROWS = N_FIRST + CST_MAX_MOMENTS * N_OF_MOMENT
};

/* Returns the row that is written in step @step, below N_ROWS. */
static struct cstd_state_piece row_of(uint32_t step)
{
    uint32_t i = step - N_FIRST;
    struct cstd_state_piece row;

    if (step < N_FIRST) {
        return rows[step];
    }
    row = moment_rows[i % N_OF_MOMENT];
    row.row = CST_ROW_MOMENT + i / N_OF_MOMENT;
    return row;
}

/* True if the moments of tensor @t are copied in their own format, whose blocks stay the same. */
static bool is_raw(const struct cstd_state_pieces *pieces, uint32_t t)
{
    enum cst_moments moments = pieces->to->spec.states.moments;

    return moments != CST_MOMENTS_FP32 && moments == pieces->moments &&
           cst_reshard_is_whole(pieces->reshard, t);
}

/* True if @row of tensor @t is copied as row_of says. */
static bool is_copied(const struct cstd_state_pieces *pieces, uint32_t t,
                      const struct cstd_state_piece *row)
{
    const struct cst_layout_tensor *tensor = &pieces->to->model.tensors[t];
    const struct cst_layout_chunk *chunk = &pieces->to->layout.chunks[tensor->chunk];

    if (!cst_layout_is_own(chunk)) {
        return false;
    }
    if (!cst_layout_has_states(chunk)) {
        return row->row == CST_ROW_WEIGHT;
    }
    if (row->row == CST_ROW_WEIGHT) { /* Otherwise they are made from the master weights. */
        return !pieces->to->spec.states.grad_over_weight &&
               pieces->to->spec.states.masters == CST_MASTERS_FP32 && tensor->dtype == CST_BF16;
    }
    if (cst_table_is_moment((int)row->row) &&
        (chunk->rows[row->row].segment == CST_LAYOUT_NO_ROW || row->raw != is_raw(pieces, t))) {
        return false;
    }
    return !row->exponents || pieces->to->spec.states.moments == CST_MOMENTS_MX8;
}

/* Bytes of @n_elems elements of tensor @t in @row. */
static uint64_t bytes_of(const struct cstd_state_pieces *pieces, uint32_t t,
                         const struct cstd_state_piece *row, uint64_t n_elems)
{
    const struct cst_layout_states states = cst_layout_job_states(&pieces->to->spec);

    return cst_core_io_bytes(&states, pieces->to->model.tensors[t].dtype, row->row, row->raw,
                             row->exponents, n_elems);
}

uint64_t cstd_state_piece_bytes(const struct cstd_state_pieces *pieces,
                                const struct cstd_state_piece *piece, uint64_t n_elems)
{
    return bytes_of(pieces, piece->tensor, piece, n_elems);
}

bool cstd_state_pieces_left(struct cstd_state_pieces *pieces)
{
    while (pieces->place < pieces->end) {
        if (pieces->step < N_ROWS) {
            const struct cstd_state_piece row = row_of(pieces->step);

            if (is_copied(pieces, pieces->order[pieces->place], &row)) {
                return true;
            }
        }
        pieces->step++;
        if (pieces->step >= N_ROWS) {
            pieces->step = 0;
            pieces->place++;
        }
    }
    return false;
}

void cstd_state_pieces_take(struct cstd_state_pieces *pieces, uint64_t most_bytes,
                            uint32_t most_runs, struct cstd_state_piece *out)
{
    const struct cstd_state_piece row = row_of(pieces->step);
    uint32_t t = pieces->order[pieces->place];
    uint64_t most = most_bytes / bytes_of(pieces, t, &row, CST_MX8_BLOCK) * CST_MX8_BLOCK;

    *out = row;
    out->tensor = t;
    out->first = pieces->first;
    out->n_elems =
        cst_reshard_reach(pieces->reshard, t, pieces->first, most, most_runs, CST_MX8_BLOCK);
    pieces->first += out->n_elems;
    if (pieces->first == pieces->to->model.tensors[t].n_elems) {
        pieces->first = 0;
        pieces->step++;
    }
}
