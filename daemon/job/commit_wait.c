/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/commit_wait.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/span.h"

#include <stdio.h>
#include <string.h>

uint32_t cstd_commit_n_waiting(const struct cstd_job *job)
{
    uint32_t n = 0;

    for (uint32_t r = 0; r < job->world; r++) {
        n += job->workers[r].commit != NULL;
    }
    return n;
}

void cstd_commit_missing(const struct cstd_job *job, char *text, size_t size)
{
    bool waits = cstd_commit_n_waiting(job) > 0;

    text[0] = '\0';
    if (job->span != NULL) {
        cstd_span_missing(job, text, size);
        return;
    }
    /* If no rank has committed, nobody waits. */
    for (uint32_t r = 0; waits && r < job->world; r++) {
        size_t used = strlen(text);

        if (job->workers[r].commit == NULL) {
            (void)snprintf(text + used, size - used, "%s%u%s", used > 0 ? ", " : "rank ", r,
                           job->workers[r].present ? "" : " (absent)");
        }
    }
}

/* -- other nodes ------------------------------------------------------------------------------ */

static void on_deadline(uv_timer_t *timer)
{
    struct cstd_job *job = timer->data;
    char missing[160];
    struct cst_err why;

    cstd_commit_missing(job, missing, sizeof missing);
    (void)cst_err_set(&why, CST_ETIMEDOUT, "waited %u ms for %s", job->spec.limits.timeout_ms,
                      missing);
    job->daemon->span_ops->met(job, &why);
}

int cstd_commit_wait_for_nodes(struct cstd_job *job, int rc)
{
    if (rc == CST_EAGAIN) {
        (void)uv_timer_start(&job->deadline, on_deadline, job->spec.limits.timeout_ms, 0);
    }
    return rc;
}

void cstd_commit_progress(struct cstd_job *job)
{
    if (uv_is_active((uv_handle_t *)&job->deadline)) {
        (void)cstd_commit_wait_for_nodes(job, CST_EAGAIN);
    }
}

int cstd_commit_meet(struct cstd_job *job, struct cst_err *err)
{
    return cstd_commit_wait_for_nodes(job, cstd_span_meet(job, err));
}

int cstd_commit_join(struct cstd_job *job, struct cst_err *err)
{
    return cstd_commit_wait_for_nodes(job, cstd_span_join(job, err));
}

int cstd_commit_part(struct cstd_job *job)
{
    cstd_span_close(job, job->state == CSTD_JOB_CLOSING ? &job->closing : &job->failure);
    return CST_OK;
}

int cstd_commit_await_chunks(struct cstd_job *job, struct cst_err *err)
{
    return cstd_commit_wait_for_nodes(job, cstd_span_prepare(job, err));
}
