/* What becomes of gradients: contributions, reductions, the norm, the commit, updates.
 *
 *   handed in by a rank -> PENDING in its pool --(block is wanted)--> copied to the grad row
 *   by every rank -> REDUCE into the grad row -> all chunks: NORM -> commit -> UPDATE of each chunk
 *
 * The grad row belongs to the last UPDATE until that is done: what writes to it names its ticket.
 */
#include "offload/clip.h"
#include "offload/parts.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *words_of(const struct cst_event *event)
{
    return event->text != NULL ? event->text : cst_status_words(event->status);
}

/* A command that nothing can stand in for has failed: the job is over. */
static void fail(struct cst_core *core, const struct cst_event *event, const char *what,
                 uint32_t chunk)
{
    struct cst_err why;

    (void)cst_err_set(&why, event->status == CST_ELOST ? CST_ELOST : CST_EENGINE,
                      "%s of chunk %" PRIu32 " failed in step %" PRIu64 ": %s", what, chunk,
                      core->step, words_of(event));
    cst_ranks_fail(core, &why);
}

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
            reduce->src[reduce->n_src++] = cst_pool_place(&r->pool, b, core->layout->capacity);
            cst_block_move(&r->pool, b, CST_BLOCK_REDUCING);
            r->pool.blocks[b].ticket = reduce->ticket;
            r->bytes_down += bytes;
        }
    }
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
    reduce = cst_core_command(core, CST_COMMAND_REDUCE, core->layout->chunks[c].node, &flight);
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

        for (uint32_t b = 0; pool->count[CST_BLOCK_REDUCING] > 0 && b < pool->n_blocks; b++) {
            if (pool->blocks[b].state == CST_BLOCK_REDUCING &&
                pool->blocks[b].ticket == flight->ticket) {
                if (pool->grad_of[flight->chunk] == b) {
                    pool->grad_of[flight->chunk] = CST_NONE;
                }
                cst_block_move(pool, b, CST_BLOCK_FREE);
                break;
            }
        }
    }
}

