/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of micro-batches and steps. All ranks have asked for the step and all chunks are reduced
 * -> NORM -> commit -> UPDATE of each chunk that is not frozen and not already updated, in the
 * order of the next forward pass. Until the commit a step can be lost. After it, only a failed
 * engine can prevent the updates. */
#include "offload/core/commit.h"

#include "offload/base/clip.h"
#include "offload/core/agreement.h"
#include "offload/gradient/collection.h"
#include "offload/core/core_state.h"
#include "offload/gradient/device_choice.h"
#include "offload/books/exposure.h"
#include "offload/base/hyper.h"
#include "offload/books/idle.h"
#include "offload/books/instant.h"
#include "offload/update/overlap.h"
#include "offload/update/replicas.h"
#include "offload/update/versions.h"
#include "offload/core/prepare.h"
#include "offload/core/ranks.h"
#include "offload/core/revival.h"
#include "offload/books/waiting.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* -- commit ----------------------------------------------------------------------------------- */

/* The first rank of each chunk's group. Together these ranks fetch everything. */
static struct cst_set find_leaders(const struct cst_core *core)
{
    struct cst_set leaders = {{0}};

    for (uint32_t c = 0; c < core->n_chunks; c++) {
        cst_set_add(&leaders, cst_set_first(core->chunks[c].ranks));
    }
    return leaders;
}

static void put_in_order(struct cst_core *core, uint32_t c, uint32_t *n)
{
    if (!core->chunks[c].ordered) {
        core->chunks[c].ordered = true;
        core->commit.order[(*n)++] = c;
    }
}

/* Order the chunks as the groups' first ranks fetched their weights in the last step, taking one
 * fetch of each rank in turn; then the remaining chunks. */
static void order_updates(struct cst_core *core)
{
    struct cst_set leaders = find_leaders(core);
    uint32_t n = 0;

    for (uint32_t c = 0; c < core->n_chunks; c++) {
        /* Frozen chunks are not updated: treat them as already listed. */
        core->chunks[c].ordered = !core->chunks[c].has_states;
    }
    for (uint32_t i = 0; !cst_set_none(&leaders); i++) {
        CST_SET_EACH (rank, &leaders) {
            const struct cst_trace *trace = &core->ranks[rank].trace;
            uint32_t n_expected;
            const uint32_t *expected = cst_trace_expected(trace, &n_expected);

            if (i >= n_expected) {
                cst_set_drop(&leaders, rank);
            } else if ((expected[i] & 1) == 0) {
                put_in_order(core, expected[i] >> 1, &n);
            }
        }
    }
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        put_in_order(core, c, &n);
    }
}

/* Issue the updates of a step that is not skipped. */
static void issue_updates(struct cst_core *core, float factor, bool guard)
{
    struct cst_update update = {
        .mark = core->commit.adam_step, .hyper = core->commit.hyper, .guard = guard};

    update.hyper.grad_scale = (double)factor;
    cst_hyper_write_factors(core, update.mark);
    order_updates(core);
    cst_overlap_expire(core);
    for (uint32_t i = 0; i < core->n_trained; i++) {
        cst_overlap_committed(core, core->commit.order[i], &update);
    }
    cst_device_choice_end(core);
    cst_exposure_all_issued(core);
    cst_staged_ahead_issue(core);
}

static void answer_steps(struct cst_core *core, const struct cst_clip *clip, bool skipped,
                         double loss)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        struct cst_rank *r = &core->ranks[rank];
        struct cst_reply *reply;

        cst_rank_end_step(r);
        cst_rank_want_prefetch(r);
        cst_trace_end_step(&r->trace);
        /* The rank's process is gone: nobody waits for the reply. */
        if (r->step == CST_NO_REQUEST) {
            continue;
        }
        reply = cst_core_reply(core, core->requests.v[r->step].tag);
        cst_requests_remove(&core->requests, r->step);
        r->step = CST_NO_REQUEST;
        if (reply != NULL) {
            reply->step = core->step;
            reply->skipped = skipped;
            reply->overflow = !clip->finite;
            reply->grad_norm = clip->grad_norm;
            reply->clip = clip->clip;
            reply->loss = loss;
            reply->n_skipped = core->commit.n_skipped;
        }
    }
}

