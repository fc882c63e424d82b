/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/books/block.h"

#include "proto/patterns.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define TO(state) (1u << CST_BLOCK_##state)

static const struct {
    const char *name;
    unsigned next;   /* States that may follow, one bit each. */
    bool has_ticket; /* A command moves the block's contents. */
    bool is_weight;  /* weight_of points to the block. */
    bool is_grad;    /* grad_of may point to the block. */
} states[CST_BLOCK_STATES] = {
    [CST_BLOCK_FREE] = {"free", TO(LOADING) | TO(OPEN) | TO(LENT), false, false, false},
    [CST_BLOCK_LOADING] = {"loading", TO(RESIDENT) | TO(FREE), true, true, false},
    [CST_BLOCK_RESIDENT] = {"resident", TO(FREE) | TO(STALE) | TO(QUARANTINED), false, true, false},
    [CST_BLOCK_STALE] = {"stale", TO(FREE) | TO(QUARANTINED), false, false, false},
    [CST_BLOCK_OPEN] = {"open", TO(PENDING) | TO(FREE) | TO(QUARANTINED), false, false, true},
    [CST_BLOCK_PENDING] = {"pending", TO(SPILLING) | TO(REDUCING) | TO(FREE), false, false, true},
    [CST_BLOCK_SPILLING] = {"staging", TO(FREE) | TO(PENDING), true, false, true},
    [CST_BLOCK_REDUCING] = {"reducing", TO(FREE), true, false, true},
    [CST_BLOCK_QUARANTINED] = {"quarantined", TO(FREE), false, false, false},
    [CST_BLOCK_LENT] = {"lent", TO(FREE), false, false, false},
};

static int init_part(struct cst_pool *pool, uint32_t k, const struct cst_core_part *config,
                     uint64_t block_bytes)
{
    struct cst_part *part = &pool->parts[k];

    *part = (struct cst_part){.first_block = pool->n_blocks,
                              .n_blocks = config->n_blocks,
                              .blocks_per_slab = config->blocks_per_slab,
                              .first_slab = config->first_slab,
                              .block_bytes = block_bytes};
    pool->n_blocks += config->n_blocks;
    cst_queue_init(&part->demand);
    cst_queue_init(&part->ahead);
    for (int s = 0; s < CST_BLOCK_STATES; s++) {
        part->head[s] = CST_NONE;
    }
    return cst_victims_init(&part->victims, part->n_blocks);
}

static void enlist(struct cst_pool *pool, uint32_t b)
{
    struct cst_block *block = &pool->blocks[b];
    struct cst_part *part = &pool->parts[block->part];

    block->prev = CST_NONE;
    block->next = part->head[block->state];
    if (block->next != CST_NONE) {
        pool->blocks[block->next].prev = b;
    }
    part->head[block->state] = b;
    part->count[block->state]++;
}

static void delist(struct cst_pool *pool, uint32_t b)
{
    struct cst_block *block = &pool->blocks[b];
    struct cst_part *part = &pool->parts[block->part];

    if (block->next != CST_NONE) {
        pool->blocks[block->next].prev = block->prev;
    }
    if (block->prev != CST_NONE) {
        pool->blocks[block->prev].next = block->next;
    } else {
        part->head[block->state] = block->next;
    }
    part->count[block->state]--;
}

static void init_blocks(struct cst_pool *pool)
{
    for (uint32_t k = pool->n_parts; k-- > 0;) {
        const struct cst_part *part = &pool->parts[k];

        for (uint32_t b = part->first_block + part->n_blocks; b-- > part->first_block;) {
            pool->blocks[b].chunk = CST_NONE;
            pool->blocks[b].part = k;
            cst_queue_init(&pool->blocks[b].waiters);
            enlist(pool, b);
        }
    }
}

