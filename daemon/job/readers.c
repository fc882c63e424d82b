/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/readers.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/core_driver.h"
#include "daemon/job/job.h"
#include "daemon/session/session.h"
#include "proto/cistern.pb-c.h"

#include <inttypes.h>
#include <stdlib.h>

void cstd_readers_init(struct cstd_readers *readers)
{
    TAILQ_INIT(&readers->list);
}

int cstd_readers_add(struct cstd_job *job, struct cstd_session *session, struct cst_err *err)
{
    struct cstd_reader *reader = calloc(1, sizeof *reader);

    if (reader == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a reader");
    }
    reader->session = session;
    reader->job = job;
    session->reads = reader;
    TAILQ_INSERT_TAIL(&job->readers.list, reader, link);
    job->readers.n++;
    return CST_OK;
}

/* -- requests --------------------------------------------------------------------------------- */

/* The request that waits is over, also by a cancellation. */
static void on_close(struct cstd_pending *request)
{
    request->reader->next = NULL;
}

/* Tell the core that a row is kept, or is kept no more. */
static void feed(struct cstd_job *job, enum cst_event_kind kind, uint32_t row)
{
    struct cst_event event = {.kind = kind, .weight_row = row};

    if (job->core != NULL && job->state == CSTD_JOB_READY) {
        cstd_job_feed(job, &event);
    }
}

static struct cstd_reader_hold *find_hold(struct cstd_reader *reader, uint64_t number)
{
    for (int i = 0; i < CSTD_READER_HOLDS; i++) {
        if (reader->holds[i].number == number) {
            return &reader->holds[i];
        }
    }
    return NULL;
}

/* The row of the newest version that is readable and that @reader asks for; -1: there is none. */
static int find_version(const struct cstd_reader *reader)
{
    const struct cstd_readers *readers = &reader->job->readers;
    int found = -1;

    for (int row = 0; row < CST_MAX_VERSIONS; row++) {
        if (readers->rows[row].readable &&
            (!reader->keep || cst_core_may_keep(reader->job->core, (uint32_t)row)) &&
            (!reader->has_after || readers->rows[row].step > reader->after) &&
            (found < 0 || readers->rows[row].step > readers->rows[found].step)) {
            found = row;
        }
    }
    return found;
}

/* Give @reader, which waits, a version if there is one for it. */
static void grant(struct cstd_reader *reader)
{
    Cistern__ReaderVersion reply = CISTERN__READER_VERSION__INIT;
    struct cstd_job *job = reader->job;
    struct cstd_reader_hold *hold = find_hold(reader, 0);
    struct cstd_pending *request = reader->next;
    int row = find_version(reader);

    if (row < 0) {
        return;
    }
    reader->next = NULL; /* The event of the core, below, looks at readers that wait. */
    request->on_close = NULL;
    *hold = (struct cstd_reader_hold){.number = ++reader->last,
                                      .step = job->readers.rows[row].step,
                                      .row = (uint32_t)row,
                                      .keeps = reader->keep};
    if (hold->keeps) {
        feed(job, CST_EV_KEEP, hold->row);
    }
    reply.version = hold->number;
    reply.step = hold->step;
    reply.row = hold->row;
    cstd_session_answer(job->daemon, request, CISTERN__MSG_TYPE__MSG_READER_VERSION, &reply.base,
                        NULL, 0);
}

/* Answer @reader, which waits, if there is a version for it, or will be none any more. */
static void look(struct cstd_reader *reader)
{
    struct cstd_job *job = reader->job;
    struct cst_err why;

    grant(reader);
    if (reader->next != NULL && job->core != NULL && cst_core_has_failed(job->core)) {
        (void)cst_err_set(&why, CST_ELOST,
                          "job '%s' has failed: no version of its weights will follow (cistern job "
                          "%s)",
                          job->name, job->name);
        cstd_session_fail(job->daemon, reader->next, &why);
    }
}

