/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of contributions: the REDUCE commands, and what frees the blocks that they read. */
#include "offload/sum.h"

#include "offload/chunk_update.h"
#include "offload/collection.h"
#include "offload/core_state.h"
#include "offload/instant.h"
#include "offload/kept_gradients.h"
#include "offload/landing.h"
#include "offload/reduce_site.h"
#include "offload/weight_row.h"

void cst_sum_add_sources(struct cst_core *core, uint32_t c, struct cst_command *reduce)
{
    struct cst_chunk *chunk = &core->chunks[c];

    for (uint64_t rest = chunk->ranks & ~chunk->gradient.added; rest != 0; rest &= rest - 1) {
        uint32_t rank = (uint32_t)__builtin_ctzll(rest);
        struct cst_rank *r = &core->ranks[rank];
        uint32_t b = r->pool.grad_of[c];

        if (!cst_collection_has_come(core, c, rank)) {
            return;
        }
        if (chunk->gradient.staged_rank == rank) {
            reduce->src[reduce->n_src++] = cst_core_row_place(core, c, CST_ROW_GRAD, 0);
        } else if (cst_collection_holds(core, c, rank)) {
            reduce->src[reduce->n_src++] = cst_pool_place(&r->pool, b);
            cst_block_move(&r->pool, b, CST_BLOCK_REDUCING);
            r->pool.blocks[b].ticket = reduce->ticket;
            r->bytes_down += 2 * core->layout->chunks[c].n_elems;
        }
        /* A rank that went on without a gradient cannot contribute any more. */
        chunk->gradient.handed |= 1ull << rank;
        chunk->gradient.added |= 1ull << rank;
    }
}

/* A contribution that was spilled, or that lands, is in host memory. */
struct cst_reduce_site cst_sum_site(const struct cst_core *core, uint32_t c, bool all)
{
    uint32_t engines[CST_CORE_MAX_WORLD];

    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_pool *pool = &core->ranks[rank].pool;
        uint32_t b = pool->grad_of[c];
        bool member = (core->chunks[c].ranks & 1ull << rank) != 0;

        engines[rank] = CST_REDUCE_SITE_NOTHING;
        if (all ? member : b != CST_NONE && pool->blocks[b].state == CST_BLOCK_REDUCING) {
            engines[rank] =
                cst_landing_serves(core, c) ? CST_REDUCE_SITE_HOST_MEMORY : pool->engine;
        }
        if (!all && core->chunks[c].gradient.staged_rank == rank) {
            engines[rank] = CST_REDUCE_SITE_HOST_MEMORY;
        }
    }
    return cst_reduce_site_choose(core->layout->chunks[c].node, c, core->world, engines);
}

void cst_sum_add(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];
    struct cst_flight flight = {
        .kind = CST_FLIGHT_REDUCE, .chunk = c, .collection = core->collection.number};
    uint64_t held = cst_kept_gradients_keep(core, c, cst_collection_only(core, c));
    struct cst_place place;
    uint64_t landed = cst_landing_begin(core, c, &place);
    struct cst_command *reduce = cst_core_command(core, CST_COMMAND_REDUCE, 0, &flight);

    reduce->table = core->table_segment;
    reduce->chunk = c;
    reduce->mark = reduce->ticket;
    reduce->accumulate = chunk->gradient.sum != CST_SUM_NOTHING;
    cst_sum_add_sources(core, c, reduce);
    if (landed != 0) {
        cst_landing_read(core, c, reduce, landed, place);
    }
    /* The engine depends on the sources, which were only just added. */
    reduce->node = cst_sum_site(core, c, false).engine;
    cst_instant_sent(core, reduce->ticket, reduce->node);
    cst_chunk_update_before(reduce, chunk);
    /* The sum frees the block, so it waits for the copy that keeps the gradient. */
    cst_command_after(reduce, held);
    cst_weight_row_begin_gradient(core, c, reduce);
    chunk->gradient.reduce_ticket = reduce->ticket;
    chunk->gradient.sum = CST_SUM_PARTIAL;
    /* An fp32 row is complete only after the last contribution. */
    if (chunk->gradient.row != CST_GRAD_ROW_PARTIAL) {
        chunk->gradient.row = core->grad_fp32 ? CST_GRAD_ROW_PARTIAL : CST_GRAD_ROW_WHOLE;
    }
    chunk->gradient.version++;
}

/* -- completions ----------------------------------------------------------------------------- */

/* Free the blocks that the reduction read. */
static void free_sources(struct cst_core *core, const struct cst_flight *flight)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        struct cst_pool *pool = &core->ranks[rank].pool;
        uint32_t b = cst_pool_part(pool, flight->chunk)->head[CST_BLOCK_REDUCING];

        while (b != CST_NONE && pool->blocks[b].ticket != flight->ticket) {
            b = pool->blocks[b].next;
        }
        if (b == CST_NONE) {
            continue;
        }
        if (pool->grad_of[flight->chunk] == b) {
            pool->grad_of[flight->chunk] = CST_NONE;
        }
        cst_block_move(pool, b, CST_BLOCK_FREE);
    }
}

/* Either the contributions are lost with the accelerator whose engine was to sum them, or the
 * contents of the grad row are unknown. */
static void fail_reduction(struct cst_core *core, uint32_t c, struct cst_reduce_site site,
                           const struct cst_event *event)
{
    if (cst_event_engine_lost(event) && site.kind != CST_REDUCE_SITE_HOST) {
        cst_fact_pools_lost(&core->facts, site.engine, true);
    } else {
        core->chunks[c].gradient.row = CST_GRAD_ROW_PARTIAL;
        cst_fact_command_failed(&core->facts, event, core->step, "reduction", c);
    }
}

void cst_sum_done(struct cst_core *core, const struct cst_flight *flight,
                  const struct cst_event *event)
{
    struct cst_chunk *chunk = &core->chunks[flight->chunk];
    /* This must be known before the sources are freed. */
    struct cst_reduce_site site = cst_sum_site(core, flight->chunk, false);
    bool current = flight->collection == core->collection.number; /* Otherwise the sum is void. */

    free_sources(core, flight);
    chunk->gradient.reduce_ticket = 0;
    chunk->gradient.row =
        core->grad_fp32 || event->status != CST_OK ? CST_GRAD_ROW_PARTIAL : CST_GRAD_ROW_WHOLE;
    if (current && event->status != CST_OK) {
        fail_reduction(core, flight->chunk, site, event);
        return;
    }
    if (current) {
        chunk->gradient.staged_rank = CST_NONE;
    }
    cst_collection_wake(core); /* The row can be spilled to, or added to, again. */
    cst_fact_gradient(&core->facts, flight->chunk);
}

void cst_sum_fused(struct cst_core *core, const struct cst_flight *flight,
                   const struct cst_event *event)
{
    struct cst_chunk *chunk = &core->chunks[flight->chunk];

    free_sources(core, flight);
    chunk->gradient.reduce_ticket = 0;
    cst_collection_wake(core);
    if (event->status == CST_OK) { /* The failure of an update fails the job. */
        cst_fact_gradient(&core->facts, flight->chunk);
    }
}
