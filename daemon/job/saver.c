/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/saver.h"

#include "daemon/daemon.h"
#include "daemon/job/core_driver.h"
#include "daemon/job/describe.h"
#include "proto/cistern.pb-c.h"

void cstd_saver_detach(struct cstd_session *session)
{
    if (session->saves != NULL) {
        session->saves->saver = NULL;
        session->saves = NULL;
    }
}

void cstd_saver_gone(struct cstd_session *session)
{
    struct cst_event event = {.kind = CST_EV_SAVE_END};
    struct cstd_job *job = session->saves;

    cstd_saver_detach(session);
    if (job != NULL && job->core != NULL && job->state == CSTD_JOB_READY) {
        cstd_job_feed(job, &event);
    }
}

void cstd_saver_answer(struct cstd_daemon *daemon, struct cstd_pending *request,
                       const struct cst_reply *reply)
{
    Cistern__SaveBegun begun = CISTERN__SAVE_BEGUN__INIT;
    struct cstd_session *session = request->session;
    struct cst_err err = reply->err;
    int fd, rc = reply->status;

    if (rc == CST_OK) {
        rc = cstd_describe(request->job, &fd, &begun.description_bytes, &err);
    }
    if (rc != CST_OK) {
        cstd_session_fail(daemon, request, &err);
        /* If the save has begun, the client ends it by SAVE_END, as after any other failure. */
        if (session != NULL && reply->status != CST_OK) {
            cstd_saver_detach(session);
        }
        return;
    }
    begun.step = reply->step;
    cstd_session_answer(daemon, request, CISTERN__MSG_TYPE__MSG_SAVE_BEGUN, &begun.base, &fd, 1);
}

void cstd_saver_restored(struct cstd_job *job)
{
    struct cst_core_stats stats;

    cst_core_stats(job->core, &stats);
    cst_core_forget_updates(job->memory.table, stats.adam_step);
    cstd_describe_outdate(job);
}