void cst_schedule_reduced(struct cst_core *core, const struct cst_flight *flight,
                          const struct cst_event *event)
{
    struct cst_chunk *chunk = &core->chunks[flight->chunk];

    free_sources(core, flight);
    chunk->reduce_ticket = 0;
    if (event->status != CST_OK) {
        fail(core, event, "reduction", flight->chunk);
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
    cst_schedule_close(core);
}

/* -- staging ---------------------------------------------------------------------------------- */

/* The gradient handed in last: those before it are likelier to be reduced soon by themselves. */
static uint32_t find_pending(const struct cst_core *core, const struct cst_pool *pool)
{
    uint32_t best = CST_NONE;

    for (uint32_t b = 0; b < pool->n_blocks; b++) {
        const struct cst_block *block = &pool->blocks[b];
        const struct cst_chunk *chunk;

        if (block->state != CST_BLOCK_PENDING) {
            continue;
        }
        chunk = &core->chunks[block->chunk];
        if (chunk->staged_rank != CST_NONE || chunk->stage_ticket != 0 ||
            chunk->reduce_ticket != 0) {
            continue;
        }
        if (best == CST_NONE || block->last_use > pool->blocks[best].last_use) {
            best = b;
        }
    }
    return best;
}

bool cst_schedule_stage(struct cst_core *core, uint32_t rank)
{
    struct cst_rank *r = &core->ranks[rank];
    uint32_t b = find_pending(core, &r->pool);
    struct cst_flight flight = {
        .kind = CST_FLIGHT_STAGE, .rank = rank, .block = b, .collection = core->collection};
    struct cst_command *copy;
    struct cst_chunk *chunk;

    if (b == CST_NONE) {
        return false;
    }
    flight.chunk = r->pool.blocks[b].chunk;
    chunk = &core->chunks[flight.chunk];
    copy =
        cst_core_command(core, CST_COMMAND_COPY, core->layout->chunks[flight.chunk].node, &flight);
    copy->priority = CST_PRIORITY_EVICTION;
    copy->src[copy->n_src++] = cst_pool_place(&r->pool, b, core->layout->capacity);
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
    struct cst_queue *queue = cst_queue_empty(&r->demand) ? &r->ahead : &r->demand;
    uint32_t i;

    cst_block_move(&r->pool, flight->block, CST_BLOCK_PENDING);
    core->chunks[flight->chunk].staged_rank = CST_NONE;
    i = cst_queue_pop(&core->requests, queue);
    if (i != CST_NO_REQUEST) {
        cst_core_refuse(core, core->requests.v[i].tag, event->status,
                        "no block for chunk %" PRIu32 ": the gradient of chunk %" PRIu32
                        " could not be moved out of the pool: %s",
                        core->requests.v[i].chunk, flight->chunk, words_of(event));
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

void cst_schedule_drop(struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        struct cst_pool *pool = &core->ranks[rank].pool;

        for (uint32_t b = 0; b < pool->n_blocks; b++) {
            struct cst_block *block = &pool->blocks[b];

            if (block->state != CST_BLOCK_PENDING && block->state != CST_BLOCK_STAGING &&
                block->state != CST_BLOCK_REDUCING) {
                continue;
            }
            if (pool->grad_of[block->chunk] == b) {
                pool->grad_of[block->chunk] = CST_NONE;
            }
            if (block->state == CST_BLOCK_PENDING) {
                cst_block_move(pool, b, CST_BLOCK_FREE);
            } else {
                block->dropped = true;
            }
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

/* -- commit ----------------------------------------------------------------------------------- */

/* Chunks in the order in which the first rank's last step fetched their weights, then the others.
 */
static void order_updates(struct cst_core *core)
{
    const struct cst_trace *trace = &core->ranks[0].trace;
    uint32_t n = 0;

    for (uint32_t c = 0; c < core->n_chunks; c++) {
        core->chunks[c].ordered = false;
    }
    for (uint32_t i = 0; i < trace->n_expected; i++) {
        uint32_t c = trace->expected[i] >> 1;

        if (!core->chunks[c].ordered && (trace->expected[i] & 1) == 0) {
            core->chunks[c].ordered = true;
            core->order[n++] = c;
        }
    }
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        if (!core->chunks[c].ordered) {
            core->order[n++] = c;
        }
    }
}

static void issue_updates(struct cst_core *core, float factor)
{
    order_updates(core);
    for (uint32_t i = 0; i < core->n_chunks; i++) {
        uint32_t c = core->order[i];
        struct cst_flight flight = {.kind = CST_FLIGHT_UPDATE, .chunk = c};
        struct cst_command *update =
            cst_core_command(core, CST_COMMAND_UPDATE, core->layout->chunks[c].node, &flight);

        update->table = core->table_segment;
        update->chunk = c;
        update->mark = core->adam_step;
        update->hyper = core->ranks[0].hyper;
        update->hyper.grad_scale = factor;
        cst_command_after(update,
                          core->chunks[c].update_ticket); /* done, but perhaps not yet told */
        core->chunks[c].update_ticket = update->ticket;
        core->chunks[c].version++;
        cst_residency_expire(core, c);
    }
}

static double mean_loss(const struct cst_core *core)
{
    double sum = 0;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        sum += core->ranks[rank].loss;
    }
    return sum / core->world;
}

static void answer_steps(struct cst_core *core, const struct cst_clip *clip, double loss)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        struct cst_rank *r = &core->ranks[rank];
        struct cst_reply *reply;

        r->stepped = false;
        r->wants_prefetch = true;
        cst_trace_end_step(&r->trace);
        if (r->step == CST_NO_REQUEST) { /* its process is gone */
            continue;
        }
        reply = cst_core_reply(core, core->requests.v[r->step].tag);
        cst_requests_remove(&core->requests, r->step);
        r->step = CST_NO_REQUEST;
        if (reply != NULL) {
            reply->step = core->step;
            reply->skipped = !clip->finite;
            reply->grad_norm = clip->grad_norm;
            reply->clip = clip->clip;
            reply->loss = loss;
            reply->n_skipped = core->n_skipped;
        }
    }
}

static void commit(struct cst_core *core, double sum_squares)
{
    const struct cst_hyper *hyper = &core->ranks[0].hyper;
    struct cst_clip clip = cst_clip_factor(sum_squares, hyper->grad_scale, hyper->clip_norm);

    core->step++;
    core->last_loss = mean_loss(core);
    core->last_grad_norm = clip.grad_norm;
    core->last_step_ns = core->commit_ns == 0 ? 0 : core->now - core->commit_ns;
    core->commit_ns = core->now;
    core->closing = false;
    core->norm_issued = false;
    core->touched = false;
    if (!clip.finite) {
        core->n_skipped++;
        cst_core_log(core, CST_OK,
                     "step %" PRIu64 " skipped: a gradient is NaN or infinite (%" PRIu64
                     " skipped so far)",
                     core->step, core->n_skipped);
    }
    answer_steps(core, &clip, core->last_loss);
    if (clip.finite) {
        core->adam_step++;
        issue_updates(core, clip.factor);
    }
    cst_schedule_drop(core); /* nothing is left in it: the next collection begins */
    if (core->interrupt_later) {
        struct cst_err why = core->why;

        core->interrupt_later = false;
        cst_ranks_interrupt(core, &why);
    }
}

void cst_schedule_close(struct cst_core *core)
{
    struct cst_flight flight = {.kind = CST_FLIGHT_NORM, .collection = core->collection};

    if (!core->closing || core->norm_issued || core->n_reduced < core->n_chunks ||
        core->n_writes > 0) {
        return;
    }
    cst_core_command(core, CST_COMMAND_NORM, 0, &flight)->table = core->table_segment;
    core->norm_issued = true;
}

void cst_schedule_normed(struct cst_core *core, const struct cst_flight *flight,
                         const struct cst_event *event)
{
    if (event->status != CST_OK) {
        struct cst_err why;

        (void)cst_err_set(&why, event->status == CST_ELOST ? CST_ELOST : CST_EENGINE,
                          "the norm of step %" PRIu64 " failed: %s", core->step, words_of(event));
        cst_ranks_fail(core, &why);
    } else if (core->closing && flight->collection == core->collection) {
        commit(core, event->value);
    }
}

void cst_schedule_updated(struct cst_core *core, const struct cst_flight *flight,
                          const struct cst_event *event)
{
    if (core->chunks[flight->chunk].update_ticket == flight->ticket) {
        core->chunks[flight->chunk].update_ticket = 0;
    }
    if (event->status != CST_OK) {
        fail(core, event, "update", flight->chunk);
    }
}

/* -- requests --------------------------------------------------------------------------------- */

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
    core->touched = true;
    r->pool.blocks[b].last_use = ++core->uses;
    cst_block_move(&r->pool, b, CST_BLOCK_PENDING);
    core->chunks[event->chunk].handed |= 1ull << event->rank;
    (void)cst_core_reply(core, event->tag);
    cst_schedule_reduce(core, event->chunk);
}

