/* SPDX-License-Identifier: Apache-2.0 */
/* Serves Trace: what a job did lately, page by page. */
#include "daemon/base/daemon_state.h"
#include "daemon/serve/serve.h"
#include "proto/cistern.pb-c.h"
#include "daemon/job/job.h"
#include "daemon/session/session.h"

enum { PAGE = 512 };

static void fill(Cistern__TraceInterval *out, const struct cstd_record_interval *interval)
{
    cistern__trace_interval__init(out);
    out->kind = (Cistern__TraceInterval__Kind)interval->kind;
    out->number = interval->number;
    out->has_chunk = interval->chunk != UINT32_MAX;
    out->chunk = interval->chunk;
    out->has_bytes = interval->bytes != 0;
    out->bytes = interval->bytes;
    out->step = interval->step;
    out->began_ns = interval->began;
    out->ns = interval->ended - interval->began;
    out->has_queued_ns = interval->began > interval->asked;
    out->queued_ns = interval->began - interval->asked;
    out->has_ahead = interval->ahead != 0;
    out->ahead = interval->ahead != 0;
    out->has_grad = interval->grad != 0;
    out->grad = interval->grad != 0;
}

void cstd_serve_trace(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__TraceGet *get = body;
    Cistern__TracePart part = CISTERN__TRACE_PART__INIT;
    Cistern__TraceInterval intervals[PAGE], *pointers[PAGE];
    struct cstd_job *job;
    struct cst_err err = {0};
    uint64_t first, end;

    if (cstd_serve_find_job(session, get->name, get->has_uid, get->uid, &job, &err) != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    cstd_record_range(job->record, &first, &end);
    part.end = end;
    part.first = get->first > first ? get->first : first;
    while (part.n_intervals < PAGE && part.first + part.n_intervals < end) {
        fill(&intervals[part.n_intervals],
             cstd_record_get(job->record, part.first + part.n_intervals));
        pointers[part.n_intervals] = &intervals[part.n_intervals];
        part.n_intervals++;
    }
    part.intervals = pointers;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_TRACE_PART, &part.base, NULL, 0);
}
