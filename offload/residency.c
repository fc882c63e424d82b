/* Which weights and gradients are in which blocks: fetch, release, evict, prefetch.
 *
 * A victim is taken in this order: a free block; a clean weight nobody leases, the one that was
 * used longest ago while no trace is known, else the one whose next use is farthest; a gradient
 * handed in, once it is copied to the chunk's grad row. If there is none the fetch waits in its
 * rank's queue, demands before what is asked ahead. A rank waits for its own blocks only. */
#include "offload/parts.h"

#include <assert.h>
#include <inttypes.h>

/* -- victims -------------------------------------------------------------------------------- */

/* A cached block whose weights are wanted behind position @limit of the trace, the best to lose;
 * CST_NONE. */
static uint32_t find_victim(const struct cst_rank *rank, uint32_t part, uint32_t limit)
{
    const struct cst_pool *pool = &rank->pool;
    uint32_t best = CST_NONE;
    uint32_t best_next = 0;

    for (uint32_t b = pool->parts[part].head[CST_BLOCK_RESIDENT]; b != CST_NONE;
         b = pool->blocks[b].next) {
        const struct cst_block *block = &pool->blocks[b];
        uint32_t next;

        if (block->leases > 0) {
            continue;
        }
        next = rank->trace.known || limit > 0 ? cst_trace_next_use(&rank->trace, block->chunk) : 0;
        if (limit > 0 && next <= limit) {
            continue;
        }
        if (!rank->trace.known) {
            next = 0;
        }
        if (best == CST_NONE || next > best_next ||
            (next == best_next && block->last_use < pool->blocks[best].last_use)) {
            best = b;
            best_next = next;
        }
    }
    return best;
}

static void evict(struct cst_core *core, uint32_t rank, uint32_t b, uint32_t wanted_by)
{
    struct cst_pool *pool = &core->ranks[rank].pool;
    struct cst_chunk *chunk = &core->chunks[pool->blocks[b].chunk];

    chunk->evicted_rank = rank;
    chunk->evicted_step = core->step;
    chunk->evicted_for = wanted_by;
    core->ranks[rank].evictions++;
    pool->weight_of[pool->blocks[b].chunk] = CST_NONE;
    cst_block_move(pool, b, CST_BLOCK_FREE);
}

/* A block for @chunk in @state: a free one, else a victim's. CST_NONE: neither. */
static uint32_t take_block(struct cst_core *core, uint32_t rank, enum cst_block_state state,
                           uint32_t chunk, uint32_t limit)
{
    struct cst_pool *pool = &core->ranks[rank].pool;

    if (cst_pool_part(pool, chunk)->head[CST_BLOCK_FREE] == CST_NONE) {
        uint32_t part = pool->chunks[chunk].size_class;
        uint32_t victim = find_victim(&core->ranks[rank], part, limit);

        if (victim == CST_NONE) {
            return CST_NONE;
        }
        evict(core, rank, victim, chunk);
    }
    return cst_pool_take(pool, state, chunk);
}

/* -- grants --------------------------------------------------------------------------------- */

static void grant(struct cst_core *core, uint32_t rank, uint32_t b, uint64_t tag, bool hit)
{
    struct cst_pool *pool = &core->ranks[rank].pool;
    struct cst_block *block = &pool->blocks[b];
    struct cst_reply *reply = cst_core_reply(core, tag);

    if (block->leases == 0) {
        block->generation = ++core->generation;
    }
    if (block->state == CST_BLOCK_RESIDENT || block->leases == 0) { /* a gradient is leased once */
        cst_block_lease(pool, b);
    }
    block->last_use = ++core->uses;
    if (reply != NULL) {
        reply->slab = cst_pool_slab(pool, b);
        reply->offset = cst_pool_offset(pool, b);
        reply->generation = block->generation;
        reply->hit = hit && !block->filling;
    }
    if (reply != NULL && block->filling) {
        reply->home = cst_core_row_place(core, block->chunk, CST_ROW_WEIGHT, 0);
        reply->home_bytes = 2 * core->layout->chunks[block->chunk].n_elems;
        core->ranks[rank].bytes_up += reply->home_bytes;
    }
}

/* Copy the weights of @chunk up into a block that was just taken for them. */
static void load(struct cst_core *core, uint32_t rank, uint32_t chunk, uint32_t b,
                 enum cst_priority priority)
{
    struct cst_rank *r = &core->ranks[rank];
    struct cst_flight flight = {.kind = CST_FLIGHT_LOAD, .rank = rank, .block = b, .chunk = chunk};
    struct cst_command *copy =
        cst_core_command(core, CST_COMMAND_COPY, cst_core_copier(core, rank, chunk), &flight);

