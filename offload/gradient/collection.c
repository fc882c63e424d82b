/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients until they are summed: contributions, addends, reductions.
 *
 *   handed in by a rank ->  PENDING in its pool --(the pool is short)--> spill.c
 *   all addends of a sum -> REDUCE into the grad row --(last sum)--> commit.c
 *
 * A chunk collects the addends of one sum at a time. What a rank that is ahead hands in for a later
 * one stays PENDING until its turn comes. The grad row belongs to the last UPDATE until that is
 * done, so commands that write to the row wait for it. */
#include "offload/gradient/collection.h"

#include "offload/core/core_state.h"
#include "offload/gradient/kept_gradients.h"

#include <inttypes.h>

int cst_collection_open(struct cst_core *core)
{
    return cst_sets_open(&core->collection.again, core->n_chunks, core->world);
}

void cst_collection_close(struct cst_core *core)
{
    cst_sets_close(&core->collection.again);
}

/* -- addends ---------------------------------------------------------------------------------- */

/* The addend of chunk @c that @rank has in a block from which no command reads; CST_NONE: none. */
static uint32_t pending(const struct cst_core *core, uint32_t c, uint32_t rank)
{
    const struct cst_pool *pool = &core->ranks[rank].pool;
    uint32_t b = pool->grad_of[c];

    return b != CST_NONE && pool->blocks[b].state == CST_BLOCK_PENDING ? pool->blocks[b].addend
                                                                       : CST_NONE;
}

/* The end of the sum to which @addend belongs. */
static uint32_t end_of(const struct cst_chunk *chunk, uint32_t addend)
{
    return addend - addend % chunk->n_in_sum + chunk->n_in_sum;
}

uint32_t cst_collection_first(const struct cst_core *core, uint32_t c)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    uint32_t next = chunk->gradient.next;
    uint32_t in_sum = next > 0 && chunk->gradient.reduce_ticket != 0 ? next - 1 : next;

    return in_sum - in_sum % chunk->n_in_sum;
}

bool cst_collection_holds(const struct cst_core *core, uint32_t c, uint32_t rank)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    uint32_t addend = pending(core, c, rank);

    return addend >= chunk->gradient.next &&
           addend < cst_collection_first(core, c) + chunk->n_in_sum;
}

/* True if @addend of chunk @c was handed in, or a sum has passed it by. */
static bool has_come(const struct cst_core *core, uint32_t c, uint32_t addend)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    uint32_t from;

    if (addend < chunk->gradient.next || addend == chunk->gradient.spilled) {
        return true;
    }
    from = core->schedule->contributor(core, c, addend);
    if (from != CST_NONE) {
        return pending(core, c, from) == addend;
    }
    CST_SET_EACH (rank, chunk->ranks) {
        if (pending(core, c, rank) == addend) {
            return true;
        }
    }
    return false;
}

bool cst_collection_is_known(const struct cst_core *core, uint32_t c, uint32_t addend)
{
    return has_come(core, c, addend) ||
           core->schedule->state(core, c, addend) != CST_ADDEND_EXPECTED;
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
    uint32_t next = chunk->gradient.next, end = end_of(chunk, next);
    struct cst_sources sources = {.end = next};

    while (sources.end < end && cst_collection_is_known(core, c, sources.end)) {
        sources.end++;
    }
    if (sources.end == next) {
        return sources;
    }
    CST_SET_EACH (rank, chunk->ranks) {
        uint32_t addend = pending(core, c, rank);

        if (addend >= next && addend < sources.end) {
            cst_set_add(&sources.blocks, rank);
        }
    }
    sources.spilled = chunk->gradient.spilled >= next && chunk->gradient.spilled < sources.end;
    return sources;
}

void cst_collection_summing(struct cst_core *core, uint32_t c, const struct cst_sources *sources,
                            uint64_t ticket, bool fused)
{
    struct cst_gradient *gradient = &core->chunks[c].gradient;

    /* A rank that went on without a gradient cannot contribute any more. */
    gradient->next = sources->end;
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
        gradient->spilled = CST_NONE;
    }
}

void cst_collection_spilling(struct cst_chunk *chunk, uint32_t addend, uint64_t ticket)
{
    chunk->gradient.spill_ticket = ticket;
    chunk->gradient.spilled = addend;
    chunk->gradient.row = CST_GRAD_ROW_PARTIAL;
    chunk->gradient.version++;
}

void cst_collection_spilled(struct cst_chunk *chunk, bool kept)
{
    chunk->gradient.spill_ticket = 0;
    if (!kept) {
        chunk->gradient.spilled = CST_NONE;
    }
}

void cst_collection_spill_failed(struct cst_part *part)
{
    part->spill_failed = true;
}

/* -- what is next ----------------------------------------------------------------------------- */

void cst_collection_complete(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];

    chunk->gradient.sum = CST_SUM_COMPLETE;
    if (chunk->gradient.row == CST_GRAD_ROW_PARTIAL) {
        chunk->gradient.row = CST_GRAD_ROW_WHOLE;
    }
    core->collection.n_reduced++;
}

/* True if a contribution to a later sum waits for the present one. */
static bool later_ones_wait(const struct cst_core *core, uint32_t c)
{
    CST_SET_EACH (rank, core->chunks[c].ranks) {
        if (pending(core, c, rank) != CST_NONE) {
            return true;
        }
    }
    return false;
}