int cst_pool_init(struct cst_pool *pool, const struct cst_core_pool *config,
                  const struct cst_layout *layout, const struct cst_trace *trace)
{
    size_t n = layout->n_chunks;
    int status = CST_OK;

    *pool = (struct cst_pool){
        .n_parts = layout->n_classes,
        .n_chunks = layout->n_chunks,
        .chunks = layout->chunks,
        .segments = config->segments,
        .tier = config->tier,
        .worker_copies = config->worker_copies,
        .unreachable = config->unreachable,
        .trace = trace,
        .serial = 1,
        .claimed = calloc(2 * n, sizeof *pool->claimed),
        .weight_of = malloc(n * sizeof *pool->weight_of),
        .grad_of = malloc(n * sizeof *pool->grad_of),
    };
    for (uint32_t k = 0; k < pool->n_parts && status == CST_OK; k++) {
        status = init_part(pool, k, &config->parts[k], 2 * layout->classes[k].capacity);
    }
    pool->blocks = calloc(pool->n_blocks + 1u, sizeof *pool->blocks);
    if (status != CST_OK || pool->blocks == NULL || pool->claimed == NULL ||
        pool->weight_of == NULL || pool->grad_of == NULL) {
        cst_pool_close(pool);
        return CST_ENOMEM;
    }
    memset(pool->weight_of, 0xff, n * sizeof *pool->weight_of);
    memset(pool->grad_of, 0xff, n * sizeof *pool->grad_of);
    init_blocks(pool);
    return CST_OK;
}

void cst_pool_close(struct cst_pool *pool)
{
    for (uint32_t k = 0; k < pool->n_parts; k++) {
        cst_victims_close(&pool->parts[k].victims);
    }
    free(pool->blocks);
    free(pool->claimed);
    free(pool->weight_of);
    free(pool->grad_of);
    memset(pool, 0, sizeof *pool);
}

uint32_t cst_pool_count(const struct cst_pool *pool, enum cst_block_state state)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < pool->n_parts; k++) {
        n += pool->parts[k].count[state];
    }
    return n;
}

/* Cost class of loading the weights of @chunk into a block again. */
static enum cst_victim_cost cost_of(const struct cst_pool *pool, uint32_t chunk)
{
    const struct cst_layout_chunk *c = &pool->chunks[chunk];

    if (cst_pattern(c->pattern)->stays) {
        return CST_VICTIM_STAYS;
    }
    return 2 * cst_layout_weight_bytes(c) <= pool->parts[c->size_class].block_bytes
               ? CST_VICTIM_CHEAP
               : CST_VICTIM_DEAR;
}

void cst_block_review(struct cst_pool *pool, uint32_t b)
{
    const struct cst_block *block = &pool->blocks[b];
    struct cst_part *part = &pool->parts[block->part];
    struct cst_victim victim;

    if (block->state != CST_BLOCK_RESIDENT || block->leases > 0) {
        cst_victims_remove(&part->victims, b - part->first_block);
        return;
    }
    victim = (struct cst_victim){.cost = cost_of(pool, block->chunk),
                                 .next = cst_trace_next_use(pool->trace, block->chunk),
                                 .last_use = block->last_use};
    cst_victims_put(&part->victims, b - part->first_block, &victim);
}

/* The block goes to @state: let the chunk point at it, or no longer do so. A void gradient has no
 * pointer, and its chunk can already have another block. */
static void point_at(struct cst_pool *pool, uint32_t b, enum cst_block_state state)
{
    uint32_t c = pool->blocks[b].chunk;

    if (c == CST_NONE) { /* The block is lent, or was. */
        return;
    }
    if (states[state].is_weight) {
        pool->weight_of[c] = b;
    } else if (pool->weight_of[c] == b) {
        pool->weight_of[c] = CST_NONE;
    }
    if (state == CST_BLOCK_OPEN) {
        pool->grad_of[c] = b;
    } else if (pool->grad_of[c] == b && !states[state].is_grad) {
        pool->grad_of[c] = CST_NONE;
    }
}

static void set_state(struct cst_pool *pool, uint32_t b, enum cst_block_state state)
{
    struct cst_block *block = &pool->blocks[b];
    bool reviewed; /* Only RESIDENT blocks can be victims. */

    assert((states[block->state].next & (1u << state)) != 0);
    point_at(pool, b, state);
    delist(pool, b);
    if (block->foreseen) {
        pool->parts[block->part].n_foreseen--;
        block->foreseen = false;
    }
    reviewed = block->state == CST_BLOCK_RESIDENT || state == CST_BLOCK_RESIDENT;
    block->state = state;
    enlist(pool, b);
    if (reviewed) {
        cst_block_review(pool, b);
    }
    cst_pool_wake(pool);
}

