/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of loaded weights: the fetches that waited for them are answered; they are released,
 * evicted by request, or out of date; and their leases end with the rank. */
#include "offload/weights/residency.h"

#include "offload/core/core_state.h"
#include "offload/weights/eviction.h"
#include "offload/books/waiting.h"

#include <inttypes.h>

/* -- requests ------------------------------------------------------------------------------- */

/* The stale block to which @event's lease belongs, or CST_NONE. */
static uint32_t find_stale(struct cst_pool *pool, const struct cst_event *event)
{
    uint32_t b = cst_pool_part(pool, event->chunk)->head[CST_BLOCK_STALE];

    while (b != CST_NONE && (pool->blocks[b].chunk != event->chunk ||
                             pool->blocks[b].generation != event->generation)) {
        b = pool->blocks[b].next;
    }
    return b;
}

/* A gradient's lease lasts until the gradient is handed in, so its release changes nothing. */
void cst_residency_release(struct cst_core *core, const struct cst_event *event)
{
    struct cst_pool *pool = &core->ranks[event->rank].pool;
    uint32_t w = pool->weight_of[event->chunk];
    uint32_t g = pool->grad_of[event->chunk];

    /* 0 is the generation of blocks without a lease, so it must match none. */
    if (event->generation == 0) {
        w = CST_NONE;
        g = CST_NONE;
    } else if (w == CST_NONE || pool->blocks[w].generation != event->generation) {
        w = find_stale(pool, event);
    }
    if (w != CST_NONE) {
        cst_block_use(pool, w);
        cst_block_unlease(pool, w);
        if (pool->blocks[w].state == CST_BLOCK_STALE && pool->blocks[w].leases == 0) {
            cst_block_move(pool, w, CST_BLOCK_FREE);
        }
    } else if (g == CST_NONE || pool->blocks[g].generation != event->generation) {
        cst_core_refuse(core, event->tag, CST_ESTALE,
                        "rank %" PRIu32 " has no lease %" PRIu64 " on chunk %" PRIu32, event->rank,
                        event->generation, event->chunk);
        return;
    }
    (void)cst_core_reply(core, event->tag);
}

void cst_residency_evict(struct cst_core *core, const struct cst_event *event)
{
    const struct cst_pool *pool = &core->ranks[event->rank].pool;
    uint32_t b = pool->weight_of[event->chunk];

    if (b != CST_NONE && pool->blocks[b].state == CST_BLOCK_RESIDENT &&
        pool->blocks[b].leases == 0) {
        cst_eviction_evict(core, event->rank, b, CST_NONE);
    }
    (void)cst_core_reply(core, event->tag);
}

/* -- completions ------------------------------------------------------------------------------ */

void cst_residency_end_load(struct cst_core *core, uint32_t rank, uint32_t b,
                            const struct cst_event *event)
{
    struct cst_pool *pool = &core->ranks[rank].pool;
    const struct cst_block *block = &pool->blocks[b];
    /* A block that waited for an update is kept only if a fetch still waits: a worker fills it
     * then. */
    bool good = event->status == CST_OK && !block->dropped &&
                !(pool->worker_copies && cst_queue_empty(&block->waiters));
    uint32_t i;

    if (good) {
        cst_block_move(pool, b, CST_BLOCK_RESIDENT);
    }
    while ((i = cst_block_pop_waiter(pool, b, &core->requests)) != CST_NO_REQUEST) {
        if (good) {
            cst_waiting_answer(core, i, b, false);
        } else if (event->status == CST_OK) {
            /* The weights were replaced by newer ones during the load: load again. */
            cst_waiting_enqueue(core, i);
        } else {
            cst_core_refuse(core, core->requests.v[i].tag, event->status,
                            "chunk %" PRIu32 " could not be copied to rank %" PRIu32 "'s pool: %s",
                            block->chunk, rank, cst_event_words(event));
            cst_requests_remove(&core->requests, i);
        }
    }
    if (!good) {
        cst_block_move(pool, b, CST_BLOCK_FREE);
    }
}

void cst_residency_updated(struct cst_core *core, uint32_t chunk, uint64_t ticket,
                           const struct cst_event *event)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_pool *pool = &core->ranks[rank].pool;
        uint32_t b = pool->weight_of[chunk];

        if (pool->worker_copies && b != CST_NONE && pool->blocks[b].ticket == ticket) {
            cst_residency_end_load(core, rank, b, event);
        }
    }
}

void cst_residency_replaced(struct cst_core *core, uint32_t chunk, uint64_t from, uint64_t to)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        struct cst_pool *pool = &core->ranks[rank].pool;
        uint32_t b = pool->weight_of[chunk];

        if (pool->worker_copies && b != CST_NONE && pool->blocks[b].ticket == from) {
            cst_block_wait_for(pool, b, to);
        }
    }
}

void cst_residency_expire(struct cst_core *core, uint32_t chunk)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        struct cst_pool *pool = &core->ranks[rank].pool;
        uint32_t b = pool->weight_of[chunk];

        if (b == CST_NONE) {
            continue;
        }
        if (pool->blocks[b].state == CST_BLOCK_LOADING) {
            cst_block_drop(pool, b);
            continue;
        }
        cst_block_move(pool, b, pool->blocks[b].leases > 0 ? CST_BLOCK_STALE : CST_BLOCK_FREE);
    }
}

/* -- leases of a rank that ends --------------------------------------------------------------- */

static void quarantine_block(struct cst_pool *pool, uint32_t b)
{
    if (pool->blocks[b].leases > 0 && pool->blocks[b].state != CST_BLOCK_QUARANTINED) {
        cst_block_move(pool, b, CST_BLOCK_QUARANTINED);
    }
}

static void end_lease(struct cst_pool *pool, uint32_t b)
{
    const struct cst_block *block = &pool->blocks[b];

    if (block->state == CST_BLOCK_RESIDENT) {
        bool filling = block->filling;

        cst_block_unlease_all(pool, b);
        /* The worker did not report the end of its copy, so the contents are unknown. */
        if (filling) {
            cst_block_move(pool, b, CST_BLOCK_FREE);
        }
    } else if (block->leases > 0) {
        cst_block_move(pool, b, CST_BLOCK_FREE);
    }
}

void cst_residency_end_leases(struct cst_core *core, uint32_t rank, bool quarantine)
{
    struct cst_pool *pool = &core->ranks[rank].pool;

    for (uint32_t b = 0; b < pool->n_blocks; b++) {
        if (quarantine) {
            quarantine_block(pool, b);
        } else {
            end_lease(pool, b);
        }
    }
}

void cst_residency_drop(struct cst_core *core, uint32_t rank)
{
    struct cst_pool *pool = &core->ranks[rank].pool;

    for (uint32_t b = 0; b < pool->n_blocks; b++) {
        if (pool->blocks[b].state == CST_BLOCK_RESIDENT && pool->blocks[b].leases == 0) {
            cst_block_move(pool, b, CST_BLOCK_FREE);
        }
    }
}

void cst_residency_reclaim(struct cst_core *core, uint32_t rank)
{
    struct cst_pool *pool = &core->ranks[rank].pool;

    cst_residency_end_leases(core, rank, false);
    for (uint32_t b = 0; b < pool->n_blocks; b++) {
        if (pool->blocks[b].state == CST_BLOCK_RESIDENT) {
            cst_block_move(pool, b, CST_BLOCK_FREE);
        } else if (pool->blocks[b].state == CST_BLOCK_LOADING) {
            cst_block_drop(pool, b);
        }
    }
}
