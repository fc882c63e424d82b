/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/update/buffers.h"

#include <string.h>

/* Bytes of a row, also of a gradient that has no row of its own: it is copied to the device
 * reservation nevertheless. */
static uint64_t row_bytes(const struct cst_layout *layout, int row, uint64_t n_elems)
{
    /* Muon does not update on accelerators. */
    struct cst_layout_states states = cst_layout_states_of(&layout->states, false);
    uint64_t bytes = row == CST_ROW_GRAD
                         ? layout->grad_bytes * n_elems
                         : cst_layout_row_bytes(&states, layout->grad_bytes, row, n_elems);

    return (bytes + CST_LAYOUT_ROW_ALIGN - 1) / CST_LAYOUT_ROW_ALIGN * CST_LAYOUT_ROW_ALIGN;
}

static void lay_out(struct cst_buffers *b, const struct cst_layout *layout, uint64_t n_elems)
{
    *b = (struct cst_buffers){.max_elems = n_elems};
    for (int row = 0; row < CST_ROW_COUNT; row++) {
        /* UPDATE reads the weights only as a part of split masters. */
        bool is_read = row != CST_ROW_WEIGHT || layout->states.masters == CST_MASTERS_SPLIT;

        b->in[row] = b->bytes;
        b->bytes += is_read ? row_bytes(layout, row, n_elems) : 0;
    }
    for (int row = 0; row < CST_ROW_COUNT; row++) {
        b->out[row] = b->bytes;
        /* UPDATE does not write the gradient. */
        b->bytes += row == CST_ROW_GRAD ? 0 : row_bytes(layout, row, n_elems);
    }
}

/* Elements of the largest chunk that may be updated on accelerators, in the size classes whose
 * capacity is below @limit; 0: there is none. */
static uint64_t largest_below(const struct cst_layout *layout, uint64_t limit)
{
    uint64_t most = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        if (cst_layout_may_leave(chunk) && chunk->n_elems > most &&
            layout->classes[chunk->size_class].capacity < limit) {
            most = chunk->n_elems;
        }
    }
    return most;
}

/* Elements of the largest such chunk that fits a buffer of at most @bytes; 0: there is none.
 * *covered: elements of all chunks that fit. */
static uint64_t largest_within(const struct cst_layout *layout, uint64_t bytes, uint64_t *covered)
{
    uint64_t most = 0;

    *covered = 0;
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];
        struct cst_buffers b;

        if (cst_layout_may_leave(chunk)) {
            lay_out(&b, layout, chunk->n_elems);
            if (b.bytes <= bytes) {
                most = chunk->n_elems > most ? chunk->n_elems : most;
                *covered += chunk->n_elems;
            }
        }
    }
    return most;
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
        uint64_t covered, elems = largest_within(layout, reservation_bytes / n, &covered);

        if (elems > 0 && n * covered > most) {
            most = n * covered;
            lay_out(&b, layout, elems);
            b.n = n;
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
    b.kept_bytes = row_bytes(layout, CST_ROW_GRAD, b.max_elems);
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

uint64_t cst_buffers_least(const struct cst_layout *layout)
{
    uint64_t least = UINT64_MAX;
    struct cst_buffers b;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        if (cst_layout_may_leave(chunk) && chunk->n_elems < least) {
            least = chunk->n_elems;
        }
    }
    if (least == UINT64_MAX) {
        return 0;
    }
    lay_out(&b, layout, least);
    return b.bytes;
}
