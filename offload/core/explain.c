/* SPDX-License-Identifier: Apache-2.0 */
/* Sentences about where a chunk is, and why. */
#include "offload/books/chunk_update.h"
#include "offload/gradient/collection.h"
#include "offload/gradient/device_choice.h"
#include "offload/core/core_state.h"
#include "offload/books/group.h"
#include "offload/gradient/landing.h"
#include "offload/weights/multi_gpu_load.h"
#include "offload/core/states.h"
#include "offload/gradient/sum.h"

#include <inttypes.h>
#include <stdio.h>

#define LINE_BYTES 192

struct page {
    char (*lines)[LINE_BYTES]; /* Borrowed from the caller. */
    unsigned max, n;
};

static void say(struct page *page, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void say(struct page *page, const char *fmt, ...)
{
    va_list ap;

    if (page->n == page->max) {
        return;
    }
    va_start(ap, fmt);
    (void)vsnprintf(page->lines[page->n++], LINE_BYTES, fmt, ap);
    va_end(ap);
}

/* True if the chunk's states, which are apart, are updated where they are. */
static bool computes_there(const struct cst_core *core, uint32_t c)
{
    const uint32_t r = cst_device_choice_own(core, c);

    return core->device_updates.reservations[r].engine == core->chunks[c].tier;
}

static void explain_home(const struct cst_core *core, uint32_t c, struct page *page)
{
    const struct cst_layout_chunk *at = &core->layout->chunks[c];
    const struct cst_chunk *chunk = &core->chunks[c];

    say(page,
        "chunk %" PRIu32 " of %" PRIu32 ": %" PRIu32 " tensor%s, %" PRIu64 " of %" PRIu64
        " elements used; home: host memory of node %" PRIu32,
        c, core->n_chunks, at->n_tensors, at->n_tensors == 1 ? "" : "s", at->n_elems,
        core->layout->classes[at->size_class].capacity, at->node);
    if (cst_tier_is_apart(chunk->tier) && computes_there(core, c)) {
        say(page, "its states are in the memory of engine %" PRIu32, chunk->tier);
    }
    if (!chunk->has_states && chunk->writes.n == 0) {
        return;
    }
    if (chunk->update.ticket != 0 && chunk->update.weight_ticket != chunk->update.ticket) {
        say(page, "its update is running, and writes the weight row that fetches do not read yet");
    } else if (chunk->update.ticket != 0) {
        say(page, "its update of step %" PRIu64 " is running; fetches wait only for it",
            core->step);
    } else if (!cst_chunk_update_is_over(&chunk->update)) {
        say(page,
            "its update of step %" PRIu64
            " has written the weights; its states are still being copied back",
            core->step);
    } else if (chunk->writes.n > 0) {
        say(page, "%" PRIu32 " writes to its states are running", chunk->writes.n);
    } else {
        say(page,
            "its states are current: %" PRIu64 " steps committed, %" PRIu64 " of them skipped",
            core->step, core->commit.n_skipped);
    }
}

/* Which weight row is read, and what the other one holds. */
static void explain_rows(const struct cst_core *core, uint32_t c, struct page *page)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    const char *side = chunk->weight.second ? "second" : "first";

    if (cst_weight_row_is_early(&chunk->weight)) {
        say(page,
            "updated before the commit of step %" PRIu64
            ": its states are those of that step; fetches read the %s weight row until the commit",
            core->step, side);
    } else if (chunk->weight.rows == CST_ROWS_DELAYED) {
        say(page,
            "updates are delayed: fetches read the %s weight row, as it was before the last "
            "update, until the next commit",
            side);
    } else if (core->two_weights && chunk->has_states) {
        say(page, "fetches read the %s of its two weight rows, the next update writes the other",
            side);
    }
    if (chunk->weight.rows == CST_ROWS_CARRIED) {
        say(page, "its gradient was complete before the step was interrupted; a gradient that is "
                  "handed in again is ignored");
    }
}