static void log_not_finite(struct cst_core *core, bool skipped)
{
    if (skipped) {
        cst_core_log(core, CST_OK,
                     "step %" PRIu64 " skipped: the norm of the gradients is NaN, infinite or too "
                     "large (%" PRIu64 " skipped so far)",
                     core->step, core->commit.n_skipped);
    } else {
        cst_core_log(core, CST_OK,
                     "step %" PRIu64 ": the norm of the gradients is NaN, infinite or too large; "
                     "tiles of %d elements with such a norm keep their states",
                     core->step, CST_TILE_ELEMS);
    }
}

/* The lowest rank that has asked for the step; all have named the same hyper-parameters. */
static uint32_t first_stepped(const struct cst_core *core)
{
    uint32_t rank = 0;

    while (rank + 1 < core->world && !core->ranks[rank].stepped) {
        rank++;
    }
    return rank;
}

/* What the commit of the step does, in which the squares of the gradients add up to @sum_squares.
 */
static void decide(const struct cst_core *core, double sum_squares, struct cst_decision *out)
{
    const struct cst_hyper *hyper = &core->ranks[first_stepped(core)].hyper;
    struct cst_clip clip = cst_clip_factor(sum_squares, hyper->grad_scale, hyper->clip_norm);

    memset(out, 0, sizeof *out);
    out->guard = cst_overlap_guards(core);
    out->skipped = !clip.finite && out->guard == 0;
    out->step = core->step + 1;
    out->adam_step = core->commit.adam_step + (out->skipped == 0);
    out->n_skipped = core->commit.n_skipped + out->skipped;
    out->n_overflows = core->commit.n_overflows + !clip.finite;
    out->attempt = core->attempt.number;
    out->hyper = *hyper;
    out->sum_squares = sum_squares;
    out->loss = cst_agreement_own_loss(core);
}

void cst_commit_decided(struct cst_core *core, const struct cst_decision *decision)
{
    const struct cst_hyper *hyper = &decision->hyper;
    struct cst_clip clip =
        cst_clip_factor(decision->sum_squares, hyper->grad_scale, hyper->clip_norm);
    bool guard = decision->guard != 0, skipped = decision->skipped != 0;

    core->step = decision->step;
    core->commit.has_hyper = true;
    core->commit.hyper = *hyper;
    core->commit.factor = clip.factor;
    core->commit.guard = guard;
    core->commit.last_loss = decision->loss;
    core->commit.last_grad_norm = clip.grad_norm;
    core->commit.last_step_ns = core->commit.last_ns == 0 ? 0 : core->now - core->commit.last_ns;
    core->commit.last_ns = core->now;
    cst_machine_waits_committed(core);
    cst_instant_committed(core);
    cst_ranks_end_closing(core);
    cst_agreement_committed(core);
    cst_rank_reset_begun(core);
    core->commit.n_skipped = decision->n_skipped;
    core->commit.n_overflows = decision->n_overflows;
    if (!clip.finite) {
        log_not_finite(core, skipped);
    }
    answer_steps(core, &clip, skipped, core->commit.last_loss);
    if (skipped) {
        for (uint32_t c = 0; c < core->n_chunks; c++) {
            cst_overlap_committed(core, c, NULL);
        }
    } else {
        core->commit.adam_step = decision->adam_step;
        cst_idle_commit(core);
        if (!cst_overlap_has_begun(core)) {
            cst_versions_begin(core);
        }
        issue_updates(core, clip.factor, guard);
    }
    cst_seal_due(core);
    cst_overlap_end_step(core);
    cst_versions_committed(core);
    cst_collection_drop(core); /* No contribution is left: begin the next collection. */
    core->schedule->begin(core);
    cst_ranks_committed(core);
}

