/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients until they are summed: contributions, micro-batches, reductions.
 *
 *   handed in by a rank -> PENDING in its pool --(the pool is short)--> spill.c
 *   by all of its group -> REDUCE into the grad row --(last micro-batch)--> commit.c
 *
 * A chunk collects one micro-batch at a time. What a rank that is ahead hands in for a later one
 * stays PENDING until its turn comes. The grad row belongs to the last UPDATE until that is done,
 * so commands that write to the row wait for it.
 *
 * A chunk of a dispatched job collects addends instead: each is the contribution of one unit, from
 * whichever rank has done it. With M micro-batches, a chunk that the stages 0 and 2 use has the
 * addends
 *
 *   stage 2: 0 .. M - 1 | stage 0: M .. 2 M - 1
 *
 * Units are given out in this order, and the next one when the last one is done, so that an addend
 * is over when it was handed in or its unit is done without it. */
#include "offload/gradient/collection.h"

#include "offload/core/core_state.h"
#include "offload/gradient/kept_gradients.h"

#include <inttypes.h>

/* -- addends ----------------------------------------------------------------------------------- */

uint32_t cst_collection_addends(const struct cst_core *core, uint32_t c)
{
    return core->chunks[c].n_addends / core->chunks[c].n_in_sum;
}

/* True if nobody contributes to the current addend of the chunk any more. */
static bool addend_is_over(const struct cst_core *core, uint32_t c)
{
    const struct cst_gradient *gradient = &core->chunks[c].gradient;

    return gradient->handed != 0 || gradient->n_handed > gradient->micro ||
           core->schedule->state(core, c, gradient->micro) == CST_ADDEND_NEVER;
}

/* -- contributions ---------------------------------------------------------------------------- */

bool cst_collection_is_known(const struct cst_core *core, uint32_t c, uint32_t rank)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    const struct cst_rank *r = &core->ranks[rank];

    if (core->schedule->elastic) {
        return chunk->gradient.micro < cst_collection_addends(core, c) && addend_is_over(core, c);
    }
    return (chunk->gradient.handed & 1ull << rank) != 0 || r->stepped ||
           r->micro > chunk->gradient.micro;
}

static bool all_are_known(const struct cst_core *core, uint32_t c)
{
    const struct cst_chunk *chunk = &core->chunks[c];

    for (uint64_t rest = chunk->ranks & ~chunk->gradient.handed; rest != 0; rest &= rest - 1) {
        if (!cst_collection_is_known(core, c, (uint32_t)__builtin_ctzll(rest))) {
            return false;
        }
    }
    return true;
}

bool cst_collection_holds(const struct cst_core *core, uint32_t c, uint32_t rank)
{
    const struct cst_pool *pool = &core->ranks[rank].pool;
    uint32_t b = pool->grad_of[c];

    return b != CST_NONE && pool->blocks[b].state == CST_BLOCK_PENDING &&
           pool->blocks[b].micro == core->chunks[c].gradient.micro;
}

static bool has_handed_in(const struct cst_core *core, uint32_t c, uint32_t rank)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    const struct cst_rank *r = &core->ranks[rank];
    uint32_t b = r->pool.grad_of[c];

    if (chunk->weight.rows == CST_ROWS_CARRIED) {
        return (chunk->gradient.handed & 1ull << rank) != 0;
    }
    if (r->micro <= chunk->gradient.micro) {
        return r->micro < chunk->gradient.micro || (chunk->gradient.handed & 1ull << rank) != 0;
    }
    return b != CST_NONE && r->pool.blocks[b].state == CST_BLOCK_PENDING &&
           r->pool.blocks[b].micro == r->micro;
}

bool cst_collection_may_open(const struct cst_core *core, uint32_t c, uint32_t rank)
{
    return core->schedule->elastic ? core->schedule->addend_of(core, c, rank) != CST_NONE
                                   : !has_handed_in(core, c, rank);
}

uint32_t cst_collection_only(const struct cst_core *core, uint32_t c)
{
    uint32_t only = CST_NONE;

    if (core->grad_fp32 || core->chunks[c].gradient.spilled_rank != CST_NONE) {
        return CST_NONE;
    }
    for (uint64_t rest = core->chunks[c].ranks; rest != 0; rest &= rest - 1) {
        uint32_t rank = (uint32_t)__builtin_ctzll(rest);

        if (!cst_collection_holds(core, c, rank)) {
            continue;
        }
        if (only != CST_NONE) {
            return CST_NONE;
        }
        only = rank;
    }
    return only;
}

