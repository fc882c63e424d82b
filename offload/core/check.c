/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants of the core as a whole. For tests. */
#include "offload/books/chunk_update.h"
#include "offload/gradient/collection.h"
#include "offload/core/core_state.h"
#include "offload/books/exposure.h"
#include "offload/base/heap.h"
#include "offload/books/instant.h"
#include "offload/gradient/kept_gradients.h"
#include "offload/gradient/partials.h"
#include "offload/books/lookahead.h"
#include "offload/books/waiting.h"

#include <stdlib.h>

/* Number of requests in @queue. Each must say that it is there. */
static uint32_t count_queue(const struct cst_core *core, const struct cst_queue *queue,
                            enum cst_request_where where, uint32_t rank, const char **what)
{
    uint32_t n = 0;

    for (uint32_t i = queue->head; i != CST_NO_REQUEST; i = core->requests.v[i].next) {
        if (core->requests.v[i].where != where || core->requests.v[i].rank != rank ||
            ++n > core->requests.n) {
            *what = "a request is where it says it is";
            return n;
        }
        if (core->requests.v[i].next == CST_NO_REQUEST && queue->tail != i) {
            *what = "a queue knows its tail";
        }
    }
    return n;
}

static int by_tag(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static const char *check_tags(const struct cst_core *core)
{
    const struct cst_requests *requests = &core->requests;
    uint64_t *tags = calloc(requests->n + 1u, sizeof *tags);
    const char *what = NULL;
    uint32_t n = 0;

    if (tags == NULL) {
        return "memory for the check";
    }
    for (uint32_t i = 0; i < requests->capacity; i++) {
        if (requests->v[i].where != CST_REQUEST_UNUSED && n <= requests->n) {
            tags[n++] = requests->v[i].tag;
        }
    }
    if (n != requests->n) {
        what = "requests are counted";
    }
    qsort(tags, n, sizeof *tags, by_tag);
    for (uint32_t i = 1; i < n && what == NULL; i++) {
        if (tags[i] == tags[i - 1] && tags[i] != 0) {
            what = "a waiting tag is known once";
        }
    }
    free(tags);
    return what;
}

/* A STEP that waits only for engines has no deadline, nor has a fetch whose copy is in flight. */
static bool can_be_late(const struct cst_core *core, const struct cst_request *request)
{
    return request->deadline != CST_CORE_NEVER &&
           (request->where == CST_REQUEST_QUEUED || request->where == CST_REQUEST_SYNC ||
            request->where == CST_REQUEST_NEXT ||
            (request->where == CST_REQUEST_STEP && !core->attempt.closing));
}

static const char *check_requests(const struct cst_core *core)
{
    const char *what = NULL;
    uint32_t n = 0;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_rank *r = &core->ranks[rank];

        for (uint32_t k = 0; k < r->pool.n_parts; k++) {
            const struct cst_part *part = &r->pool.parts[k];

            n += count_queue(core, &part->demand, CST_REQUEST_QUEUED, rank, &what);
            n += count_queue(core, &part->ahead, CST_REQUEST_QUEUED, rank, &what);
        }
        for (uint32_t b = 0; b < r->pool.n_blocks; b++) {
            n += count_queue(core, &r->pool.blocks[b].waiters, CST_REQUEST_JOINED, rank, &what);
        }
        n += r->sync != CST_NO_REQUEST;
        n += r->step != CST_NO_REQUEST;
        n += r->next != CST_NO_REQUEST;
        if (r->next != CST_NO_REQUEST && (!r->joined || r->stepped)) {
            what = "a rank that waits for a unit takes part in the attempt";
        }
        if (r->step != CST_NO_REQUEST && !r->stepped) {
            what = "a rank that waits for a step has asked for it";
        }
    }
    for (uint32_t i = 0; i < core->requests.capacity; i++) {
        n += core->requests.v[i].where == CST_REQUEST_IO;
        if (can_be_late(core, &core->requests.v[i]) !=
            (core->requests.late_at[i] != CST_HEAP_OUT)) {
            what = "what can be late has a time";
        }
    }
    if (what == NULL && n != core->requests.n) {
        what = "a request is in one place";
    }
    if (what == NULL && !cst_heap_check(&core->requests.late)) {
        what = "deadlines are in order";
    }
    return what != NULL ? what : check_tags(core);
}

static bool is_flying(const struct cst_core *core, uint64_t ticket, enum cst_flight_kind kind)
{
    const struct cst_flight *f = cst_flights_find(&core->flights, ticket);

    return f != NULL && f->kind == kind;
}

