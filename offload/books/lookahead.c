/* SPDX-License-Identifier: Apache-2.0 */
/* What a pool knows of the requests that are expected next.
 *
 * Each part of a pool has a horizon, the time up to which all expected requests have been handled:
 * their weights are in blocks or on their way, and what needs a block later has claims: gradients
 * that will be opened, and weights that are loaded after the commit:
 *
 *   now ---- inside: n_ahead weights, n_claimed blocks ---- horizon ---- available for eviction
 *
 * Nothing here starts a load: prefetch.c moves the horizon on. */
#include "offload/books/lookahead.h"

/* Maximum number of bytes of unrequested loads in flight, unless fewer than IN_FLIGHT_LEAST
 * loads. */
#define IN_FLIGHT_BYTES (16u << 20)
#define IN_FLIGHT_LEAST 4 /* Number of unrequested loads in flight that is always allowed. */
#define EARNED 4          /* Number of victims whose review an expected request pays for. */
#define FOLLOWED_MOST                                                                              \
    256 /* Rebuild the predictions if more expected requests than this are skipped at once. */

/* -- claims -------------------------------------------------------------------------------------
 */

static void drop_claim(struct cst_pool *pool, uint32_t entry)
{
    if (pool->claimed[entry] == pool->serial) {
        pool->claimed[entry] = 0;
        cst_pool_part(pool, entry >> 1)->n_claimed--;
    }
}

bool cst_lookahead_claims(const struct cst_pool *pool, const struct cst_trace_entry *entry)
{
    return entry->grad || (entry->later && cst_layout_has_states(&pool->chunks[entry->chunk]));
}

bool cst_lookahead_claim(struct cst_pool *pool, uint32_t chunk, bool grad)
{
    uint32_t entry = CST_TRACE_ENTRY(chunk, grad);

    if (pool->claimed[entry] == pool->serial || (grad && pool->grad_of[chunk] != CST_NONE)) {
        return false;
    }
    pool->claimed[entry] = pool->serial;
    cst_pool_part(pool, chunk)->n_claimed++;
    return true;
}

void cst_lookahead_opened(struct cst_pool *pool, uint32_t chunk)
{
    drop_claim(pool, CST_TRACE_ENTRY(chunk, true));
}

void cst_lookahead_passed(struct cst_pool *pool, uint32_t chunk)
{
    struct cst_part *part = cst_pool_part(pool, chunk);
    uint32_t b = pool->weight_of[chunk];

    part->n_ahead++;
    cst_victims_pass(&part->victims, b == CST_NONE ? CST_NONE : b - part->first_block);
}

/* -- progress of the trace ------------------------------------------------------------------- */

bool cst_lookahead_catch_up(struct cst_pool *pool)
{
    if (pool->epoch == pool->trace->epoch) {
        return true;
    }
    if (pool->credit < cst_pool_count(pool, CST_BLOCK_RESIDENT)) {
        return false;
    }
    pool->credit = 0;
    pool->epoch = pool->trace->epoch;
    pool->serial++;
    for (uint32_t k = 0; k < pool->n_parts; k++) {
        struct cst_part *part = &pool->parts[k];

        part->n_ahead = 0;
        part->n_claimed = 0;
        cst_victims_reset_horizon(&part->victims, cst_trace_now(pool->trace));
        for (uint32_t b = part->head[CST_BLOCK_RESIDENT]; b != CST_NONE; b = pool->blocks[b].next) {
            cst_block_review(pool, b);
        }
    }
    return true;
}

/* The request that was expected at @time has come or was skipped. */
static void pass(struct cst_pool *pool, uint64_t time)
{
    struct cst_trace_entry entry;
    struct cst_part *part;

    if (!cst_trace_at(pool->trace, time, &entry)) {
        return;
    }
    part = cst_pool_part(pool, entry.chunk);
    if (entry.grad) {
        if (entry.likely) {
            cst_lookahead_opened(pool, entry.chunk);
        }
        return;
    }
    part->n_ahead -= time < part->victims.horizon;
    if (pool->weight_of[entry.chunk] != CST_NONE) {
        cst_block_review(pool, pool->weight_of[entry.chunk]);
    }
}

