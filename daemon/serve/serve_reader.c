/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of readers: a job's weights, which they map, and the versions of these. */
#include "daemon/base/daemon_state.h"
#include "daemon/budget/arena.h"
#include "daemon/job/job.h"
#include "daemon/job/readers.h"
#include "daemon/serve/serve.h"
#include "daemon/session/pending.h"
#include "daemon/session/session.h"
#include "proto/cistern.pb-c.h"
#include "proto/frame.h"

#include <unistd.h>

static int check_job(const struct cstd_session *session, const struct cstd_job *job,
                     struct cst_err *err)
{
    if (session->reads != NULL) {
        return cst_err_set(err, CST_EBUSY, "this connection reads job '%s' already",
                           session->reads->job->name);
    }
    if (session->peer.uid != job->uid) {
        return cst_err_set(err, CST_EDENIED,
                           "job '%s' belongs to uid %u: only processes of that user can read its "
                           "weights",
                           job->name, (unsigned)job->uid);
    }
    if (!cstd_job_is_committed(job) || job->state != CSTD_JOB_READY) {
        return cst_err_set(err, CST_EBUSY, "job '%s' is not committed yet", job->name);
    }
    if (job->successor != NULL) {
        return cst_err_set(err, CST_EBUSY, "job '%s' is being reshaped", job->name);
    }
    if (job->spec.states.grad_over_weight) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "the weights of job '%s' cannot be read while it trains, because "
                           "gradients take their place (grad_over_weight)",
                           job->name);
    }
    return CST_OK;
}

void cstd_serve_reader_open(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__JobName *name = body;
    Cistern__ReaderOpened reply = CISTERN__READER_OPENED__INIT;
    struct cstd_job *job;
    struct cst_err err = {0};
    int rc = cstd_serve_find_job(session, name->name, name->has_uid, name->uid, &job, &err);

    if (rc == CST_OK && cstd_serve_wait(job, session, id, CISTERN__MSG_TYPE__MSG_READER_OPEN,
                                        &name->base, cstd_serve_reader_open)) {
        return;
    }
    if (rc == CST_OK) {
        rc = check_job(session, job, &err);
    }
    if (rc == CST_OK) {
        rc = cstd_readers_add(job, session, &err);
    }
    if (rc != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    reply.n_arenas = job->memory.n_arenas;
    reply.n_tensors = job->model.n_tensors;
    reply.versions = cst_layout_job_states(&job->spec).two_weights ? 2 : 1;
    reply.model_config = (char *)(uintptr_t)job->spec.model.model_config;
    reply.adapter_config = (char *)(uintptr_t)job->spec.model.adapter_config;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_READER_OPENED, &reply.base, NULL, 0);
}

/* The reader of @session. NULL: there is none, and an error was sent as the answer. */
static struct cstd_reader *reader_of(struct cstd_session *session, uint64_t id)
{
    if (session->reads != NULL) {
        return session->reads;
    }
    if (session->job_removed && session->why_removed.status == CST_ESTALE) {
        cstd_session_error(session, id, &session->why_removed); /* The job is not removed. */
    } else if (session->job_removed) {
        cstd_serve_error(session, id, CST_ENOTFOUND, "the job was removed: %s",
                         session->why_removed.text);
    } else {
        cstd_serve_error(session, id, CST_EINVAL, "this connection reads no job");
    }
    return NULL;
}

/* Bit i: segment @first + i of the layout has weights. */
static unsigned with_weights(const struct cst_layout *layout, uint32_t first)
{
    unsigned bits = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const int rows[] = {CST_ROW_WEIGHT, CST_ROW_WEIGHT_OTHER};

        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            uint32_t segment = cst_layout_row(&layout->chunks[c], rows[i])->segment;

            if (segment != CST_LAYOUT_NO_ROW && segment >= first &&
                segment - first < CST_FRAME_MAX_FDS) {
                bits |= 1u << (segment - first);
            }
        }
    }
    return bits;
}

void cstd_serve_reader_arena(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__ArenaGet *get = body;
    const struct cstd_reader *reader = reader_of(session, id);
    Cistern__ArenaPart part = CISTERN__ARENA_PART__INIT;
    uint32_t segment[CST_FRAME_MAX_FDS], n = 0;
    uint64_t bytes[CST_FRAME_MAX_FDS];
    int fds[CST_FRAME_MAX_FDS], rc = CST_OK;
    const struct cstd_memory *memory;
    struct cst_err err = {0};
    unsigned wanted;

    if (reader == NULL) {
        return;
    }
    memory = &reader->job->memory;
    wanted = with_weights(&reader->job->layout, get->first);
    for (uint32_t i = 0; rc == CST_OK && i < CST_FRAME_MAX_FDS; i++) {
        const struct cstd_segment *arena;

        if (get->first >= memory->n_arenas || i >= memory->n_arenas - get->first ||
            (wanted & 1u << i) == 0 || memory->segments[get->first + i]->file) {
            continue;
        }
        arena = memory->segments[get->first + i];
        rc = cstd_segment_open_reading(arena, &fds[n], &err);
        if (rc == CST_OK) {
            segment[n] = get->first + i;
            bytes[n++] = arena->bytes;
        }
    }
    part.first = get->first;
    part.n_segment = part.n_bytes = n;
    part.segment = segment;
    part.bytes = bytes;
    if (rc == CST_OK) {
        cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_ARENA_PART, &part.base, fds, n);
    } else {
        cstd_session_error(session, id, &err);
    }
    while (n > 0) {
        (void)close(fds[--n]);
    }
}

void cstd_serve_reader_next(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__ReaderNext *next = body;
    struct cstd_reader *reader = reader_of(session, id);
    struct cstd_pending *request;
    struct cst_err err = {0};

    if (reader == NULL) {
        return;
    }
    if (cstd_session_defer(session, NULL, id, CISTERN__MSG_TYPE__MSG_READER_NEXT, 1, &request,
                           &err) != CST_OK) {
        cstd_session_error(session, id, &err);
    } else if (cstd_readers_next(reader, request, next->has_after, next->after, next->keep, &err) !=
               CST_OK) {
        cstd_session_fail(session->daemon, request, &err);
    }
}

/* Answer request @id with what @what says of the version that @hold names. */
static void answer(struct cstd_session *session, uint64_t id, const Cistern__ReaderHold *hold,
                   int (*what)(struct cstd_reader *reader, uint64_t number, struct cst_err *err))
{
    struct cstd_reader *reader = reader_of(session, id);
    struct cst_err err = {0};

    if (reader == NULL) {
        return;
    }
    if (what(reader, hold->version, &err) != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
}

void cstd_serve_reader_check(struct cstd_session *session, uint64_t id, void *body)
{
    answer(session, id, body, cstd_readers_check);
}

void cstd_serve_reader_release(struct cstd_session *session, uint64_t id, void *body)
{
    answer(session, id, body, cstd_readers_release);
}