static const char *check_block_tickets(const struct cst_core *core)
{
    static const enum cst_flight_kind moved_by[CST_BLOCK_STATES] = {
        [CST_BLOCK_LOADING] = CST_FLIGHT_LOAD,
        [CST_BLOCK_SPILLING] = CST_FLIGHT_SPILL,
        [CST_BLOCK_REDUCING] = CST_FLIGHT_REDUCE,
    };

    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_pool *pool = &core->ranks[rank].pool;

        for (uint32_t b = 0; b < pool->n_blocks; b++) {
            const struct cst_block *block = &pool->blocks[b];

            enum cst_flight_kind kind = moved_by[block->state];

            if (pool->worker_copies && block->state == CST_BLOCK_LOADING) {
                kind = CST_FLIGHT_UPDATE;
            }
            if (block->state == CST_BLOCK_REDUCING &&
                block->ticket == core->chunks[block->chunk].update.ticket) {
                kind = CST_FLIGHT_UPDATE; /* An update that also makes the sum. */
            }
            if (block->n_pieces > 0) {
                continue; /* The block's own piece may have arrived before those of its peers. */
            }
            if (block->ticket != 0 && !is_flying(core, block->ticket, kind)) {
                return "a block moves by a command that is under way";
            }
        }
    }
    return NULL;
}

static const char *check_flights(const struct cst_core *core)
{
    uint32_t n_writes = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < core->flights.n_slots; i++) {
        const struct cst_flight *f = &core->flights.slots[i];

        n += f->ticket != 0;
        n_writes += f->ticket != 0 && f->kind == CST_FLIGHT_WRITE;
        if (f->ticket != 0 && f->kind == CST_FLIGHT_REDUCE &&
            core->chunks[f->chunk].gradient.reduce_ticket != f->ticket) {
            return "a chunk has one reduction under way";
        }
        if (f->ticket != 0 && f->kind == CST_FLIGHT_SPILL &&
            core->chunks[f->chunk].gradient.spill_ticket != f->ticket) {
            return "a chunk has one gradient being staged";
        }
        if (f->ticket > core->out.last_ticket) {
            return "tickets count up";
        }
    }
    if (n != core->flights.n || n_writes != core->writes.n) {
        return "commands under way are counted";
    }
    return NULL;
}

/* True if another rank than @rank has @addend of @c in a block. */
static bool is_elsewhere(const struct cst_core *core, uint32_t c, uint32_t rank, uint32_t addend)
{
    for (uint32_t other = 0; other < core->world; other++) {
        const struct cst_pool *pool = &core->ranks[other].pool;
        uint32_t b = pool->grad_of[c];

        if (other != rank && b != CST_NONE && pool->blocks[b].state == CST_BLOCK_PENDING &&
            pool->blocks[b].addend == addend) {
            return true;
        }
    }
    return false;
}

/* An addend that was handed in and not added yet is either in a block or in the grad row. */
static const char *check_contribution(const struct cst_core *core, uint32_t c, uint32_t rank)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    const struct cst_pool *pool = &core->ranks[rank].pool;
    uint32_t b = pool->grad_of[c];
    enum cst_block_state state = b == CST_NONE ? CST_BLOCK_FREE : pool->blocks[b].state;
    uint32_t addend = b == CST_NONE ? CST_NONE : pool->blocks[b].addend;

    if (chunk->weight.rows == CST_ROWS_CARRIED) {
        return state == CST_BLOCK_FREE || state == CST_BLOCK_OPEN
                   ? NULL
                   : "nothing is kept of what is handed in again";
    }
    if (state == CST_BLOCK_PENDING &&
        (addend == chunk->gradient.spilled || is_elsewhere(core, c, rank, addend))) {
        return "a contribution is in one place";
    }
    if (state == CST_BLOCK_SPILLING && !pool->blocks[b].dropped &&
        addend != chunk->gradient.spilled) {
        return "a contribution that leaves its block is known to be in the grad row";
    }
    if (core->schedule->by_rank && cst_collection_holds(core, c, rank) &&
        !cst_sets_has(&core->collection.come, c, rank)) {
        return "what has come is counted";
    }
    if (state == CST_BLOCK_PENDING && addend < chunk->gradient.next) {
        return "a contribution is added once";
    }
    if (state == CST_BLOCK_PENDING && addend >= chunk->n_addends) {
        return "a contribution is one of the step";
    }
    if (state == CST_BLOCK_PENDING && core->schedule->by_rank &&
        (core->schedule->addend_of(core, c, rank) < addend ||
         (core->schedule->addend_of(core, c, rank) - addend) % chunk->n_in_sum != 0)) {
        return "a rank has contributed what it is to contribute, and nothing that is to come";
    }
    /* A rank that does a unit again opens gradients that nobody needs. */
    if (chunk->gradient.sum == CST_SUM_COMPLETE && state != CST_BLOCK_FREE &&
        !(core->schedule->elastic && state == CST_BLOCK_OPEN)) {
        return "a reduced chunk has no contributions left";
    }
    return NULL;
}

