/* SPDX-License-Identifier: Apache-2.0 */
/* Which weights and gradients are in which blocks: loads, leases and evictions.
 *
 * A block is chosen in this order: a free one; clean weights that are not expected any more; a
 * block that an engine is about to empty; the clean weights that are best to evict (victim.h); a
 * gradient that was handed in, once it is spilled. Open gradients are never evicted, nor are
 * gradients that wait for other ranks if the grad row is taken. */
#include "offload/updates.h"

#include <assert.h>
#include <inttypes.h>

#define MAX_REVIEWS 4 /* Maximum number of victims to look at if their next use has changed. */

/* -- blocks --------------------------------------------------------------------------------- */

static void evict(struct cst_core *core, uint32_t rank, uint32_t b, uint32_t wanted_by)
{
    struct cst_pool *pool = &core->ranks[rank].pool;
    struct cst_block *block = &pool->blocks[b];
    struct cst_chunk *chunk = &core->chunks[block->chunk];
    uint64_t next = cst_trace_next_use(pool->trace, block->chunk);

    chunk->evicted_rank = rank;
    chunk->evicted_step = core->step;
    chunk->evicted_for = wanted_by;
    core->ranks[rank].evictions++;
    pool->weight_of[block->chunk] = CST_NONE;
    cst_block_move(pool, b, CST_BLOCK_FREE);
    cst_prefetch_evicted(pool, block->part, next);
}

/* The best block of @part to evict; CST_NONE: there is none. A victim's time of next use can be out
 * of date, so it is reviewed first. */
static uint32_t find_victim(struct cst_pool *pool, struct cst_part *part, uint64_t limit)
{
    uint32_t id = CST_NONE;

    for (int i = 0; i < MAX_REVIEWS; i++) {
        uint64_t next;

        id = cst_victims_choose(&part->victims, cst_trace_now(pool->trace), limit);
        if (id == CST_NONE) {
            return CST_NONE;
        }
        next = part->victims.v[id].next;
        cst_block_review(pool, part->first_block + id);
        if (part->victims.v[id].next == next) {
            break;
        }
    }
    return part->first_block + id;
}

/* True if waiting for a block that an engine is about to empty is better than evicting @victim.
 *
 * Look-ahead waits, unless the victim's weights are not expected any more. To load expected weights
 * again costs more than the wait. Also, the loads then do not depend on the speed of engines: if
 * the block had been free already, it would have been taken.
 *
 * A fetch waits only if there is one rank. With several ranks, whether a sum is in flight or still
 * waits for contributions depends on other ranks, and a rank that waited would be slower. */
static bool is_worth_waiting(const struct cst_core *core, const struct cst_part *part,
                             uint32_t victim, bool ahead)
{
    return (ahead || core->world == 1) &&
           part->count[CST_BLOCK_REDUCING] + part->count[CST_BLOCK_STAGING] > 0 &&
           part->victims.v[victim - part->first_block].next != CST_TRACE_NEVER;
}

uint32_t cst_residency_take(struct cst_core *core, uint32_t rank, enum cst_block_state state,
                            uint32_t chunk, uint64_t limit)
{
    struct cst_pool *pool = &core->ranks[rank].pool;
    struct cst_part *part = cst_pool_part(pool, chunk);

    if (part->count[CST_BLOCK_FREE] == 0) {
        uint32_t victim = find_victim(pool, part, limit);

        if (victim == CST_NONE || is_worth_waiting(core, part, victim, limit != CST_VICTIM_ANY)) {
            return CST_NONE;
        }
        evict(core, rank, victim, chunk);
    }
    return cst_pool_take(pool, state, chunk);
}

