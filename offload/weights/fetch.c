/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches: granted at once, waiting for a load, or waiting for a block.
 *
 * A fetch without a block waits in the queue of its rank and size class. Fetches that a worker
 * waits for go before fetches ahead. A rank waits only for its own blocks; those with gradients may
 * wait for other ranks (drift.c). */
#include "offload/weights/fetch.h"

#include "offload/gradient/collection.h"
#include "offload/core/core_state.h"
#include "offload/weights/eviction.h"
#include "offload/weights/load.h"
#include "offload/books/lookahead.h"
#include "offload/gradient/drift.h"
#include "offload/weights/prefetch.h"
#include "offload/gradient/spill.h"
#include "offload/books/waiting.h"
#include "offload/gradient/lent_memory.h"

#include <inttypes.h>

/* -- places --------------------------------------------------------------------------------- */

static void join(struct cst_core *core, uint32_t i, uint32_t rank, uint32_t b)
{
    /* Only an engine keeps the fetch waiting now, so it has no deadline. */
    cst_requests_join(&core->requests, i, b);
    cst_block_await(&core->ranks[rank].pool, b, &core->requests, i);
}

/* Answer request @i, which is in no queue, or let it wait for a load. False: it needs a block and
 * there is none. */
static bool place_weight(struct cst_core *core, uint32_t i)
{
    struct cst_request *request = &core->requests.v[i];
    struct cst_pool *pool = &core->ranks[request->rank].pool;
    uint32_t b = pool->weight_of[request->chunk];

    /* Weights that are being written are loaded after the last WRITE. */
    if (b == CST_NONE && core->chunks[request->chunk].writes.n > 0) {
        return false;
    }
    if (b == CST_NONE) {
        b = cst_eviction_take(core, request->rank, CST_BLOCK_LOADING, request->chunk,
                              CST_VICTIM_ANY);
        if (b == CST_NONE) {
            return false;
        }
        cst_load_weights(core, request->rank, request->chunk, b,
                         request->ahead ? CST_PRIORITY_PREFETCH : CST_PRIORITY_DEMAND);
    }
    if (pool->blocks[b].state == CST_BLOCK_RESIDENT) {
        cst_waiting_answer(core, i, b, pool->blocks[b].leases > 0);
    } else {
        join(core, i, request->rank, b);
    }
    return true;
}

static bool place_grad(struct cst_core *core, uint32_t i)
{
    struct cst_request *request = &core->requests.v[i];
    struct cst_pool *pool = &core->ranks[request->rank].pool;
    uint32_t b = pool->grad_of[request->chunk];
    bool again = b != CST_NONE;

    /* The block holds a contribution to an earlier micro-batch. */
    if (again && pool->blocks[b].state != CST_BLOCK_OPEN) {
        return false;
    }
    if (!again) {
        b = cst_eviction_take(core, request->rank, CST_BLOCK_OPEN, request->chunk, CST_VICTIM_ANY);
        if (b == CST_NONE) {
            return false;
        }
        cst_lookahead_opened(pool, request->chunk);
    }
    cst_waiting_answer(core, i, b, again);
    return true;
}

static bool place(struct cst_core *core, uint32_t i)
{
    return core->requests.v[i].kind == CST_EV_FETCH_GRAD ? place_grad(core, i)
                                                         : place_weight(core, i);
}

/* -- queues --------------------------------------------------------------------------------- */

/* Begin a fetch of contents that are not in a block: at once if no fetch waits, else after those.
 * @coming: their copy is under way already. */
static void begin(struct cst_core *core, const struct cst_event *event, bool coming)
{
    struct cst_rank *rank = &core->ranks[event->rank];
    const struct cst_part *part = cst_pool_part(&rank->pool, event->chunk);
    uint32_t i = cst_requests_add(&core->requests, event, CST_REQUEST_QUEUED);
    bool first = !core->pause.holds && cst_queue_empty(&part->demand) &&
                 (!event->ahead || cst_queue_empty(&part->ahead));

    core->requests.v[i].coming = coming;
    if (first && place(core, i)) {
        return;
    }
    rank->waits++;
    cst_waiting_enqueue(core, i);
    /* The fetch may be able to join a load, or a gradient may be spilled to free a block for it. */
    cst_pool_wake(&rank->pool);
}

