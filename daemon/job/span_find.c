/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"
#include "daemon/job/span_parts.h"

Span__Key cstd_span_key(const struct cstd_job *job)
{
    Span__Key key = SPAN__KEY__INIT;

    key.uid = job->uid;
    key.name = (char *)(uintptr_t)job->name;
    key.life = job->span->life;
    return key;
}

struct cstd_span_machine *cstd_span_find(struct cstd_span *span, const struct cstd_machine *peer)
{
    for (uint32_t m = 0; m < span->n; m++) {
        if (span->machines[m].peer == peer) {
            return &span->machines[m];
        }
    }
    return NULL;
}

struct cstd_job *cstd_span_job(struct cstd_daemon *daemon, const Span__Key *key)
{
    struct cstd_job *job = cstd_job_find(daemon, key->uid, key->name);

    return job != NULL && job->span != NULL ? job : NULL;
}
