/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/slot_refusals.h"

#include "daemon/base/daemon_state.h"
#include "daemon/memory/memory_pools.h"
#include "daemon/base/log.h"
#include "daemon/session/session.h"
#include "offload/layout/edge.h"
#include "proto/cistern.pb-c.h"
#include "proto/text.h"
#include "daemon/memory/memory.h"
#include "daemon/memory/tiers/tier.h"
#include "daemon/session/pending.h"

#include <stdio.h>
#include <stdlib.h>

static bool counts_now(const struct cstd_memory *memory, const struct cstd_slot_refusal *refusal)
{
    return cstd_slot_refusal_counts(refusal, memory->tiers[refusal->edge->from],
                                    memory->tiers[refusal->edge->to]);
}

/* The request that waits, of the rank that puts (0) or takes (1); NULL: there is none, or its
 * session has ended. */
static struct cstd_pending *request_of(const struct cstd_memory *memory,
                                       const struct cstd_slot_refusal *refusal, unsigned end)
{
    uint32_t item;

    return refusal->tags[end] != 0
               ? cstd_pending_find(memory->daemon->requests, refusal->tags[end], &item)
               : NULL;
}

static void remove_refusal(struct cstd_memory *memory, struct cstd_slot_refusal *refusal)
{
    TAILQ_REMOVE(&memory->refusals, refusal, link);
    if (refusal->segment != NULL) {
        memory->pool_bytes -= cstd_memory_release(memory, refusal->segment);
    }
    free(refusal);
}

/* -- refusing --------------------------------------------------------------------------------- */

/* Copy a worker's words. They are shown on terminals. */
static void take_reason(struct cstd_slot_refusal *refusal, const char *reason)
{
    (void)snprintf(refusal->reason, sizeof refusal->reason, "%s", reason);
    cst_text_clean(refusal->reason, sizeof refusal->reason);
}

/* Make a refusal of edge @i by @rank, with memory for the slots that the engines populate now.
 * NULL: an error. */
static struct cstd_slot_refusal *make_refusal(struct cstd_memory *memory, uint32_t i, uint32_t rank,
                                              const char *reason, struct cst_err *err)
{
    const struct cst_layout_edge *edge = &memory->model->edges[i];
    struct cstd_slot_refusal *refusal = calloc(1, sizeof *refusal);

    if (refusal == NULL) {
        (void)cst_err_set(err, CST_ENOMEM, "edge '%s': no memory", edge->name);
        return NULL;
    }
    if (cstd_memory_make_host_slots(memory, i, &refusal->segment, err) != CST_OK) {
        (void)cst_err_prefix(err, "edge '%s'", edge->name);
        free(refusal);
        return NULL;
    }
    refusal->edge = edge;
    refusal->from = memory->tiers[edge->from];
    refusal->to = memory->tiers[edge->to];
    refusal->rank = rank;
    take_reason(refusal, reason);
    TAILQ_INSERT_TAIL(&memory->refusals, refusal, link);
    return refusal;
}

/* Find the refusal of @edge whose slots are being made for the devices of today. */
static struct cstd_slot_refusal *find_making(const struct cstd_memory *memory,
                                             const struct cst_layout_edge *edge)
{
    struct cstd_slot_refusal *refusal;

    TAILQ_FOREACH(refusal, &memory->refusals, link)
    {
        if (refusal->edge == edge && refusal->segment != NULL && counts_now(memory, refusal)) {
            return refusal;
        }
    }
    return NULL;
}

int cstd_slot_refusals_add(struct cstd_memory *memory, uint32_t i, uint32_t rank,
                           const char *reason, uint64_t tag, struct cst_err *err)
{
    const struct cst_layout_edge *edge = &memory->model->edges[i];
    struct cstd_slot_refusal *refusal = find_making(memory, edge);
    const unsigned end = rank == edge->to;

    if (!cstd_memory_edge_slots(memory, i)->device) {
        return CST_OK;
    }
    if (refusal != NULL && request_of(memory, refusal, end) != NULL) {
        return cst_err_set(err, CST_EBUSY, "edge '%s': rank %u waits for its slots already",
                           edge->name, rank);
    }
    if (refusal == NULL) {
        refusal = make_refusal(memory, i, rank, reason, err);
    }
    if (refusal == NULL) {
        return err->status;
    }
    refusal->tags[end] = tag;
    return CST_EAGAIN;
}

/* -- the end ---------------------------------------------------------------------------------- */

/* Answer the requests that wait for @refusal: with OK, or with the error @why. */
static void answer(struct cstd_memory *memory, struct cstd_slot_refusal *refusal,
                   const struct cst_err *why)
{
    for (unsigned end = 0; end < 2; end++) {
        struct cstd_pending *request = request_of(memory, refusal, end);

        refusal->tags[end] = 0;
        if (request != NULL && why->status != CST_OK) {
            cstd_session_fail(memory->daemon, request, why);
        } else if (request != NULL) {
            cstd_session_answer(memory->daemon, request, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
        }
    }
}

/* The slots of @refusal are populated: they take the place of those on the accelerator. */
static void put_in_place(struct cstd_memory *memory, struct cstd_slot_refusal *refusal)
{
    const uint32_t i = (uint32_t)(refusal->edge - memory->model->edges);
    const struct cstd_log_about about = {
        .job = memory->name, .rank = refusal->rank, .uid = memory->account->uid};

    cstd_memory_replace_edge_slots(memory, i, refusal->segment);
    refusal->segment = NULL;
    cstd_log_about(CSTD_LOG_WARNING, &about,
                   "the slots of edge '%s' are in host memory, because rank %u cannot map them on "
                   "%s: %s",
                   refusal->edge->name, refusal->rank, refusal->to->name, refusal->reason);
}

static void settle(struct cstd_memory *memory, struct cstd_slot_refusal *refusal)
{
    struct cst_err why = refusal->segment->err;
    const bool in_place = why.status == CST_OK && counts_now(memory, refusal);

    if (in_place) {
        put_in_place(memory, refusal);
    }
    answer(memory, refusal, &why);
    if (!in_place) {
        remove_refusal(memory, refusal);
    }
}

bool cstd_slot_refusals_own(const struct cstd_memory *memory, const struct cstd_segment *segment)
{
    const struct cstd_slot_refusal *refusal;

    TAILQ_FOREACH(refusal, &memory->refusals, link)
    {
        if (refusal->segment == segment) {
            return true;
        }
    }
    return false;
}

void cstd_slot_refusals_settle(struct cstd_memory *memory)
{
    struct cstd_slot_refusal *next;

    for (struct cstd_slot_refusal *r = TAILQ_FIRST(&memory->refusals); r != NULL; r = next) {
        next = TAILQ_NEXT(r, link);
        if (r->segment != NULL) {
            settle(memory, r);
        }
    }
}

void cstd_slot_refusals_forget(struct cstd_memory *memory)
{
    while (!TAILQ_EMPTY(&memory->refusals)) {
        remove_refusal(memory, TAILQ_FIRST(&memory->refusals));
    }
}
