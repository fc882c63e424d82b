/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/core/deadlines.h"

#include "offload/core/epochs.h"
#include "offload/core/core_state.h"
#include "offload/core/ranks.h"
#include "offload/books/waiting.h"

#include <inttypes.h>
#include <stdio.h>

static const char *absence(const struct cst_rank *rank)
{
    switch (rank->state) {
    case CST_RANK_ABSENT:
        return "never attached";
    case CST_RANK_ATTACHED:
        return rank->gone.status != CST_OK ? "has lost an engine" : "has not asked";
    case CST_RANK_LEFT:
        return "left";
    case CST_RANK_HUNG_UP:
        return "hung up";
    case CST_RANK_DEAD:
        return "died";
    }
    return "?";
}

/* True if the step waits for @rank to ask for it. */
static bool lacks_step(const struct cst_core *core, const struct cst_rank *rank)
{
    return !rank->stepped && (rank->joined || !core->schedule->elastic);
}

/* List the ranks that have not asked for the step or the sync: "rank 1 (died in step 4), rank 3
 * (never attached)". */
static void name_missing(const struct cst_core *core, bool step, char *text, size_t size)
{
    size_t n = 0;

    text[0] = '\0';
    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_rank *r = &core->ranks[rank];
        bool gone = r->state != CST_RANK_ABSENT && r->state != CST_RANK_ATTACHED;

        if (!(step ? lacks_step(core, r) : cst_ranks_await(core, r)) || n >= size) {
            continue;
        }
        n += (size_t)snprintf(text + n, size - n, "%srank %" PRIu32 " (%s", n == 0 ? "" : ", ",
                              rank, absence(r));
        if (gone && n < size) {
            n += (size_t)snprintf(text + n, size - n, " in step %" PRIu64, r->state_step);
        }
        if (n < size) {
            n += (size_t)snprintf(text + n, size - n, ")");
        }
    }
    if (n == 0 && !step) {
        cst_epochs_name_missing(core, text, size);
    }
}

void cst_core_waits(const struct cst_core *core, char *text, size_t size)
{
    bool syncs = false, steps = false;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        syncs = syncs || core->ranks[rank].sync != CST_NO_REQUEST;
        steps = steps || core->ranks[rank].stepped;
    }
    text[0] = '\0';
    if (syncs || steps) {
        name_missing(core, !syncs, text, size);
    }
}

static void expire_step(struct cst_core *core)
{
    struct cst_err why;
    char missing[256];

    name_missing(core, true, missing, sizeof missing);
    (void)cst_err_set(&why, CST_ETIMEDOUT, "step %" PRIu64 " waited %" PRIu64 " ms for %s",
                      core->step, core->peer_timeout_ns / 1000000, missing);
    cst_ranks_interrupt(core, &why);
}

static void expire_sync(struct cst_core *core, uint32_t i)
{
    struct cst_err why;
    char missing[256];

    name_missing(core, false, missing, sizeof missing);
    (void)cst_err_set(&why, CST_ETIMEDOUT, "sync waited %" PRIu64 " ms for %s",
                      core->peer_timeout_ns / 1000000, missing);
    cst_waiting_refuse(core, i, &why);
}

static void expire_fetch(struct cst_core *core, uint32_t i)
{
    const struct cst_request *request = &core->requests.v[i];
    const struct cst_rank *rank = &core->ranks[request->rank];
    struct cst_books books;
    struct cst_err why;

    if (request->kind == CST_EV_FETCH_GRAD && rank->pool.grad_of[request->chunk] != CST_NONE) {
        const struct cst_block *block = &rank->pool.blocks[rank->pool.grad_of[request->chunk]];
        char theirs[CST_ADDEND_TEXT], own[CST_ADDEND_TEXT];

        core->schedule->say(core, request->chunk, block->addend, own);
        core->schedule->say(core, request->chunk, core->chunks[request->chunk].gradient.first,
                            theirs);
        (void)cst_err_set(
            &why, CST_ETIMEDOUT,
            "the gradient of chunk %" PRIu32 " waited %" PRIu64 " ms: what rank %" PRIu32
            " handed in before, in %s, is not summed yet, because its group is in %s",
            request->chunk, core->peer_timeout_ns / 1000000, request->rank, own, theirs);
        cst_waiting_refuse(core, i, &why);
        return;
    }
    cst_pool_books(&rank->pool, &books);
    (void)cst_err_set(&why, CST_ETIMEDOUT,
                      "chunk %" PRIu32 " waited %" PRIu64 " ms for a block of rank %" PRIu32
                      ": of its %" PRIu32 " blocks %" PRIu32 " are leased, %" PRIu32
                      " are being copied, and %" PRIu32 " hold gradients that wait for other ranks",
                      request->chunk, core->peer_timeout_ns / 1000000, request->rank,
                      books.capacity, books.leased, books.moving, books.pending);
    cst_waiting_refuse(core, i, &why);
}

static void expire_next(struct cst_core *core, uint32_t i)
{
    struct cst_work_unit unit = {0};
    struct cst_err why;
    char who[32] = "nobody", text[CST_WORK_UNIT_TEXT];
    uint32_t rank = CST_NONE;

    /* Something is not done, because NEXT is answered when all is done. */
    (void)core->schedule->work->first(core, &unit, &rank);
    cst_work_unit_say(&unit, text);
    if (rank != CST_NONE) {
        (void)snprintf(who, sizeof who, "rank %" PRIu32, rank);
    }
    (void)cst_err_set(&why, CST_ETIMEDOUT,
                      "no unit for rank %" PRIu32 " in %" PRIu64
                      " ms: %s, which %s has, is not done",
                      core->requests.v[i].rank, core->peer_timeout_ns / 1000000, text, who);
    cst_waiting_refuse(core, i, &why);
}

void cst_deadlines_expire(struct cst_core *core)
{
    uint32_t i;

    while (!core->pause.holds && (i = cst_requests_next_late(&core->requests)) != CST_NO_REQUEST &&
           core->requests.v[i].deadline <= core->now) {
        if (core->requests.v[i].where == CST_REQUEST_STEP) {
            expire_step(core);
        } else if (core->requests.v[i].where == CST_REQUEST_SYNC) {
            expire_sync(core, i);
        } else if (core->requests.v[i].where == CST_REQUEST_NEXT) {
            expire_next(core, i);
        } else {
            expire_fetch(core, i);
        }
    }
}
