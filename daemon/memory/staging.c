/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/staging.h"

#include "daemon/base/daemon_state.h"
#include "daemon/memory/upkeep.h"
#include "daemon/session/session.h"
#include "proto/cistern.pb-c.h"
#include "proto/round_up.h"
#include "daemon/engine/engines.h"
#include "daemon/job/job.h"

#include <stdlib.h>

static void answer(struct cstd_staging *staging)
{
    Cistern__StagingPart part = CISTERN__STAGING_PART__INIT;
    struct cstd_pending *request = staging->request;
    struct cst_err err = {0};
    int fd;

    staging->request = NULL;
    if (cstd_segment_share(staging->segment, &fd, &err) != CST_OK) {
        cstd_session_fail(staging->daemon, request, &err);
        return;
    }
    part.bytes = staging->segment->bytes;
    cstd_session_answer(staging->daemon, request, CISTERN__MSG_TYPE__MSG_STAGING_PART, &part.base,
                        &fd, 1);
}

static void on_mounted_later(struct cstd_deferred *later)
{
    struct cstd_staging *staging = cstd_owner_of(later, struct cstd_staging, mounted);
    struct cst_err err = staging->segment->err;

    if (err.status == 0) {
        staging->ready = true;
        if (staging->request != NULL) {
            answer(staging);
        }
        return;
    }
    if (staging->request != NULL) {
        cstd_session_fail(staging->daemon, staging->request, &err);
        staging->request = NULL;
    }
    if (staging->session != NULL) { /* Abandon the segment; the next request makes another one. */
        staging->session->staging = NULL;
        cstd_staging_abandon(staging);
    }
}

static void on_mounted(struct cstd_segment *segment)
{
    struct cstd_staging *staging = segment->arg;

    cstd_deferred_add(&staging->daemon->later, &staging->mounted);
}

/* Return the engines that hold states of @job, which may be NULL. */
static struct cst_set engines_of_job(const struct cstd_job *job)
{
    struct cst_set engines = job != NULL ? job->memory.served : (struct cst_set){{0}};

    for (uint32_t s = 0; job != NULL && cstd_job_has_layout(job) && s < job->layout.n_segments;
         s++) {
        cst_set_add(&engines, cst_layout_segment_engine(&job->layout.segments[s]));
    }
    return engines;
}

/* Return the engines that must map the segment: those of all nodes, and those of
 * accelerators that hold states of the jobs that the session works on or saves. */
static struct cst_set engines_of(const struct cstd_session *session)
{
    const struct cst_set nodes = cst_set_range(0, session->daemon->engines->n_nodes);

    return cst_set_union(
        nodes, cst_set_union(engines_of_job(session->job), engines_of_job(session->saves)));
}

bool cstd_staging_serves(const struct cstd_session *session)
{
    const struct cstd_staging *staging = session->staging;
    const struct cst_set engines = engines_of(session);

    return staging != NULL && staging->ready &&
           cst_set_within(&engines, &staging->segment->engines);
}

/* Open a segment of about @bytes, or of half as much and so on if the budgets have no more left, in
 * the end of what the job has reserved. */
static int open_segment(struct cstd_session *session, uint64_t bytes, struct cstd_segment **out,
                        struct cst_err *err)
{
    struct cstd_daemon *daemon = session->daemon;
    int rc;

    for (bytes = bytes < CSTD_STAGING_MAX_BYTES ? bytes : CSTD_STAGING_MAX_BYTES;; bytes /= 2) {
        bool least = bytes <= CSTD_STAGING_MIN_BYTES;

        rc = cstd_segment_open(out, cstd_engines_segment_id(daemon->engines),
                               least ? CSTD_STAGING_MIN_BYTES : cst_round_up(bytes, 4096),
                               daemon->host, session->account, "staging", err);
        if (rc == CST_EBUDGET && least) {
            int lent = cstd_upkeep_lend(session, out, err);

            return lent == CST_OK ? CST_OK : rc;
        }
        if (rc != CST_EBUDGET) {
            return rc;
        }
    }
}

static int make(struct cstd_session *session, uint64_t bytes, struct cstd_staging **out,
                struct cst_err *err)
{
    struct cstd_daemon *daemon = session->daemon;
    struct cstd_staging *staging = calloc(1, sizeof *staging);
    int rc;

