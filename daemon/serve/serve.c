/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/serve.h"

#include "daemon/base/daemon_state.h"
#include "daemon/revive/revive.h"
#include "proto/text.h"
#include "proto/usage.h"
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"
#include "daemon/serve/server.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void cstd_serve_error(struct cstd_session *session, uint64_t id, int status, const char *fmt, ...)
{
    struct cst_err err = {.status = status};
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(err.text, sizeof err.text, fmt, ap);
    va_end(ap);
    cst_text_clean(err.text, sizeof err.text);
    cstd_session_error(session, id, &err);
}

bool cstd_serve_wait(struct cstd_job *job, struct cstd_session *session, uint64_t id, uint16_t type,
                     const ProtobufCMessage *message, cstd_serve_fn serve)
{
    struct cst_err err = {0};

    if (job == NULL || job->state != CSTD_JOB_REVIVING) {
        return false;
    }
    if (cstd_revive_hold(job, session, id, type, message, serve, &err) != CST_OK) {
        cstd_session_error(session, id, &err);
    }
    return true;
}

/* Make the error for a job that uid @uid does not have. */
static int no_job(const struct cstd_session *session, const char *name, uint32_t uid,
                  struct cst_err *err)
{
    const char *nearest = NULL;
    const struct cstd_job *job;
    unsigned best = CST_USAGE_FAR;

    TAILQ_FOREACH(job, &session->daemon->jobs->living, link)
    {
        if ((job->uid == uid || session->manager) && cst_usage_nearer(name, job->name, &best)) {
            nearest = job->name;
        }
    }
    return cst_err_set(err, CST_ENOTFOUND, "no job '%.63s' of uid %u%s%s%s (cistern jobs)", name,
                       uid, nearest != NULL ? ": did you mean '" : "",
                       nearest != NULL ? nearest : "", nearest != NULL ? "'?" : "");
}

int cstd_serve_find_job(const struct cstd_session *session, const char *name, bool has_uid,
                        uint32_t uid, struct cstd_job **out, struct cst_err *err)
{
    struct cstd_daemon *daemon = session->daemon;
    struct cstd_job *job, *found = NULL;

    if (has_uid && uid != session->peer.uid && !session->manager) {
        return cst_err_set(err, CST_EDENIED,
                           "a job of uid %u can be used by uid %u on the manager socket alone: "
                           "cistern --manager-socket %s",
                           uid, (unsigned)session->peer.uid, daemon->server->manager.path);
    }
    found = cstd_job_find(daemon, has_uid ? uid : session->peer.uid, name);
    /* A manager may omit the user if only one user has a job of this name. */
    if (found == NULL && session->manager && !has_uid) {
        TAILQ_FOREACH(job, &daemon->jobs->living, link)
        {
            if (job->predecessor == NULL && strcmp(job->name, name) == 0) {
                if (found != NULL) {
                    return cst_err_set(err, CST_EINVAL,
                                       "several users have a job '%.63s': name its owner (--uid)",
                                       name);
                }
                found = job;
            }
        }
    }
    if (found == NULL) {
        return no_job(session, name, has_uid ? uid : session->peer.uid, err);
    }
    *out = found;
    return CST_OK;
}
