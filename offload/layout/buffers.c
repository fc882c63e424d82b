/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/buffers.h"

#include "proto/round_up.h"

#include <string.h>

/* Bytes of a row, also of a gradient that has no row of its own: it is copied to the device
 * reservation nevertheless. */
static uint64_t row_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk,
                          int row)
{
    uint64_t bytes = row == CST_ROW_GRAD
                         ? cst_layout_grad_bytes(layout, chunk)
                         : cst_layout_chunk_row_bytes(layout, chunk, row, chunk->n_elems);

    return cst_round_up(bytes, CST_LAYOUT_ROW_ALIGN);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The largest chunks of each type, which have the largest rows: [0] those that AdamW or the like
 * updates, [1] those of Muon, which have other rows. NULL: there is none. */
struct largest {
    const struct cst_layout_chunk *bf16[2];
    const struct cst_layout_chunk *fp32[2];
};

/* The largest chunks with weights of at most @weight_bytes. */
static struct largest find_largest(const struct cst_layout *layout, uint64_t weight_bytes)
{
    struct largest largest = {0};

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];
        const struct cst_layout_chunk **most =
            &(chunk->dtype == CST_FP32 ? largest.fp32 : largest.bf16)[chunk->muon ? 1 : 0];

        if (cst_layout_has_states(chunk) && cst_layout_weight_bytes(chunk) <= weight_bytes &&
            (*most == NULL || chunk->n_elems > (*most)->n_elems)) {
            *most = chunk;
        }
    }
    return largest;
}

/* Enlarge the rows of a buffer, of which in[] and out[] are the bytes, for @chunk. */
static void make_room(struct cst_buffers *b, const struct cst_layout *layout,
                      const struct cst_layout_chunk *chunk)
{
    for (int row = 0; row < CST_ROW_COUNT && chunk != NULL; row++) {
        uint64_t bytes = row_bytes(layout, chunk, row);
        /* UPDATE reads the weights only as (a part of) the master weights. It does not write the
         * gradient. */
        bool is_read = row != CST_ROW_WEIGHT || cst_layout_reads_weights(layout, chunk);
        bool is_written = row != CST_ROW_GRAD;

        b->in[row] = larger(b->in[row], is_read ? bytes : 0);
        b->out[row] = larger(b->out[row], is_written ? bytes : 0);
    }
}

/* Replace the bytes of @rows by the offsets of the rows, which begin at @at. Returns their end. */
static uint64_t place_rows(uint64_t rows[CST_ROW_COUNT], uint64_t at)
{
    for (int row = 0; row < CST_ROW_COUNT; row++) {
        uint64_t bytes = rows[row];

        rows[row] = at;
        at += bytes;
    }
    return at;
}

/* Set in[] and out[] to the bytes of the rows of all chunks whose weights have at most
 * @weight_bytes, without those of Muon if @scratch is false. If there are chunks of Muon,
 * scratch_bytes is that of their scratch. */
static void measure_rows(struct cst_buffers *b, const struct cst_layout *layout,
                         uint64_t weight_bytes, bool scratch)
{
    struct largest largest = find_largest(layout, weight_bytes);

    *b = (struct cst_buffers){.max_weight_bytes = weight_bytes};
    for (int muon = 0; muon < (scratch ? 2 : 1); muon++) {
        make_room(b, layout, largest.bf16[muon]);
        make_room(b, layout, largest.fp32[muon]);
    }
    if (scratch && (largest.bf16[1] != NULL || largest.fp32[1] != NULL)) {
        b->scratch_bytes = layout->scratch_bytes;
    }
}

/* Lay out a buffer for all chunks whose weights have at most @weight_bytes. */
static void lay_out(struct cst_buffers *b, const struct cst_layout *layout, uint64_t weight_bytes)
{
    measure_rows(b, layout, weight_bytes, true);
    b->kept_bytes = b->in[CST_ROW_GRAD];
    b->scratch = place_rows(b->out, place_rows(b->in, 0));
    b->bytes = b->scratch + b->scratch_bytes;
}

/* Replace those of the bytes in @rows that take @n_blocks blocks by the offsets of the rows, which
 * begin at @at. Returns their end. */
static uint64_t place_blocks(uint64_t rows[CST_ROW_COUNT], const uint64_t bytes[CST_ROW_COUNT],
                             uint64_t n_blocks, uint64_t block_bytes, uint64_t at)
{
    for (int row = 0; row < CST_ROW_COUNT; row++) {
        if ((bytes[row] + block_bytes - 1) / block_bytes == n_blocks) {
            rows[row] = at;
            at += n_blocks * block_bytes;
        }
    }
    return at;
}

void cst_buffers_of_blocks(struct cst_buffers *buffers, const struct cst_layout *layout,
                           uint64_t block_bytes)
{
    struct cst_buffers bytes;

    measure_rows(&bytes, layout, block_bytes, false);
    *buffers = (struct cst_buffers){.max_weight_bytes = block_bytes};
    /* Rows of two blocks first, so that all of them begin at an even block. */
    for (uint64_t n = 2; n > 0; n--) {
        buffers->bytes = place_blocks(buffers->in, bytes.in, n, block_bytes, buffers->bytes);
        buffers->bytes = place_blocks(buffers->out, bytes.out, n, block_bytes, buffers->bytes);
    }
    buffers->bytes += buffers->bytes % (2 * block_bytes);
}

bool cst_buffers_hold(const struct cst_buffers *buffers, const struct cst_layout_chunk *chunk)
{
    return buffers->n > 0 && cst_layout_has_states(chunk) &&
           cst_layout_weight_bytes(chunk) <= buffers->max_weight_bytes &&
           (!chunk->muon || buffers->scratch_bytes > 0);
}

