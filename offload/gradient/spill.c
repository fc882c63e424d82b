/* SPDX-License-Identifier: Apache-2.0 */
/* Spills. A pool is short of blocks because gradients that were handed in fill them: one gradient
 * leaves before the whole group has handed in.
 *
 *   bf16 grad row: it is empty until the sum is made, so it can keep one contribution
 *                  PENDING --copy--> the row; REDUCE names the row as that rank's source
 *   fp32 grad row: it holds the sum so far, and takes the contributions of the first ranks early
 *                  PENDING --REDUCE, accumulate--> the row
 *
 * The sum has the same bits in either case. In an fp32 row each addition is rounded to fp32,
 * whichever command makes it, and additions are made in rank order only. In a bf16 row a part of a
 * sum would have to be rounded to bf16, so the sum is made by one command, and the row can keep
 * only one contribution. */
#include "offload/gradient/spill.h"

#include "offload/books/chunk_update.h"
#include "offload/gradient/collection.h"
#include "offload/core/core_state.h"
#include "offload/gradient/sum.h"
#include "offload/books/weight_row.h"

#include <inttypes.h>

static bool can_spill(const struct cst_chunk *chunk)
{
    return chunk->gradient.spilled == CST_NONE && chunk->gradient.spill_ticket == 0 &&
           chunk->gradient.reduce_ticket == 0;
}

/* True if everything that must be added before the contribution in the PENDING block @b of @rank
 * has come or is in the row. */
static bool can_add(const struct cst_core *core, uint32_t rank, uint32_t b)
{
    const struct cst_block *block = &core->ranks[rank].pool.blocks[b];
    const struct cst_chunk *chunk = &core->chunks[block->chunk];

    return chunk->gradient.reduce_ticket == 0 && chunk->gradient.spill_ticket == 0 &&
           block->addend < chunk->gradient.first + chunk->n_in_sum &&
           cst_collection_first_missing(core, block->chunk, rank) == CST_SET_MAX;
}

/* The gradient of @part that was handed in last and can leave: older ones will sooner be summed
 * anyway. */
static uint32_t find_pending(const struct cst_core *core, uint32_t rank, uint32_t part)
{
    const struct cst_pool *pool = &core->ranks[rank].pool;
    uint32_t b = pool->parts[part].head[CST_BLOCK_PENDING];

    for (; b != CST_NONE; b = pool->blocks[b].next) {
        if (core->adds_singly ? can_add(core, rank, b)
                              : can_spill(&core->chunks[pool->blocks[b].chunk])) {
            break;
        }
    }
    return b;
}

static void spill(struct cst_core *core, uint32_t rank, uint32_t b)
{
    struct cst_rank *r = &core->ranks[rank];
    struct cst_flight flight = {.kind = CST_FLIGHT_SPILL,
                                .rank = rank,
                                .block = b,
                                .chunk = r->pool.blocks[b].chunk,
                                .collection = core->collection.number};
    struct cst_chunk *chunk = &core->chunks[flight.chunk];
    struct cst_command *copy = cst_core_command(core, CST_COMMAND_COPY,
                                                cst_core_copier(core, rank, flight.chunk), &flight);

    copy->priority = CST_PRIORITY_EVICTION;
    copy->dst[copy->n_dst++] = cst_core_row_place(core, flight.chunk, CST_ROW_GRAD, 0);
    copy->bytes = cst_layout_weight_bytes(&core->layout->chunks[flight.chunk]);
    cst_chunk_update_before(copy, &chunk->update);
    cst_weight_row_begin_gradient(core, flight.chunk, copy);
    copy->src[copy->n_src++] = cst_block_read_by(&r->pool, b, CST_BLOCK_SPILLING, copy->ticket);
    r->bytes_down += copy->bytes;
    cst_collection_spilling(chunk, r->pool.blocks[b].addend, copy->ticket);
}

bool cst_spill_begin(struct cst_core *core, uint32_t rank, uint32_t part)
{
    struct cst_rank *r = &core->ranks[rank];
    uint32_t b = find_pending(core, rank, part);

    if (b == CST_NONE) {
        return false;
    }
    r->evictions++;
    if (core->adds_singly) {
        struct cst_sources sources = cst_collection_sources(core, r->pool.blocks[b].chunk);

        cst_sum_add(core, r->pool.blocks[b].chunk, &sources);
    } else {
        spill(core, rank, b);
    }
    return true;
}

/* The copy failed, but the gradient is still in its block. One fetch that waited for the block gets
 * the error, so that the copy is not tried forever. */
static void failed(struct cst_core *core, const struct cst_flight *flight,
                   const struct cst_event *event)
{
    struct cst_rank *r = &core->ranks[flight->rank];
    struct cst_part *part = cst_pool_part(&r->pool, flight->chunk);
    struct cst_queue *queue = cst_queue_empty(&part->demand) ? &part->ahead : &part->demand;
    uint32_t i;

    cst_block_move(&r->pool, flight->block, CST_BLOCK_PENDING);
    cst_collection_spill_failed(part);
    i = cst_queue_pop(&core->requests, queue);
    if (i != CST_NO_REQUEST) {
        cst_core_refuse(core, core->requests.v[i].tag, event->status,
                        "no block for chunk %" PRIu32 ": the gradient of chunk %" PRIu32
                        " could not be moved out of the pool: %s",
                        core->requests.v[i].chunk, flight->chunk, cst_event_words(event));
        cst_requests_remove(&core->requests, i);
    }
}

void cst_spill_done(struct cst_core *core, const struct cst_flight *flight,
                    const struct cst_event *event)
{
    struct cst_pool *pool = &core->ranks[flight->rank].pool;
    bool current = !pool->blocks[flight->block].dropped;
    bool gone = cst_event_engine_lost(event) && cst_tier_is_apart(pool->tier);

    cst_collection_spilled(&core->chunks[flight->chunk], !current || (event->status == CST_OK));
    if (current && gone) {
        cst_block_move(pool, flight->block, CST_BLOCK_PENDING);
        cst_fact_pools_lost(&core->facts, pool->tier, true);
    } else if (current && event->status != CST_OK) {
        failed(core, flight, event);
    } else {
        cst_block_move(pool, flight->block, CST_BLOCK_FREE);
    }
    cst_collection_wake(core); /* The row can be spilled to again. */
    cst_fact_gradient(&core->facts, flight->chunk);
}