/* Where the last update was made, and why there. */
static void explain_update(const struct cst_core *core, uint32_t c, struct page *page)
{
    const struct cst_chunk *chunk = &core->chunks[c];

    if (core->device_updates.n_reservations == 0 || core->updates_done.n == 0) {
        return;
    }
    if (cst_tier_is_apart(chunk->tier)) {
        say(page,
            computes_there(core, c)
                ? "updated on the accelerator of engine %" PRIu32 ", which has its states"
                : "updated in host memory, to which engine %" PRIu32 " brings its states",
            chunk->tier);
    } else if (chunk->update.reservation != CST_NONE) {
        say(page,
            "updated on the accelerator of engine %" PRIu32 ": of each %" PRIu32
            " chunks of node %" PRIu32 ", in the order of updates, the last one is updated there",
            core->device_updates.reservations[chunk->update.reservation].engine,
            core->device_updates.interleave_now, core->layout->chunks[c].node);
    } else if (chunk->update.where == CST_UPDATE_TOO_LARGE) {
        say(page,
            "updated by engine %" PRIu32
            ": it is larger than the memory for updates of any accelerator",
            core->layout->chunks[c].node);
    } else if (chunk->update.where == CST_UPDATE_NOT_LENT) {
        say(page,
            "updated by engine %" PRIu32
            ": the pools that lend memory for updates had no empty blocks for it",
            core->layout->chunks[c].node);
    } else if (core->device_updates.interleave_now == 0) {
        say(page, "updated by engine %" PRIu32 ": no chunk is updated on an accelerator at present",
            core->layout->chunks[c].node);
    } else {
        say(page,
            "updated by engine %" PRIu32 ": of each %" PRIu32
            " of its chunks, in the order of updates, only the last one is updated on an "
            "accelerator",
            core->layout->chunks[c].node, core->device_updates.interleave_now);
    }
}

static void explain_group(const struct cst_core *core, uint32_t c, struct page *page)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    const struct cst_pattern *pattern = cst_pattern(core->layout->chunks[c].pattern);
    char text[CST_GROUP_TEXT];

    say(page, "pattern %s; group %" PRIu32 ": %s", pattern->name, cst_group_number(core, c),
        cst_group_words(chunk->ranks, text));
    if (!chunk->has_states) {
        say(page, "frozen: weights only, no gradient, no states, no update%s",
            cst_states_is_base(core, c) ? "; they belong to the base job" : "");
    }
}

static void explain_grad_in_weight(const struct cst_core *core, uint32_t c, struct page *page)
{
    if (core->chunks[c].weight.holds != CST_HOLDS_WEIGHTS) {
        say(page,
            "%s in the place of its weights; until its next update, fetches get weights that are "
            "computed from its master weights",
            core->chunks[c].weight.holds == CST_HOLDS_GRADIENT
                ? "its gradient, or a part of one, is"
                : "a part of a gradient is");
    } else if (cst_layout_grad_over_weight(core->layout, &core->layout->chunks[c])) {
        say(page, "its gradient takes the place of its weights, from its sum to its update");
    }
}

static bool has_gpu(const struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (cst_tier_is_apart(core->ranks[rank].pool.tier)) {
            return true;
        }
    }
    return false;
}

/* Describe how weights are loaded by several GPUs together. */
static void explain_loads(const struct cst_core *core, struct page *page)
{
    uint32_t most = cst_multi_gpu_load_most(core);

    if (most > 0) {
        say(page,
            "up to %" PRIu32 " GPUs that expect its weights together load one piece each over "
            "their own links, of at least %" PRIu64 " bytes, and exchange the pieces",
            most, core->policy.gather_bytes);
    }
}

