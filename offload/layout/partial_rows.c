/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/partial_rows.h"

#include "proto/round_up.h"

#include <stdlib.h>

/* Rows of partials of one chunk: the first rank block uses the grad row. */
static uint32_t rows_of_chunk(const struct cst_layout *layout)
{
    return layout->partials.n_here > 1 ? layout->partials.n_here - 1 : 0;
}

static uint32_t landings_of_node(const struct cst_layout *layout)
{
    return CST_LAYOUT_PARTIAL_SETS * layout->partials.n_come;
}

size_t cst_partial_rows_segments(const struct cst_layout *layout, uint32_t n_nodes)
{
    return (size_t)layout->n_chunks * rows_of_chunk(layout) +
           (size_t)n_nodes * landings_of_node(layout);
}

/* Bytes of a partial of @chunk, with padding; 0: the chunk is frozen. */
static uint64_t partial_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk)
{
    return cst_layout_has_states(chunk)
               ? cst_round_up(cst_layout_grad_bytes(layout, chunk), CST_LAYOUT_ROW_ALIGN)
               : 0;
}

/* Add @bytes of memory on @node, and let *row be there; 0: nowhere. @segment, if it is not full, is
 * the number of the segment to use. Returns the one that was used. */
static uint32_t add_row(struct cst_layout *layout, uint32_t node, uint64_t bytes, uint32_t segment,
                        struct cst_layout_row *row)
{
    row->segment = CST_LAYOUT_NO_ROW;
    if (bytes == 0) {
        return segment;
    }
    if (segment == CST_LAYOUT_NO_ROW ||
        layout->segments[segment].bytes + bytes > CST_LAYOUT_SEGMENT_BYTES) {
        segment = layout->n_segments++;
        layout->segments[segment].node = node;
    }
    *row = (struct cst_layout_row){.segment = segment, .offset = layout->segments[segment].bytes};
    layout->segments[segment].bytes += bytes;
    layout->arena_bytes += bytes;
    return segment;
}

static void place_rows(struct cst_layout *layout, uint32_t node)
{
    uint32_t n = rows_of_chunk(layout), segment = CST_LAYOUT_NO_ROW;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        for (uint32_t b = 0; b < n && layout->chunks[c].node == node; b++) {
            segment = add_row(layout, node, partial_bytes(layout, &layout->chunks[c]), segment,
                              &layout->partial_rows[(size_t)c * n + b]);
        }
    }
}

/* Each landing is in a segment of its own. */
static void place_landings(struct cst_layout *layout, uint32_t node)
{
    uint32_t n = landings_of_node(layout);
    uint64_t most = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];
        uint64_t bytes = partial_bytes(layout, chunk);

        most = chunk->node == node && !chunk->away && bytes > most ? bytes : most;
    }
    for (uint32_t i = 0; i < n; i++) {
        (void)add_row(layout, node, most, CST_LAYOUT_NO_ROW,
                      &layout->partial_landings[(size_t)node * n + i]);
    }
}

int cst_partial_rows_place(struct cst_layout *layout, uint32_t n_nodes)
{
    uint32_t rows = rows_of_chunk(layout), landings = landings_of_node(layout);

    if (rows > 0) {
        layout->partial_rows =
            calloc((size_t)layout->n_chunks * rows, sizeof *layout->partial_rows);
    }
    if (landings > 0) {
        layout->partial_landings =
            calloc((size_t)n_nodes * landings, sizeof *layout->partial_landings);
    }
    if ((rows > 0 && layout->partial_rows == NULL) ||
        (landings > 0 && layout->partial_landings == NULL)) {
        return CST_ENOMEM;
    }
    for (uint32_t node = 0; node < n_nodes; node++) {
        place_rows(layout, node);
        place_landings(layout, node);
    }
    return CST_OK;
}