void cst_commit_close(struct cst_core *core)
{
    struct cst_flight flight = {.kind = CST_FLIGHT_NORM, .collection = core->collection.number};
    struct cst_command *norm;

    /* UPDATEs do not wait for WRITEs, so the WRITEs must be complete before the commit. */
    if (!core->attempt.closing || core->commit.normed == core->collection.number + 1 ||
        core->collection.n_reduced < core->n_trained || core->writes.n > 0 ||
        cst_seal_holds_commit(core) || cst_replicas_hold(&core->replicas) ||
        !cst_idle_is_known(core)) {
        return;
    }
    if (core->save.state == CST_SAVE_ACTIVE) {
        core->commit.held_ns = core->commit.held_ns != 0 ? core->commit.held_ns : core->now;
    }
    if (cst_versions_hold(core) || core->save.state == CST_SAVE_ACTIVE) {
        return;
    }
    cst_idle_decide(core, core->commit.adam_step + 1);
    norm = cst_core_command(core, CST_COMMAND_NORM, 0, &flight);
    norm->table = core->table_segment;
    norm->mark = core->commit.adam_step + 1;
    core->commit.normed = core->collection.number + 1;
}

uint64_t cst_commit_release(struct cst_core *core)
{
    /* An attempt that was interrupted while it waited has no commit any more. */
    bool held = core->attempt.closing && core->commit.held_ns != 0;
    uint64_t waited = held ? core->now - core->commit.held_ns : 0;

    core->commit.held_ns = 0;
    cst_commit_close(core);
    return waited;
}

void cst_commit_sealed(struct cst_core *core, const struct cst_event *event)
{
    struct cst_err why;

    if (core->seal.state != CST_SEALING) {
        return;
    }
    if (event->status != CST_OK) {
        (void)cst_err_set(&why, CST_EENGINE,
                          "step %" PRIu64
                          " cannot be recorded on the drives, on which step %" PRIu64
                          " still is: %s",
                          core->step, core->step - 1, cst_event_words(event));
        cst_ranks_fail(core, &why);
        return;
    }
    core->seal.state = CST_SEALED;
    core->commit.sealed_step = core->step;
    cst_commit_close(core);
}

void cst_commit_normed(struct cst_core *core, const struct cst_flight *flight,
                       const struct cst_event *event)
{
    if (event->status != CST_OK) {
        struct cst_err why;

        (void)cst_err_set(&why, event->status == CST_ELOST ? CST_ELOST : CST_EENGINE,
                          "the norm of step %" PRIu64 " failed: %s", core->step,
                          cst_event_words(event));
        cst_ranks_fail(core, &why);
    } else if (core->attempt.closing && flight->collection == core->collection.number) {
        struct cst_decision decision;

        decide(core, event->value, &decision);
        if (cst_agreement_ready(core, &decision)) {
            cst_commit_decided(core, &decision);
        }
    }
}

void cst_commit_restore(struct cst_core *core, const struct cst_counters *counters,
                        const struct cst_core_record *record)
{
    core->step = counters->step;
    core->commit.adam_step = core->commit.restored_adam_step = counters->adam_step;
    core->commit.n_skipped = counters->n_skipped;
    core->commit.n_overflows = counters->n_overflows;
    cst_idle_restore(core, counters->adam_step);
    cst_agreement_restored(core);
    cst_versions_restored(core);
    if (record != NULL) {
        core->commit.has_hyper = record->has_hyper;
        core->commit.hyper = record->hyper;
        core->commit.last_loss = record->last_loss;
        core->commit.last_grad_norm = record->last_grad_norm;
    }
}

/* -- step ------------------------------------------------------------------------------------ */

