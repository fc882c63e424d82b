/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/gradient/drift.h"

#include "offload/core/core_state.h"
#include "offload/gradient/collection.h"

/* Maximum time for which a fetch waits for other ranks. */
#define PATIENCE_NS UINT64_C(2000000000)

/* The ranks for which the gradient of @rank in a PENDING block waits. An fp32 row takes the
 * addends in order, each as soon as it can. */
static struct cst_set awaited_by(const struct cst_core *core, uint32_t rank,
                                 const struct cst_block *block)
{
    const struct cst_chunk *chunk = &core->chunks[block->chunk];
    uint32_t end = core->world; /* All addends of an earlier sum come first. */
    struct cst_set awaited;

    if (core->adds_singly && block->addend < chunk->gradient.first + chunk->n_in_sum) {
        end = rank;
    }
    awaited = cst_collection_missing(core, block->chunk, end);
    cst_set_drop(&awaited, rank);
    return awaited;
}

/* True if one of the ranks @ranks waits for @rank, also by way of others. */
static bool is_awaited(const struct cst_core *core, struct cst_set ranks, uint32_t rank)
{
    struct cst_set known = {{0}};

    while (!cst_set_equal(&ranks, &known)) {
        const struct cst_set added = cst_set_minus(ranks, known);

        known = ranks;
        CST_SET_EACH (i, &added) {
            ranks = cst_set_union(ranks, core->ranks[i].waits_for);
        }
    }
    return cst_set_has(&known, rank);
}

/* Ranks that run the same operators need the same chunks in the same order, as far as is known. The
 * stages of a pipeline do not: one would wait for another that waits for its output. */
static bool can_await(const struct cst_core *core, uint32_t rank, const struct cst_set *ranks)
{
    return cst_set_within(ranks, &core->ranks[rank].alike) && !is_awaited(core, *ranks, rank);
}

static uint64_t patience(const struct cst_core *core)
{
    return core->peer_timeout_ns / 2 < PATIENCE_NS ? core->peer_timeout_ns / 2 : PATIENCE_NS;
}

static void begin(struct cst_core *core, struct cst_rank *rank, const struct cst_set *awaited)
{
    rank->waits_for = *awaited;
    if (rank->patient_until == CST_CORE_NEVER) {
        rank->patient_until = core->now + patience(core);
    }
}

bool cst_drift_waits(struct cst_core *core, uint32_t rank, const struct cst_part *part, bool fetch)
{
    struct cst_rank *r = &core->ranks[rank];
    uint32_t b = part->head[CST_BLOCK_PENDING];

    if (r->impatient || !core->schedule->by_rank) {
        return false;
    }
    for (; b != CST_NONE; b = r->pool.blocks[b].next) {
        const struct cst_set awaited = awaited_by(core, rank, &r->pool.blocks[b]);

        if (can_await(core, rank, &awaited)) {
            if (fetch) {
                begin(core, r, &awaited);
            }
            return true;
        }
    }
    return false;
}

void cst_drift_expire(struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        struct cst_rank *r = &core->ranks[rank];

        if (r->patient_until <= core->now) {
            r->impatient = true;
            cst_drift_end(r);
            cst_pool_wake(&r->pool);
        }
    }
}

uint64_t cst_drift_deadline(const struct cst_core *core)
{
    uint64_t first = CST_CORE_NEVER;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        uint64_t until = core->ranks[rank].patient_until;

        first = until < first ? until : first;
    }
    return first;
}