static const struct {
    const char *name;
    size_t at;       /* of the float in struct cst_hyper, bytes */
    float low, high; /* low <= value < high */
} hyper_fields[] = {
    {"lr", offsetof(struct cst_hyper, lr), -INFINITY, INFINITY},
    {"beta1", offsetof(struct cst_hyper, beta1), 0.0f, 1.0f},
    {"beta2", offsetof(struct cst_hyper, beta2), 0.0f, 1.0f},
    {"eps", offsetof(struct cst_hyper, eps), 0.0f, INFINITY},
    {"weight_decay", offsetof(struct cst_hyper, weight_decay), -INFINITY, INFINITY},
    {"clip_norm", offsetof(struct cst_hyper, clip_norm), 0.0f, INFINITY},
    {"grad_scale", offsetof(struct cst_hyper, grad_scale), -INFINITY, INFINITY},
};
#define N_HYPER (sizeof hyper_fields / sizeof hyper_fields[0])

static float hyper_value(const struct cst_hyper *hyper, size_t field)
{
    float value;

    memcpy(&value, (const char *)hyper + hyper_fields[field].at, sizeof value);
    return value;
}

static int check_hyper(const struct cst_hyper *hyper, struct cst_err *err)
{
    for (size_t i = 0; i < N_HYPER; i++) {
        float v = hyper_value(hyper, i);

        if (!isfinite(v) || v < hyper_fields[i].low || v >= hyper_fields[i].high) {
            return cst_err_set(err, CST_EINVAL, "%s = %g is not allowed", hyper_fields[i].name,
                               (double)v);
        }
    }
    return CST_OK;
}

/* All ranks' hyper-parameters are the same to the bit. */
static int compare_hypers(const struct cst_core *core, struct cst_err *err)
{
    for (uint32_t rank = 1; rank < core->world; rank++) {
        for (size_t i = 0; i < N_HYPER; i++) {
            float a = hyper_value(&core->ranks[0].hyper, i);
            float b = hyper_value(&core->ranks[rank].hyper, i);

            if (memcmp(&a, &b, sizeof a) != 0) {
                return cst_err_set(err, CST_EMISMATCH,
                                   "step %" PRIu64
                                   ": %s is %.9g in rank 0 and %.9g in rank %" PRIu32,
                                   core->step, hyper_fields[i].name, (double)a, (double)b, rank);
            }
        }
    }
    return CST_OK;
}

/* Gradients that the rank opened and did not hand in do not count. */
static void drop_open(struct cst_pool *pool)
{
    for (uint32_t b = 0; pool->count[CST_BLOCK_OPEN] > 0 && b < pool->n_blocks; b++) {
        if (pool->blocks[b].state == CST_BLOCK_OPEN) {
            pool->grad_of[pool->blocks[b].chunk] = CST_NONE;
            cst_block_move(pool, b, CST_BLOCK_FREE);
        }
    }
}

static bool all_stepped(const struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (!core->ranks[rank].stepped) {
            return false;
        }
    }
    return true;
}

void cst_schedule_step(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *r = &core->ranks[event->rank];
    struct cst_err err;

    if (r->stepped) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "rank %" PRIu32 " has asked for step %" PRIu64 " already", event->rank,
                        core->step);
        return;
    }
    if (check_hyper(&event->hyper, &err) != CST_OK) {
        cst_core_refuse_err(core, event->tag, &err);
        return;
    }
    r->step = cst_requests_add(&core->requests, event, CST_REQUEST_STEP);
    if (core->peer_timeout_ns != CST_CORE_NEVER) {
        core->requests.v[r->step].deadline = core->now + core->peer_timeout_ns;
    }
    r->stepped = true;
    r->hyper = event->hyper;
    r->loss = event->loss;
    core->touched = true;
    cst_ranks_cancel_fetches(core, event->rank);
    drop_open(&r->pool);
    if (all_stepped(core)) {
        if (compare_hypers(core, &err) != CST_OK) {
            cst_ranks_interrupt(core, &err);
            return;
        }
        core->closing = true;
    }
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        cst_schedule_reduce(core, c);
    }
    cst_schedule_close(core);
}