    if (staging == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for staging");
    }
    rc = open_segment(session, bytes, &staging->segment, err);
    if (rc != CST_OK) {
        free(staging);
        return rc;
    }
    staging->daemon = daemon;
    staging->session = session;
    staging->n_refs = 1;
    staging->mounted.fn = on_mounted_later;
    staging->segment->populate = 0;
    staging->segment->population = &staging->population;
    staging->segment->engines = engines_of(session);
    staging->segment->arg = staging;
    staging->segment->on_mounted = on_mounted;
    *out = staging;
    return CST_OK;
}

/* -- requests that wait ----------------------------------------------------------------------- */

static void look(struct cstd_deferred *later)
{
    struct cstd_staging_queue *queue = cstd_owner_of(later, struct cstd_staging_queue, look);

    cstd_held_serve(&queue->held, 0, queue->daemon);
}

void cstd_staging_queue_init(struct cstd_staging_queue *queue, struct cstd_daemon *daemon)
{
    *queue = (struct cstd_staging_queue){.daemon = daemon, .look.fn = look};
    TAILQ_INIT(&queue->held);
}

void cstd_staging_look(struct cstd_staging_queue *queue)
{
    if (!TAILQ_EMPTY(&queue->held)) {
        cstd_deferred_add(&queue->daemon->later, &queue->look);
    }
}

void cstd_staging_stop(struct cstd_staging_queue *queue)
{
    cstd_held_drop(&queue->held);
}

static void serve_again(struct cstd_session *session, uint64_t id, void *body)
{
    cstd_staging_get(session, id, ((const Cistern__StagingGet *)body)->bytes);
}

/* Keep the request @id until memory that is about to come back has come. False: none is, and @err
 * stays the cause. */
static bool wait_for_more(struct cstd_session *session, uint64_t id, uint64_t bytes)
{
    Cistern__StagingGet get = CISTERN__STAGING_GET__INIT;
    struct cst_err unused;

    get.bytes = bytes;
    return cstd_upkeep_awaits(session) &&
           cstd_hold(&session->daemon->staging_queue->held, 0, session, id,
                     CISTERN__MSG_TYPE__MSG_STAGING, &get.base, serve_again, &unused) == CST_OK;
}

/* -- the segment of a session ------------------------------------------------------------------ */

void cstd_staging_get(struct cstd_session *session, uint64_t id, uint64_t bytes)
{
    struct cstd_staging *staging = session->staging;
    struct cstd_pending *request = NULL;
    struct cst_err err = {0};
    int rc = CST_OK;

    /* The job has got a layout with states on accelerators since the segment was made: make another
     * one that their engines map, too. */
    if (staging != NULL && staging->ready && !cstd_staging_serves(session)) {
        session->staging = NULL;
        cstd_staging_abandon(staging);
        staging = NULL;
    }
    if (staging != NULL && staging->request != NULL) {
        rc = cst_err_set(&err, CST_EBUSY, "an earlier request for staging is not answered yet");
    }
    if (rc == CST_OK) {
        rc = cstd_session_defer(session, NULL, id, CISTERN__MSG_TYPE__MSG_STAGING, 1, &request,
                                &err);
    }
    if (rc == CST_OK && staging == NULL) {
        rc = make(session, bytes, &staging, &err);
    }
    if (rc != CST_OK) {
        if (request != NULL) {
            cstd_session_drop(session->daemon, request);
        }
        if (rc != CST_EBUDGET || !wait_for_more(session, id, bytes)) {
            cstd_session_error(session, id, &err);
        }
        return;
    }
    staging->request = request;
    if (staging->ready) {
        answer(staging);
    } else {
        session->staging = staging;
        cstd_engines_mount(session->daemon->engines, staging->segment);
    }
}

void cstd_staging_abandon(struct cstd_staging *staging)
{
    staging->session = NULL;
    staging->request = NULL; /* The request ends with the session. */
    cstd_staging_unref(staging);
}

void cstd_staging_ref(struct cstd_staging *staging)
{
    staging->n_refs++;
}

void cstd_staging_unref(struct cstd_staging *staging)
{
    if (--staging->n_refs > 0) {
        return;
    }
    cstd_deferred_remove(&staging->daemon->later, &staging->mounted);
    staging->segment->on_mounted = NULL;
    staging->segment->population = NULL;
    cstd_upkeep_return(staging->segment);
    cstd_engines_unmount(staging->daemon->engines, staging->segment);
    cstd_segment_unref(staging->segment);
    free(staging);
}
