/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that wait, and how the wait ends: a fetch is granted a block, or a request is refused.
 *
 * A fetch without a block is in the queue of its rank and size class, or in that of the block whose
 * load it waits for. A rank's SYNC, STEP and NEXT are in the rank. */
#include "offload/books/waiting.h"

#include "offload/core/core_state.h"
#include "offload/books/instant.h"
#include "offload/books/weight_row.h"

#include <inttypes.h>

/* -- queues ---------------------------------------------------------------------------------- */

static struct cst_queue *queue_of(struct cst_core *core, const struct cst_request *request)
{
    struct cst_part *part = cst_pool_part(&core->ranks[request->rank].pool, request->chunk);

    return request->ahead ? &part->ahead : &part->demand;
}

void cst_waiting_unqueue(struct cst_core *core, uint32_t i)
{
    const struct cst_request *request = &core->requests.v[i];

    if (request->where == CST_REQUEST_JOINED) {
        cst_block_forsake(&core->ranks[request->rank].pool, request->block, &core->requests, i);
    } else {
        cst_queue_remove(&core->requests, queue_of(core, request), i);
    }
}

uint64_t cst_waiting_deadline(const struct cst_core *core)
{
    return core->peer_timeout_ns == CST_CORE_NEVER ? CST_CORE_NEVER
                                                   : core->now + core->peer_timeout_ns;
}

void cst_waiting_restart(struct cst_core *core)
{
    for (uint32_t i = 0; i < core->requests.capacity; i++) {
        if (core->requests.late_at[i] != CST_HEAP_OUT) {
            cst_requests_extend(&core->requests, i, cst_waiting_deadline(core));
        }
    }
}

void cst_waiting_enqueue(struct cst_core *core, uint32_t i)
{
    const struct cst_request *request = &core->requests.v[i];

    cst_requests_enqueue(&core->requests, i);
    cst_requests_time(&core->requests, i, cst_waiting_deadline(core));
    cst_queue_push(&core->requests, queue_of(core, request), i);
}

bool cst_waiting_for_block(const struct cst_rank *rank)
{
    for (uint32_t k = 0; k < rank->pool.n_parts; k++) {
        if (cst_waiting_part(&rank->pool.parts[k])) {
            return true;
        }
    }
    return false;
}

/* -- grants ---------------------------------------------------------------------------------- */

void cst_waiting_grant(struct cst_core *core, uint32_t rank, uint32_t b, uint64_t tag, bool hit,
                       bool ahead)
{
    struct cst_pool *pool = &core->ranks[rank].pool;
    const struct cst_block *block = &pool->blocks[b];
    struct cst_reply *reply = cst_core_reply(core, tag);

    core->grants.generation += block->leases == 0;
    /* A gradient is leased only once. */
    if (block->state == CST_BLOCK_RESIDENT || block->leases == 0) {
        cst_block_lease(pool, b, core->grants.generation);
    }
    cst_block_use(pool, b);
    cst_instant_granted(core, rank, b, ahead);
    if (reply != NULL) {
        reply->slab = cst_pool_slab(pool, b);
        reply->offset = cst_pool_offset(pool, b);
        reply->generation = block->generation;
        /* A block that the worker itself must still fill is not a hit. */
        reply->hit = hit && !block->filling;
    }
    if (reply != NULL && block->filling) {
        reply->home =
            cst_core_row_place(core, block->chunk, cst_weight_row_side(core, block->chunk), 0);
        reply->home_bytes = cst_layout_weight_bytes(&core->layout->chunks[block->chunk]);
        core->ranks[rank].bytes_up += reply->home_bytes;
    }
}

void cst_waiting_answer(struct cst_core *core, uint32_t i, uint32_t b, bool again)
{
    const struct cst_request *request = &core->requests.v[i];
    struct cst_rank *rank = &core->ranks[request->rank];

    if (request->kind == CST_EV_FETCH_WEIGHT) {
        rank->hits += request->ahead;
        rank->late += !request->ahead && request->coming;
        rank->misses += !request->ahead && !request->coming;
    }
    cst_waiting_grant(core, request->rank, b, request->tag, again, request->ahead);
    cst_requests_remove(&core->requests, i);
}