void cst_lookahead_follow(struct cst_rank *rank, uint32_t chunk, bool grad)
{
    struct cst_pool *pool = &rank->pool;
    bool current = cst_lookahead_catch_up(pool);
    uint64_t from = cst_trace_now(&rank->trace);
    uint64_t now;

    pool->credit += cst_trace_use(&rank->trace, chunk, grad) ? EARNED : 0;
    now = cst_trace_now(&rank->trace);
    if (current && now - from > FOLLOWED_MOST) {
        pool->epoch--; /* Mark the pool's times as out of date. */
    }
    if (pool->epoch != rank->trace.epoch) {
        (void)cst_lookahead_catch_up(pool);
        return;
    }
    for (uint64_t time = from; time < now; time++) {
        pass(pool, time);
    }
    for (uint32_t k = 0; k < pool->n_parts; k++) {
        if (pool->parts[k].victims.horizon < now) {
            cst_victims_reset_horizon(&pool->parts[k].victims, now);
        }
    }
}

/* Move the horizon back to @time, because a block that was used then is given up. */
static void retreat(struct cst_pool *pool, struct cst_part *part, uint64_t time)
{
    uint64_t horizon = part->victims.horizon;

    if (pool->epoch != pool->trace->epoch || time >= horizon || time < cst_trace_now(pool->trace) ||
        !cst_victims_retreat(&part->victims, time)) {
        return;
    }
    while (horizon-- > time) {
        struct cst_trace_entry entry;

        if (!cst_trace_at(pool->trace, horizon, &entry) ||
            cst_pool_part(pool, entry.chunk) != part) {
            continue;
        }
        if (entry.likely) { /* Otherwise the claim is that of another use. */
            drop_claim(pool, CST_TRACE_ENTRY(entry.chunk, entry.grad));
        }
        part->n_ahead -= !entry.grad;
    }
}

void cst_lookahead_evicted(struct cst_pool *pool, uint32_t part, uint64_t next)
{
    retreat(pool, &pool->parts[part], next);
}

/* -- loads that can begin --------------------------------------------------------------------- */

uint32_t cst_lookahead_most_in_flight(const struct cst_part *part)
{
    uint64_t n = IN_FLIGHT_BYTES / part->block_bytes;

    return n < IN_FLIGHT_LEAST          ? IN_FLIGHT_LEAST
           : n > CST_PREFETCH_IN_FLIGHT ? CST_PREFETCH_IN_FLIGHT
                                        : (uint32_t)n;
}

bool cst_lookahead_can_load(const struct cst_part *part)
{
    uint32_t available = part->count[CST_BLOCK_FREE] + part->victims.n - part->victims.n_inside;

    return part->n_foreseen < cst_lookahead_most_in_flight(part) && available > part->n_claimed;
}

/* -- for tests ------------------------------------------------------------------------------- */

/* True if what is expected has a claim, needs none, or has come earlier than expected. */
static bool is_provided(const struct cst_pool *pool, const struct cst_trace_entry *entry)
{
    return !entry->likely || !cst_lookahead_claims(pool, entry) ||
           (entry->grad && pool->grad_of[entry->chunk] != CST_NONE) ||
           cst_trace_is_sparse(pool->trace, entry->chunk) ||
           pool->claimed[CST_TRACE_ENTRY(entry->chunk, entry->grad)] == pool->serial;
}

static const char *check_part(const struct cst_pool *pool, uint32_t k)
{
    const struct cst_part *part = &pool->parts[k];
    uint32_t n_ahead = 0;
    uint32_t n_claimed = 0;
    bool provided = true;

    for (uint64_t time = cst_trace_now(pool->trace); time < part->victims.horizon; time++) {
        struct cst_trace_entry entry;

        if (!cst_trace_at(pool->trace, time, &entry)) {
            return "the horizon is in what is expected";
        }
        if (pool->chunks[entry.chunk].size_class == k) {
            n_ahead += !entry.grad;
            provided = provided && is_provided(pool, &entry);
        }
    }
    for (uint32_t c = 0; c < pool->n_chunks; c++) {
        bool grad = pool->claimed[CST_TRACE_ENTRY(c, true)] == pool->serial;
        bool weights = pool->claimed[CST_TRACE_ENTRY(c, false)] == pool->serial;

        n_claimed += pool->chunks[c].size_class == k ? (uint32_t)grad + weights : 0;
        if (grad && pool->grad_of[c] != CST_NONE) {
            return "a gradient that has a block claims none";
        }
    }
    return n_ahead != part->n_ahead       ? "weights before the horizon are counted"
           : n_claimed != part->n_claimed ? "claims are counted"
           : !provided                    ? "what needs a block before the horizon claims one"
                                          : NULL;
}

const char *cst_lookahead_check(const struct cst_rank *rank)
{
    const char *what = NULL;

    for (uint32_t k = 0;
         k < rank->pool.n_parts && rank->pool.epoch == rank->trace.epoch && what == NULL; k++) {
        what = check_part(&rank->pool, k);
    }
    return what;
}