/* True if a contribution to a later micro-batch waits for the current one to end. */
static bool later_ones_wait(const struct cst_core *core, uint32_t c)
{
    for (uint64_t rest = core->chunks[c].ranks; rest != 0; rest &= rest - 1) {
        const struct cst_pool *pool = &core->ranks[__builtin_ctzll(rest)].pool;
        uint32_t b = pool->grad_of[c];

        if (b != CST_NONE && pool->blocks[b].state == CST_BLOCK_PENDING) {
            return true;
        }
    }
    return false;
}

/* True if all ranks have handed in or are in a later micro-batch. */
static bool all_went_on(const struct cst_core *core, uint32_t c)
{
    const struct cst_chunk *chunk = &core->chunks[c];

    for (uint64_t rest = chunk->ranks & ~chunk->gradient.handed; rest != 0; rest &= rest - 1) {
        if (core->ranks[__builtin_ctzll(rest)].micro <= chunk->gradient.micro) {
            return false;
        }
    }
    return true;
}

void cst_collection_wake(struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        cst_pool_wake(&core->ranks[rank].pool);
    }
}

/* -- sums and spills -------------------------------------------------------------------------- */

struct cst_sources cst_collection_sources(const struct cst_core *core, uint32_t c)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    struct cst_sources sources = {.spilled = CST_NONE};

    for (uint64_t rest = chunk->ranks & ~chunk->gradient.added; rest != 0; rest &= rest - 1) {
        uint32_t rank = (uint32_t)__builtin_ctzll(rest);

        if (!cst_collection_is_known(core, c, rank)) {
            break;
        }
        if (chunk->gradient.spilled_rank == rank) {
            sources.spilled = rank;
        } else if (cst_collection_holds(core, c, rank)) {
            sources.blocks |= 1ull << rank;
        }
        sources.ranks |= 1ull << rank;
    }
    return sources;
}

void cst_collection_summing(struct cst_core *core, uint32_t c, const struct cst_sources *sources,
                            uint64_t ticket, bool fused)
{
    struct cst_gradient *gradient = &core->chunks[c].gradient;

    /* A rank that went on without a gradient cannot contribute any more. */
    gradient->handed |= sources->ranks;
    gradient->added |= sources->ranks;
    gradient->reduce_ticket = ticket;
    gradient->sum = CST_SUM_PARTIAL;
    if (fused) {
        gradient->row = CST_GRAD_ROW_NOT_STORED;
        return;
    }
    /* An fp32 row is complete only after the last contribution. */
    if (gradient->row != CST_GRAD_ROW_PARTIAL) {
        gradient->row = core->grad_fp32 ? CST_GRAD_ROW_PARTIAL : CST_GRAD_ROW_WHOLE;
    }
    gradient->version++;
}

void cst_collection_fused(struct cst_chunk *chunk)
{
    chunk->gradient.reduce_ticket = 0;
}

void cst_collection_summed(struct cst_core *core, const struct cst_flight *flight, bool ok)
{
    struct cst_gradient *gradient = &core->chunks[flight->chunk].gradient;

    gradient->reduce_ticket = 0;
    /* After a failure the contents of the row are unknown. */
    gradient->row = core->grad_fp32 || !ok ? CST_GRAD_ROW_PARTIAL : CST_GRAD_ROW_WHOLE;
    if (ok && flight->collection == core->collection.number) {
        gradient->spilled_rank = CST_NONE;
    }
}

void cst_collection_spilling(struct cst_chunk *chunk, uint32_t rank, uint64_t ticket)
{
    chunk->gradient.spill_ticket = ticket;
    chunk->gradient.spilled_rank = rank;
    chunk->gradient.row = CST_GRAD_ROW_PARTIAL;
    chunk->gradient.version++;
}

void cst_collection_spilled(struct cst_chunk *chunk, bool kept)
{
    chunk->gradient.spill_ticket = 0;
    if (!kept) {
        chunk->gradient.spilled_rank = CST_NONE;
    }
}