/* -- refusals -------------------------------------------------------------------------------- */

static bool is_fetch(const struct cst_request *request)
{
    return request->where == CST_REQUEST_QUEUED || request->where == CST_REQUEST_JOINED;
}

static bool is_waiting(const struct cst_request *request)
{
    return request->where != CST_REQUEST_UNUSED && request->where != CST_REQUEST_IO;
}

void cst_waiting_refuse(struct cst_core *core, uint32_t i, const struct cst_err *err)
{
    struct cst_request *request = &core->requests.v[i];
    struct cst_rank *rank = &core->ranks[request->rank];

    if (request->where == CST_REQUEST_QUEUED || request->where == CST_REQUEST_JOINED) {
        cst_waiting_unqueue(core, i);
    } else if (request->where == CST_REQUEST_SYNC) {
        rank->sync = CST_NO_REQUEST;
    } else if (request->where == CST_REQUEST_STEP) {
        rank->step = CST_NO_REQUEST;
    } else if (request->where == CST_REQUEST_NEXT) {
        rank->next = CST_NO_REQUEST;
        /* It has no unit, but may keep a pass, for which others would wait in vain. */
        core->schedule->work->leave(core, request->rank);
    }
    cst_core_refuse_err(core, request->tag, err);
    cst_requests_remove(&core->requests, i);
}

/* A selection of a rank's requests. */
enum which { ALL_THAT_WAIT, FETCHES, GRAD_FETCHES };

static bool is_one_of(const struct cst_request *request, enum which which)
{
    return which == ALL_THAT_WAIT ||
           (is_fetch(request) && (which == FETCHES || request->kind == CST_EV_FETCH_GRAD));
}

static void refuse_rank(struct cst_core *core, uint32_t rank, enum which which,
                        const struct cst_err *err)
{
    for (uint32_t i = 0; i < core->requests.capacity; i++) {
        const struct cst_request *request = &core->requests.v[i];

        if (is_waiting(request) && request->rank == rank && is_one_of(request, which)) {
            cst_waiting_refuse(core, i, err);
        }
    }
}

void cst_waiting_refuse_all(struct cst_core *core, const struct cst_err *why)
{
    for (uint32_t i = 0; i < core->requests.capacity; i++) {
        if (is_waiting(&core->requests.v[i])) {
            cst_waiting_refuse(core, i, why);
        }
    }
}

void cst_waiting_refuse_step(struct cst_core *core, const struct cst_err *fetches,
                             const struct cst_err *steps)
{
    for (uint32_t i = 0; i < core->requests.capacity; i++) {
        const struct cst_request *request = &core->requests.v[i];

        if (is_fetch(request) || request->where == CST_REQUEST_NEXT) {
            cst_waiting_refuse(core, i, fetches);
        } else if (request->where == CST_REQUEST_STEP) {
            cst_waiting_refuse(core, i, steps);
        }
    }
}

void cst_waiting_refuse_rank(struct cst_core *core, uint32_t rank, const struct cst_err *why)
{
    refuse_rank(core, rank, ALL_THAT_WAIT, why);
}

void cst_waiting_cancel_fetches(struct cst_core *core, uint32_t rank)
{
    struct cst_err err;

    (void)cst_err_set(&err, CST_ECANCELLED, "rank %" PRIu32 " asked for step %" PRIu64 " meanwhile",
                      rank, core->step);
    refuse_rank(core, rank, FETCHES, &err);
}

void cst_waiting_cancel_grads(struct cst_core *core, uint32_t rank, const char *what)
{
    struct cst_err err;

    (void)cst_err_set(&err, CST_ECANCELLED,
                      "rank %" PRIu32 " ended %s of step %" PRIu64 " meanwhile", rank, what,
                      core->step);
    refuse_rank(core, rank, GRAD_FETCHES, &err);
}
