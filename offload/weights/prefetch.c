/* SPDX-License-Identifier: Apache-2.0 */
/* Prefetch: weights that the trace expects are loaded before they are asked for, as far ahead as
 * blocks allow.
 *
 * The horizon of a part (lookahead.c) moves on as long as there is a block that is used only after
 * it and that no claim needs.
 *
 * If the blocks are full of gradients that wait for other ranks and nothing inside is being loaded,
 * one of these gradients is spilled (spill.c), as for a fetch.
 *
 * Only a few loads are in flight at once, because a load that has not begun need not be cancelled
 * when a fetch wants its block. While fetches wait, no load begins. */
#include "offload/weights/prefetch.h"

#include "offload/core/core_state.h"
#include "offload/weights/load.h"
#include "offload/books/lookahead.h"
#include "offload/gradient/drift.h"
#include "offload/gradient/spill.h"
#include "offload/books/waiting.h"
#include "proto/patterns.h"

/* If fewer weights than this are inside the horizon, gradients are spilled to free blocks. */
#define SOON 2

/* -- look-ahead ------------------------------------------------------------------------------- */

/* Make sure that the weights of @chunk, which are expected at @time, are in a block or on their
 * way. False: they must wait. */
static bool provide(struct cst_core *core, uint32_t rank, uint32_t chunk, uint64_t time)
{
    struct cst_pool *pool = &core->ranks[rank].pool;
    const struct cst_part *part = cst_pool_part(pool, chunk);
    uint32_t b = pool->weight_of[chunk];

    if (b != CST_NONE) {
        return !pool->blocks[b].dropped;
    }
    /* Do not load what is being written; the fetch will load it afterwards. */
    if (core->chunks[chunk].writes.n > 0) {
        return true;
    }
    return cst_lookahead_can_load(part) && cst_load_ahead(core, rank, chunk, time);
}

/* Make sure that @entry has a block, or will have one when it can have one. False: it must wait. */
static bool settle(struct cst_core *core, uint32_t rank, const struct cst_trace_entry *entry,
                   uint64_t time)
{
    struct cst_pool *pool = &core->ranks[rank].pool;

    return cst_lookahead_claims(pool, entry) ? cst_lookahead_claim(pool, entry->chunk, entry->grad)
                                             : provide(core, rank, entry->chunk, time);
}

/* Move the horizon past one entry. False: it must wait. */
static bool advance(struct cst_core *core, uint32_t rank, struct cst_part *part)
{
    struct cst_pool *pool = &core->ranks[rank].pool;
    uint64_t time = part->victims.horizon;
    struct cst_trace_entry entry;

    if (!cst_trace_at(pool->trace, time, &entry)) {
        return false;
    }
    if (cst_pool_part(pool, entry.chunk) != part) {
        cst_victims_pass(&part->victims, CST_NONE);
        return true;
    }
    if (entry.likely && !settle(core, rank, &entry, time)) {
        return false;
    }
    if (entry.grad) {
        cst_victims_pass(&part->victims, CST_NONE);
        return true;
    }
    cst_lookahead_passed(pool, entry.chunk);
    return true;
}

/* Weights that are used soon have no block, and a fetch would find none: spill a gradient that
 * waits for other ranks now, not only then. */
static void spill_early(struct cst_core *core, uint32_t rank, uint32_t k)
{
    const struct cst_pool *pool = &core->ranks[rank].pool;
    const struct cst_part *part = &pool->parts[k];
    struct cst_trace_entry entry;

    if (part->count[CST_BLOCK_PENDING] > 0 && !part->spill_failed &&
        part->count[CST_BLOCK_SPILLING] + part->count[CST_BLOCK_REDUCING] == 0 &&
        part->n_foreseen < cst_lookahead_most_in_flight(part) &&
        cst_trace_at(pool->trace, part->victims.horizon, &entry) &&
        !cst_lookahead_claims(pool, &entry) &&
        /* Only an fp32 row takes a gradient without further copies. */
        (core->adds_singly || !cst_drift_waits(core, rank, part, false))) {
        (void)cst_spill_begin(core, rank, k);
    }
}

void cst_prefetch_look_ahead(struct cst_core *core, uint32_t rank)
{
    struct cst_rank *r = &core->ranks[rank];
    uint32_t depth = core->policy.prefetch_depth;

    if (core->attempt.phase != CST_PHASE_RUNNING || !r->joined || r->stepped ||
        cst_waiting_for_block(r) || r->pool.worker_copies || !cst_lookahead_catch_up(&r->pool)) {
        return;
    }
    for (uint32_t k = 0; k < r->pool.n_parts; k++) {
        struct cst_part *part = &r->pool.parts[k];

        while ((depth == 0 || part->n_ahead < depth) && advance(core, rank, part)) {
        }
        if (part->n_ahead < SOON && (depth == 0 || part->n_ahead < depth)) {
            spill_early(core, rank, k);
        }
    }
}