    copy->priority = priority;
    copy->src[copy->n_src++] = cst_core_row_place(core, chunk, CST_ROW_WEIGHT, 0);
    copy->dst[copy->n_dst++] = cst_pool_place(&r->pool, b);
    copy->bytes = 2 * core->layout->chunks[chunk].n_elems;
    cst_command_after(copy, core->chunks[chunk].update_ticket);
    r->bytes_up += copy->bytes;
    r->pool.weight_of[chunk] = b;
    r->pool.blocks[b].ticket = copy->ticket;
    r->pool.blocks[b].last_use = ++core->uses;
}

/* The worker is to copy the weights of @chunk into a block that was just taken for them: when the
 * update is done. */
static void await_update(struct cst_core *core, uint32_t rank, uint32_t chunk, uint32_t b)
{
    struct cst_pool *pool = &core->ranks[rank].pool;

    pool->weight_of[chunk] = b;
    pool->blocks[b].last_use = ++core->uses;
    if (core->chunks[chunk].update_ticket != 0) {
        pool->blocks[b].ticket = core->chunks[chunk].update_ticket;
    } else {
        cst_block_move(pool, b, CST_BLOCK_RESIDENT);
        pool->blocks[b].filling = true;
    }
}

static void join(struct cst_core *core, uint32_t i, uint32_t rank, uint32_t b)
{
    core->requests.v[i].where = CST_REQUEST_JOINED;
    core->requests.v[i].block = b;
    cst_block_await(&core->ranks[rank].pool, b, &core->requests, i);
}

/* Request @i, which is in no queue, is answered or waits for a copy now; false: it needs a block
 * and there is none. */