/* Describe the current sum or, if none is being made, the one that is expected. */
static void explain_sum_site(const struct cst_core *core, uint32_t c, struct page *page)
{
    bool now = core->chunks[c].gradient.reduce_ticket != 0;
    struct cst_reduce_site site = cst_sum_site(core, c, !now);
    const char *when = now ? "the sum is made" : "the sum will be made";

    if (site.kind == CST_REDUCE_SITE_HOST && cst_landing_serves(core, c)) {
        say(page,
            "%s by the processor, engine %" PRIu32 ": the gradient is copied to host memory, where "
            "it is added to those of the micro-batches before",
            when, site.engine);
    } else if (site.kind == CST_REDUCE_SITE_HOST) {
        say(page, "%s by the processor, engine %" PRIu32 ": no contribution lies on a GPU", when,
            site.engine);
    } else if (site.kind == CST_REDUCE_SITE_LANDED) {
        say(page,
            "%s by the processor, engine %" PRIu32 ": %" PRIu32 " contributions are copied from "
            "GPUs to host memory, because no GPU can access those of all others",
            when, site.engine, site.n_peers);
    } else if (site.kind == CST_REDUCE_SITE_DEVICE) {
        say(page,
            "%s on the GPU of engine %" PRIu32 ": it has %" PRIu32 " contributions, host memory "
            "%" PRIu32,
            when, site.engine, site.n_own, site.n_host);
    } else {
        say(page,
            "%s on the GPU of engine %" PRIu32 ": it has %" PRIu32 " contributions, peers that it "
            "reads %" PRIu32 ", host memory %" PRIu32,
            when, site.engine, site.n_own, site.n_peers, site.n_host);
    }
}

/* How much of the sum that chunk @c collects has come, and who is missing. */
static void explain_addends(const struct cst_core *core, uint32_t c, uint32_t first,
                            struct page *page)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    const struct cst_set missing = cst_collection_missing(core, c, core->world);
    uint32_t n = core->schedule->by_rank ? chunk->n_in_sum - cst_set_count(&missing)
                                         : cst_collection_sources(core, c).end - first;

    if (chunk->n_addends > chunk->n_in_sum && (first > 0 || n > 0)) {
        char text[CST_ADDEND_TEXT];

        core->schedule->say(core, c, first, text);
        say(page,
            "its gradient of %s of at most %" PRIu32
            " is being collected; the earlier ones are in the gradient row",
            text, core->micro_batches);
    }
    if (chunk->gradient.reduce_ticket != 0) {
        say(page, "its gradient is being summed");
    } else if (n == chunk->n_in_sum) {
        say(page, "its gradient has come from all %" PRIu32 " ranks and is being moved", n);
    } else if (n > 0) {
        say(page,
            "its gradient has come from %" PRIu32 " of %" PRIu32 " ranks; rank %" PRIu32
            " is missing",
            n, chunk->n_in_sum, cst_set_first(&missing));
    }
}

static void explain_gradient(const struct cst_core *core, uint32_t c, struct page *page)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    uint32_t first = chunk->gradient.first;

    if (chunk->gradient.sum == CST_SUM_COMPLETE) {
        say(page, "its gradient of this step is summed");
        return;
    }
    if (first < chunk->n_addends) {
        explain_addends(core, c, first, page);
    }
    if (chunk->gradient.next > first && chunk->gradient.reduce_ticket == 0) {
        say(page, "%" PRIu32 " of its ranks' contributions were added early to free their blocks",
            chunk->gradient.next - first);
    }
    if (chunk->gradient.spilled != CST_NONE && core->schedule->by_rank) {
        say(page, "rank %" PRIu32 "'s contribution was moved to the gradient row to free its block",
            cst_set_nth(chunk->ranks, chunk->gradient.spilled % chunk->n_in_sum));
    } else if (chunk->gradient.spilled != CST_NONE) {
        say(page, "a contribution was moved to the gradient row to free its block");
    }
}

static void explain_weight(const struct cst_core *core, uint32_t c, uint32_t rank,
                           struct page *page)
{
    const struct cst_rank *r = &core->ranks[rank];
    uint32_t b = r->pool.weight_of[c];
    uint64_t next = cst_trace_next_use(&r->trace, c);

