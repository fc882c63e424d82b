/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/barrier.h"

#include "daemon/session.h"

#include <stdio.h>
#include <string.h>

/* Number of ranks in the barrier. */
static uint32_t count(const struct cstd_job *job)
{
    uint32_t n = 0;

    for (uint32_t r = 0; r < job->world; r++) {
        n += job->workers[r].commit != NULL;
    }
    return n;
}

bool cstd_barrier_is_complete(const struct cstd_job *job)
{
    return count(job) == job->world;
}

void cstd_barrier_break(struct cstd_job *job, const struct cst_err *why)
{
    for (uint32_t r = 0; r < job->world; r++) {
        struct cstd_pending *commit = job->workers[r].commit;

        job->workers[r].commit = NULL;
        if (commit != NULL) {
            cstd_session_fail(job->daemon, commit, why);
        }
    }
    cstd_barrier_stop(job);
    cstd_planner_cancel(job);
}

void cstd_barrier_missing(const struct cstd_job *job, char *text, size_t size)
{
    bool waits = count(job) > 0;

    text[0] = '\0';
    /* If no rank has committed, nobody waits in the barrier. */
    for (uint32_t r = 0; waits && r < job->world; r++) {
        size_t used = strlen(text);

        if (job->workers[r].commit == NULL) {
            (void)snprintf(text + used, size - used, "%s%u%s", used > 0 ? ", " : "", r,
                           job->workers[r].present ? "" : " (absent)");
        }
    }
}

static void on_deadline(uv_timer_t *timer)
{
    struct cstd_job *job = timer->data;
    char missing[160];
    struct cst_err why = {0};

    cstd_barrier_missing(job, missing, sizeof missing);
    (void)cst_err_set(&why, CST_ETIMEDOUT, "waited %u ms for the commit of rank %s",
                      job->timeout_ms, missing);
    cstd_barrier_break(job, &why);
}

void cstd_barrier_wait(struct cstd_job *job)
{
    if (!uv_is_active((uv_handle_t *)&job->deadline)) {
        (void)uv_timer_start(&job->deadline, on_deadline, job->timeout_ms, 0);
    }
}

void cstd_barrier_stop(struct cstd_job *job)
{
    (void)uv_timer_stop(&job->deadline);
}

void cstd_barrier_withdraw(struct cstd_job *job, uint32_t rank)
{
    bool searched = job->state == CSTD_JOB_DECLARING && cstd_barrier_is_complete(job);

    job->workers[rank].commit = NULL;
    if (searched) {
        cstd_planner_cancel(job);
        /* A single rank waits for nobody. */
        if (job->world > 1) {
            cstd_barrier_wait(job);
        }
    } else if (job->state == CSTD_JOB_DECLARING && count(job) == 0) {
        cstd_barrier_stop(job);
    }
}