/* Bytes of the weights of the largest chunk with states, in the size classes whose capacity is
 * below @limit; 0: there is none. */
static uint64_t largest_below(const struct cst_layout *layout, uint64_t limit)
{
    uint64_t most = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        if (cst_layout_has_states(chunk) && layout->classes[chunk->size_class].capacity < limit) {
            most = larger(most, cst_layout_weight_bytes(chunk));
        }
    }
    return most;
}

/* Lay out the buffer of at most @bytes that fits most chunks. */
static void lay_out_within(struct cst_buffers *b, const struct cst_layout *layout, uint64_t bytes)
{
    uint64_t low = 0, high = largest_below(layout, UINT64_MAX);

    /* A buffer for chunks with `low` bytes fits; one for chunks with more than `high` does not. */
    while (low < high) {
        uint64_t middle = high - (high - low) / 2;

        lay_out(b, layout, middle);
        if (b->bytes <= bytes) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    lay_out(b, layout, low);
}

/* Elements of all chunks that fit a buffer. */
static uint64_t covered(const struct cst_buffers *b, const struct cst_layout *layout)
{
    uint64_t n = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        n += cst_buffers_hold(b, chunk) ? chunk->n_elems : 0;
    }
    return n;
}

/* Choose the number of buffers and the size of their chunks so that most elements pass per time. If
 * the three stages (up, update, down) take equally long, a device reservation with n buffers
 * processes n chunks in the time of three stages, but only chunks that fit a buffer. Of equal
 * choices take the one with more buffers. The result has n = 0 if no chunk fits. */
static struct cst_buffers choose(const struct cst_layout *layout, uint64_t reservation_bytes)
{
    struct cst_buffers best = {0}, b;
    uint64_t most = 0;

    for (uint32_t n = CST_BUFFERS_MAX; n > 0; n--) {
        lay_out_within(&b, layout, reservation_bytes / n);
        b.n = n;
        if (n * covered(&b, layout) > most) {
            most = n * covered(&b, layout);
            best = b;
        }
    }
    return best;
}

void cst_buffers_divide(struct cst_buffers *buffers, const struct cst_layout *layout,
                        uint64_t reservation_bytes)
{
    struct cst_buffers b = choose(layout, reservation_bytes);

    if (b.n == 0) {
        memset(buffers, 0, sizeof *buffers);
        return;
    }
    b.kept_first = b.n * b.bytes;
    b.n_kept = (uint32_t)((reservation_bytes - b.kept_first) / b.kept_bytes);
    /* More places than chunks are of no use. */
    if (b.n_kept > layout->n_chunks) {
        b.n_kept = layout->n_chunks;
    }
    *buffers = b;
}

uint64_t cst_buffers_want(const struct cst_layout *layout, uint32_t n_classes)
{
    uint64_t limit =
        n_classes < layout->n_classes ? layout->classes[n_classes].capacity : UINT64_MAX;
    struct cst_buffers b;

    lay_out(&b, layout, largest_below(layout, limit));
    return CST_BUFFERS_MAX * b.bytes;
}

/* -- drives ---------------------------------------------------------------------------------- */

/* Bytes of the states of all chunks that may leave and whose weights have at most @weight_bytes. */
static uint64_t leaving(const struct cst_layout *layout, uint64_t weight_bytes)
{
    uint64_t bytes = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        for (int row = CST_ROW_MASTER;
             row < cst_layout_rows_apart(layout) && cst_layout_states_may_leave(layout, chunk) &&
             cst_layout_weight_bytes(chunk) <= weight_bytes;
             row++) {
            bytes += row_bytes(layout, chunk, row);
        }
    }
    return bytes;
}

/* Bytes of the buffers of each of @n drives for @asked bytes of states. */
static uint64_t choose_drives(const struct cst_layout *layout, uint32_t n, uint64_t asked)
{
    uint64_t best = cst_buffers_want(layout, layout->n_classes), most = 0;

    for (uint32_t k = layout->n_classes; k > 0 && !layout->states.durable; k--) {
        uint64_t limit = k < layout->n_classes ? layout->classes[k].capacity : UINT64_MAX;
        uint64_t left = leaving(layout, largest_below(layout, limit));
        uint64_t takes = n * cst_buffers_want(layout, k);

        left = left < asked ? left : asked;
        if (left > takes && left - takes > most) {
            most = left - takes;
            best = cst_buffers_want(layout, k);
        }
    }
    return best;
}

void cst_buffers_drives(struct cst_buffers_drives *out, const struct cst_layout *layout, uint32_t n,
                        uint64_t bytes)
{
    struct cst_buffers buffers;

    *out = (struct cst_buffers_drives){.bytes = choose_drives(layout, n, n * bytes)};
    cst_buffers_divide(&buffers, layout, out->bytes);
    out->fit_bytes = buffers.n > 0 ? leaving(layout, buffers.max_weight_bytes) : 0;
    out->stay_bytes = leaving(layout, UINT64_MAX) - out->fit_bytes;
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        out->n_stay += cst_layout_states_may_leave(layout, &layout->chunks[c]) &&
                       !cst_buffers_hold(&buffers, &layout->chunks[c]);
    }
}

uint64_t cst_buffers_least(const struct cst_layout *layout)
{
    uint64_t least = UINT64_MAX;
    struct cst_buffers b;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        if (cst_layout_has_states(chunk) && cst_layout_weight_bytes(chunk) < least) {
            least = cst_layout_weight_bytes(chunk);
        }
    }
    if (least == UINT64_MAX) {
        return 0;
    }
    lay_out(&b, layout, least);
    return b.bytes;
}