/* Ranks outside the group have nothing of the chunk, and no rank has a gradient of a frozen
 * chunk. */
static const char *check_group(const struct cst_core *core, uint32_t c)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    struct cst_set again, come;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_pool *pool = &core->ranks[rank].pool;
        bool member = cst_set_has(chunk->ranks, rank);

        if ((pool->weight_of[c] != CST_NONE && !member) ||
            (pool->grad_of[c] != CST_NONE && (!member || !chunk->has_states))) {
            return "only its group has blocks of a chunk";
        }
    }
    again = cst_sets_get(&core->collection.again, c);
    come = cst_sets_get(&core->collection.come, c);
    if (!cst_set_within(&again, chunk->ranks) || !cst_set_within(&come, chunk->ranks)) {
        return "only its group contributes to a chunk";
    }
    if (!chunk->has_states &&
        (!cst_chunk_update_is_over(&chunk->update) || chunk->gradient.reduce_ticket != 0 ||
         chunk->gradient.spill_ticket != 0 || chunk->gradient.sum == CST_SUM_COMPLETE ||
         chunk->gradient.next != 0)) {
        return "a frozen chunk has no gradient and no update";
    }
    return NULL;
}

/* Addends are added in their order. */
static const char *check_sum(const struct cst_core *core, uint32_t c)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    const struct cst_gradient *gradient = &chunk->gradient;
    bool over = cst_layout_grad_over_weight(core->layout, &core->layout->chunks[c]);

    if (gradient->first > gradient->next || gradient->next - gradient->first > chunk->n_in_sum) {
        return "a chunk collects one sum at a time";
    }
    if (gradient->next % chunk->n_in_sum != 0 && !core->adds_singly) {
        return "a bf16 row takes a sum whole";
    }
    if (gradient->spilled != CST_NONE &&
        (core->adds_singly || gradient->spilled < gradient->next) && gradient->reduce_ticket == 0) {
        return "a staged contribution is overwritten by its sum alone";
    }
    if (over && chunk->weight.holds != CST_HOLDS_GRADIENT &&
        (chunk->gradient.reduce_ticket != 0 || chunk->gradient.spill_ticket != 0 ||
         chunk->gradient.spilled != CST_NONE || chunk->gradient.sum != CST_SUM_NOTHING)) {
        return "weights are not taken to be where a gradient is";
    }
    if (chunk->weight.holds != CST_HOLDS_WEIGHTS && (!over || !chunk->has_states)) {
        return "only gradients that have no row take another one";
    }
    if (gradient->next > chunk->n_addends ||
        (gradient->sum == CST_SUM_COMPLETE && gradient->next < chunk->n_addends)) {
        return "a sum is complete after the last addend";
    }
    return NULL;
}

/* Which weight row is read, which one was written, and which part of that is committed. */
static const char *check_rows(const struct cst_core *core, uint32_t c)
{
    const struct cst_chunk *chunk = &core->chunks[c];

    if ((chunk->weight.second || chunk->weight.rows != CST_ROWS_CURRENT) &&
        (!core->two_weights || !chunk->has_states)) {
        return "one weight row is read and written";
    }
    if ((chunk->weight.rows == CST_ROWS_DELAYED && core->policy.overlap != CST_OVERLAP_DELAYED) ||
        (cst_weight_row_is_early(&chunk->weight) && core->policy.overlap != CST_OVERLAP_EARLY)) {
        return "updates are as early, or as late, as was asked";
    }
    if (chunk->update.weight_ticket != 0 &&
        !is_flying(core, chunk->update.weight_ticket, CST_FLIGHT_UPDATE)) {
        return "fetches wait for an update that is under way";
    }
    if (chunk->update.weight_ticket > chunk->update.ticket && chunk->update.ticket != 0) {
        return "no update overtakes one before it";
    }
    return NULL;
}

