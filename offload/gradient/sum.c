/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of contributions: the REDUCE commands, and what frees the blocks that they read. */
#include "offload/gradient/sum.h"

#include "offload/books/chunk_update.h"
#include "offload/gradient/collection.h"
#include "offload/core/core_state.h"
#include "offload/gradient/kept_gradients.h"
#include "offload/gradient/landing.h"
#include "offload/gradient/partials.h"
#include "offload/books/weight_row.h"

/* The contributions in blocks are those of the ranks *blocks. @spilled: another one is in the grad
 * row. A contribution of a chunk of one rank alone that lands is read from host memory. */
static struct cst_reduce_site site_of(const struct cst_core *core, uint32_t c,
                                      const struct cst_set *blocks, bool spilled)
{
    uint32_t tiers[CST_CORE_MAX_WORLD];
    const struct cst_set *unreachable[CST_CORE_MAX_WORLD];
    bool in_host = cst_landing_serves(core, c);
    struct cst_reduce_site site;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_pool *pool = &core->ranks[rank].pool;

        tiers[rank] = CST_REDUCE_SITE_NOTHING;
        unreachable[rank] = &pool->unreachable;
        if (cst_set_has(blocks, rank)) {
            tiers[rank] = in_host ? CST_TIER_HOST : pool->tier;
        }
    }
    site = cst_reduce_site_choose(core->layout->chunks[c].node, c, core->world, tiers, unreachable);
    site.n_host += spilled;
    return site;
}

/* The ranks whose contributions to @c a command reads in their blocks. */
static struct cst_set find_readers(const struct cst_core *core, uint32_t c)
{
    struct cst_set ranks = {{0}};

    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_pool *pool = &core->ranks[rank].pool;
        uint32_t b = pool->grad_of[c];

        if (b != CST_NONE && pool->blocks[b].state == CST_BLOCK_REDUCING) {
            cst_set_add(&ranks, rank);
        }
    }
    return ranks;
}

struct cst_reduce_site cst_sum_site(const struct cst_core *core, uint32_t c, bool all)
{
    const struct cst_chunk *chunk = &core->chunks[c];

    struct cst_set readers;

    if (all) {
        return site_of(core, c, chunk->ranks, false);
    }
    readers = find_readers(core, c);
    return site_of(core, c, &readers, chunk->gradient.spilled != CST_NONE);
}

/* Those of the ranks *blocks whose contributions land before they are summed at @site. Those that
 * are in host memory already do not. */
static struct cst_set find_landing(const struct cst_core *core, uint32_t c,
                                   const struct cst_set *blocks, const struct cst_reduce_site *site)
{
    struct cst_set land = {{0}};

    if (!cst_landing_serves(core, c) && site->kind != CST_REDUCE_SITE_LANDED) {
        return land;
    }
    CST_SET_EACH (rank, blocks) {
        if (cst_tier_is_apart(core->ranks[rank].pool.tier)) {
            cst_set_add(&land, rank);
        }
    }
    return land;
}

/* Make @command read @sources, which also frees their blocks. Those of the ranks *land are read
 * from the landings of @group. */
static void read_sources(struct cst_core *core, uint32_t c, const struct cst_sources *sources,
                         const struct cst_set *land, const struct cst_landing_group *group,
                         struct cst_command *command)
{
    uint64_t bytes = cst_layout_weight_bytes(&core->layout->chunks[c]);
    uint32_t spilled = sources->spilled ? core->chunks[c].gradient.spilled : CST_NONE;
    struct cst_place row = cst_core_row_place(core, c, CST_ROW_GRAD, 0);
    uint32_t n_landed = 0;

    CST_SET_EACH (rank, &sources->blocks) {
        struct cst_rank *r = &core->ranks[rank];
        uint32_t b = r->pool.grad_of[c];
        struct cst_place block;

        if (spilled < r->pool.blocks[b].addend) {
            command->src[command->n_src++] = row;
            spilled = CST_NONE;
        }
        block = cst_block_read_by(&r->pool, b, CST_BLOCK_REDUCING, command->ticket);
        command->src[command->n_src++] =
            cst_set_has(land, rank) ? cst_landing_place(core, group, n_landed++) : block;
        r->bytes_down += bytes;
    }
    if (spilled != CST_NONE) {
        command->src[command->n_src++] = row;
    }
}

