/* SPDX-License-Identifier: Apache-2.0 */
/* The slabs of pools: making, moving and parking them; edges are parked with them. */
#include "daemon/memory/memory_pools.h"

#include "daemon/base/daemon_state.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/engines.h"
#include "daemon/memory/tiers/tier.h"
#include "proto/reason.h"

#include <stdlib.h>
#include <string.h>

/* -- pools ---------------------------------------------------------------------------------- */

struct cst_set cstd_memory_readers(const struct cstd_memory *memory, const struct cstd_tier *tier)
{
    struct cst_set readers = memory->pool_engines;

    CST_SET_EACH (engine, &readers) {
        if (!cstd_tier_reaches(cstd_tiers_of_number(memory->daemon, engine), tier)) {
            cst_set_drop(&readers, engine);
        }
    }
    return readers;
}

/* Add the slabs of one size class. */
static int add_part(struct cstd_memory *memory, const struct cst_layout *layout, uint32_t rank,
                    const struct cstd_memory_pool *pool, uint32_t class, struct cst_err *err)
{
    uint32_t per_slab = cstd_pools_per_slab(layout, class), left = pool->blocks.n[class];
    uint64_t grain = cstd_tier_grain(pool->tier);
    /* Pools in host memory are spread over the nodes by rank. */
    struct cstd_tier_piece piece = {.use = CSTD_TIER_POOL,
                                    .node = rank % memory->daemon->engines->n_nodes};
    int rc = CST_OK;

    while (left > 0 && rc == CST_OK) {
        uint32_t n = left < per_slab ? left : per_slab;

        piece.bytes = cstd_pools_slab_bytes(layout, class, n, grain);
        left -= n;
        if (memory->parked && memory->segments[memory->n_segments] != NULL) {
            memory->n_segments++; /* It was adopted. */
            continue;
        }
        rc = pool->tier->kind->create(memory, pool->tier, &piece, err);
    }
    return rc;
}

int cstd_memory_add_pool(struct cstd_memory *memory, const struct cst_layout *layout, uint32_t rank,
                         const struct cstd_memory_pool *pool, struct cst_err *err)
{
    struct cst_core_pool *to = &memory->pools[rank];
    uint32_t first = memory->n_segments;
    int rc = CST_OK;

    *to = (struct cst_core_pool){.segments = memory->ids + first,
                                 .tier = pool->tier->number,
                                 .worker_copies =
                                     cstd_memory_worker_copies(pool->tier, &layout->states),
                                 .unreachable = pool->tier->kind->unreachable(pool->tier)};
    for (uint32_t c = 0; c < layout->n_classes && rc == CST_OK; c++) {
        to->parts[c] = (struct cst_core_part){.n_blocks = pool->blocks.n[c],
                                              .blocks_per_slab = cstd_pools_per_slab(layout, c),
                                              .first_slab = memory->n_segments - first};
        if (memory->kept != NULL) { /* The pools are parked. */
            memory->n_segments += cstd_pools_slabs(layout, c, pool->blocks.n[c]);
        } else {
            rc = add_part(memory, layout, rank, pool, c, err);
        }
    }
    return rc;
}

/* -- moving a pool -------------------------------------------------------------------------- */

/* Replace the new slabs of a pool by the @n old ones again. */
static void undo_move(struct cstd_memory *memory, uint32_t first, uint32_t n_made,
                      struct cstd_segment *const *old, uint32_t n)
{
    for (uint32_t i = 0; i < n_made; i++) {
        cstd_segment_unref(memory->segments[first + i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        memory->segments[first + i] = old[i];
        memory->ids[first + i] = old[i]->id;
    }
}

int cstd_memory_move(struct cstd_memory *memory, const struct cst_layout *layout, uint32_t rank,
                     struct cst_set lost, const struct cstd_tier *tier, struct cst_err *err)
{
    const struct cst_set engines = cstd_tier_engines(tier), gpu_engines = memory->gpu_engines,
                         pool_engines = memory->pool_engines,
                         kept = cst_set_minus(pool_engines, lost);
    struct cst_core_pool was = memory->pools[rank];
    uint32_t first = (uint32_t)(was.segments - memory->ids), n = cstd_memory_n_slabs(memory, rank),
             n_all = memory->n_segments, n_made;
    struct cstd_memory_pool pool = {.tier = tier};
    const struct cstd_tier *tier_was = memory->tiers[rank];
    struct cstd_memory_slots slots;
    struct cstd_segment **old;
    int rc;

    if (!cst_set_within(&engines, &kept)) {
        return cst_err_give_reason(
            err, CST_REASON_POOL,
            cst_err_set(err, CST_EMISMATCH,
                        "the pool of rank %u of job '%s' can move to the host, or to a GPU that "
                        "the job has a pool on; %s is neither",
                        rank, memory->name, tier->name));
    }
    /* n may be 0, and calloc(0) may return NULL. */
    old = calloc(n + 1u, sizeof(struct cstd_segment *));
    if (old == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %u segments", n);
    }
    memcpy(old, memory->segments + first, n * sizeof(struct cstd_segment *));
    for (uint32_t c = 0; c < layout->n_classes; c++) {
        pool.blocks.n[c] = was.parts[c].n_blocks;
    }
    memory->pool_engines = cst_set_minus(pool_engines, lost);
    memory->gpu_engines = cst_set_minus(gpu_engines, lost);
    /* The new slabs take the places of the old ones in the arrays. add_pool appends at n_segments,
     * which is set to the first place for the call. */
    memory->n_segments = first;
    memory->tiers[rank] = tier;
    rc = cstd_memory_add_pool(memory, layout, rank, &pool, err);
    n_made = memory->n_segments - first;
    rc = rc == CST_OK ? cstd_memory_replace_slots(memory, rank, &slots, err) : rc;
    if (rc != CST_OK) {
        undo_move(memory, first, n_made, old, n);
        memory->pools[rank] = was;
        memory->tiers[rank] = tier_was;
        memory->pool_engines = pool_engines;
        memory->gpu_engines = gpu_engines;
    }
    memory->n_segments = n_all;
    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        memory->pool_bytes -= cstd_memory_release(memory, old[i]);
    }
    memory->err = (struct cst_err){0};
    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        cstd_memory_mount(memory, memory->segments[first + i]);
    }
    if (rc == CST_OK) {
        cstd_memory_mount_slots(memory, &slots);
    }
    free(old);
    return rc;
}