static const char *check_chunk(const struct cst_core *core, uint32_t c)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    const char *what = check_group(core, c);

    if (what == NULL) {
        what = check_sum(core, c);
    }
    if (what == NULL) {
        what = check_rows(core, c);
    }
    if (chunk->update.ticket != 0 && !is_flying(core, chunk->update.ticket, CST_FLIGHT_UPDATE)) {
        return "an update is under way";
    }
    for (uint32_t i = 0; i < CST_UPDATE_APART; i++) {
        if (chunk->update.states_tickets[i] != 0 &&
            !is_flying(core, chunk->update.states_tickets[i], CST_FLIGHT_STATES)) {
            return "states come down from a device reservation";
        }
    }
    if (chunk->gradient.reduce_ticket != 0 &&
        !is_flying(core, chunk->gradient.reduce_ticket,
                   chunk->gradient.reduce_ticket == chunk->update.ticket ? CST_FLIGHT_UPDATE
                                                                         : CST_FLIGHT_REDUCE)) {
        return "a reduction is under way";
    }
    if (chunk->gradient.spill_ticket != 0 &&
        !is_flying(core, chunk->gradient.spill_ticket, CST_FLIGHT_SPILL) &&
        !is_flying(core, chunk->gradient.spill_ticket, CST_FLIGHT_PARTIAL)) {
        return "a gradient is being staged";
    }
    if (chunk->writes.ticket != 0 && !is_flying(core, chunk->writes.ticket, CST_FLIGHT_WRITE)) {
        return "a write is under way";
    }
    for (uint32_t rank = 0; rank < core->world && what == NULL; rank++) {
        what = check_contribution(core, c, rank);
    }
    return what;
}

static const char *check_phase(const struct cst_core *core)
{
    uint32_t n_reduced = 0;
    uint32_t n_ahead = 0;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_rank *r = &core->ranks[rank];

        if (r->joined &&
            (core->attempt.phase != CST_PHASE_RUNNING || r->state != CST_RANK_ATTACHED)) {
            return "who takes part is attached";
        }
        if (r->micro >= core->micro_batches ||
            (core->attempt.phase != CST_PHASE_RUNNING && r->micro != 0)) {
            return "a rank is in a micro-batch of the step that runs";
        }
        if (core->attempt.closing && !r->stepped && (r->joined || !core->schedule->elastic)) {
            return "a step closes when all ranks have asked";
        }
        if (core->attempt.phase != CST_PHASE_RUNNING &&
            (r->stepped || r->prepared || r->next != CST_NO_REQUEST || cst_waiting_for_block(r))) {
            return "nothing but sync waits between attempts";
        }
        if (r->state != CST_RANK_HUNG_UP && r->state != CST_RANK_ATTACHED &&
            cst_pool_count(&r->pool, CST_BLOCK_QUARANTINED) > 0) {
            return "a quarantine ends with the process";
        }
    }
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        n_reduced += core->chunks[c].gradient.sum == CST_SUM_COMPLETE;
        n_ahead += cst_weight_row_is_early(&core->chunks[c].weight);
    }
    if (n_ahead != core->early.n) {
        return "chunks that are ahead are counted";
    }
    if (n_reduced != core->collection.n_reduced) {
        return "reduced chunks are counted";
    }
    if (core->attempt.interrupt_later && !core->attempt.closing) {
        return "an interruption waits for a step that closes";
    }
    return NULL;
}

const char *cst_core_check(const struct cst_core *core)
{
    const char *what = NULL;

    for (uint32_t rank = 0; rank < core->world && what == NULL; rank++) {
        what = cst_pool_check(&core->ranks[rank].pool, core->n_chunks);
        if (what == NULL) {
            what = cst_lookahead_check(&core->ranks[rank]);
        }
    }
    for (uint32_t c = 0; c < core->n_chunks && what == NULL; c++) {
        what = check_chunk(core, c);
    }
    if (what == NULL) {
        what = check_requests(core);
    }
    if (what == NULL) {
        what = check_block_tickets(core);
    }
    if (what == NULL) {
        what = check_flights(core);
    }
    if (what == NULL) {
        what = cst_exposure_check(core);
    }
    if (what == NULL) {
        what = cst_instant_check(core);
    }
    if (what == NULL) {
        what = cst_kept_gradients_check(core);
    }
    if (what == NULL) {
        what = cst_lent_memory_check(core);
    }
    if (what == NULL) {
        what = cst_partials_check(core);
    }
    if (what == NULL) {
        what = core->schedule->check_state(core);
    }
    return what != NULL ? what : check_phase(core);
}
