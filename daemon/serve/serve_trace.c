/* SPDX-License-Identifier: Apache-2.0 */
/* Serves Trace and History: what a job did lately, and all its steps, page by page. */
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
    if (interval->kind == CSTD_RECORD_STEP) {
        out->has_exposed_ns = 1;
        out->exposed_ns = interval->exposed_ns;
    } else {
        out->has_bytes = interval->bytes != 0;
        out->bytes = interval->bytes;
    }
    out->step = interval->step;
    out->began_ns = interval->began;
    out->ns = interval->ended - interval->began;
    out->has_queued_ns = interval->began > interval->asked;
    out->queued_ns = interval->began - interval->asked;
    out->has_ahead = interval->ahead != 0;
    out->ahead = interval->ahead != 0;
    out->has_grad = interval->grad != 0;
    out->grad = interval->grad != 0;
    out->has_rank = interval->rank != CSTD_RECORD_NO_RANK;
    out->rank = interval->rank;
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

/* -- history ---------------------------------------------------------------------------------- */

static void fill_entry(Cistern__HistoryEntry *out, const struct cstd_history_entry *entry)
{
    cistern__history_entry__init(out);
    out->first = entry->first;
    out->n_steps = entry->n_steps;
    out->ended_ns = entry->ended_ns;
    out->seconds = (double)entry->ns * 1e-9;
    out->has_loss = entry->n_losses > 0;
    out->loss = out->has_loss ? entry->losses / entry->n_losses : 0;
    out->has_grad_norm = entry->n_norms > 0;
    out->grad_norm = out->has_grad_norm ? entry->norms / entry->n_norms : 0;
    out->has_exposed_seconds = 1;
    out->exposed_seconds = (double)entry->exposed_ns * 1e-9;
    out->has_tokens = entry->tokens > 0;
    out->tokens = entry->tokens;
    out->has_n_skipped = entry->n_skipped > 0;
    out->n_skipped = entry->n_skipped;
}

void cstd_serve_history(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__HistoryGet *get = body;
    Cistern__HistoryPart part = CISTERN__HISTORY_PART__INIT;
    Cistern__HistoryEntry entries[PAGE], *pointers[PAGE];
    struct cstd_job *job;
    struct cst_err err = {0};
    uint32_t i;

    if (cstd_serve_find_job(session, get->name, get->has_uid, get->uid, &job, &err) != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    for (i = cstd_history_find(&job->history, get->first);
         i < job->history.n && part.n_entries < PAGE; i++) {
        fill_entry(&entries[part.n_entries], &job->history.entries[i]);
        pointers[part.n_entries] = &entries[part.n_entries];
        part.n_entries++;
    }
    part.entries = pointers;
    part.more = i < job->history.n;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_HISTORY_PART, &part.base, NULL, 0);
}