void cst_collection_spill_failed(struct cst_part *part)
{
    part->spill_failed = true;
}

/* -- micro-batches --------------------------------------------------------------------------------
 */

/* The whole micro-batch is in the row: go on to the next one, and count what was already handed in
 * for it. */
static void begin_next_micro(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];

    chunk->gradient.micro++;
    chunk->gradient.handed = 0;
    chunk->gradient.added = 0;
    for (uint64_t rest = chunk->ranks; rest != 0; rest &= rest - 1) {
        uint32_t rank = (uint32_t)__builtin_ctzll(rest);

        chunk->gradient.handed |= (uint64_t)cst_collection_holds(core, c, rank) << rank;
    }
}

void cst_collection_complete(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];

    chunk->gradient.sum = CST_SUM_COMPLETE;
    if (chunk->gradient.row == CST_GRAD_ROW_PARTIAL) {
        chunk->gradient.row = CST_GRAD_ROW_WHOLE;
    }
    core->collection.n_reduced++;
}

/* True if the current micro-batch can be ended, after everything for it was added. A rank that
 * asked for the step can still cancel that. So, unless the next micro-batch is needed, this waits
 * for the step to close. */
static bool is_over(const struct cst_core *core, uint32_t c)
{
    return core->attempt.closing || core->schedule->elastic || all_went_on(core, c) ||
           later_ones_wait(core, c);
}

enum cst_collection_next cst_collection_next(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];

    if (!chunk->has_states || chunk->gradient.sum == CST_SUM_COMPLETE ||
        chunk->gradient.reduce_ticket != 0 || chunk->gradient.spill_ticket != 0) {
        return CST_COLLECTION_WAITS;
    }
    if (chunk->weight.rows == CST_ROWS_CARRIED) {
        return CST_COLLECTION_COMPLETE; /* The update that also made the sum is done. */
    }
    if (core->attempt.phase != CST_PHASE_RUNNING) {
        return CST_COLLECTION_WAITS;
    }
    while (chunk->gradient.micro < cst_collection_addends(core, c)) {
        if (!all_are_known(core, c)) {
            return CST_COLLECTION_WAITS;
        }
        if ((chunk->gradient.handed & ~chunk->gradient.added) != 0) {
            return CST_COLLECTION_SUM;
        }
        if (!is_over(core, c)) {
            return CST_COLLECTION_WAITS;
        }
        begin_next_micro(core, c);
    }
    return chunk->gradient.sum == CST_SUM_NOTHING ? CST_COLLECTION_ZERO : CST_COLLECTION_COMPLETE;
}

/* -- the end of a collection ----------------------------------------------------------------- */

static void drop_moving(struct cst_pool *pool, uint32_t head)
{
    for (uint32_t b = head; b != CST_NONE; b = pool->blocks[b].next) {
        cst_block_drop(pool, b);
    }
}

static void drop_part(struct cst_pool *pool, struct cst_part *part)
{
    uint32_t b;

    part->spill_failed = false;
    while ((b = part->head[CST_BLOCK_PENDING]) != CST_NONE) {
        cst_block_move(pool, b, CST_BLOCK_FREE);
    }
    drop_moving(pool, part->head[CST_BLOCK_SPILLING]);
    drop_moving(pool, part->head[CST_BLOCK_REDUCING]);
}

/* The chunk already has its update of the step, which is not committed: it collects nothing. */
static void carry_on(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];

    chunk->gradient.micro = cst_collection_addends(core, c);
    chunk->gradient.sum = chunk->gradient.reduce_ticket == 0 ? CST_SUM_COMPLETE : CST_SUM_PARTIAL;
    core->collection.n_reduced += chunk->gradient.sum == CST_SUM_COMPLETE;
    cst_weight_row_go(core, c, CST_ROWS_CARRIED);
}