uint32_t cst_pool_take(struct cst_pool *pool, enum cst_block_state state, uint32_t chunk)
{
    uint32_t b = cst_pool_part(pool, chunk)->head[CST_BLOCK_FREE];

    if (b != CST_NONE) {
        pool->blocks[b].chunk = chunk;
        set_state(pool, b, state);
    }
    return b;
}

/* On both clocks, after everything that was done before. */
void cst_block_note_time(struct cst_pool *pool, uint32_t b)
{
    struct cst_block *block = &pool->blocks[b];

    block->last.at = pool->now.at;
    if (pool->now.instant > block->last.instant) {
        block->last.instant = pool->now.instant;
    }
}

void cst_block_move(struct cst_pool *pool, uint32_t b, enum cst_block_state state)
{
    struct cst_block *block = &pool->blocks[b];

    if (block->state == CST_BLOCK_RESIDENT && block->leases > 0) {
        assert(state != CST_BLOCK_FREE);
        pool->parts[block->part].n_leased_resident--;
    }
    set_state(pool, b, state);
    cst_block_note_time(pool, b);
    if (!states[state].has_ticket) {
        block->ticket = 0;
        block->dropped = false;
    }
    /* The worker fills the block after the reply, and perhaps still after it became stale. */
    block->filling = state == CST_BLOCK_RESIDENT ? pool->worker_copies
                                                 : block->filling && state == CST_BLOCK_STALE;
    /* The hand-in ends the worker's lease. */
    if (state == CST_BLOCK_PENDING) {
        block->leases = 0;
        block->generation = 0;
    }
    if (state == CST_BLOCK_FREE) {
        assert(cst_queue_empty(&block->waiters));
        block->chunk = CST_NONE;
        block->leases = 0;
        block->generation = 0;
    }
}

void cst_block_use(struct cst_pool *pool, uint32_t b)
{
    pool->blocks[b].last_use = ++pool->uses;
}

void cst_block_load(struct cst_pool *pool, uint32_t b, uint64_t ticket)
{
    pool->blocks[b].ticket = ticket;
    cst_block_use(pool, b);
}

void cst_block_wait_for(struct cst_pool *pool, uint32_t b, uint64_t ticket)
{
    pool->blocks[b].ticket = ticket;
}

void cst_block_hand_in(struct cst_pool *pool, uint32_t b, uint32_t addend)
{
    cst_block_use(pool, b);
    pool->blocks[b].addend = addend;
    cst_block_move(pool, b, CST_BLOCK_PENDING);
}

struct cst_place cst_block_read_by(struct cst_pool *pool, uint32_t b, enum cst_block_state state,
                                   uint64_t ticket)
{
    cst_block_move(pool, b, state);
    pool->blocks[b].ticket = ticket;
    return cst_pool_place(pool, b);
}

void cst_block_drop(struct cst_pool *pool, uint32_t b)
{
    struct cst_block *block = &pool->blocks[b];

    if (pool->grad_of[block->chunk] == b) {
        pool->grad_of[block->chunk] = CST_NONE;
    }
    block->dropped = true;
}

void cst_block_add_piece(struct cst_pool *pool, uint32_t b)
{
    pool->blocks[b].n_pieces++;
}

bool cst_block_end_piece(struct cst_pool *pool, uint32_t b)
{
    return --pool->blocks[b].n_pieces == 0;
}

void cst_block_lease(struct cst_pool *pool, uint32_t b, uint64_t generation)
{
    struct cst_block *block = &pool->blocks[b];

    if (block->leases == 0) {
        block->generation = generation;
    }
    if (block->leases++ == 0 && block->state == CST_BLOCK_RESIDENT) {
        pool->parts[block->part].n_leased_resident++;
        cst_block_review(pool, b);
    }
}

void cst_block_unlease(struct cst_pool *pool, uint32_t b)
{
    struct cst_block *block = &pool->blocks[b];

    assert(block->leases > 0);
    block->filling = false;
    if (--block->leases == 0) {
        cst_block_note_time(pool, b);
        if (block->state == CST_BLOCK_RESIDENT) {
            pool->parts[block->part].n_leased_resident--;
        }
        block->generation = 0;
        cst_pool_wake(pool);
        cst_block_review(pool, b);
    }
}

