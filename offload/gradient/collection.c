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
#include "offload/gradient/partials.h"
#include "proto/reason.h"

#include <inttypes.h>

int cst_collection_open(struct cst_core *core)
{
    int status = cst_sets_open(&core->collection.again, core->n_chunks, core->world);

    return status == CST_OK ? cst_sets_open(&core->collection.come, core->n_chunks, core->world)
                            : status;
}

void cst_collection_close(struct cst_core *core)
{
    cst_sets_close(&core->collection.again);
    cst_sets_close(&core->collection.come);
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

/* The end of the sum that the chunk collects. */
static uint32_t end_of(const struct cst_chunk *chunk)
{
    return chunk->gradient.first + chunk->n_in_sum;
}

bool cst_collection_holds(const struct cst_core *core, uint32_t c, uint32_t rank)
{
    uint32_t addend = pending(core, c, rank);

    return addend != CST_NONE && addend >= core->chunks[c].gradient.next &&
           addend < end_of(&core->chunks[c]);
}

/* Word @w of the ranks below @end whose addend of the present sum has not come. */
static uint64_t lacking(const struct cst_core *core, uint32_t c, uint32_t w, uint32_t end)
{
    return cst_sets_lacks(&core->collection.come, c, core->chunks[c].ranks, w) &
           cst_set_word_below(w, end);
}

struct cst_set cst_collection_missing(const struct cst_core *core, uint32_t c, uint32_t end)
{
    uint32_t first = core->chunks[c].gradient.first;
    struct cst_set missing = {{0}};

    if (core->schedule->by_rank) {
        for (uint32_t w = 0; w * CST_SET_WORD < end; w++) {
            uint64_t word = lacking(core, c, w, end);

            missing.words[w] = word == 0 ? 0 : core->schedule->expected(core, c, first, w, word);
        }
    }
    return missing;
}

uint32_t cst_collection_first_missing(const struct cst_core *core, uint32_t c, uint32_t end)
{
    const struct cst_chunk *chunk = &core->chunks[c];

    for (uint32_t w = 0; core->schedule->by_rank && w * CST_SET_WORD < end; w++) {
        uint64_t word = lacking(core, c, w, end);

        for (; word != 0; word &= word - 1) {
            uint32_t rank = w * CST_SET_WORD + (uint32_t)__builtin_ctzll(word);

            if (core->schedule->state(core, c, chunk->gradient.first, rank) ==
                CST_ADDEND_EXPECTED) {
                return rank;
            }
        }
    }
    return CST_SET_MAX;
}

/* True if any rank has @addend of chunk @c in a block. */
static bool is_pending(const struct cst_core *core, uint32_t c, uint32_t addend)
{
    CST_SET_EACH (rank, core->chunks[c].ranks) {
        if (pending(core, c, rank) == addend) {
            return true;
        }
    }
    return false;
}

/* True if @addend of chunk @c, which @rank contributes, was handed in, or a sum has passed it by.
 */
static bool has_come(const struct cst_core *core, uint32_t c, uint32_t addend, uint32_t rank)
{
    const struct cst_gradient *gradient = &core->chunks[c].gradient;

    return addend < gradient->next || addend == gradient->spilled ||
           (core->schedule->by_rank ? pending(core, c, rank) == addend
                                    : is_pending(core, c, addend));
}

void cst_collection_wake(struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        cst_pool_wake(&core->ranks[rank].pool);
    }
}

/* -- sums and spills -------------------------------------------------------------------------- */

/* The first addend of chunk @c from its next one on that may still come, or the end of the sum. */
static uint32_t end_of_known(const struct cst_core *core, uint32_t c)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    uint32_t next = chunk->gradient.next;

    if (core->schedule->by_rank) {
        uint32_t rank = cst_collection_first_missing(core, c, core->world);

        return rank == CST_SET_MAX
                   ? end_of(chunk)
                   : chunk->gradient.first + cst_set_count_below(chunk->ranks, rank);
    }
    return has_come(core, c, next, CST_NONE) ||
                   core->schedule->state(core, c, next, CST_NONE) != CST_ADDEND_EXPECTED
               ? end_of(chunk)
               : next;
}

/* The addends of chunk @c from its next one to before @end, of as many as one command adds. */
static struct cst_sources find_sources(const struct cst_core *core, uint32_t c, uint32_t end)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    uint32_t next = chunk->gradient.next;
    struct cst_sources sources = {
        .end = end, .spilled = chunk->gradient.spilled >= next && chunk->gradient.spilled < end};

    uint32_t n = 0;

    CST_SET_EACH (rank, chunk->ranks) {
        uint32_t addend = pending(core, c, rank);

        if (addend < next || addend >= end) {
            continue;
        }
        if (n++ == CST_COMMAND_MAX_SRC ||
            !cst_partials_same_block(core, c, rank,
                                     n > 1 ? cst_set_first(&sources.blocks) : rank)) {
            sources.end = addend; /* The rest is added to the sum of these, or to another one. */
            break;
        }
        cst_set_add(&sources.blocks, rank);
    }
    return sources;
}

struct cst_sources cst_collection_sources(const struct cst_core *core, uint32_t c)
{
    return find_sources(core, c, end_of_known(core, c));
}

/* The addends of the present sum up to @end have come, or never will. */
static void take_as_come(struct cst_core *core, uint32_t c, uint32_t end)
{
    uint32_t n = end - core->chunks[c].gradient.first;

    CST_SET_EACH (rank, core->chunks[c].ranks) {
        if (n-- == 0) {
            return;
        }
        cst_sets_add(&core->collection.come, c, rank);
    }
}