/* -- loads ---------------------------------------------------------------------------------- */

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
    cst_grad_in_weight_read_weights(core, chunk, cst_overlap_side(core, chunk), 0, n_elems, copy);
    copy->dst[copy->n_dst++] = cst_pool_place(&r->pool, b);
    if (copy->kind == CST_COMMAND_COPY) {
        cst_command_after(copy, core->chunks[chunk].weight_ticket);
    } else {
        /* The command reads the master weights, so it must wait for all states. */
        cst_update_before(copy, &core->chunks[chunk]);
    }
    r->bytes_up += 2 * n_elems;
    r->pool.weight_of[chunk] = b;
    r->pool.blocks[b].ticket = copy->ticket;
    r->pool.blocks[b].last_use = ++core->uses;
}

/* The worker is to copy the weights of @chunk into a block that was just taken for them, as soon as
 * the update is done. */
static void await_update(struct cst_core *core, uint32_t rank, uint32_t chunk, uint32_t b)
{
    struct cst_pool *pool = &core->ranks[rank].pool;

    pool->weight_of[chunk] = b;
    pool->blocks[b].last_use = ++core->uses;
    if (core->chunks[chunk].weight_ticket != 0) {
        pool->blocks[b].ticket = core->chunks[chunk].weight_ticket;
    } else {
        cst_block_move(pool, b, CST_BLOCK_RESIDENT);
        pool->blocks[b].filling = true;
    }
}

void cst_residency_load(struct cst_core *core, uint32_t rank, uint32_t chunk, uint32_t b,
                        enum cst_priority priority)
{
    if (core->ranks[rank].pool.worker_copies) {
        await_update(core, rank, chunk, b);
    } else if (!cst_multi_gpu_load(core, rank, chunk, b, priority)) {
        copy_up(core, rank, chunk, b, priority);
    }
}

bool cst_residency_load_ahead(struct cst_core *core, uint32_t rank, uint32_t chunk, uint64_t time)
{
    struct cst_rank *r = &core->ranks[rank];
    uint32_t b;

    if (r->pool.weight_of[chunk] != CST_NONE || core->chunks[chunk].n_writes > 0) {
        return true;
    }
    b = cst_residency_take(core, rank, CST_BLOCK_LOADING, chunk, time);
    if (b == CST_NONE) {
        return false;
    }
    cst_block_foresee(&r->pool, b);
    cst_residency_load(core, rank, chunk, b, CST_PRIORITY_PREFETCH);
    r->prefetches++;
    return true;
}

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
        pool->blocks[w].last_use = ++core->uses;
        pool->blocks[w].filling = false;
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

void cst_residency_prefetch(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *rank = &core->ranks[event->rank];

    if (!rank->stepped && !cst_fetch_waits(rank) && !rank->pool.worker_copies) {
        (void)cst_residency_load_ahead(core, event->rank, event->chunk,
                                       cst_trace_now(&rank->trace));
    }
    (void)cst_core_reply(core, event->tag);
}

void cst_residency_evict(struct cst_core *core, const struct cst_event *event)
{
    const struct cst_pool *pool = &core->ranks[event->rank].pool;
    uint32_t b = pool->weight_of[event->chunk];

    if (b != CST_NONE && pool->blocks[b].state == CST_BLOCK_RESIDENT &&
        pool->blocks[b].leases == 0) {
        evict(core, event->rank, b, CST_NONE);
    }
    (void)cst_core_reply(core, event->tag);
}

/* -- completions ------------------------------------------------------------------------------ */

