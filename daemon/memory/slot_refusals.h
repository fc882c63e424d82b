/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of edges that are on an accelerator (edge_slots.h), but that the worker of an end of the
 * edge cannot map there. They are made again in host memory, and replace those on the accelerator
 * when the engines have populated them.
 *
 *   slots on the accelerator --a worker refuses--> MAKING --populated--> REFUSED, slots on the host
 *              ^                                     |
 *              +----- an error, or a rank moved -----+
 *
 * A refusal is about the accelerators of the edge's two ranks. It does not count while one of the
 * ranks is on another device. All refusals are forgotten when the pools are given back: ranks that
 * come back to the job try again. Loop thread only. */
#ifndef CSTD_SLOT_REFUSALS_H
#define CSTD_SLOT_REFUSALS_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

struct cst_layout_edge;
struct cstd_tier;
struct cstd_memory;
struct cstd_segment;

struct cstd_slot_refusal {
    TAILQ_ENTRY(cstd_slot_refusal) link;
    const struct cst_layout_edge *edge;
    const struct cstd_tier *from, *to; /* Tiers of the ranks that put and take. */
    uint32_t rank;                     /* The rank whose worker cannot map the slots. */
    char reason[sizeof((struct cst_err *)0)->text]; /* The worker's words; one line. */
    struct cstd_segment *segment; /* MAKING: the new slots; NULL: REFUSED, they are in place. */
    /* MAKING: tags of the requests that wait, of the rank that puts and of the one that takes; 0:
     * none waits. */
    uint64_t tags[2];
};

TAILQ_HEAD(cstd_slot_refusal_list, cstd_slot_refusal);

/* @rank, an end of edge @i of the model, cannot map the slots because of @reason. They have memory
 * of their own, and the pools exist. Begin to make them in host memory. Statuses:
 *   - CST_EAGAIN: the request with the tag @tag is answered when the new slots are in place, or
 *     with an error.
 *   - CST_OK: the slots are in host memory already.
 *   - CST_EBUSY: an earlier request of this rank about the edge waits.
 *   - CST_EBUDGET, CST_ENOMEM: there is no host memory for them. Nothing was changed. */
int cstd_slot_refusals_add(struct cstd_memory *memory, uint32_t i, uint32_t rank,
                           const char *reason, uint64_t tag, struct cst_err *err);

/* True if @refusal is about ranks on @from and @to. */
static inline bool cstd_slot_refusal_counts(const struct cstd_slot_refusal *refusal,
                                            const struct cstd_tier *from,
                                            const struct cstd_tier *to)
{
    return refusal->from == from && refusal->to == to;
}

/* Return the refusal that counts for @edge if its ranks are on @from and @to, and whose slots are
 * in place. NULL: there is none. */
static inline const struct cstd_slot_refusal *
cstd_slot_refusals_find(const struct cstd_slot_refusal_list *list,
                        const struct cst_layout_edge *edge, const struct cstd_tier *from,
                        const struct cstd_tier *to)
{
    const struct cstd_slot_refusal *refusal;

    TAILQ_FOREACH(refusal, list, link)
    {
        if (refusal->edge == edge && refusal->segment == NULL &&
            cstd_slot_refusal_counts(refusal, from, to)) {
            return refusal;
        }
    }
    return NULL;
}

/* True if @segment is new slots that are not in place yet: if it fails, the others of @memory do
 * not. */
bool cstd_slot_refusals_own(const struct cstd_memory *memory, const struct cstd_segment *segment);

/* The engines have answered for all segments of @memory: put new slots in place, and answer the
 * requests that wait for them. */
void cstd_slot_refusals_settle(struct cstd_memory *memory);

/* The pools or the whole memory are given back: forget all refusals. Requests that wait are not
 * answered here: they end with the job. */
void cstd_slot_refusals_forget(struct cstd_memory *memory);

#endif