/* True if all ranks that the step needs have asked for it. */
static bool all_stepped(const struct cst_core *core)
{
    bool any = false;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_rank *r = &core->ranks[rank];

        if (!r->stepped && (r->joined || !core->schedule->elastic)) {
            return false;
        }
        any = any || r->stepped;
    }
    return any;
}

void cst_commit_look(struct cst_core *core)
{
    struct cst_err err;

    if (core->attempt.phase != CST_PHASE_RUNNING || core->attempt.closing || core->pause.holds ||
        !all_stepped(core)) {
        return;
    }
    if (cst_prepare_compare_steps(core, &err) != CST_OK || cst_idle_check(core, &err) != CST_OK) {
        cst_ranks_interrupt(core, &err);
        return;
    }
    core->commit.held_ns = 0;
    cst_versions_begin_wait(core);
    cst_ranks_begin_closing(core);
    cst_idle_tell(core);
    cst_commit_close(core);
}

/* True if the step may be asked for: all its units are done. Else the request is refused. */
static bool admit_step(struct cst_core *core, const struct cst_event *event)
{
    if (!cst_ranks_admit_before_step(core, event)) {
        return false;
    }
    if (!core->schedule->work->is_complete(core)) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "rank %" PRIu32 " asks for step %" PRIu64
                        " before all its units are done: ask for the next unit",
                        event->rank, core->step);
        return false;
    }
    return true;
}

void cst_commit_step(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *r = &core->ranks[event->rank];
    struct cst_err err;

    if (!admit_step(core, event)) {
        return;
    }
    if (cst_hyper_check(&event->hyper, &err) != CST_OK) {
        cst_core_refuse_err(core, event->tag, &err);
        return;
    }
    r->step = cst_requests_add(&core->requests, event, CST_REQUEST_STEP);
    cst_requests_time(&core->requests, r->step, cst_waiting_deadline(core));
    cst_rank_ask_step(r, event);
    cst_idle_ask(core, event);
    cst_hyper_take_factors(core, event);
    if (cst_prepare_check_step(core, event->rank, &err) != CST_OK) {
        cst_ranks_interrupt(core, &err);
        return;
    }
    cst_rank_begin(&core->ranks[event->rank], CST_BEGUN_WRITING);
    cst_waiting_cancel_fetches(core, event->rank);
    cst_collection_drop_open(core, event->rank);
    cst_commit_look(core);
    if (core->attempt.phase != CST_PHASE_RUNNING) {
        return; /* The ranks' hyper-parameters differ. */
    }
    cst_fact_rank_went_on(&core->facts);
    if (core->adds_singly) {
        /* Contributions after this rank's in rank order may now be added. */
        cst_collection_wake(core);
    }
    cst_commit_close(core);
}

void cst_commit_accumulate(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *r = &core->ranks[event->rank];
    char what[32];

    if (!cst_ranks_admit_before_step(core, event)) {
        return;
    }
    if (core->schedule->work->exists) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "the model is cut into stages: the next unit, not the end of a "
                        "micro-batch, is what rank %" PRIu32 " asks for",
                        event->rank);
        return;
    }
    if (r->micro + 1 >= core->micro_batches) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "rank %" PRIu32 " is in micro-batch %" PRIu32 " of %" PRIu32
                        " of step %" PRIu64 ": the step ends it",
                        event->rank, r->micro + 1, core->micro_batches, core->step);
        return;
    }
    cst_rank_begin(&core->ranks[event->rank], CST_BEGUN_WRITING);
    (void)snprintf(what, sizeof what, "micro-batch %" PRIu32, r->micro + 1);
    cst_waiting_cancel_grads(core, event->rank, what);
    cst_collection_drop_open(core, event->rank);
    cst_collection_next_micro(core, event->rank);
    cst_rank_want_prefetch(r);
    (void)cst_core_reply(core, event->tag);
    cst_fact_rank_went_on(&core->facts);
    cst_collection_wake(core);
}
