/* What becomes of gradients until they are summed: contributions, reductions.
 *
 *   handed in by a rank -> PENDING in its pool --(block is wanted)--> copied to the grad row
 *   by every rank -> REDUCE into the grad row, which is then commit.c's
 *
 * The grad row belongs to the last UPDATE until that is done: what writes to it names its ticket.
 */
#include "offload/parts.h"

#include <inttypes.h>

/* -- reduction -------------------------------------------------------------------------------- */

/* The contributions, in rank order, as sources of @reduce; their blocks go with it. */
static void add_sources(struct cst_core *core, uint32_t c, struct cst_command *reduce)
{
    uint64_t bytes = 2 * core->layout->chunks[c].n_elems;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        struct cst_rank *r = &core->ranks[rank];
        uint32_t b = r->pool.grad_of[c];

        if (core->chunks[c].staged_rank == rank) {
            reduce->src[reduce->n_src++] = cst_core_row_place(core, c, CST_ROW_GRAD, 0);
        } else if (b != CST_NONE && r->pool.blocks[b].state == CST_BLOCK_PENDING) {
            reduce->src[reduce->n_src++] = cst_pool_place(&r->pool, b);
            cst_block_move(&r->pool, b, CST_BLOCK_REDUCING);
            r->pool.blocks[b].ticket = reduce->ticket;
            r->bytes_down += bytes;
        }
    }
}

/* A contribution that was staged lies in the arena. */
struct cst_way cst_schedule_way(const struct cst_core *core, uint32_t c, bool all)
{
    uint32_t engines[CST_CORE_MAX_WORLD];

    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_pool *pool = &core->ranks[rank].pool;
        uint32_t b = pool->grad_of[c];
        bool in_pool = b != CST_NONE && (pool->blocks[b].state == CST_BLOCK_PENDING ||
                                         pool->blocks[b].state == CST_BLOCK_REDUCING);

        engines[rank] = CST_WAY_NOTHING;
        if (all || in_pool) {
            engines[rank] = pool->engine;
        }
        if (!all && core->chunks[c].staged_rank == rank) {
            engines[rank] = CST_WAY_HOST_MEMORY;
        }
    }
    return cst_way_choose(core->layout->chunks[c].node, c, core->world, engines);
}

void cst_schedule_reduce(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];
    struct cst_flight flight = {
        .kind = CST_FLIGHT_REDUCE, .chunk = c, .collection = core->collection};
    uint64_t came = chunk->handed;
    struct cst_command *reduce;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        came |= (uint64_t)core->ranks[rank].stepped << rank;
    }
    if (core->phase != CST_PHASE_RUNNING || came != core->everybody || chunk->reduced ||
        chunk->reduce_ticket != 0 || chunk->stage_ticket != 0) {
        return;
    }
    if (chunk->handed == 0 && !core->closing) {
        return;
    }
    reduce = cst_core_command(core, CST_COMMAND_REDUCE, cst_schedule_way(core, c, false).engine,
                              &flight);
    reduce->table = core->table_segment;
    reduce->chunk = c;
    reduce->mark = reduce->ticket;
    add_sources(core, c, reduce);
    cst_command_after(reduce, chunk->update_ticket);
    chunk->reduce_ticket = reduce->ticket;
    chunk->handed = core->everybody; /* who stepped without a gradient cannot bring one any more */
    chunk->grad_version++;
}

/* Blocks that the reduction read are free. */
static void free_sources(struct cst_core *core, const struct cst_flight *flight)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        struct cst_pool *pool = &core->ranks[rank].pool;
        uint32_t b = cst_pool_part(pool, flight->chunk)->head[CST_BLOCK_REDUCING];

        while (b != CST_NONE && pool->blocks[b].ticket != flight->ticket) {
            b = pool->blocks[b].next;
        }
        if (b == CST_NONE) {
            continue;
        }
        if (pool->grad_of[flight->chunk] == b) {
            pool->grad_of[flight->chunk] = CST_NONE;
        }
        cst_block_move(pool, b, CST_BLOCK_FREE);
    }
}

void cst_schedule_reduced(struct cst_core *core, const struct cst_flight *flight,
                          const struct cst_event *event)
{
    struct cst_chunk *chunk = &core->chunks[flight->chunk];

    free_sources(core, flight);
    chunk->reduce_ticket = 0;
    if (event->status != CST_OK) {
        cst_ranks_fail_command(core, event, "reduction", flight->chunk);
        return;
    }
    chunk->torn = false;
    if (flight->collection != core->collection) { /* of an attempt that is over */
        for (uint32_t rank = 0; rank < core->world; rank++) {
            core->ranks[rank].pool.changed = true; /* the row may be staged to again */
        }
        cst_schedule_reduce(core, flight->chunk);
        return;
    }
    chunk->reduced = true;
    chunk->staged_rank = CST_NONE;
    core->n_reduced++;
    cst_commit_close(core);
}

/* -- staging ---------------------------------------------------------------------------------- */

/* The gradient of @part handed in last: those before it are likelier to be reduced soon by
 * themselves. */
static uint32_t find_pending(const struct cst_core *core, const struct cst_pool *pool,
                             uint32_t part)
{
    uint32_t b = pool->parts[part].head[CST_BLOCK_PENDING];

    for (; b != CST_NONE; b = pool->blocks[b].next) {
        const struct cst_chunk *chunk = &core->chunks[pool->blocks[b].chunk];

        if (chunk->staged_rank == CST_NONE && chunk->stage_ticket == 0 &&
            chunk->reduce_ticket == 0) {
            break;
        }
    }
    return b;
}