/* True if the sum of chunk @c, of which no addend is left that has come, can be ended. A rank that
 * asked for the step can still cancel that. So, unless the next sum is needed, this waits for the
 * step to close. */
static bool is_over(const struct cst_core *core, uint32_t c)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    uint32_t end = end_of(chunk, chunk->gradient.next);

    if (later_ones_wait(core, c)) {
        return true;
    }
    for (uint32_t addend = chunk->gradient.next; addend < end; addend++) {
        if (core->schedule->state(core, c, addend) != CST_ADDEND_NEVER) {
            return false;
        }
    }
    return true;
}

enum cst_collection_next cst_collection_next(struct cst_core *core, uint32_t c,
                                             struct cst_sources *sources)
{
    struct cst_chunk *chunk = &core->chunks[c];
    struct cst_gradient *gradient = &chunk->gradient;

    if (!chunk->has_states || gradient->sum == CST_SUM_COMPLETE || gradient->reduce_ticket != 0 ||
        gradient->spill_ticket != 0) {
        return CST_COLLECTION_WAITS;
    }
    if (chunk->weight.rows == CST_ROWS_CARRIED) {
        return CST_COLLECTION_COMPLETE; /* The update that also made the sum is done. */
    }
    if (core->attempt.phase != CST_PHASE_RUNNING) {
        return CST_COLLECTION_WAITS;
    }
    *sources = (struct cst_sources){.end = gradient->next};
    while (gradient->next < chunk->n_addends) {
        *sources = cst_collection_sources(core, c);
        if (sources->end < end_of(chunk, gradient->next)) {
            return CST_COLLECTION_WAITS;
        }
        if (!cst_set_none(&sources->blocks) || sources->spilled) {
            return CST_COLLECTION_SUM;
        }
        if (!is_over(core, c)) {
            return CST_COLLECTION_WAITS;
        }
        gradient->next = sources->end;
    }
    return gradient->sum == CST_SUM_NOTHING ? CST_COLLECTION_ZERO : CST_COLLECTION_COMPLETE;
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

    chunk->gradient.next = chunk->n_addends;
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
    cst_sets_clear(&core->collection.again, 0, core->n_chunks);
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        struct cst_chunk *chunk = &core->chunks[c];

        cst_kept_gradients_drop(core, c);
        chunk->gradient.next = 0;
        chunk->gradient.sum = CST_SUM_NOTHING;
        chunk->gradient.spilled = CST_NONE;
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
        /* A chunk with its update collects nothing: the rank may hand in again for the next
         * micro-batch. */
        cst_sets_drop(&core->collection.again, c, rank);
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

bool cst_collection_admit_open(struct cst_core *core, const struct cst_event *event)
{
    const struct cst_chunk *chunk = &core->chunks[event->chunk];
    uint32_t addend = core->schedule->addend_of(core, event->chunk, event->rank);

    if (addend == CST_NONE) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "the gradient of chunk %" PRIu32
                        " is no part of what the rank runs now in step %" PRIu64,
                        event->chunk, core->step);
        return false;
    }
    if (!core->schedule->elastic &&
        (chunk->weight.rows == CST_ROWS_CARRIED
             ? cst_sets_has(&core->collection.again, event->chunk, event->rank)
             : has_come(core, event->chunk, addend))) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "gradient of chunk %" PRIu32 " was handed in already in step %" PRIu64,
                        event->chunk, core->step);
        return false;
    }
    return true;
}

/* Take the gradient in block @b of the rank as @addend. */
static void take_gradient(struct cst_core *core, const struct cst_event *event, uint32_t b,
                          uint32_t addend)
{
    cst_block_hand_in(&core->ranks[event->rank].pool, b, addend);
    (void)cst_core_reply(core, event->tag);
    cst_fact_gradient(&core->facts, event->chunk);
    if (core->grad_fp32) {
        /* Contributions after this one in the order of addends may now be added. */
        cst_collection_wake(core);
    }
}

/* Drop a gradient that is handed in again: by the rank, because the chunk was already updated in
 * this step, or after another rank, which is gone and has handed in the same bits. */
static void drop_gradient(struct cst_core *core, const struct cst_event *event, uint32_t b)
{
    cst_sets_add(&core->collection.again, event->chunk, event->rank);
    cst_block_move(&core->ranks[event->rank].pool, b, CST_BLOCK_FREE);
    core->collection.n_dropped++;
    (void)cst_core_reply(core, event->tag);
}

void cst_collection_hand_in(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *r = &core->ranks[event->rank];
    uint32_t b = r->pool.grad_of[event->chunk];
    uint32_t addend;

    if (b == CST_NONE || r->pool.blocks[b].state != CST_BLOCK_OPEN ||
        r->pool.blocks[b].generation != event->generation) {
        cst_core_refuse(core, event->tag, CST_ESTALE,
                        "rank %" PRIu32 " has no lease %" PRIu64 " on a gradient of chunk %" PRIu32,
                        event->rank, event->generation, event->chunk);
        return;
    }
    cst_rank_begin(r, CST_BEGUN_WRITING);
    addend = core->schedule->addend_of(core, event->chunk, event->rank);
    if (addend == CST_NONE) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "rank %" PRIu32 " has no unit that contributes to chunk %" PRIu32,
                        event->rank, event->chunk);
    } else if (core->chunks[event->chunk].weight.rows == CST_ROWS_CARRIED ||
               has_come(core, event->chunk, addend)) {
        drop_gradient(core, event, b);
    } else {
        take_gradient(core, event, b, addend);
    }
}