static bool place_weight(struct cst_core *core, uint32_t i)
{
    struct cst_request *request = &core->requests.v[i];
    struct cst_pool *pool = &core->ranks[request->rank].pool;
    uint32_t b = pool->weight_of[request->chunk];

    if (b == CST_NONE && core->chunks[request->chunk].n_writes > 0) {
        return false;
    }
    if (b == CST_NONE) {
        b = take_block(core, request->rank, CST_BLOCK_LOADING, request->chunk, 0);
        if (b == CST_NONE) {
            return false;
        }
        if (pool->worker_copies) {
            await_update(core, request->rank, request->chunk, b);
        } else {
            load(core, request->rank, request->chunk, b,
                 request->ahead ? CST_PRIORITY_PREFETCH : CST_PRIORITY_DEMAND);
        }
    }
    if (pool->blocks[b].state == CST_BLOCK_RESIDENT) {
        grant(core, request->rank, b, request->tag, false);
        cst_requests_remove(&core->requests, i);
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

    if (again && pool->blocks[b].state != CST_BLOCK_OPEN) { /* of a micro-batch before this one */
        return false;
    }
    if (!again) {
        b = take_block(core, request->rank, CST_BLOCK_OPEN, request->chunk, 0);
        if (b == CST_NONE) {
            return false;
        }
        pool->grad_of[request->chunk] = b;
    }
    grant(core, request->rank, b, request->tag, again);
    cst_requests_remove(&core->requests, i);
    return true;
}

static bool place(struct cst_core *core, uint32_t i)
{
    return core->requests.v[i].kind == CST_EV_FETCH_GRAD ? place_grad(core, i)
                                                         : place_weight(core, i);
}

/* -- queues --------------------------------------------------------------------------------- */

static struct cst_queue *queue_of(struct cst_core *core, const struct cst_request *request)
{
    struct cst_part *part = cst_pool_part(&core->ranks[request->rank].pool, request->chunk);

    return request->ahead ? &part->ahead : &part->demand;
}

void cst_residency_unqueue(struct cst_core *core, uint32_t i)
{
    const struct cst_request *request = &core->requests.v[i];

    if (request->where == CST_REQUEST_JOINED) {
        cst_block_forsake(&core->ranks[request->rank].pool, request->block, &core->requests, i);
    } else {
        cst_queue_remove(&core->requests, queue_of(core, request), i);
    }
}

static void enqueue(struct cst_core *core, uint32_t i)
{
    struct cst_request *request = &core->requests.v[i];

    request->where = CST_REQUEST_QUEUED;
    if (request->deadline == CST_CORE_NEVER && core->peer_timeout_ns != CST_CORE_NEVER) {
        request->deadline = core->now + core->peer_timeout_ns;
    }
    cst_queue_push(&core->requests, queue_of(core, request), i);
}

static bool part_waits(const struct cst_part *part)
{
    return !cst_queue_empty(&part->demand) || !cst_queue_empty(&part->ahead);
}

bool cst_residency_waits(const struct cst_rank *rank)
{
    for (uint32_t k = 0; k < rank->pool.n_parts; k++) {
        if (part_waits(&rank->pool.parts[k])) {
            return true;
        }
    }
    return false;
}

/* A fetch that is no hit: at once where nobody waits longer, else behind them. */
static void begin(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *rank = &core->ranks[event->rank];
    const struct cst_part *part = cst_pool_part(&rank->pool, event->chunk);
    uint32_t i = cst_requests_add(&core->requests, event, CST_REQUEST_QUEUED);
    bool first = cst_queue_empty(&part->demand) && (!event->ahead || cst_queue_empty(&part->ahead));

    if (first && place(core, i)) {
        return;
    }
    rank->waits++;
    enqueue(core, i);
    rank->pool.changed = true; /* it may join a copy, or a gradient may be moved out of its way */
}

/* The gradient that the rank handed in last is not summed yet: it is not for want of a block that
 * its fetch waits. */
static bool waits_for_itself(const struct cst_core *core, const struct cst_request *request)
{
    const struct cst_pool *pool = &core->ranks[request->rank].pool;
    uint32_t b = pool->grad_of[request->chunk];

    return request->kind == CST_EV_FETCH_GRAD && b != CST_NONE &&
           pool->blocks[b].state != CST_BLOCK_OPEN;
}

/* Place what can be placed, in order. How many still lack a block: behind the first of them only
 * those go on that need none. */
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

/* Blocks that will be free or cached without anybody's doing. */
static uint32_t count_coming(const struct cst_part *part)
{
    return part->count[CST_BLOCK_STAGING] + part->count[CST_BLOCK_REDUCING] +
           part->count[CST_BLOCK_LOADING] - part->n_awaited;
}

static void pump_part(struct cst_core *core, uint32_t rank, uint32_t k)
{
    struct cst_part *part = &core->ranks[rank].pool.parts[k];
    uint32_t n_short;
    uint32_t coming;

    if (!part_waits(part)) {
        return;
    }
    n_short = serve(core, &part->demand, 0);
    n_short = serve(core, &part->ahead, n_short);
    coming = count_coming(part);
    while (coming < n_short && cst_staging_begin(core, rank, k)) {
        coming++;
    }
}

static void pump_rank(struct cst_core *core, uint32_t rank)
{
    struct cst_pool *pool = &core->ranks[rank].pool;

    pool->changed = false;
    for (uint32_t k = 0; k < pool->n_parts; k++) {
        pump_part(core, rank, k);
    }
}

/* -- prefetch ------------------------------------------------------------------------------- */

/* True if more than @n blocks are free or can be had from weights that are wanted behind position
 * @limit. */
static bool has_more(const struct cst_rank *rank, uint32_t part, uint32_t n, uint32_t limit)
{
    const struct cst_pool *pool = &rank->pool;
    uint32_t available = pool->parts[part].count[CST_BLOCK_FREE];

    for (uint32_t b = pool->parts[part].head[CST_BLOCK_RESIDENT]; b != CST_NONE && available <= n;
         b = pool->blocks[b].next) {
        const struct cst_block *block = &pool->blocks[b];

        available += block->leases == 0 && cst_trace_next_use(&rank->trace, block->chunk) > limit;
    }
    return available > n;
}

static bool start_load(struct cst_core *core, uint32_t rank, uint32_t chunk, uint32_t limit)
{
    struct cst_rank *r = &core->ranks[rank];
    uint32_t b;

    if (r->pool.weight_of[chunk] != CST_NONE || core->chunks[chunk].n_writes > 0) {
        return true;
    }
    b = take_block(core, rank, CST_BLOCK_LOADING, chunk, limit);
    if (b == CST_NONE) {
        return false;
    }
    load(core, rank, chunk, b, CST_PRIORITY_PREFETCH);
    r->prefetches++;
    return true;
}

/* Load the next weights of the trace, but leave a block for each gradient that is opened before
 * them: it could only evict them again. */
static void look_ahead(struct cst_core *core, uint32_t rank)
{
    struct cst_rank *r = &core->ranks[rank];
    uint32_t depth = core->policy.prefetch_depth;
    uint32_t n_grads[CST_LAYOUT_MAX_CLASSES] = {0};

    r->wants_prefetch = false;
    if (core->phase != CST_PHASE_RUNNING || !r->joined || r->stepped || cst_residency_waits(r) ||
        r->pool.worker_copies) {
        return;
    }
    for (uint32_t at = r->trace.position; at < r->trace.n_expected && depth > 0; at++) {
        uint32_t chunk = r->trace.expected[at] >> 1;
        uint32_t part = r->pool.chunks[chunk].size_class;

        if ((r->trace.expected[at] & 1) != 0) {
            n_grads[part] += r->pool.grad_of[chunk] == CST_NONE;
            continue;
        }
        depth--;
        if (r->pool.weight_of[chunk] == CST_NONE &&
            (!has_more(r, part, n_grads[part], at) || !start_load(core, rank, chunk, at))) {
            return;
        }
    }
}

void cst_residency_pump(struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (core->ranks[rank].pool.changed) {
            pump_rank(core, rank);
        }
        if (core->ranks[rank].wants_prefetch) {
            look_ahead(core, rank);
        }
    }
}