void cst_block_foresee(struct cst_pool *pool, uint32_t b)
{
    pool->blocks[b].foreseen = true;
    pool->parts[pool->blocks[b].part].n_foreseen++;
}

void cst_block_unlease_all(struct cst_pool *pool, uint32_t b)
{
    while (pool->blocks[b].leases > 0) {
        cst_block_unlease(pool, b);
    }
}

void cst_block_await(struct cst_pool *pool, uint32_t b, struct cst_requests *requests,
                     uint32_t request)
{
    struct cst_block *block = &pool->blocks[b];

    assert(block->state == CST_BLOCK_LOADING);
    pool->parts[block->part].n_awaited += cst_queue_empty(&block->waiters);
    cst_queue_push(requests, &block->waiters, request);
}

void cst_block_forsake(struct cst_pool *pool, uint32_t b, struct cst_requests *requests,
                       uint32_t request)
{
    struct cst_block *block = &pool->blocks[b];

    cst_queue_remove(requests, &block->waiters, request);
    pool->parts[block->part].n_awaited -= cst_queue_empty(&block->waiters);
}

uint32_t cst_block_pop_waiter(struct cst_pool *pool, uint32_t b, struct cst_requests *requests)
{
    uint32_t first = pool->blocks[b].waiters.head;

    if (first != CST_NO_REQUEST) {
        cst_block_forsake(pool, b, requests, first);
    }
    return first;
}

uint32_t cst_pool_slab(const struct cst_pool *pool, uint32_t b)
{
    const struct cst_part *part = &pool->parts[pool->blocks[b].part];

    return part->first_slab + (b - part->first_block) / part->blocks_per_slab;
}

uint64_t cst_pool_offset(const struct cst_pool *pool, uint32_t b)
{
    const struct cst_part *part = &pool->parts[pool->blocks[b].part];

    return (b - part->first_block) % part->blocks_per_slab * part->block_bytes;
}

struct cst_place cst_pool_place(const struct cst_pool *pool, uint32_t b)
{
    return (struct cst_place){.segment = pool->segments[cst_pool_slab(pool, b)],
                              .offset = cst_pool_offset(pool, b)};
}

void cst_pool_part_books(const struct cst_pool *pool, uint32_t k, struct cst_books *out)
{
    const struct cst_part *part = &pool->parts[k];
    const uint32_t *n = part->count;

    *out = (struct cst_books){.capacity = part->n_blocks,
                              .free = n[CST_BLOCK_FREE],
                              .cached = n[CST_BLOCK_RESIDENT] - part->n_leased_resident,
                              .leased =
                                  part->n_leased_resident + n[CST_BLOCK_STALE] + n[CST_BLOCK_OPEN],
                              .moving = n[CST_BLOCK_LOADING] + n[CST_BLOCK_SPILLING] +
                                        n[CST_BLOCK_REDUCING] + n[CST_BLOCK_LENT],
                              .pending = n[CST_BLOCK_PENDING],
                              .quarantined = n[CST_BLOCK_QUARANTINED]};
}

void cst_pool_books(const struct cst_pool *pool, struct cst_books *out)
{
    *out = (struct cst_books){0};
    for (uint32_t k = 0; k < pool->n_parts; k++) {
        struct cst_books part;

        cst_pool_part_books(pool, k, &part);
        out->capacity += part.capacity;
        out->free += part.free;
        out->cached += part.cached;
        out->leased += part.leased;
        out->moving += part.moving;
        out->pending += part.pending;
        out->quarantined += part.quarantined;
    }
}

const char *cst_block_state_name(enum cst_block_state state)
{
    return states[state].name;
}