/* True if the fetch waits only for the sum of the gradient that the rank handed in last, not for a
 * block. */
static bool waits_for_itself(const struct cst_core *core, const struct cst_request *request)
{
    const struct cst_pool *pool = &core->ranks[request->rank].pool;
    uint32_t b = pool->grad_of[request->chunk];

    return request->kind == CST_EV_FETCH_GRAD && b != CST_NONE &&
           pool->blocks[b].state != CST_BLOCK_OPEN;
}

/* Serve the fetches of @queue in order. @n_short: fetches so far that lack a block; after the first
 * of them only fetches that need no block are served. Returns the new number. */
static uint32_t serve(struct cst_core *core, struct cst_queue *queue, uint32_t n_short)
{
    struct cst_queue waiting = *queue;
    uint32_t i;

    cst_queue_init(queue);
    while ((i = cst_queue_pop(&core->requests, &waiting)) != CST_NO_REQUEST) {
        const struct cst_request *request = &core->requests.v[i];
        const struct cst_pool *pool = &core->ranks[request->rank].pool;
        const uint32_t *of = request->kind == CST_EV_FETCH_GRAD ? pool->grad_of : pool->weight_of;

        if (waits_for_itself(core, request)) {
            cst_queue_push(&core->requests, queue, i);
        } else if ((n_short > 0 && of[request->chunk] == CST_NONE) || !place(core, i)) {
            cst_queue_push(&core->requests, queue, i);
            n_short++;
        }
    }
    return n_short;
}

/* Number of blocks that will become free or cached without a request. */
static uint32_t count_coming(const struct cst_part *part)
{
    return part->count[CST_BLOCK_SPILLING] + part->count[CST_BLOCK_REDUCING] +
           part->count[CST_BLOCK_LENT] + part->count[CST_BLOCK_LOADING] - part->n_awaited;
}

static void pump_part(struct cst_core *core, uint32_t rank, uint32_t k)
{
    struct cst_part *part = &core->ranks[rank].pool.parts[k];
    uint32_t n_short, n_demand, coming;

    if (!cst_waiting_part(part)) {
        return;
    }
    n_demand = serve(core, &part->demand, 0);
    if (n_demand > 0 && part->count[CST_BLOCK_LENT] > 0) {
        cst_lent_memory_recall(core, rank, k);
    }
    n_short = serve(core, &part->ahead, n_demand);
    /* For what the worker only wants ahead, one gradient at a time is spilled. */
    n_short = n_short > n_demand ? n_demand + 1 : n_demand;
    coming = count_coming(part);
    /* One of these blocks can be evicted when it arrives. A bf16 gradient stays where it is while
     * the fetch waits for other ranks; an fp32 row takes it without further copies. */
    if (part->victims.n + part->victims.heaps[CST_VICTIM_STAYS].n > 0 &&
        (coming > 0 || !core->adds_singly)) {
        return;
    }
    while (coming < n_short && cst_spill_begin(core, rank, k)) {
        coming++;
    }
}

static void pump_rank(struct cst_core *core, uint32_t rank)
{
    const struct cst_pool *pool = &core->ranks[rank].pool;

    for (uint32_t k = 0; k < pool->n_parts; k++) {
        pump_part(core, rank, k);
    }
}

/* -- requests ------------------------------------------------------------------------------- */

/* Checks common to both kinds of fetches. False: refused. */
static bool admit_fetch(struct cst_core *core, const struct cst_event *event,
                        enum cst_rank_begun begun)
{
    struct cst_rank *rank = &core->ranks[event->rank];

    if (rank->stepped) {
        cst_core_refuse(core, event->tag, CST_EBUSY,
                        "rank %" PRIu32 " has asked for the commit of step %" PRIu64
                        ", and can fetch nothing more in it",
                        event->rank, core->step);
        return false;
    }
    cst_rank_begin(&core->ranks[event->rank], begun);
    cst_rank_want_prefetch(rank);
    return true;
}

