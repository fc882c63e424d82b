/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/plan/pipeline.h"

#include "offload/update/buffers.h"

static double bytes_per_elem(const struct cst_layout *layout, int first, int last)
{
    const uint64_t n = CST_LAYOUT_CAPACITY_STEP;
    struct cst_layout_states states = cst_layout_states_of(&layout->states, false);
    uint64_t bytes = 0;

    for (int row = first; row <= last; row++) {
        bytes += cst_layout_row_bytes(&states, layout->grad_bytes, row, n);
    }
    return (double)bytes / (double)n;
}

static void count_chunks(struct cst_interleave *m, const struct cst_layout *layout)
{
    uint64_t elems = 0;

    m->n_chunks = 0;
    m->n_nodes = 1;
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        if (cst_layout_may_leave(&layout->chunks[c]) && layout->chunks[c].device == 0) {
            m->n_chunks++;
            m->n_nodes =
                layout->chunks[c].node < m->n_nodes ? m->n_nodes : layout->chunks[c].node + 1;
            elems += layout->chunks[c].n_elems;
        }
    }
    m->chunk_elems = m->n_chunks > 0 ? (double)elems / m->n_chunks : 0;
}

void cst_pipeline_describe(struct cst_interleave *m, const struct cst_layout *layout,
                           const struct cst_core_device_reservation *rooms, uint32_t n_rooms,
                           const struct cst_core_pool *pools, uint32_t world)
{
    double states = bytes_per_elem(layout, CST_ROW_MASTER, CST_ROW_EXP_AVG_SQ);

    count_chunks(m, layout);
    m->up_bytes = states + layout->grad_bytes +
                  (layout->states.masters == CST_MASTERS_SPLIT ? 2 : 0); /* With the weights. */
    m->down_bytes = states + 2;
    m->fetch_bytes = 0;
    m->n_links = 0;
    m->buffers = 0;
    for (uint32_t i = 0; i < n_rooms; i++) {
        struct cst_buffers buffers;

        cst_buffers_divide(&buffers, layout, rooms[i].bytes);
        if (buffers.n > 0) {
            m->buffers = m->n_links == 0 || buffers.n < m->buffers ? buffers.n : m->buffers;
            m->n_links++;
        }
        for (uint32_t r = 0; r < world; r++) {
            /* A pool on the accelerator fetches its weights over the same link. */
            m->fetch_bytes = pools[r].engine == rooms[i].engine ? 2 : m->fetch_bytes;
        }
    }
}

void cst_pipeline_rates(struct cst_interleave *m, const struct cst_rates *rates,
                        const struct cst_rates_device *accelerator)
{
    m->node_elems = 0;
    for (uint32_t i = 0; i < rates->n_nodes; i++) {
        m->node_elems += rates->nodes[i].update;
    }
    m->device_elems = accelerator->update;
    m->up = accelerator->up_both > 0 ? accelerator->up_both : accelerator->up;
    m->down = accelerator->down_both > 0 ? accelerator->down_both : accelerator->down;
}