/* -- requests ------------------------------------------------------------------------------- */

/* Common to both fetches; false: refused. */
static bool admit_fetch(struct cst_core *core, const struct cst_event *event,
                        enum cst_rank_begun begun)
{
    struct cst_rank *rank = &core->ranks[event->rank];

    if (rank->stepped) {
        cst_core_refuse(core, event->tag, CST_EBUSY,
                        "rank %" PRIu32 " has asked for step %" PRIu64
                        ": nothing more of it is fetched",
                        event->rank, core->step);
        return false;
    }
    cst_ranks_begin(core, event->rank, begun);
    rank->wants_prefetch = true;
    return true;
}

void cst_residency_fetch_weight(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *rank = &core->ranks[event->rank];
    uint32_t b = rank->pool.weight_of[event->chunk];

    if (!admit_fetch(core, event, CST_BEGUN_READING)) {
        return;
    }
    cst_trace_use(&rank->trace, event->chunk, false);
    if (b != CST_NONE && rank->pool.blocks[b].state == CST_BLOCK_RESIDENT) {
        rank->hits++;
        grant(core, event->rank, b, event->tag, true);
        return;
    }
    rank->misses++;
    begin(core, event);
}

void cst_residency_fetch_grad(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *rank = &core->ranks[event->rank];
    uint32_t b = rank->pool.grad_of[event->chunk];

    if (cst_schedule_handed(core, event->chunk, event->rank)) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "gradient of chunk %" PRIu32 " was handed in already in step %" PRIu64,
                        event->chunk, core->step);
        return;
    }
    if (!admit_fetch(core, event, CST_BEGUN_WRITING)) {
        return;
    }
    if (b != CST_NONE && rank->pool.blocks[b].state == CST_BLOCK_OPEN) {
        grant(core, event->rank, b, event->tag, true);
        return;
    }
    cst_trace_use(&rank->trace, event->chunk, true);
    begin(core, event);
}

/* The stale block that @event's lease is on, or CST_NONE. */
static uint32_t find_stale(struct cst_pool *pool, const struct cst_event *event)
{
    uint32_t b = cst_pool_part(pool, event->chunk)->head[CST_BLOCK_STALE];

    while (b != CST_NONE && (pool->blocks[b].chunk != event->chunk ||
                             pool->blocks[b].generation != event->generation)) {
        b = pool->blocks[b].next;
    }
    return b;
}

/* A gradient's lease lasts until it is handed in: its release changes nothing. */
void cst_residency_release(struct cst_core *core, const struct cst_event *event)
{
    struct cst_pool *pool = &core->ranks[event->rank].pool;
    uint32_t w = pool->weight_of[event->chunk];
    uint32_t g = pool->grad_of[event->chunk];

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

    if (!rank->stepped && !cst_residency_waits(rank) && !rank->pool.worker_copies) {
        (void)start_load(core, event->rank, event->chunk, rank->trace.position);
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

/* What block @b of @rank waited for has happened. */
static void end_load(struct cst_core *core, uint32_t rank, uint32_t b,
                     const struct cst_event *event)
{
    struct cst_pool *pool = &core->ranks[rank].pool;
    struct cst_block *block = &pool->blocks[b];
    bool good = event->status == CST_OK && !block->dropped &&
                !(pool->worker_copies && cst_queue_empty(&block->waiters));
    uint32_t i;

    if (good) {
        cst_block_move(pool, b, CST_BLOCK_RESIDENT);
        block->filling = pool->worker_copies;
    } else {
        pool->weight_of[block->chunk] = CST_NONE;
    }
    while ((i = cst_block_pop_waiter(pool, b, &core->requests)) != CST_NO_REQUEST) {
        if (good) {
            grant(core, rank, b, core->requests.v[i].tag, false);
            cst_requests_remove(&core->requests, i);
        } else if (event->status == CST_OK) { /* overtaken by newer weights: once more */
            enqueue(core, i);
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
    assert(core->ranks[flight->rank].pool.blocks[flight->block].ticket == flight->ticket);
    end_load(core, flight->rank, flight->block, event);
}

void cst_residency_updated(struct cst_core *core, const struct cst_flight *flight,
                           const struct cst_event *event)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_pool *pool = &core->ranks[rank].pool;
        uint32_t b = pool->weight_of[flight->chunk];

        if (pool->worker_copies && b != CST_NONE && pool->blocks[b].ticket == flight->ticket) {
            end_load(core, rank, b, event);
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

/* -- leases of a rank that goes -----------------------------------------------------------------
 */

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
        if (filling) { /* nobody knows what is in it */
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