void cst_residency_end_load(struct cst_core *core, uint32_t rank, uint32_t b,
                            const struct cst_event *event)
{
    struct cst_pool *pool = &core->ranks[rank].pool;
    struct cst_block *block = &pool->blocks[b];
    /* A block that waited for an update is kept only if a fetch still waits: a worker fills it
     * then. */
    bool good = event->status == CST_OK && !block->dropped &&
                !(pool->worker_copies && cst_queue_empty(&block->waiters));
    uint32_t i;

    if (good) {
        cst_block_move(pool, b, CST_BLOCK_RESIDENT);
        /* The worker fills the block after the reply. */
        block->filling = pool->worker_copies;
    } else {
        pool->weight_of[block->chunk] = CST_NONE;
    }
    while ((i = cst_block_pop_waiter(pool, b, &core->requests)) != CST_NO_REQUEST) {
        if (good) {
            cst_fetch_answer(core, i, b, false);
        } else if (event->status == CST_OK) {
            /* The weights were replaced by newer ones during the load: load again. */
            cst_fetch_enqueue(core, i);
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

void cst_residency_loaded(struct cst_core *core, const struct cst_flight *flight,
                          const struct cst_event *event)
{
    const struct cst_block *block = &core->ranks[flight->rank].pool.blocks[flight->block];

    assert(block->ticket == flight->ticket);
    if (block->n_pieces > 0) {
        cst_multi_gpu_load_done(core, flight->rank, flight->block, event);
    } else {
        cst_residency_end_load(core, flight->rank, flight->block, event);
    }
    if (cst_device_loss_is(event) && core->ranks[flight->rank].pool.engine != 0) {
        cst_device_loss_of_pools(core, core->ranks[flight->rank].pool.engine, event, false);
    }
}

void cst_residency_updated(struct cst_core *core, const struct cst_flight *flight,
                           const struct cst_event *event)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_pool *pool = &core->ranks[rank].pool;
        uint32_t b = pool->weight_of[flight->chunk];

        if (pool->worker_copies && b != CST_NONE && pool->blocks[b].ticket == flight->ticket) {
            cst_residency_end_load(core, rank, b, event);
        }
    }
}

void cst_residency_replaced(struct cst_core *core, uint32_t chunk, uint64_t from, uint64_t to)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_pool *pool = &core->ranks[rank].pool;
        uint32_t b = pool->weight_of[chunk];

        if (pool->worker_copies && b != CST_NONE && pool->blocks[b].ticket == from) {
            pool->blocks[b].ticket = to;
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
            pool->blocks[b].dropped = true;
            continue;
        }
        pool->weight_of[chunk] = CST_NONE;
        cst_block_move(pool, b, pool->blocks[b].leases > 0 ? CST_BLOCK_STALE : CST_BLOCK_FREE);
    }
}

/* -- leases of a rank that ends --------------------------------------------------------------- */

static void quarantine_block(struct cst_pool *pool, uint32_t b)
{
    struct cst_block *block = &pool->blocks[b];

    if (block->leases == 0 || block->state == CST_BLOCK_QUARANTINED) {
        return;
    }
    if (block->state == CST_BLOCK_RESIDENT) {
        pool->weight_of[block->chunk] = CST_NONE;
    } else if (block->state == CST_BLOCK_OPEN) {
        pool->grad_of[block->chunk] = CST_NONE;
    }
    cst_block_move(pool, b, CST_BLOCK_QUARANTINED);
}

static void end_lease(struct cst_pool *pool, uint32_t b)
{
    struct cst_block *block = &pool->blocks[b];

    if (block->state == CST_BLOCK_RESIDENT) {
        bool filling = block->filling;

        cst_block_unlease_all(pool, b);
        /* The worker did not report the end of its copy, so the contents are unknown. */
        if (filling) {
            pool->weight_of[block->chunk] = CST_NONE;
            cst_block_move(pool, b, CST_BLOCK_FREE);
        }
    } else if (block->leases > 0) {
        if (block->state == CST_BLOCK_OPEN) {
            pool->grad_of[block->chunk] = CST_NONE;
        }
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

void cst_residency_reclaim(struct cst_core *core, uint32_t rank)
{
    struct cst_pool *pool = &core->ranks[rank].pool;

    cst_residency_end_leases(core, rank, false);
    for (uint32_t b = 0; b < pool->n_blocks; b++) {
        if (pool->blocks[b].state == CST_BLOCK_RESIDENT) {
            pool->weight_of[pool->blocks[b].chunk] = CST_NONE;
            cst_block_move(pool, b, CST_BLOCK_FREE);
        } else if (pool->blocks[b].state == CST_BLOCK_LOADING) {
            pool->blocks[b].dropped = true;
        }
    }
}
