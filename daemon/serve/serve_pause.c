/* SPDX-License-Identifier: Apache-2.0 */
/* Serves the requests to pause and to resume a job. */
#include "daemon/base/log.h"
#include "daemon/job/job.h"
#include "daemon/job/pause.h"
#include "daemon/serve/serve.h"
#include "daemon/session/pending.h"
#include "daemon/session/session.h"
#include "proto/cistern.pb-c.h"

void cstd_serve_pause(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__JobPause *message = body;
    const bool release = message->has_release_pools && message->release_pools;
    struct cstd_pending *request;
    struct cstd_job *job;
    struct cst_err err = {0};
    int rc =
        cstd_serve_find_job(session, message->name, message->has_uid, message->uid, &job, &err);

    if (rc == CST_OK && cstd_serve_wait(job, session, id, CISTERN__MSG_TYPE__MSG_PAUSE,
                                        &message->base, cstd_serve_pause)) {
        return;
    }
    if (rc == CST_OK && session->job == job) {
        rc = cst_err_set(&err, CST_EINVAL,
                         "rank %u cannot pause its own job '%s', because it would wait for its own "
                         "step: use another connection",
                         session->rank, job->name);
    }
    rc = rc == CST_OK ? cstd_pause_check(job, release, &err) : rc;
    rc = rc == CST_OK
             ? cstd_session_defer(session, job, id, CISTERN__MSG_TYPE__MSG_PAUSE, 1, &request, &err)
             : rc;
    if (rc != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job), "pid %d (uid %u) asks to pause it%s",
                   (int)session->peer.pid, (unsigned)session->peer.uid,
                   release ? " and to release its pools" : "");
    cstd_pause_begin(job, release, request, 0);
}

void cstd_serve_resume(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__JobName *name = body;
    struct cstd_pending *request;
    struct cstd_job *job;
    struct cst_err err = {0};
    int rc = cstd_serve_find_job(session, name->name, name->has_uid, name->uid, &job, &err);

    if (rc == CST_OK && cstd_serve_wait(job, session, id, CISTERN__MSG_TYPE__MSG_RESUME,
                                        &name->base, cstd_serve_resume)) {
        return;
    }
    rc = rc == CST_OK ? cstd_session_defer(session, job, id, CISTERN__MSG_TYPE__MSG_RESUME, 1,
                                           &request, &err)
                      : rc;
    if (rc != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    cstd_pause_end(job, request);
}
