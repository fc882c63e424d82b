#include "offload/block.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define TO(state) (1u << CST_BLOCK_##state)

static const struct {
    const char *name;
    unsigned next;   /* states that may follow, a bit each */
    bool has_ticket; /* a command moves it */
    bool is_weight;  /* weight_of points at it */
    bool is_grad;    /* grad_of may point at it */
} states[CST_BLOCK_STATES] = {
    [CST_BLOCK_FREE] = {"free", TO(LOADING) | TO(OPEN), false, false, false},
    [CST_BLOCK_LOADING] = {"loading", TO(RESIDENT) | TO(FREE), true, true, false},
    [CST_BLOCK_RESIDENT] = {"resident", TO(FREE) | TO(STALE) | TO(QUARANTINED), false, true, false},
    [CST_BLOCK_STALE] = {"stale", TO(FREE) | TO(QUARANTINED), false, false, false},
    [CST_BLOCK_OPEN] = {"open", TO(PENDING) | TO(FREE) | TO(QUARANTINED), false, false, true},
    [CST_BLOCK_PENDING] = {"pending", TO(STAGING) | TO(REDUCING) | TO(FREE), false, false, true},
    [CST_BLOCK_STAGING] = {"staging", TO(FREE) | TO(PENDING), true, false, true},
    [CST_BLOCK_REDUCING] = {"reducing", TO(FREE), true, false, true},
    [CST_BLOCK_QUARANTINED] = {"quarantined", TO(FREE), false, false, false},
};

int cst_pool_init(struct cst_pool *pool, const struct cst_core_pool *config, uint32_t n_chunks)
{
    *pool = (struct cst_pool){
        .n_blocks = config->n_blocks,
        .blocks_per_slab = config->blocks_per_slab,
        .segments = config->segments,
        .engine = config->engine,
        .worker_copies = config->worker_copies,
        .free_head = CST_NONE,
        .blocks = calloc(config->n_blocks, sizeof *pool->blocks),
        .weight_of = malloc(n_chunks * sizeof *pool->weight_of),
        .grad_of = malloc(n_chunks * sizeof *pool->grad_of),
    };
    if (pool->blocks == NULL || pool->weight_of == NULL || pool->grad_of == NULL) {
        cst_pool_close(pool);
        return CST_ENOMEM;
    }
    memset(pool->weight_of, 0xff, n_chunks * sizeof *pool->weight_of);
    memset(pool->grad_of, 0xff, n_chunks * sizeof *pool->grad_of);
    pool->count[CST_BLOCK_FREE] = pool->n_blocks;
    for (uint32_t b = pool->n_blocks; b-- > 0;) {
        pool->blocks[b].chunk = CST_NONE;
        pool->blocks[b].next_free = pool->free_head;
        cst_queue_init(&pool->blocks[b].waiters);
        pool->free_head = b;
    }
    return CST_OK;
}

void cst_pool_close(struct cst_pool *pool)
{
    free(pool->blocks);
    free(pool->weight_of);
    free(pool->grad_of);
    memset(pool, 0, sizeof *pool);
}

static void set_state(struct cst_pool *pool, struct cst_block *block, enum cst_block_state state)
{
    assert((states[block->state].next & (1u << state)) != 0);
    pool->count[block->state]--;
    pool->count[state]++;
    block->state = state;
    pool->changed = true;
}

uint32_t cst_pool_take(struct cst_pool *pool, enum cst_block_state state, uint32_t chunk)
{
    uint32_t b = pool->free_head;
    struct cst_block *block;

    if (b == CST_NONE) {
        return CST_NONE;
    }
    block = &pool->blocks[b];
    pool->free_head = block->next_free;
    block->next_free = CST_NONE;
    block->chunk = chunk;
    set_state(pool, block, state);
    return b;
}