    if (b == CST_NONE) {
        say(page, "rank %" PRIu32 ": weights are not in its pool%s", rank,
            next == CST_TRACE_NEVER ? "" : ", they are used again in this step");
    } else if (r->pool.blocks[b].leases > 0) {
        say(page, "rank %" PRIu32 ": weights in block %" PRIu32 ", leased %" PRIu32 " times%s",
            rank, b, r->pool.blocks[b].leases,
            r->pool.blocks[b].filling ? "; the worker copies them in" : "");
    } else if (next == CST_TRACE_NEVER) {
        say(page, "rank %" PRIu32 ": weights in block %" PRIu32 ", %s; not used again in this step",
            rank, b, cst_block_state_name(r->pool.blocks[b].state));
    } else {
        say(page,
            "rank %" PRIu32 ": weights in block %" PRIu32 ", %s; next use in %" PRIu64 " fetches",
            rank, b, cst_block_state_name(r->pool.blocks[b].state),
            next - cst_trace_now(&r->trace));
    }
}

static bool waits_for_itself(const struct cst_rank *r, const struct cst_request *request)
{
    return request->kind == CST_EV_FETCH_GRAD && r->pool.grad_of[request->chunk] != CST_NONE;
}

static void explain_rank(const struct cst_core *core, uint32_t c, uint32_t rank, struct page *page)
{
    const struct cst_rank *r = &core->ranks[rank];
    uint32_t g = r->pool.grad_of[c];

    explain_weight(core, c, rank, page);
    if (g != CST_NONE) {
        say(page, "rank %" PRIu32 ": gradient in block %" PRIu32 ", %s", rank, g,
            cst_block_state_name(r->pool.blocks[g].state));
    }
    for (uint32_t i = 0; i < core->requests.capacity; i++) {
        const struct cst_request *request = &core->requests.v[i];

        if (request->rank == rank && request->chunk == c &&
            (request->where == CST_REQUEST_QUEUED || request->where == CST_REQUEST_JOINED)) {
            say(page, "rank %" PRIu32 ": a fetch of its %s waits for %s", rank,
                request->kind == CST_EV_FETCH_GRAD ? "gradient" : "weights",
                waits_for_itself(r, request)                ? "the sum of the micro-batch before"
                : request->where == CST_REQUEST_QUEUED      ? "a block"
                : r->pool.worker_copies                     ? "its update"
                : core->chunks[c].update.weight_ticket != 0 ? "its update, then the copy"
                                                            : "the copy");
        }
    }
}

unsigned cst_core_explain(const struct cst_core *core, uint32_t chunk, char lines[][192],
                          unsigned max)
{
    struct page page = {.lines = lines, .max = max};

    if (chunk >= core->n_chunks) {
        return 0;
    }
    explain_home(core, chunk, &page);
    explain_group(core, chunk, &page);
    if (core->chunks[chunk].has_states) {
        explain_rows(core, chunk, &page);
        explain_update(core, chunk, &page);
        explain_gradient(core, chunk, &page);
        explain_grad_in_weight(core, chunk, &page);
    }
    if (has_gpu(core) && core->chunks[chunk].has_states &&
        core->chunks[chunk].gradient.sum != CST_SUM_COMPLETE) {
        explain_sum_site(core, chunk, &page);
    }
    explain_loads(core, &page);
    CST_SET_EACH (rank, core->chunks[chunk].ranks) {
        explain_rank(core, chunk, rank, &page);
    }
    if (core->chunks[chunk].evicted.rank != CST_NONE) {
        const struct cst_chunk *c = &core->chunks[chunk];

        if (c->evicted.wanted_by == CST_NONE) {
            say(&page, "last evicted from rank %" PRIu32 "'s pool in step %" PRIu64 ", as it asked",
                c->evicted.rank, c->evicted.step);
        } else {
            say(&page,
                "last evicted from rank %" PRIu32 "'s pool in step %" PRIu64 " for chunk %" PRIu32,
                c->evicted.rank, c->evicted.step, c->evicted.wanted_by);
        }
    }
    return page.n;
}