static const char *check_block(const struct cst_pool *pool, uint32_t b, uint32_t n_chunks)
{
    const struct cst_block *block = &pool->blocks[b];
    bool weight = states[block->state].is_weight;

    if (block->state == CST_BLOCK_FREE || block->state == CST_BLOCK_LENT) {
        return block->chunk != CST_NONE || block->leases != 0 ? "a free block holds nothing" : NULL;
    }
    if (block->chunk >= n_chunks) {
        return "a block that is not free has a chunk";
    }
    if (block->part != pool->chunks[block->chunk].size_class) {
        return "a block holds chunks of its size class";
    }
    if (weight != (pool->weight_of[block->chunk] == b)) {
        return "weight_of points at the block with the weights";
    }
    if (pool->grad_of[block->chunk] == b && !states[block->state].is_grad) {
        return "grad_of points at a block with a gradient";
    }
    if (block->state == CST_BLOCK_OPEN &&
        (pool->grad_of[block->chunk] != b || block->leases != 1)) {
        return "an open gradient is leased once";
    }
    if (block->state == CST_BLOCK_PENDING && pool->grad_of[block->chunk] != b) {
        return "a pending gradient is known";
    }
    if (block->state == CST_BLOCK_STALE && block->leases == 0) {
        return "a stale block is leased";
    }
    if ((block->leases != 0) != (block->generation != 0)) {
        return "a lease has a generation";
    }
    if (block->filling && (!pool->worker_copies || block->leases == 0)) {
        return "who fills a block has a lease on it";
    }
    if (states[block->state].has_ticket != (block->ticket != 0)) {
        return "what moves has a ticket";
    }
    if (block->state != CST_BLOCK_LOADING && !cst_queue_empty(&block->waiters)) {
        return "only a loading block has waiters";
    }
    return NULL;
}

/* Check that the lists of a part contain its blocks by state, each once, and that its counters are
 * right. */
static const char *check_part(const struct cst_pool *pool, uint32_t k)
{
    const struct cst_part *part = &pool->parts[k];
    uint32_t leased = 0;
    uint32_t awaited = 0;
    uint32_t foreseen = 0;
    uint32_t n = 0;

    for (int s = 0; s < CST_BLOCK_STATES; s++) {
        uint32_t n_listed = 0;
        uint32_t prev = CST_NONE;

        for (uint32_t b = part->head[s]; b != CST_NONE; b = pool->blocks[b].next) {
            const struct cst_block *block = &pool->blocks[b];

            if ((int)block->state != s || block->part != k || block->prev != prev ||
                ++n_listed > part->n_blocks) {
                return "a list has a part's blocks of one state";
            }
            leased += block->state == CST_BLOCK_RESIDENT && block->leases > 0;
            foreseen += block->foreseen;
            awaited += !cst_queue_empty(&block->waiters);
            prev = b;
        }
        if (n_listed != part->count[s]) {
            return "blocks are counted by state";
        }
        n += n_listed;
    }
    if (part->victims.n + part->victims.heaps[CST_VICTIM_STAYS].n + leased !=
        part->count[CST_BLOCK_RESIDENT]) {
        return "weights that nobody leases may be given up";
    }
    if (n != part->n_blocks || foreseen != part->n_foreseen || leased != part->n_leased_resident ||
        awaited != part->n_awaited) {
        return "a part's numbers are its blocks'";
    }
    return NULL;
}

static const char *check_books(const struct cst_pool *pool)
{
    struct cst_books books;

    cst_pool_books(pool, &books);
    if (books.free + books.cached + books.leased + books.moving + books.pending +
            books.quarantined !=
        books.capacity) {
        return "the books balance";
    }
    return NULL;
}

const char *cst_pool_check(const struct cst_pool *pool, uint32_t n_chunks)
{
    const char *what = check_books(pool);

    for (uint32_t k = 0; k < pool->n_parts && what == NULL; k++) {
        what = check_part(pool, k);
        if (what == NULL) {
            what = cst_victims_check(&pool->parts[k].victims, pool->parts[k].n_blocks);
        }
    }
    for (uint32_t b = 0; b < pool->n_blocks && what == NULL; b++) {
        what = check_block(pool, b, n_chunks);
    }
    for (uint32_t c = 0; c < n_chunks && what == NULL; c++) {
        uint32_t w = pool->weight_of[c];
        uint32_t g = pool->grad_of[c];

        if (w != CST_NONE && (w >= pool->n_blocks || pool->blocks[w].chunk != c ||
                              !states[pool->blocks[w].state].is_weight)) {
            what = "weight_of points at a block of its chunk";
        } else if (g != CST_NONE && (g >= pool->n_blocks || pool->blocks[g].chunk != c ||
                                     !states[pool->blocks[g].state].is_grad)) {
            what = "grad_of points at a block of its chunk";
        }
    }
    return what;
}
