/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/kept_span.h"

#include "daemon/job/job.h"
#include "daemon/job/span_parts.h"

#include <string.h>

bool cstd_kept_span_fill(const struct cstd_job *job, struct cstd_kept_span *out)
{
    const struct cstd_span *span = job->span;

    if (span == NULL) {
        return false;
    }
    ledger__span__init(&out->span);
    for (uint32_t m = 0; m < span->n; m++) {
        const struct cstd_span_machine *machine = &span->machines[m];

        ledger__node__init(&out->nodes[m]);
        out->nodes[m].first_rank = machine->first_rank;
        out->nodes[m].world = machine->world;
        out->list[m] = &out->nodes[m];
    }
    out->span.self = span->self;
    out->span.n_nodes = span->n;
    out->span.nodes = out->list;
    out->span.token.data = (uint8_t *)(uintptr_t)span->token;
    out->span.token.len = sizeof span->token;
    out->span.window = span->window->id;
    return true;
}

bool cstd_kept_span_is_open(const struct cstd_job *job)
{
    return job->span == NULL || job->span->members != NULL;
}

void cstd_kept_span_record(const struct cstd_job *job, struct cstd_ledger_members *out)
{
    const struct cstd_span *span = job->span;

    memset(out, 0, sizeof *out);
    out->members = *cst_members_record(span->members);
    for (uint32_t m = 0; m < span->n; m++) {
        out->lives[m] = span->machines[m].life;
        memccpy(out->names[m], cstd_span_name(span, m), '\0', sizeof out->names[m] - 1);
    }
}