/* The COPY that keeps the gradient, if it is one contribution, in a block, and worth keeping.
 * Returns its ticket; 0: none. */
static uint64_t keep(struct cst_core *core, uint32_t c, const struct cst_sources *sources)
{
    bool alone = cst_set_count(&sources->blocks) == 1 && !sources->spilled;

    return core->grad_fp32 || !alone || core->chunks[c].update.reservation == CST_NONE
               ? 0
               : cst_kept_gradients_keep(core, c, cst_set_first(&sources->blocks));
}

void cst_sum_add(struct cst_core *core, uint32_t c, const struct cst_sources *sources)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    struct cst_reduce_site site = site_of(core, c, &sources->blocks, sources->spilled);
    const struct cst_set land = find_landing(core, c, &sources->blocks, &site);
    struct cst_flight flight = {
        .kind = CST_FLIGHT_REDUCE, .chunk = c, .collection = core->collection.number};
    uint64_t kept = keep(core, c, sources);
    struct cst_landing_group group;
    struct cst_command *reduce;

    cst_landing_begin(core, c, &land, &group);
    reduce = cst_core_command(core, CST_COMMAND_REDUCE, site.engine, &flight);
    reduce->table = core->table_segment;
    reduce->chunk = c;
    reduce->mark = reduce->ticket;
    reduce->accumulate = chunk->gradient.sum != CST_SUM_NOTHING;
    read_sources(core, c, sources, &land, &group, reduce);
    cst_partials_add(core, c, cst_set_first(&sources->blocks), reduce);
    cst_landing_read(core, &group, reduce);
    cst_chunk_update_before(reduce, &chunk->update);
    /* The sum frees the block, so it waits for the copy that keeps the gradient. */
    cst_command_after(reduce, kept);
    cst_weight_row_begin_gradient(core, c, reduce);
    cst_collection_summing(core, c, sources, reduce->ticket, false);
}

void cst_sum_fuse(struct cst_core *core, uint32_t c, const struct cst_sources *sources,
                  struct cst_command *update)
{
    read_sources(core, c, sources, &(struct cst_set){{0}}, NULL, update);
    cst_collection_summing(core, c, sources, update->ticket, true);
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
        cst_block_move(pool, b, CST_BLOCK_FREE);
    }
}

/* Either the contributions are lost with the accelerator whose engine was to sum them, or the job
 * fails. */
static void fail_reduction(struct cst_core *core, uint32_t c, struct cst_reduce_site site,
                           const struct cst_event *event)
{
    bool on_gpu = site.kind == CST_REDUCE_SITE_DEVICE || site.kind == CST_REDUCE_SITE_PEER;

    if (cst_event_engine_lost(event) && on_gpu) {
        cst_fact_pools_lost(&core->facts, site.engine, true);
    } else {
        cst_fact_command_failed(&core->facts, event, core->step, "reduction", c);
    }
}

void cst_sum_done(struct cst_core *core, const struct cst_flight *flight,
                  const struct cst_event *event)
{
    /* This must be known before the sources are freed. */
    struct cst_reduce_site site = cst_sum_site(core, flight->chunk, false);
    bool current = flight->collection == core->collection.number; /* Otherwise the sum is void. */

    free_sources(core, flight);
    cst_partials_added(core, flight);
    cst_collection_summed(core, flight, event->status == CST_OK);
    if (current && event->status != CST_OK) {
        fail_reduction(core, flight->chunk, site, event);
        return;
    }
    cst_collection_wake(core); /* The row can be spilled to, or added to, again. */
    cst_fact_gradient(&core->facts, flight->chunk);
}

void cst_sum_fused(struct cst_core *core, const struct cst_flight *flight,
                   const struct cst_event *event)
{
    free_sources(core, flight);
    cst_collection_fused(&core->chunks[flight->chunk]);
    cst_collection_wake(core);
    if (event->status == CST_OK) { /* The failure of an update fails the job. */
        cst_fact_gradient(&core->facts, flight->chunk);
    }
}