void cst_collection_drop(struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        struct cst_pool *pool = &core->ranks[rank].pool;

        for (uint32_t k = 0; k < pool->n_parts; k++) {
            drop_part(pool, &pool->parts[k]);
        }
        core->ranks[rank].micro = 0;
    }
    core->collection.n_reduced = 0;
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        struct cst_chunk *chunk = &core->chunks[c];

        cst_kept_gradients_drop(core, c);
        chunk->gradient.micro = 0;
        chunk->gradient.n_handed = 0;
        chunk->gradient.handed = 0;
        chunk->gradient.added = 0;
        chunk->gradient.sum = CST_SUM_NOTHING;
        chunk->gradient.spilled_rank = CST_NONE;
        if (cst_weight_row_is_early(&chunk->weight)) {
            carry_on(core, c);
        }
    }
    core->collection.number++;
}

void cst_collection_next_micro(struct cst_core *core, uint32_t rank)
{
    core->ranks[rank].micro++;
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        if (core->chunks[c].weight.rows == CST_ROWS_CARRIED) {
            /* A chunk with its update collects nothing: the rank may hand in again for the next
             * micro-batch. */
            core->chunks[c].gradient.handed &= ~(1ull << rank);
        }
    }
}

void cst_collection_drop_open(struct cst_core *core, uint32_t rank)
{
    struct cst_pool *pool = &core->ranks[rank].pool;

    for (uint32_t k = 0; k < pool->n_parts; k++) {
        uint32_t b;

        while ((b = pool->parts[k].head[CST_BLOCK_OPEN]) != CST_NONE) {
            cst_block_move(pool, b, CST_BLOCK_FREE);
        }
    }
}

/* -- requests of ranks ------------------------------------------------------------------------ */

/* Drop a gradient that is handed in again. */
static void drop_gradient(struct cst_core *core, const struct cst_event *event, uint32_t b)
{
    struct cst_rank *r = &core->ranks[event->rank];

    cst_block_move(&r->pool, b, CST_BLOCK_FREE);
    core->collection.n_dropped++;
    (void)cst_core_reply(core, event->tag);
}

/* Take the gradient in block @b of the rank for the micro-batch, or addend, @micro. */
static void take_gradient(struct cst_core *core, const struct cst_event *event, uint32_t b,
                          uint32_t micro)
{
    struct cst_gradient *gradient = &core->chunks[event->chunk].gradient;

    cst_block_hand_in(&core->ranks[event->rank].pool, b, micro);
    if (gradient->micro == micro) {
        gradient->handed |= 1ull << event->rank;
    }
    (void)cst_core_reply(core, event->tag);
    cst_fact_gradient(&core->facts, event->chunk);
    if (core->grad_fp32) {
        /* Contributions after this rank's in rank order may now be added. */
        cst_collection_wake(core);
    }
}

/* Take or drop the gradient that a rank of a dispatched job hands in. */
static void hand_in_addend(struct cst_core *core, const struct cst_event *event, uint32_t b)
{
    struct cst_gradient *gradient = &core->chunks[event->chunk].gradient;
    uint32_t addend = core->schedule->addend_of(core, event->chunk, event->rank);

    if (addend == CST_NONE) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "rank %" PRIu32 " has no unit that contributes to chunk %" PRIu32,
                        event->rank, event->chunk);
    } else if (addend < gradient->n_handed) {
        drop_gradient(core, event, b); /* A rank that is gone has handed in the same bits. */
    } else {
        gradient->n_handed = addend + 1;
        take_gradient(core, event, b, addend);
    }
}

void cst_collection_hand_in(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *r = &core->ranks[event->rank];
    struct cst_chunk *chunk = &core->chunks[event->chunk];
    uint32_t b = r->pool.grad_of[event->chunk];

    if (b == CST_NONE || r->pool.blocks[b].state != CST_BLOCK_OPEN ||
        r->pool.blocks[b].generation != event->generation) {
        cst_core_refuse(core, event->tag, CST_ESTALE,
                        "rank %" PRIu32 " has no lease %" PRIu64 " on a gradient of chunk %" PRIu32,
                        event->rank, event->generation, event->chunk);
        return;
    }
    cst_rank_begin(&core->ranks[event->rank], CST_BEGUN_WRITING);
    if (core->schedule->elastic) {
        hand_in_addend(core, event, b);
    } else if (chunk->weight.rows == CST_ROWS_CARRIED) {
        chunk->gradient.handed |= 1ull << event->rank;
        drop_gradient(core, event, b); /* The chunk was already updated in this step. */
    } else {
        take_gradient(core, event, b, r->micro);
    }
}
