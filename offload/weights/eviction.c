/* SPDX-License-Identifier: Apache-2.0 */
/* Which block is taken for new contents, and which weights are evicted for them.
 *
 * A block is chosen in this order: a free one; clean weights that are not expected any more; a
 * block that is about to be emptied, for which the fetch waits, or that is lent
 * (offload/gradient/lent_memory.c); the clean weights that are best to cst_eviction_evict
 * (victim.h); a gradient that was handed in, once it is spilled. Open gradients are never evicted,
 * nor are gradients that wait for other ranks if the grad row is taken. */
#include "offload/weights/eviction.h"

#include "offload/core/core_state.h"
#include "offload/books/lookahead.h"
#include "offload/gradient/drift.h"
#include "offload/books/waiting.h"

#define MAX_REVIEWS 4 /* Maximum number of victims to look at if their next use has changed. */
#define MAX_LOADS 64  /* Maximum number of loads to look at if one of them can be waited for. */

void cst_eviction_evict(struct cst_core *core, uint32_t rank, uint32_t b, uint32_t wanted_by)
{
    struct cst_pool *pool = &core->ranks[rank].pool;
    const struct cst_block *block = &pool->blocks[b];
    struct cst_chunk *chunk = &core->chunks[block->chunk];
    uint64_t next = cst_trace_next_use(pool->trace, block->chunk);

    chunk->evicted.rank = rank;
    chunk->evicted.step = core->step;
    chunk->evicted.wanted_by = wanted_by;
    core->ranks[rank].evictions++;
    cst_block_move(pool, b, CST_BLOCK_FREE);
    cst_lookahead_evicted(pool, block->part, next);
}

/* The best block of @part to cst_eviction_evict; CST_NONE: there is none. A victim's time of next
 * use can be out of date, so it is reviewed first. */
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

/* True if nobody has asked yet for the weights that come to block @b, and they are a better victim
 * than one that is used at @time. */
static bool is_for_later(const struct cst_pool *pool, uint32_t b, uint64_t time)
{
    uint32_t chunk = pool->blocks[b].chunk;

    return cst_queue_empty(&pool->blocks[b].waiters) &&
           !cst_pattern(pool->chunks[chunk].pattern)->stays &&
           cst_trace_next_use(pool->trace, chunk) > time;
}

/* True if weights on their way are used after @time: they can be evicted when they have come. Hints
 * can make many of them, so only the newest are looked at. */
static bool comes_for_later(const struct cst_pool *pool, const struct cst_part *part, uint64_t time)
{
    uint32_t b = part->head[CST_BLOCK_LOADING];

    for (int i = 0; part->n_foreseen > 0 && i < MAX_LOADS && b != CST_NONE; i++) {
        if (is_for_later(pool, b, time)) {
            return true;
        }
        b = pool->blocks[b].next;
    }
    return false;
}

/* True if waiting for another block is better than evicting @victim, one with a gradient or one
 * that is being loaded for later: unless the victim's weights are not expected any more. To load
 * expected weights again costs more than the wait. Also, the loads then do not depend on the speed
 * of engines and of other ranks: if the block had been free or cached already, it would have been
 * taken.
 *
 * A fetch recalls a lent block for which it waits (fetch.c). */
static bool is_worth_waiting(struct cst_core *core, uint32_t rank, const struct cst_part *part,
                             uint32_t victim, bool ahead)
{
    uint64_t next = part->victims.v[victim - part->first_block].next;

    if (next == CST_TRACE_NEVER) {
        return false;
    }
    return comes_for_later(&core->ranks[rank].pool, part, next) ||
           part->count[CST_BLOCK_REDUCING] + part->count[CST_BLOCK_SPILLING] > 0 ||
           part->count[CST_BLOCK_LENT] > 0 || cst_drift_waits(core, rank, part, !ahead);
}

uint32_t cst_eviction_take(struct cst_core *core, uint32_t rank, enum cst_block_state state,
                           uint32_t chunk, uint64_t limit)
{
    struct cst_pool *pool = &core->ranks[rank].pool;
    struct cst_part *part = cst_pool_part(pool, chunk);

    if (part->count[CST_BLOCK_FREE] == 0) {
        uint32_t victim = find_victim(pool, part, limit);

        if (victim == CST_NONE ||
            is_worth_waiting(core, rank, part, victim, limit != CST_VICTIM_ANY)) {
            return CST_NONE;
        }
        cst_eviction_evict(core, rank, victim, chunk);
    }
    return cst_pool_take(pool, state, chunk);
}

uint32_t cst_eviction_take_expected(struct cst_core *core, uint32_t rank, uint32_t chunk)
{
    struct cst_rank *r = &core->ranks[rank];
    uint64_t time = cst_trace_next_use(&r->trace, chunk);
    uint32_t b;

    if (time == CST_TRACE_NEVER || cst_waiting_for_block(r) ||
        !cst_lookahead_can_load(cst_pool_part(&r->pool, chunk))) {
        return CST_NONE;
    }
    b = cst_eviction_take(core, rank, CST_BLOCK_LOADING, chunk, time);
    if (b != CST_NONE) {
        cst_block_foresee(&r->pool, b);
        r->prefetches++;
    }
    return b;
}
