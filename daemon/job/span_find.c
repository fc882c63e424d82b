/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of a span, for its other files. */
#include "daemon/base/daemon_state.h"
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"
#include "daemon/job/span_parts.h"
#include "daemon/revive/revive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

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

struct cstd_span_machine *cstd_span_sender(struct cstd_daemon *daemon,
                                           const struct cstd_machine *peer, const Span__Key *key,
                                           struct cstd_job **job)
{
    struct cstd_span_machine *machine;

    *job = cstd_span_job(daemon, key);
    machine = *job != NULL ? cstd_span_find((*job)->span, peer) : NULL;
    return machine != NULL && machine->life == key->life ? machine : NULL;
}

bool cstd_span_may_come_back(const struct cstd_daemon *daemon)
{
    return daemon->revival->n > 0 || daemon->revival->keeps_lost;
}

bool cstd_span_is_member(const struct cstd_span *span, uint32_t m)
{
    return span->members != NULL &&
           cst_epoch_has(&cst_members_record(span->members)->epoch, m, span->machines[m].life);
}

void cstd_span_forget_progress(struct cstd_span *span)
{
    if (span->progress != NULL) {
        free(span->progress->missed);
        free(span->progress);
        span->progress = NULL;
    }
}

const char *cstd_span_listen(const struct cstd_daemon *daemon)
{
    static char host[CSTD_MACHINE_ADDRESS_BYTES];
    char *port;

    (void)snprintf(host, sizeof host, "%s", cstd_links_address(daemon->links));
    port = strrchr(host, ':');
    if (port != NULL) {
        *port = '\0';
    }
    return host;
}

int cstd_span_make(struct cstd_job *job, uint64_t life, struct cst_err *err)
{
    struct cstd_span *span = calloc(1, sizeof *span);

    if (span == NULL || (life == 0 && getrandom(&life, sizeof life, 0) != (ssize_t)sizeof life) ||
        getrandom(span->token, sizeof span->token, 0) != (ssize_t)sizeof span->token) {
        free(span);
        return cst_err_set(err, CST_ENOMEM, "job '%s': no memory for its nodes", job->name);
    }
    span->job = job;
    span->life = life + (life == 0);
    TAILQ_INIT(&span->early);
    cstd_span_read_open(span);
    job->span = span;
    return CST_OK;
}

void cstd_span_drop(struct cstd_job *draft)
{
    free(draft->span);
    draft->span = NULL;
}
