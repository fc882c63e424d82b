/* SPDX-License-Identifier: Apache-2.0 */
/* Loads: weights are brought into a block by an engine, by several engines together
 * (multi_gpu_load.c), or by the rank's worker. */
#include "offload/weights/load.h"

#include "offload/books/chunk_update.h"
#include "offload/core/core_state.h"
#include "offload/weights/eviction.h"
#include "offload/weights/multi_gpu_load.h"
#include "offload/weights/residency.h"
#include "offload/books/waiting.h"
#include "offload/books/weight_row.h"

#include <assert.h>

/* Copy the weights of @chunk to a block that was just taken for them. */
static void copy_up(struct cst_core *core, uint32_t rank, uint32_t chunk, uint32_t b,
                    enum cst_priority priority)
{
    struct cst_rank *r = &core->ranks[rank];
    struct cst_flight flight = {.kind = CST_FLIGHT_LOAD, .rank = rank, .block = b, .chunk = chunk};
    uint64_t n_elems = core->layout->chunks[chunk].n_elems;
    struct cst_command *copy =
        cst_core_command(core, CST_COMMAND_COPY, cst_core_copier(core, rank, chunk), &flight);

    copy->priority = priority;
    cst_weight_row_read(core, chunk, cst_weight_row_side(core, chunk), 0, n_elems, copy);
    copy->dst[copy->n_dst++] = cst_pool_place(&r->pool, b);
    if (copy->kind == CST_COMMAND_COPY) {
        cst_command_after(copy, core->chunks[chunk].update.weight_ticket);
    } else {
        /* The command reads the master weights, so it must wait for all states. */
        cst_chunk_update_before(copy, &core->chunks[chunk].update);
    }
    r->bytes_up += cst_layout_weight_bytes(&core->layout->chunks[chunk]);
    cst_block_load(&r->pool, b, copy->ticket);
}

/* The worker is to copy the weights of @chunk into a block that was just taken for them, as soon as
 * the update is done. */
static void await_update(struct cst_core *core, uint32_t rank, uint32_t chunk, uint32_t b)
{
    struct cst_pool *pool = &core->ranks[rank].pool;
    uint64_t update = core->chunks[chunk].update.weight_ticket;

    cst_block_load(pool, b, update);
    if (update == 0) {
        cst_block_move(pool, b, CST_BLOCK_RESIDENT);
    }
}

void cst_load_weights(struct cst_core *core, uint32_t rank, uint32_t chunk, uint32_t b,
                      enum cst_priority priority)
{
    if (core->ranks[rank].pool.worker_copies) {
        await_update(core, rank, chunk, b);
    } else if (!cst_multi_gpu_load(core, rank, chunk, b, priority)) {
        copy_up(core, rank, chunk, b, priority);
    }
}

bool cst_load_ahead(struct cst_core *core, uint32_t rank, uint32_t chunk, uint64_t time)
{
    struct cst_rank *r = &core->ranks[rank];
    uint32_t b;

    if (r->pool.weight_of[chunk] != CST_NONE || core->chunks[chunk].writes.n > 0) {
        return true;
    }
    b = cst_eviction_take(core, rank, CST_BLOCK_LOADING, chunk, time);
    if (b == CST_NONE) {
        return false;
    }
    cst_block_foresee(&r->pool, b);
    cst_load_weights(core, rank, chunk, b, CST_PRIORITY_PREFETCH);
    r->prefetches++;
    return true;
}

void cst_load_prefetch(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *rank = &core->ranks[event->rank];

    if (!rank->stepped && !core->pause.holds && !cst_waiting_for_block(rank) &&
        !rank->pool.worker_copies) {
        (void)cst_load_ahead(core, event->rank, event->chunk, cst_trace_now(&rank->trace));
    }
    (void)cst_core_reply(core, event->tag);
}

void cst_load_done(struct cst_core *core, const struct cst_flight *flight,
                   const struct cst_event *event)
{
    const struct cst_block *block = &core->ranks[flight->rank].pool.blocks[flight->block];

    assert(block->ticket == flight->ticket);
    if (block->n_pieces > 0) {
        cst_multi_gpu_load_done(core, flight->rank, flight->block, event);
    } else {
        cst_residency_end_load(core, flight->rank, flight->block, event);
    }
    if (cst_event_engine_lost(event) && cst_tier_is_apart(core->ranks[flight->rank].pool.tier)) {
        cst_fact_pools_lost(&core->facts, core->ranks[flight->rank].pool.tier, false);
    }
}
