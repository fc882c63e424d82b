/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/saver.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/core_driver.h"
#include "daemon/ledger/describe.h"
#include "proto/cistern.pb-c.h"
#include "daemon/job/job.h"
#include "daemon/session/session.h"

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

static void on_described(struct cstd_job *job, const struct cst_err *err);

/* If this fails, the client ends the save by SAVE_END, as after any other failure. */
void cstd_saver_begun(struct cstd_pending *request)
{
    Cistern__SaveBegun begun = CISTERN__SAVE_BEGUN__INIT;
    struct cstd_job *job = request->job;
    struct cst_err err = {0};
    int fd, rc = cstd_describe(job, on_described, &fd, &begun.description_bytes, &err);

    if (rc == CST_OK) {
        begun.step = job->description.step;
        cstd_session_answer(job->daemon, request, CISTERN__MSG_TYPE__MSG_SAVE_BEGUN, &begun.base,
                            &fd, 1);
    } else if (rc == CST_EAGAIN) {
        request->waits_description = true;
    } else {
        cstd_session_fail(job->daemon, request, &err);
    }
}

/* Answer the Saves that wait: one, and those of connections that have ended. */
static void on_described(struct cstd_job *job, const struct cst_err *err)
{
    struct cstd_pending *request, *next;

    for (request = TAILQ_FIRST(&job->requests); request != NULL; request = next) {
        next = TAILQ_NEXT(request, job_link);
        if (!request->waits_description) {
            continue;
        }
        request->waits_description = false;
        if (err->status == CST_OK) {
            cstd_saver_begun(request);
        } else {
            cstd_session_fail(job->daemon, request, err);
        }
    }
}

void cstd_saver_answer(struct cstd_daemon *daemon, struct cstd_pending *request,
                       const struct cst_reply *reply)
{
    struct cstd_session *session = request->session;

    if (reply->status == CST_OK) {
        request->waits_seal = request->recorded && cst_core_seals(request->job->core);
        if (!request->waits_seal) {
            cstd_saver_begun(request);
        }
        return;
    }
    cstd_session_fail(daemon, request, &reply->err);
    if (session != NULL) {
        cstd_saver_detach(session);
    }
}

void cstd_saver_restored(struct cstd_job *job, bool whole)
{
    struct cst_core_stats stats;

    cst_core_stats(job->core, &stats);
    cst_core_forget_updates(job->memory.table, stats.adam_step);
    cstd_describe_outdate(job);
    if (whole) { /* The states are those of the checkpoint. */
        job->saved_step = stats.step;
        job->was_saved = true;
    }
}
