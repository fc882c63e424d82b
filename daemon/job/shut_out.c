/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/shut_out.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/core_driver.h"
#include "daemon/job/job.h"
#include "daemon/base/log.h"
#include "daemon/memory/memory.h"

/* Most processes that hang up end at once, and their units are then given to others without a new
 * attempt. */
enum { SHUT_OUT_MS = 2000 };

/* True if rank @r has hung up and is not shut out. */
static bool has_hung_up(const struct cstd_job *job, uint32_t r)
{
    const struct cstd_worker *worker = &job->workers[r];

    return worker->present && worker->session == NULL && !worker->shut_out;
}

/* True if others wait for rank @r, which has hung up, and its process is not just ending. */
static bool is_due(const struct cstd_job *job, uint32_t r)
{
    return has_hung_up(job, r) && cst_core_held_up_by(job->core, r) &&
           uv_now(&job->daemon->loop) - job->workers[r].hung_up_ms >= SHUT_OUT_MS;
}

static void shut_out(struct cstd_job *job, uint32_t r)
{
    struct cst_event event = {.kind = CST_EV_SHUT_OUT, .rank = r};

    cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT_RANK(job, r),
                   "rank %u (pid %d) has disconnected but still runs: the other ranks go on "
                   "without it, with new memory for their edges",
                   r, (int)job->workers[r].pid);
    job->workers[r].shut_out = true;
    cstd_job_feed(job, &event);
}

/* Shut out all ranks that have hung up, if others wait for one of them. */
static void look(struct cstd_job *job)
{
    struct cst_err err = {0};
    bool any = false;
    int rc;

    for (uint32_t r = 0; r < job->world; r++) {
        any = any || is_due(job, r);
    }
    rc = any ? cstd_memory_renew_edges(&job->memory, &err) : CST_EAGAIN;
    if (rc != CST_OK && rc != CST_EAGAIN && !job->hung_up_told) {
        job->hung_up_told = true;
        cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT(job),
                       "a rank has disconnected but still runs, and the others wait for it until "
                       "there is memory to go on without it: %s",
                       err.text);
    }
    /* An event may end the job. */
    for (uint32_t r = 0; rc == CST_OK && r < job->world && job->state == CSTD_JOB_READY; r++) {
        if (has_hung_up(job, r)) {
            shut_out(job, r);
        }
    }
}

static bool any_has_hung_up(const struct cstd_job *job)
{
    bool any = false;

    for (uint32_t r = 0; r < job->world; r++) {
        any = any || has_hung_up(job, r);
    }
    return any;
}

static void on_timer(uv_timer_t *timer)
{
    struct cstd_job *job = timer->data;

    if (job->state == CSTD_JOB_READY && job->core != NULL) {
        look(job);
    }
    if (job->state != CSTD_JOB_READY || !any_has_hung_up(job)) {
        (void)uv_timer_stop(timer);
    }
}

void cstd_shut_out_init(struct cstd_job *job)
{
    (void)uv_timer_init(&job->daemon->loop, &job->hung_up);
    job->hung_up.data = job;
}

void cstd_shut_out_watch(struct cstd_job *job, uint32_t rank)
{
    job->workers[rank].hung_up_ms = uv_now(&job->daemon->loop);
    job->hung_up_told = false;
    if (job->model.n_stages > 0 && !uv_is_active((uv_handle_t *)&job->hung_up)) {
        (void)uv_timer_start(&job->hung_up, on_timer, SHUT_OUT_MS, SHUT_OUT_MS);
    }
}