void cst_block_move(struct cst_pool *pool, uint32_t b, enum cst_block_state state)
{
    struct cst_block *block = &pool->blocks[b];

    if (block->state == CST_BLOCK_RESIDENT && block->leases > 0) {
        assert(state != CST_BLOCK_FREE);
        pool->n_leased_resident--;
    }
    set_state(pool, block, state);
    if (!states[state].has_ticket) {
        block->ticket = 0;
        block->dropped = false;
    }
    block->filling = block->filling && state == CST_BLOCK_STALE;
    if (state == CST_BLOCK_PENDING) {
        block->leases = 0;
        block->generation = 0;
    }
    if (state == CST_BLOCK_FREE) {
        assert(cst_queue_empty(&block->waiters));
        block->chunk = CST_NONE;
        block->leases = 0;
        block->generation = 0;
        block->next_free = pool->free_head;
        pool->free_head = b;
    }
}

void cst_block_lease(struct cst_pool *pool, uint32_t b)
{
    struct cst_block *block = &pool->blocks[b];

    if (block->leases++ == 0 && block->state == CST_BLOCK_RESIDENT) {
        pool->n_leased_resident++;
    }
}

void cst_block_unlease(struct cst_pool *pool, uint32_t b)
{
    struct cst_block *block = &pool->blocks[b];

    assert(block->leases > 0);
    if (--block->leases == 0) {
        if (block->state == CST_BLOCK_RESIDENT) {
            pool->n_leased_resident--;
        }
        block->generation = 0;
        pool->changed = true;
    }
}

void cst_block_unlease_all(struct cst_pool *pool, uint32_t b)
{
    while (pool->blocks[b].leases > 0) {
        cst_block_unlease(pool, b);
    }
}

uint32_t cst_pool_slab(const struct cst_pool *pool, uint32_t block)
{
    return block / pool->blocks_per_slab;
}

uint64_t cst_pool_offset(const struct cst_pool *pool, uint32_t block, uint64_t capacity)
{
    return (uint64_t)(block % pool->blocks_per_slab) * 2 * capacity;
}

struct cst_place cst_pool_place(const struct cst_pool *pool, uint32_t block, uint64_t capacity)
{
    return (struct cst_place){.segment = pool->segments[cst_pool_slab(pool, block)],
                              .offset = cst_pool_offset(pool, block, capacity)};
}

void cst_pool_books(const struct cst_pool *pool, struct cst_books *out)
{
    const uint32_t *n = pool->count;

    *out = (struct cst_books){
        .capacity = pool->n_blocks,
        .free = n[CST_BLOCK_FREE],
        .cached = n[CST_BLOCK_RESIDENT] - pool->n_leased_resident,
        .leased = pool->n_leased_resident + n[CST_BLOCK_STALE] + n[CST_BLOCK_OPEN],
        .moving = n[CST_BLOCK_LOADING] + n[CST_BLOCK_STAGING] + n[CST_BLOCK_REDUCING],
        .pending = n[CST_BLOCK_PENDING],
        .quarantined = n[CST_BLOCK_QUARANTINED],
    };
}

const char *cst_block_state_name(enum cst_block_state state)
{
    return states[state].name;
}

static const char *check_block(const struct cst_pool *pool, uint32_t b, uint32_t n_chunks)
{
    const struct cst_block *block = &pool->blocks[b];
    bool weight = states[block->state].is_weight;

    if (block->state == CST_BLOCK_FREE) {
        return block->chunk != CST_NONE || block->leases != 0 ? "a free block holds nothing" : NULL;
    }
    if (block->chunk >= n_chunks) {
        return "a block that is not free has a chunk";
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

static const char *check_counts(const struct cst_pool *pool)
{
    uint32_t count[CST_BLOCK_STATES] = {0};
    uint32_t leased = 0;
    uint32_t n_free = 0;
    struct cst_books books;

    for (uint32_t b = 0; b < pool->n_blocks; b++) {
        count[pool->blocks[b].state]++;
        leased += pool->blocks[b].state == CST_BLOCK_RESIDENT && pool->blocks[b].leases > 0;
    }
    for (uint32_t b = pool->free_head; b != CST_NONE; b = pool->blocks[b].next_free) {
        if (pool->blocks[b].state != CST_BLOCK_FREE || ++n_free > pool->n_blocks) {
            return "the free list has free blocks, each once";
        }
    }
    if (memcmp(count, pool->count, sizeof count) != 0 || leased != pool->n_leased_resident ||
        n_free != count[CST_BLOCK_FREE]) {
        return "blocks are counted by state";
    }
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
    const char *what = check_counts(pool);

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
