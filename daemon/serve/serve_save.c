/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of checkpoints: begin and end of a save, and the counters of a restored job. States are
 * read and written by the requests of serve_step.c. */
#include "daemon/base/daemon_state.h"
#include "daemon/job/core_driver.h"
#include "daemon/job/migrate.h"
#include "daemon/job/saver.h"
#include "daemon/serve/serve.h"
#include "proto/cistern.pb-c.h"
#include "daemon/job/job.h"
#include "daemon/session/pending.h"
#include "daemon/session/session.h"

/* Give @event to the core of @job, which answers request @id; a Save of what is @recorded later.
 * False: not possible, and an error was
 * sent as the answer. */
static bool feed(struct cstd_session *session, struct cstd_job *job, uint64_t id, uint16_t type,
                 struct cst_event *event, bool recorded)
{
    struct cstd_pending *request;
    struct cst_err err = {0};

    if (job->core == NULL || job->state != CSTD_JOB_READY) {
        cstd_serve_error(session, id, CST_EINVAL, "job '%s' is not committed yet", job->name);
        return false;
    }
    if (cstd_session_defer(session, job, id, type, 1, &request, &err) != CST_OK) {
        cstd_session_error(session, id, &err);
        return false;
    }
    request->recorded = recorded;
    request->restores = event->kind == CST_EV_RESTORE;
    event->tag = cstd_pending_tag(request, 0);
    cstd_job_feed(job, event);
    return true;
}

void cstd_serve_save(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__JobName *name = body;
    struct cst_event event = {.kind = CST_EV_SAVE};
    struct cstd_job *job;
    struct cst_err err = {0};
    int rc = cstd_serve_find_job(session, name->name, name->has_uid, name->uid, &job, &err);

    if (rc == CST_OK && cstd_serve_wait(job, session, id, CISTERN__MSG_TYPE__MSG_SAVE, &name->base,
                                        cstd_serve_save)) {
        return;
    }
    if (rc == CST_OK) {
        rc = cstd_migrate_check_whole(job, &err);
    }
    if (rc == CST_OK && name->has_recorded && name->recorded && !job->spec.states.durable) {
        rc = cst_err_set(&err, CST_EINVAL,
                         "job '%s' is not durable: no step is recorded in files that can be "
                         "cloned; save it instead",
                         job->name);
    }
    if (rc == CST_OK && session->saves != NULL) {
        rc = cst_err_set(&err, CST_EBUSY, "this connection saves job '%s' already",
                         session->saves->name);
    }
    if (rc == CST_OK && job->saver != NULL) {
        rc = cst_err_set(&err, CST_EBUSY, "job '%s' is being saved by pid %d", job->name,
                         (int)job->saver->peer.pid);
    }
    if (rc != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    session->saves = job;
    job->saver = session;
    if (!feed(session, job, id, CISTERN__MSG_TYPE__MSG_SAVE, &event,
              name->has_recorded && name->recorded)) {
        cstd_saver_detach(session);
    }
}

void cstd_serve_save_end(struct cstd_session *session, uint64_t id, void *body)
{
    struct cst_event event = {.kind = CST_EV_SAVE_END};
    struct cstd_job *job = session->saves;

    (void)body;
    if (job == NULL) {
        cstd_serve_error(session, id, CST_EINVAL, "this connection saves no job");
        return;
    }
    cstd_saver_detach(session);
    (void)feed(session, job, id, CISTERN__MSG_TYPE__MSG_SAVE_END, &event, false);
}

void cstd_serve_saved(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__Saved *saved = body;
    struct cstd_job *job;
    struct cst_err err = {0};

    if (cstd_serve_find_job(session, saved->name, saved->has_uid, saved->uid, &job, &err) !=
        CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    job->saved_step = saved->step;
    job->was_saved = true;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
}

void cstd_serve_restore(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__Restore *message = body;
    struct cst_event event = {.kind = CST_EV_RESTORE,
                              .rank = session->rank,
                              .counters = {.step = message->step,
                                           .adam_step = message->adam_step,
                                           .n_skipped = message->n_skipped,
                                           .n_overflows = message->n_overflows}};

    if (message->more) {
        event.kind = CST_EV_MISSED;
        event.first = message->first;
        event.n_elems = message->n_missed;
        event.missed = message->missed;
    }
    (void)feed(session, session->job, id, CISTERN__MSG_TYPE__MSG_RESTORE, &event, false);
}
