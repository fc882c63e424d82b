/* SPDX-License-Identifier: Apache-2.0 */
/* What the ledger has of a job on several nodes (daemon/job/span.h). Loop thread only. */
#ifndef CSTD_KEPT_SPAN_H
#define CSTD_KEPT_SPAN_H

#include "daemon/ledger/ledger_file.h"

#include <stdbool.h>

struct cstd_job;

/* What the ledger has of a span; refers to itself and to the job. */
struct cstd_kept_span {
    Ledger__Span span;
    Ledger__Node nodes[CST_MACHINES_MAX], *list[CST_MACHINES_MAX];
};

/* Fill *out. False: the job has no span. */
bool cstd_kept_span_fill(const struct cstd_job *job, struct cstd_kept_span *out);

/* True if @job has no span, or its members are open. */
bool cstd_kept_span_is_open(const struct cstd_job *job);

/* Write what the ledger has to remember of the parts, whose members are open. */
void cstd_kept_span_record(const struct cstd_job *job, struct cstd_ledger_members *out);

#endif