void cst_fetch_weight(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *rank = &core->ranks[event->rank];
    uint32_t b = rank->pool.weight_of[event->chunk];

    if (!admit_fetch(core, event, CST_BEGUN_READING)) {
        return;
    }
    cst_lookahead_follow(rank, event->chunk, false);
    if (b != CST_NONE && rank->pool.blocks[b].state == CST_BLOCK_RESIDENT && !core->pause.holds) {
        rank->hits++;
        cst_waiting_grant(core, event->rank, b, event->tag, true, event->ahead);
        return;
    }
    begin(core, event,
          b != CST_NONE && rank->pool.blocks[b].foreseen && !rank->pool.blocks[b].dropped);
}

void cst_fetch_grad(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *rank = &core->ranks[event->rank];
    uint32_t b = rank->pool.grad_of[event->chunk];

    if (!cst_collection_admit_open(core, event) || !admit_fetch(core, event, CST_BEGUN_WRITING)) {
        return;
    }
    if (b != CST_NONE && rank->pool.blocks[b].state == CST_BLOCK_OPEN) {
        cst_waiting_grant(core, event->rank, b, event->tag, true, event->ahead);
        return;
    }
    cst_lookahead_follow(rank, event->chunk, true);
    begin(core, event, false);
}

static uint32_t find_in(const struct cst_core *core, const struct cst_queue *queue, uint32_t chunk)
{
    uint32_t i = queue->head;

    while (i != CST_NO_REQUEST &&
           (core->requests.v[i].kind != CST_EV_FETCH_WEIGHT || core->requests.v[i].chunk != chunk ||
            !core->requests.v[i].ahead)) {
        i = core->requests.v[i].next;
    }
    return i;
}

/* The unanswered fetch ahead of @rank for the weights of @chunk; CST_NO_REQUEST: it was
 * answered. */
static uint32_t find_ahead(struct cst_core *core, uint32_t rank, uint32_t chunk)
{
    struct cst_pool *pool = &core->ranks[rank].pool;
    uint32_t b = pool->weight_of[chunk];
    uint32_t i = b == CST_NONE ? CST_NO_REQUEST : find_in(core, &pool->blocks[b].waiters, chunk);

    return i != CST_NO_REQUEST ? i : find_in(core, &cst_pool_part(pool, chunk)->ahead, chunk);
}

void cst_fetch_want(struct cst_core *core, const struct cst_event *event)
{
    uint32_t i = find_ahead(core, event->rank, event->chunk);

    (void)cst_core_reply(core, event->tag);
    if (i == CST_NO_REQUEST) {
        return;
    }
    if (core->requests.v[i].where == CST_REQUEST_JOINED) {
        core->requests.v[i].ahead = false;
        core->requests.v[i].coming = true;
    } else {
        cst_waiting_unqueue(core, i);
        core->requests.v[i].ahead = false;
        core->requests.v[i].coming =
            core->ranks[event->rank].pool.weight_of[event->chunk] != CST_NONE;
        cst_waiting_enqueue(core, i);
        /* Fetches that a worker waits for are served first. */
        cst_pool_wake(&core->ranks[event->rank].pool);
    }
}

void cst_fetch_pump(struct cst_core *core)
{
    if (core->pause.holds) {
        return;
    }
    for (uint32_t rank = 0; rank < core->world; rank++) {
        struct cst_rank *r = &core->ranks[rank];
        bool changed = cst_pool_take_change(&r->pool);
        bool look = cst_rank_take_wants_prefetch(r) || changed;

        if (changed) {
            pump_rank(core, rank);
        }
        if (!cst_waiting_for_block(r)) {
            cst_drift_end(r);
        }
        if (look && core->policy.prefetch_depth != CST_CORE_NO_PREFETCH &&
            core->schedule->repeats) {
            cst_prefetch_look_ahead(core, rank);
        }
    }
}
