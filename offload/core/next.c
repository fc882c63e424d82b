/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/core/next.h"

#include "offload/core/core_state.h"
#include "offload/core/ranks.h"
#include "offload/weights/residency.h"
#include "offload/books/waiting.h"
#include "offload/gradient/collection.h"

#include <inttypes.h>

/* False: @event was refused. */
static bool admit(struct cst_core *core, const struct cst_event *event)
{
    if (!core->schedule->work->exists) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "rank %" PRIu32 " asks for a unit, but the model is not cut into stages",
                        event->rank);
        return false;
    }
    if (core->ranks[event->rank].next != CST_NO_REQUEST) {
        cst_core_refuse(core, event->tag, CST_EINVAL, "rank %" PRIu32 " already waits for a unit",
                        event->rank);
        return false;
    }
    return cst_ranks_admit_before_step(core, event);
}

/* A unit was done: ranks that wait for one wait as long again. */
static void extend_waits(struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (core->ranks[rank].next != CST_NO_REQUEST) {
            cst_requests_extend(&core->requests, core->ranks[rank].next,
                                cst_waiting_deadline(core));
        }
    }
}

static void refuse_stale(struct cst_core *core, const struct cst_event *event)
{
    struct cst_work_unit unit;
    char text[CST_WORK_UNIT_TEXT];

    if (core->schedule->work->unit(core, event->rank, &unit)) {
        cst_work_unit_say(&unit, text);
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "rank %" PRIu32 " says that it has done unit %" PRIu64
                        ", but it has unit %" PRIu64 ", %s",
                        event->rank, event->unit, unit.number, text);
    } else {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "rank %" PRIu32 " says that it has done unit %" PRIu64
                        ", but it has no unit, and the last one that it has done is %" PRIu64,
                        event->rank, event->unit, core->schedule->work->last(core, event->rank));
    }
}

/* What @event says of the rank's unit. A rank that names none means the one that it has. */
static enum cst_work_report report_of(const struct cst_core *core, const struct cst_event *event)
{
    struct cst_work_unit unit;

    if (event->names_unit) {
        return core->schedule->work->report(core, event->rank, event->unit);
    }
    return core->schedule->work->unit(core, event->rank, &unit) ? CST_WORK_DONE : CST_WORK_KNOWN;
}

/* The unit of the rank is done: what it has handed in so far is its contribution. */
static void end_unit(struct cst_core *core, const struct cst_event *event)
{
    core->schedule->work->done(core, event->rank, event->loss);
    extend_waits(core);
    cst_fact_rank_went_on(&core->facts);
    cst_collection_wake(core);
}

void cst_next_ask(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *r = &core->ranks[event->rank];
    enum cst_work_report report;

    if (!admit(core, event)) {
        return;
    }
    report = report_of(core, event);
    if (report == CST_WORK_STALE) {
        refuse_stale(core, event);
        return;
    }
    cst_rank_begin(r, CST_BEGUN_WRITING);
    /* Nothing that the rank has opened for its unit is used any more. */
    cst_waiting_cancel_grads(core, event->rank, "its unit");
    cst_collection_drop_open(core, event->rank);
    if (report == CST_WORK_DONE) {
        end_unit(core, event);
    }
    r->next = cst_requests_add(&core->requests, event, CST_REQUEST_NEXT);
    cst_requests_time(&core->requests, r->next, cst_waiting_deadline(core));
}

/* What @rank asks for while it does @unit is known. If it begins a pass, it does not need the
 * weights that it has. @again: it has been given the unit before. */
static void predict(struct cst_core *core, uint32_t rank, const struct cst_work_unit *unit,
                    bool again)
{
    struct cst_trace *trace = &core->ranks[rank].trace;
    const struct cst_trace_unit of = {unit->stage, unit->backward};

    if (unit->begins) {
        cst_residency_drop(core, rank);
        cst_trace_begin_units(trace, core->layout, core->model, rank, &of);
    } else if (again) {
        cst_trace_restart(trace);
    } else {
        cst_trace_next_unit(trace);
    }
}

/* Answer the NEXT of @rank, if there is a unit for it or all are done. The unit that it has is
 * given to it again, because the answer with it has not reached the rank. */
static void serve(struct cst_core *core, uint32_t rank)
{
    struct cst_rank *r = &core->ranks[rank];
    struct cst_work_unit unit = {0};
    bool again = core->schedule->work->unit(core, rank, &unit);
    bool has_unit = again || core->schedule->work->take(core, rank, &unit);
    struct cst_reply *reply;

    if (!has_unit && !core->schedule->work->is_complete(core)) {
        return;
    }
    reply = cst_core_reply(core, core->requests.v[r->next].tag);
    cst_requests_remove(&core->requests, r->next);
    r->next = CST_NO_REQUEST;
    if (has_unit) {
        predict(core, rank, &unit, again);
    }
    if (reply != NULL) {
        reply->has_unit = has_unit;
        reply->unit = unit;
    }
}

void cst_next_pump(struct cst_core *core)
{
    if (core->pause.holds) {
        return;
    }
    for (uint32_t rank = 0; core->schedule->work->exists && rank < core->world; rank++) {
        if (core->ranks[rank].next != CST_NO_REQUEST) {
            serve(core, rank);
        }
    }
}