/* Begin the sum after the last one, and count what was already handed in for it. */
static void begin_sum(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];

    chunk->gradient.first = chunk->gradient.next;
    cst_sets_clear(&core->collection.come, c, 1);
    CST_SET_EACH (rank, chunk->ranks) {
        if (cst_collection_holds(core, c, rank)) {
            cst_sets_add(&core->collection.come, c, rank);
        }
    }
}

/* True if a sum that is made here is not yet all of the gradient. */
static bool in_parts(const struct cst_core *core)
{
    return core->adds_singly || core->partials.on;
}

void cst_collection_summing(struct cst_core *core, uint32_t c, const struct cst_sources *sources,
                            uint64_t ticket, bool fused)
{
    struct cst_gradient *gradient = &core->chunks[c].gradient;

    /* A rank that went on without a gradient cannot contribute any more. */
    take_as_come(core, c, sources->end);
    gradient->next = sources->end;
    gradient->reduce_ticket = ticket;
    gradient->sum = CST_SUM_PARTIAL;
    if (fused) {
        gradient->row = CST_GRAD_ROW_NOT_STORED;
        return;
    }
    /* An fp32 row is complete only after the last contribution, or after the last partial. */
    if (gradient->row != CST_GRAD_ROW_PARTIAL) {
        gradient->row = in_parts(core) ? CST_GRAD_ROW_PARTIAL : CST_GRAD_ROW_WHOLE;
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
    gradient->row = in_parts(core) || !ok ? CST_GRAD_ROW_PARTIAL : CST_GRAD_ROW_WHOLE;
    if (ok && flight->collection == core->collection.number) {
        gradient->spilled = CST_NONE;
    }
}

void cst_collection_adding(struct cst_core *core, uint32_t c, uint64_t ticket)
{
    core->chunks[c].gradient.reduce_ticket = ticket;
    core->chunks[c].gradient.sum = CST_SUM_PARTIAL;
    core->chunks[c].gradient.row = CST_GRAD_ROW_PARTIAL;
    core->chunks[c].gradient.version++;
}

void cst_collection_replacing(struct cst_core *core, uint32_t c, uint64_t ticket)
{
    core->chunks[c].gradient.spill_ticket = ticket;
    core->chunks[c].gradient.row = CST_GRAD_ROW_PARTIAL;
    core->chunks[c].gradient.version++;
}

void cst_collection_replaced(struct cst_chunk *chunk, bool ok)
{
    chunk->gradient.spill_ticket = 0;
    chunk->gradient.row = ok ? CST_GRAD_ROW_WHOLE : CST_GRAD_ROW_PARTIAL;
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
    uint32_t first = chunk->gradient.first;

    if (later_ones_wait(core, c)) {
        return true;
    }
    if (!core->schedule->by_rank) {
        return core->schedule->state(core, c, first, CST_NONE) == CST_ADDEND_NEVER;
    }
    CST_SET_EACH (rank, chunk->ranks) {
        if (!cst_sets_has(&core->collection.come, c, rank) &&
            core->schedule->state(core, c, first, rank) != CST_ADDEND_NEVER) {
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
    if (gradient->next == end_of(chunk)) {
        begin_sum(core, c); /* The last command of the sum before is done. */
    }
    while (gradient->next < chunk->n_addends) {
        uint32_t end = end_of_known(core, c);

        if (end < end_of(chunk)) {
            return CST_COLLECTION_WAITS;
        }
        *sources = find_sources(core, c, end);
        if (!cst_set_none(&sources->blocks) || sources->spilled) {
            return CST_COLLECTION_SUM;
        }
        if (!is_over(core, c)) {
            return CST_COLLECTION_WAITS;
        }
        gradient->next = sources->end;
        begin_sum(core, c);
    }
    return gradient->sum == CST_SUM_NOTHING && !core->partials.on ? CST_COLLECTION_ZERO
                                                                  : CST_COLLECTION_COMPLETE;
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

    chunk->gradient.next = chunk->gradient.first = chunk->n_addends;
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
    cst_sets_clear(&core->collection.come, 0, core->n_chunks);
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        struct cst_chunk *chunk = &core->chunks[c];

        cst_kept_gradients_drop(core, c);
        chunk->gradient.next = 0;
        chunk->gradient.first = 0;
        chunk->gradient.sum = CST_SUM_NOTHING;
        chunk->gradient.spilled = CST_NONE;
        if (cst_weight_row_is_early(&chunk->weight)) {
            carry_on(core, c);
        }
    }
    core->collection.number++;
    cst_partials_drop(core);
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
             : has_come(core, event->chunk, addend, event->rank))) {
        struct cst_err err;

        (void)cst_err_give_reason(&err, CST_REASON_HANDED_IN,
                                  cst_err_set(&err, CST_EINVAL,
                                              "gradient of chunk %" PRIu32
                                              " was handed in already in step %" PRIu64,
                                              event->chunk, core->step));
        cst_core_refuse_err(core, event->tag, &err);
        return false;
    }
    return true;
}

/* Take the gradient in block @b of the rank as @addend. */
static void take_gradient(struct cst_core *core, const struct cst_event *event, uint32_t b,
                          uint32_t addend)
{
    cst_block_hand_in(&core->ranks[event->rank].pool, b, addend);
    if (core->schedule->by_rank && addend < end_of(&core->chunks[event->chunk])) {
        cst_sets_add(&core->collection.come, event->chunk, event->rank);
    }
    (void)cst_core_reply(core, event->tag);
    cst_fact_gradient(&core->facts, event->chunk);
    if (core->adds_singly) {
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
               has_come(core, event->chunk, addend, event->rank)) {
        drop_gradient(core, event, b);
    } else {
        take_gradient(core, event, b, addend);
    }
}