int cstd_readers_next(struct cstd_reader *reader, struct cstd_pending *request, bool has_after,
                      uint64_t after, bool keep, struct cst_err *err)
{
    if (reader->next != NULL) {
        return cst_err_set(err, CST_EBUSY, "this reader waits for a version already");
    }
    if (find_hold(reader, 0) == NULL) {
        return cst_err_set(err, CST_EBUSY,
                           "this reader holds %d versions, as many as it can: release one",
                           CSTD_READER_HOLDS);
    }
    reader->next = request;
    reader->has_after = has_after;
    reader->after = after;
    reader->keep = keep;
    request->reader = reader;
    request->on_close = on_close;
    look(reader);
    return CST_OK;
}

/* The hold @number; NULL: there is none. */
static struct cstd_reader_hold *held(struct cstd_reader *reader, uint64_t number,
                                     struct cst_err *err)
{
    struct cstd_reader_hold *hold = number != 0 ? find_hold(reader, number) : NULL;

    if (hold == NULL) {
        (void)cst_err_set(err, CST_EINVAL, "this reader does not hold version %" PRIu64, number);
    }
    return hold;
}

int cstd_readers_check(struct cstd_reader *reader, uint64_t number, struct cst_err *err)
{
    const struct cstd_reader_hold *hold = held(reader, number, err);

    if (hold == NULL) {
        return err->status;
    }
    return !hold->lost ? CST_OK
                       : cst_err_set(err, CST_ESTALE,
                                     "the weights of job '%s' after step %" PRIu64
                                     " are not readable any more: those of a later step take "
                                     "their place",
                                     reader->job->name, hold->step);
}

/* Free the place of @hold. */
static void drop(struct cstd_reader *reader, struct cstd_reader_hold *hold)
{
    const struct cstd_reader_hold was = *hold;

    *hold = (struct cstd_reader_hold){0};
    if (was.keeps && !was.lost) {
        feed(reader->job, CST_EV_UNKEEP, was.row);
    }
}

int cstd_readers_release(struct cstd_reader *reader, uint64_t number, struct cst_err *err)
{
    struct cstd_reader_hold *hold = held(reader, number, err);

    if (hold == NULL) {
        return err->status;
    }
    drop(reader, hold);
    return CST_OK;
}

void cstd_readers_look(struct cstd_job *job)
{
    struct cstd_reader *reader, *following;

    for (reader = TAILQ_FIRST(&job->readers.list); reader != NULL; reader = following) {
        following = TAILQ_NEXT(reader, link);
        if (reader->next != NULL) {
            look(reader);
        }
    }
}

/* -- ends ------------------------------------------------------------------------------------- */

/* Free @reader, which nobody waits for. */
static void forget(struct cstd_reader *reader)
{
    struct cstd_readers *readers = &reader->job->readers;

    for (int i = 0; i < CSTD_READER_HOLDS; i++) {
        if (reader->holds[i].number != 0) {
            drop(reader, &reader->holds[i]);
        }
    }
    reader->session->reads = NULL;
    TAILQ_REMOVE(&readers->list, reader, link);
    readers->n--;
    free(reader);
}

void cstd_readers_end(struct cstd_job *job, const struct cst_err *why)
{
    while (!TAILQ_EMPTY(&job->readers.list)) {
        struct cstd_reader *reader = TAILQ_FIRST(&job->readers.list);
        struct cstd_session *session = reader->session;

        if (reader->next != NULL) {
            cstd_session_fail(job->daemon, reader->next, why);
        }
        forget(reader);
        session->job_removed = true;
        session->why_removed = *why;
    }
}

void cstd_readers_gone(struct cstd_session *session)
{
    struct cstd_reader *reader = session->reads;

    if (reader == NULL) {
        return;
    }
    if (reader->next != NULL) {
        reader->next->on_close = NULL; /* The session ends the request. */
    }
    forget(reader);
}
