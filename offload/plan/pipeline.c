/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/plan/pipeline.h"

#include "offload/layout/buffers.h"
#include "offload/gradient/lent_memory.h"

/* What the chunks have that are not updated where their states are: sums over all of them. */
struct work {
    double elems, flops;
    double up, down; /* Bytes that a device update copies. */
    double weights;  /* Bytes of the weights. */
};

static uint64_t row_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk,
                          int row)
{
    return cst_layout_chunk_row_bytes(layout, chunk, row, chunk->n_elems);
}

static void add_chunk(struct work *work, const struct cst_layout *layout,
                      const struct cst_layout_chunk *chunk)
{
    double weights = (double)cst_layout_weight_bytes(chunk), states = 0;

    for (int row = CST_ROW_MASTER; row < CST_ROW_COUNT; row++) {
        states += (double)row_bytes(layout, chunk, row);
    }
    work->elems += (double)chunk->n_elems;
    work->flops += chunk->muon_flops;
    work->up += states + (double)cst_layout_grad_bytes(layout, chunk) +
                (cst_layout_reads_weights(layout, chunk) ? weights : 0);
    work->down += states + weights;
    work->weights += weights;
}

/* Count the chunks that can get device updates. Those of Muon do if buffers have a @scratch. */
static struct work count_chunks(struct cst_interleave *m, const struct cst_layout *layout,
                                bool scratch)
{
    struct work work = {0};

    m->n_chunks = 0;
    m->n_nodes = 1;
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        if (cst_layout_has_states(chunk) && !cst_tier_is_apart(chunk->tier) &&
            (!chunk->muon || scratch)) {
            m->n_chunks++;
            m->n_nodes = chunk->node < m->n_nodes ? m->n_nodes : chunk->node + 1;
            add_chunk(&work, layout, chunk);
        }
    }
    m->chunk_elems = m->n_chunks > 0 ? work.elems / m->n_chunks : 0;
    m->chunk_flops = m->n_chunks > 0 ? work.flops / m->n_chunks : 0;
    return work;
}

/* Divide device reservation @reservation into buffers. */
static struct cst_buffers divide(const struct cst_layout *layout,
                                 const struct cst_core_device_reservation *reservation,
                                 const struct cst_core_pool *pools)
{
    struct cst_lent_division division;
    struct cst_buffers buffers;

    if (reservation->lent) {
        cst_lent_memory_divide(layout, reservation->rank, pools[reservation->rank].parts,
                               &division);
        return division.buffers;
    }
    cst_buffers_divide(&buffers, layout, reservation->bytes);
    return buffers;
}

void cst_pipeline_describe(struct cst_interleave *m, const struct cst_layout *layout,
                           const struct cst_core_device_reservation *reservations,
                           uint32_t n_reservations, const struct cst_core_pool *pools,
                           uint32_t world)
{
    bool scratch = false, fetches = false;
    struct work work;
    double elems;

    m->n_links = 0;
    m->buffers = 0;
    for (uint32_t i = 0; i < n_reservations; i++) {
        struct cst_buffers buffers = divide(layout, &reservations[i], pools);

        scratch = scratch || buffers.scratch_bytes > 0;
        if (buffers.n > 0) {
            m->buffers = m->n_links == 0 || buffers.n < m->buffers ? buffers.n : m->buffers;
            m->n_links++;
        }
        for (uint32_t r = 0; r < world; r++) {
            /* A pool on the accelerator fetches its weights over the same link. */
            fetches = fetches || pools[r].tier == reservations[i].engine;
        }
    }
    work = count_chunks(m, layout, scratch);
    elems = work.elems > 0 ? work.elems : 1;
    m->up_bytes = work.up / elems;
    m->down_bytes = work.down / elems;
    m->fetch_bytes = fetches ? work.weights / elems : 0;
}

/* Elements/s of updates and their products, of which @update and @products are the rates alone. */
static double with_products(const struct cst_interleave *m, double update, double products)
{
    double per_elem = m->chunk_elems > 0 ? m->chunk_flops / m->chunk_elems : 0;

    return products > 0 ? update / (1 + update * per_elem / products) : update;
}

void cst_pipeline_rates(struct cst_interleave *m, const struct cst_rates *rates,
                        const struct cst_rates_device *accelerator)
{
    m->node_elems = 0;
    for (uint32_t i = 0; i < rates->n_nodes; i++) {
        m->node_elems += with_products(m, rates->nodes[i].update, rates->nodes[i].products);
    }
    m->device_elems = with_products(m, accelerator->update, cst_rates_products(accelerator));
    m->up = accelerator->up_both > 0 ? accelerator->up_both : accelerator->up;
    m->down = accelerator->down_both > 0 ? accelerator->down_both : accelerator->down;
}