/* -- parking of pools and edges ---------------------------------------------------------------- */

/* Find the slabs of all pools and the edges in segments: [*first, *end). */
static void find_parked(const struct cstd_memory *memory, uint32_t *first, uint32_t *end)
{
    *first = (uint32_t)(memory->pools[0].segments - memory->ids);
    *end = *first;
    for (uint32_t r = 0; r < memory->world; r++) {
        *end += cstd_memory_n_slabs(memory, r);
    }
    *end += cstd_memory_n_edge_segments(memory->model);
}

void cstd_memory_park(struct cstd_memory *memory, bool adopted)
{
    uint32_t first, end;

    find_parked(memory, &first, &end);
    cstd_shared_heads_close(&memory->heads);
    cstd_slot_refusals_forget(memory);
    cstd_pool_pages_forget(memory);
    memory->parked = true;
    for (uint32_t i = first; i < end; i++) {
        struct cstd_segment *segment = memory->segments[i];

        if (segment != NULL && (adopted || !segment->adopted)) {
            memory->pool_bytes -= cstd_memory_release(memory, segment);
            memory->segments[i] = NULL;
        }
    }
}

bool cstd_memory_has_pools(const struct cstd_memory *memory)
{
    uint32_t first, end;
    bool any = false;

    find_parked(memory, &first, &end);
    for (uint32_t i = first; i < end; i++) {
        any = any || memory->segments[i] != NULL;
    }
    return any;
}

/* The bytes of slab @i of @pool. */
static uint64_t slab_bytes(const struct cst_layout *layout, const struct cst_core_pool *pool,
                           uint32_t i, uint64_t grain)
{
    uint32_t c = 0, before, left;

    while (c + 1 < layout->n_classes && pool->parts[c + 1].first_slab <= i) {
        c++;
    }
    before = (i - pool->parts[c].first_slab) * pool->parts[c].blocks_per_slab;
    left = pool->parts[c].n_blocks - before;
    return cstd_pools_slab_bytes(
        layout, c, left < pool->parts[c].blocks_per_slab ? left : pool->parts[c].blocks_per_slab,
        grain);
}

int cstd_memory_adopt_slab(struct cstd_memory *memory, const struct cst_layout *layout,
                           uint32_t rank, uint32_t i, const struct cstd_tier *tier, int fd,
                           struct cst_err *err)
{
    struct cstd_daemon *daemon = memory->daemon;
    uint64_t bytes = slab_bytes(layout, &memory->pools[rank], i, cstd_tier_grain(tier));
    uint32_t at = (uint32_t)(memory->pools[rank].segments - memory->ids) + i;
    struct cstd_segment *segment;
    int rc = cstd_segment_adopt_device(&segment, cstd_engines_segment_id(daemon->engines), bytes,
                                       fd, tier->budget, memory->account, tier->number, err);

    if (rc == CST_OK) {
        segment->engines = cst_set_union(segment->engines, cstd_memory_readers(memory, tier));
        memory->segments[at] = segment;
        memory->ids[at] = segment->id;
        cstd_memory_mount_adopted(memory, segment);
    }
    return rc;
}

int cstd_memory_unpark(struct cstd_memory *memory, const struct cst_layout *layout,
                       const struct cstd_tier *const *tiers, struct cst_err *err)
{
    uint32_t first, end, n_all = memory->n_segments;
    int rc = CST_OK;

    find_parked(memory, &first, &end);
    memory->n_segments = first;
    for (uint32_t r = 0; r < memory->world && rc == CST_OK; r++) {
        struct cstd_memory_pool pool = {.tier = tiers[r]};
        struct cst_core_pool was = memory->pools[r];

        for (uint32_t c = 0; c < layout->n_classes; c++) {
            pool.blocks.n[c] = was.parts[c].n_blocks;
        }
        rc = cstd_memory_add_pool(memory, layout, r, &pool, err);
        if (rc != CST_OK) {
            memory->pools[r] = was;
        }
    }
    rc = rc == CST_OK ? cstd_memory_add_edges(memory, err) : rc;
    if (rc != CST_OK) {
        cstd_shared_heads_close(&memory->heads);
    }
    for (uint32_t i = first; i < memory->n_segments && rc != CST_OK; i++) {
        if (!memory->segments[i]->adopted) {
            cstd_segment_unref(memory->segments[i]);
            memory->segments[i] = NULL;
        }
    }
    memory->n_segments = n_all;
    if (rc != CST_OK) {
        return rc;
    }
    memory->parked = false;
    memory->err = (struct cst_err){0};
    /* Deaths during an earlier population do not count against this one. */
    memory->population = (struct cstd_population){0};
    for (uint32_t i = first; i < end; i++) {
        if (!memory->segments[i]->adopted) {
            cstd_memory_mount(memory, memory->segments[i]);
        }
    }
    return CST_OK;
}