bool cst_schedule_stage(struct cst_core *core, uint32_t rank, uint32_t part)
{
    struct cst_rank *r = &core->ranks[rank];
    uint32_t b = find_pending(core, &r->pool, part);
    struct cst_flight flight = {
        .kind = CST_FLIGHT_STAGE, .rank = rank, .block = b, .collection = core->collection};
    struct cst_command *copy;
    struct cst_chunk *chunk;

    if (b == CST_NONE) {
        return false;
    }
    flight.chunk = r->pool.blocks[b].chunk;
    chunk = &core->chunks[flight.chunk];
    copy = cst_core_command(core, CST_COMMAND_COPY, cst_core_copier(core, rank, flight.chunk),
                            &flight);
    copy->priority = CST_PRIORITY_EVICTION;
    copy->src[copy->n_src++] = cst_pool_place(&r->pool, b);
    copy->dst[copy->n_dst++] = cst_core_row_place(core, flight.chunk, CST_ROW_GRAD, 0);
    copy->bytes = 2 * core->layout->chunks[flight.chunk].n_elems;
    cst_command_after(copy, chunk->update_ticket);
    cst_block_move(&r->pool, b, CST_BLOCK_STAGING);
    r->pool.blocks[b].ticket = copy->ticket;
    r->bytes_down += copy->bytes;
    r->evictions++;
    chunk->stage_ticket = copy->ticket;
    chunk->staged_rank = rank;
    chunk->torn = true;
    chunk->grad_version++;
    return true;
}

/* The copy failed but the gradient is still in its block. One fetch that waited for that block gets
 * the error, so that trying again comes to an end. */
static void stage_failed(struct cst_core *core, const struct cst_flight *flight,
                         const struct cst_event *event)
{
    struct cst_rank *r = &core->ranks[flight->rank];
    struct cst_part *part = cst_pool_part(&r->pool, flight->chunk);
    struct cst_queue *queue = cst_queue_empty(&part->demand) ? &part->ahead : &part->demand;
    uint32_t i;

    cst_block_move(&r->pool, flight->block, CST_BLOCK_PENDING);
    core->chunks[flight->chunk].staged_rank = CST_NONE;
    i = cst_queue_pop(&core->requests, queue);
    if (i != CST_NO_REQUEST) {
        cst_core_refuse(core, core->requests.v[i].tag, event->status,
                        "no block for chunk %" PRIu32 ": the gradient of chunk %" PRIu32
                        " could not be moved out of the pool: %s",
                        core->requests.v[i].chunk, flight->chunk, cst_event_words(event));
        cst_requests_remove(&core->requests, i);
    }
}

void cst_schedule_staged(struct cst_core *core, const struct cst_flight *flight,
                         const struct cst_event *event)
{
    struct cst_pool *pool = &core->ranks[flight->rank].pool;
    bool current = !pool->blocks[flight->block].dropped;

    core->chunks[flight->chunk].stage_ticket = 0;
    if (current && event->status != CST_OK) {
        stage_failed(core, flight, event);
    } else {
        if (current) {
            pool->grad_of[flight->chunk] = CST_NONE;
        }
        cst_block_move(pool, flight->block, CST_BLOCK_FREE);
    }
    for (uint32_t rank = 0; rank < core->world; rank++) {
        core->ranks[rank].pool.changed = true; /* the row may be staged to again */
    }
    cst_schedule_reduce(core, flight->chunk);
}

static void drop_moving(struct cst_pool *pool, uint32_t head)
{
    for (uint32_t b = head; b != CST_NONE; b = pool->blocks[b].next) {
        if (pool->grad_of[pool->blocks[b].chunk] == b) {
            pool->grad_of[pool->blocks[b].chunk] = CST_NONE;
        }
        pool->blocks[b].dropped = true;
    }
}

static void drop_part(struct cst_pool *pool, const struct cst_part *part)
{
    uint32_t b;

    while ((b = part->head[CST_BLOCK_PENDING]) != CST_NONE) {
        pool->grad_of[pool->blocks[b].chunk] = CST_NONE;
        cst_block_move(pool, b, CST_BLOCK_FREE);
    }
    drop_moving(pool, part->head[CST_BLOCK_STAGING]);
    drop_moving(pool, part->head[CST_BLOCK_REDUCING]);
}

void cst_schedule_drop(struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        struct cst_pool *pool = &core->ranks[rank].pool;

        for (uint32_t k = 0; k < pool->n_parts; k++) {
            drop_part(pool, &pool->parts[k]);
        }
    }
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        core->chunks[c].handed = 0;
        core->chunks[c].reduced = false;
        core->chunks[c].staged_rank = CST_NONE;
    }
    core->n_reduced = 0;
    core->collection++;
}

/* -- hand in --------------------------------------------------------------------------------- */

void cst_schedule_hand_in(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *r = &core->ranks[event->rank];
    uint32_t b = r->pool.grad_of[event->chunk];

    if (b == CST_NONE || r->pool.blocks[b].state != CST_BLOCK_OPEN ||
        r->pool.blocks[b].generation != event->generation) {
        cst_core_refuse(core, event->tag, CST_ESTALE,
                        "rank %" PRIu32 " has no lease %" PRIu64 " on a gradient of chunk %" PRIu32,
                        event->rank, event->generation, event->chunk);
        return;
    }
    cst_ranks_begin(core, event->rank, CST_BEGUN_WRITING);
    r->pool.blocks[b].last_use = ++core->uses;
    cst_block_move(&r->pool, b, CST_BLOCK_PENDING);
    core->chunks[event->chunk].handed |= 1ull << event->rank;
    (void)cst_core_reply(core, event->tag);
    cst_schedule_reduce(core, event->chunk);
}
