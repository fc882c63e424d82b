/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of the training step and of tensor access: each becomes one or more events of the
 * core. */
#include "daemon/job/commit.h"
#include "daemon/job/base_job.h"
#include "daemon/session/batch.h"
#include "daemon/job/commit.h"
#include "daemon/base/daemon_state.h"
#include "daemon/serve/serve.h"
#include "daemon/job/core_driver.h"
#include "daemon/job/span.h"
#include "daemon/memory/staging.h"
#include "proto/cistern.pb-c.h"
#include "daemon/job/job.h"
#include "daemon/session/pending.h"
#include "daemon/session/session.h"

#include <float.h>
#include <stdio.h>
#include <xxhash.h>

/* Open a request of @n_items for the core of @job. NULL: not possible, and an error was sent as the
 * answer. */
static struct cstd_pending *defer_for(struct cstd_session *session, struct cstd_job *job,
                                      uint64_t id, uint16_t type, uint32_t n_items)
{
    struct cstd_pending *request;
    struct cst_err err;

    if (!cstd_job_is_committed(job)) {
        cstd_serve_error(session, id, CST_EINVAL, "job '%s' is not committed yet", job->name);
        return NULL;
    }
    if (cstd_session_defer(session, job, id, type, n_items, &request, &err) != CST_OK) {
        cstd_session_error(session, id, &err);
        return NULL;
    }
    return request;
}

/* The same for the session's job. */
static struct cstd_pending *defer(struct cstd_session *session, uint64_t id, uint16_t type,
                                  uint32_t n_items)
{
    return defer_for(session, session->job, id, type, n_items);
}

void cstd_serve_sync(struct cstd_session *session, uint64_t id, void *body)
{
    struct cstd_pending *request = defer(session, id, CISTERN__MSG_TYPE__MSG_SYNC, 1);

    (void)body;
    if (request != NULL) {
        struct cst_event event = {
            .kind = CST_EV_SYNC, .rank = session->rank, .tag = cstd_pending_tag(request, 0)};

        cstd_job_feed(session->job, &event);
    }
}

/* -- batches -------------------------------------------------------------------------------- */

static const enum cst_event_kind event_kinds[] = {
    [CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT] = CST_EV_FETCH_WEIGHT,
    [CISTERN__BATCH_ITEM__KIND__FETCH_GRAD] = CST_EV_FETCH_GRAD,
    [CISTERN__BATCH_ITEM__KIND__RELEASE] = CST_EV_RELEASE,
    [CISTERN__BATCH_ITEM__KIND__REDUCE_SCATTER] = CST_EV_HAND_IN,
    [CISTERN__BATCH_ITEM__KIND__PREFETCH] = CST_EV_PREFETCH,
    [CISTERN__BATCH_ITEM__KIND__EVICT] = CST_EV_EVICT,
    [CISTERN__BATCH_ITEM__KIND__WANT] = CST_EV_WANT,
};

/* All items are checked before the first event is fed, because after an event the request may be
 * answered and freed. */
static int check_items(const struct cstd_batch *batch, struct cst_err *err)
{
    if (batch->n_items == 0) {
        return cst_err_set(err, CST_EINVAL, "batch of no items, 1 to %d are allowed",
                           CSTD_PENDING_MAX_ITEMS);
    }
    for (uint32_t i = 0; i < batch->n_items; i++) {
        uint32_t kind = batch->items[i].kind;

        if (kind < CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT ||
            kind > CISTERN__BATCH_ITEM__KIND__WANT) {
            return cst_err_set(err, CST_EUNSUPPORTED, "item %u of the batch: unknown kind %u", i,
                               kind);
        }
    }
    return CST_OK;
}

static void feed_items(struct cstd_session *session, const struct cstd_batch *batch, uint64_t tag)
{
    struct cstd_job *job = session->job;

    for (uint32_t i = 0; i < batch->n_items && job->core != NULL; i++) {
        const struct cstd_batch_item *item = &batch->items[i];
        struct cst_event event = {
            .kind = event_kinds[item->kind],
            .rank = session->rank,
            .tag = tag + i,
            .attempt = batch->attempt,
            .chunk = item->chunk,
            .generation = item->generation,
            .ahead = item->ahead,
        };

        cstd_job_feed(job, &event);
    }
}

void cstd_serve_batch(struct cstd_session *session, uint64_t id, void *body)
{
    const struct cst_frame *frame = body;
    struct cstd_batch batch;
    struct cstd_pending *request;
    struct cst_err err;
    int rc = cstd_batch_read(&batch, frame->body, frame->body_bytes, &err);

    if (rc == CST_OK) {
        rc = check_items(&batch, &err);
    }
    if (rc != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    request = defer(session, id, CISTERN__MSG_TYPE__MSG_BATCH, batch.n_items);
    if (request != NULL) {
        feed_items(session, &batch, cstd_pending_tag(request, 0));
    }
}

/* -- step ----------------------------------------------------------------------------------- */

/* Read the factors of parameter groups; there are some. */
static int read_factors(const Cistern__Hyper *h, struct cst_table_factors *out, struct cst_err *err)
{
    if (h->n_lr_factor != h->n_decay_factor || h->n_lr_factor > CST_TABLE_MAX_GROUPS) {
        return cst_err_set(err, CST_EINVAL,
                           "%zu and %zu factors of parameter groups: as many of both, at most %d "
                           "are required",
                           h->n_lr_factor, h->n_decay_factor, CST_TABLE_MAX_GROUPS);
    }
    out->n = (uint32_t)h->n_lr_factor;
    for (uint32_t i = 0; i < out->n; i++) {
        out->lr[i] = h->lr_factor[i];
        out->decay[i] = h->decay_factor[i];
        if (!(out->lr[i] >= 0 && out->lr[i] < FLT_MAX && out->decay[i] >= 0 &&
              out->decay[i] < FLT_MAX)) {
            return cst_err_set(err, CST_EINVAL, "parameter group %u has the factors %g and %g", i,
                               out->lr[i], out->decay[i]);
        }
    }
    return CST_OK;
}

/* Read @h into @event. @factors is for the factors, and must be zeroed. */
static int read_hyper(const Cistern__Hyper *h, struct cst_event *event,
                      struct cst_table_factors *factors, struct cst_err *err)
{
    event->hyper = (struct cst_hyper){.lr = h->lr,
                                      .beta1 = h->beta1,
                                      .beta2 = h->beta2,
                                      .eps = h->eps,
                                      .weight_decay = h->weight_decay,
                                      .clip_norm = h->clip_norm,
                                      .grad_scale = h->grad_scale};
    if (h->n_lr_factor == 0 && h->n_decay_factor == 0) {
        return CST_OK;
    }
    event->factors = factors;
    if (read_factors(h, factors, err) != CST_OK) {
        return err->status;
    }
    event->hyper.factors = XXH3_64bits(factors, sizeof *factors);
    return CST_OK;
}

/* Feed @event, which has the hyper-parameters @hyper, as the request @id of the type @type. */
static void feed_hyper(struct cstd_session *session, uint64_t id, uint16_t type,
                       const Cistern__Hyper *hyper, struct cst_event *event)
{
    struct cst_table_factors factors = {0};
    struct cstd_pending *request;
    struct cst_err err;

    if (read_hyper(hyper, event, &factors, &err) != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    request = defer(session, id, type, 1);
    if (request != NULL) {
        event->tag = cstd_pending_tag(request, 0);
        cstd_job_feed(session->job, event);
    }
}

void cstd_serve_prepare_step(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__PrepareStep *prepare = body;
    struct cst_event event = {
        .kind = CST_EV_PREPARE, .rank = session->rank, .attempt = prepare->attempt};

    feed_hyper(session, id, CISTERN__MSG_TYPE__MSG_PREPARE_STEP, prepare->hyper, &event);
}

void cstd_serve_step(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__Step *step = body;
    struct cst_event event = {.kind = CST_EV_STEP,
                              .rank = session->rank,
                              .attempt = step->attempt,
                              .loss = step->loss,
                              .without = step->without.data,
                              .n_without = step->without.len,
                              .discarded = step->discarded.data,
                              .n_discarded = step->discarded.len};

    session->job->tokens = step->tokens > 0 ? step->tokens : session->job->tokens;
    feed_hyper(session, id, CISTERN__MSG_TYPE__MSG_STEP, step->hyper, &event);
}

void cstd_serve_accumulate(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__Accumulate *accumulate = body;
    struct cstd_pending *request = defer(session, id, CISTERN__MSG_TYPE__MSG_ACCUMULATE, 1);

    if (request != NULL) {
        struct cst_event event = {.kind = CST_EV_ACCUMULATE,
                                  .rank = session->rank,
                                  .tag = cstd_pending_tag(request, 0),
                                  .attempt = accumulate->attempt};

        cstd_job_feed(session->job, &event);
    }
}

void cstd_serve_next(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__Next *next = body;
    struct cstd_pending *request = defer(session, id, CISTERN__MSG_TYPE__MSG_NEXT, 1);

    if (request != NULL) {
        struct cst_event event = {.kind = CST_EV_NEXT,
                                  .rank = session->rank,
                                  .tag = cstd_pending_tag(request, 0),
                                  .attempt = next->attempt,
                                  .unit = next->unit,
                                  .names_unit = next->has_unit,
                                  .loss = next->loss};

        cstd_job_feed(session->job, &event);
    }
}

/* -- cancel --------------------------------------------------------------------------------- */

static struct cstd_pending *find_request(const struct cstd_session *session, uint64_t id)
{
    struct cstd_pending *request;

    TAILQ_FOREACH(request, &session->requests, link)
    {
        if (request->id == id && request->type != CISTERN__MSG_TYPE__MSG_CANCEL) {
            return request;
        }
    }
    return NULL;
}

/* A Commit waits in the daemon and not in the core, hence the daemon fails it. */
static void cancel_commit(struct cstd_session *session, struct cstd_pending *request)
{
    struct cst_err why = {0};

    cstd_commit_withdraw(session->job, session->rank);
    (void)cst_err_set(&why, CST_ECANCELLED, "cancelled");
    cstd_session_fail(session->daemon, request, &why);
}

static void cancel_in_core(struct cstd_session *session, uint64_t id, struct cstd_pending *request)
{
    struct cstd_job *job = session->job;
    uint64_t tags[CSTD_PENDING_MAX_ITEMS], tag;
    uint32_t n = 0;
    struct cstd_pending *cancel;

    for (uint32_t i = 0; i < request->n_items; i++) {
        if (!request->items[i].done) {
            tags[n++] = cstd_pending_tag(request, i);
        }
    }
    cancel = defer(session, id, CISTERN__MSG_TYPE__MSG_CANCEL, n);
    if (cancel == NULL) {
        return;
    }
    tag = cstd_pending_tag(cancel, 0);
    for (uint32_t i = 0; i < n && job->core != NULL; i++) {
        struct cst_event event = {
            .kind = CST_EV_CANCEL, .rank = session->rank, .tag = tag + i, .cancel = tags[i]};

        cstd_job_feed(job, &event);
    }
}

void cstd_serve_cancel(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__Cancel *message = body;
    struct cstd_pending *request = find_request(session, message->request);

    if (request != NULL && request->type == CISTERN__MSG_TYPE__MSG_READER_NEXT) {
        struct cst_err why;

        (void)cst_err_set(&why, CST_ECANCELLED, "cancelled");
        cstd_session_fail(session->daemon, request, &why);
    } else if (request != NULL && request->job != NULL && request->job == session->job) {
        if (!request->waits_commit) {
            cancel_in_core(session, id, request);
            return;
        }
        cancel_commit(session, request);
    }
    /* A request that was already answered, or that cannot be stopped, is left alone: its own final
     * reply was sent, or will be. */
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
}

/* -- tensors -------------------------------------------------------------------------------- */

void cstd_serve_staging(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__StagingGet *get = body;

    cstd_staging_get(session, id, get->bytes);
}

static int check_place(const struct cstd_session *session, const struct cstd_job *job,
                       const Cistern__TensorIo *io, bool writes, uint64_t *out_bytes,
                       struct cst_err *err)
{
    const struct cstd_staging *staging = session->staging;
    struct cst_layout_states states = cst_layout_job_states(&job->spec);
    unsigned row = (unsigned)io->row;
    /* The core refuses tensors that do not exist. */
    enum cst_dtype dtype =
        io->tensor < job->model.n_tensors ? job->model.tensors[io->tensor].dtype : CST_BF16;
    uint64_t bytes;

    if (row >= CST_ROW_COUNT) {
        return cst_err_set(err, CST_EINVAL, "unknown row %u", row);
    }
    if (io->bf16 && !writes) {
        return cst_err_set(err, CST_EINVAL, "states are not read as bf16, but in their own format");
    }
    if (!cstd_staging_serves(session)) {
        return cst_err_set(err, CST_EINVAL,
                           "no staging segment that all engines of the job map: ask for one first");
    }
    bytes = io->n_elems >= UINT64_MAX / 4 ? UINT64_MAX
            : io->bf16                    ? 2 * io->n_elems
                       : cst_core_io_bytes(&states, dtype, (enum cst_row)row, io->raw,
                                           io->exponents, io->n_elems);
    *out_bytes = bytes;
    if (io->staging_offset % 64 != 0 || io->staging_offset > staging->segment->bytes ||
        bytes > staging->segment->bytes - io->staging_offset) {
        return cst_err_set(
            err, CST_EINVAL,
            "%llu elements, %llu bytes, at %llu of a staging segment of %llu bytes (offsets are "
            "multiples of 64)",
            (unsigned long long)io->n_elems, (unsigned long long)bytes,
            (unsigned long long)io->staging_offset, (unsigned long long)staging->segment->bytes);
    }
    return CST_OK;
}

/* Refuse to write a frozen tensor that other jobs read, because this job is their base. */
static int check_shared(const struct cstd_job *job, uint32_t tensor, struct cst_err *err)
{
    char what[192];

    if (tensor >= job->model.n_tensors ||
        cst_pattern(job->model.tensors[tensor].pattern)->has_states) {
        return CST_OK;
    }
    (void)snprintf(what, sizeof what, "frozen tensor '%s' of job '%s' cannot be written",
                   job->model.tensors[tensor].name, job->name);
    return cstd_base_job_check_unused(job, what, err);
}

static void release_staging(struct cstd_pending *request)
{
    cstd_staging_unref(request->staging);
}

static void serve_tensor(struct cstd_session *session, uint64_t id, const Cistern__TensorIo *io,
                         uint16_t type, enum cst_event_kind kind)
{
    struct cstd_job *job = kind == CST_EV_READ && io->of_save ? session->saves : session->job;
    struct cstd_pending *request;
    struct cst_event event = {.kind = kind, .rank = session->rank};
    struct cst_err err = {0};
    uint64_t bytes = 0;

    if (job == NULL && session->job_removed) {
        (void)cst_err_set(&err, CST_ENOTFOUND, "the job was removed: %s",
                          session->why_removed.text);
        cstd_session_error(session, id, &err);
        return;
    }
    if (job == NULL) {
        cstd_serve_error(session, id, CST_EINVAL,
                         io->of_save ? "this connection saves no job"
                                     : "no job is open on this connection");
        return;
    }
    if (check_place(session, job, io, kind == CST_EV_WRITE, &bytes, &err) != CST_OK ||
        (kind == CST_EV_WRITE && check_shared(job, io->tensor, &err) != CST_OK)) {
        cstd_session_error(session, id, &err);
        return;
    }
    request = defer_for(session, job, id, type, 1);
    if (request == NULL) {
        return;
    }
    request->staging = session->staging;
    request->on_close = release_staging;
    cstd_staging_ref(session->staging);
    event.tag = cstd_pending_tag(request, 0);
    event.tensor = io->tensor;
    event.row = (enum cst_row)io->row;
    event.first = io->first;
    event.n_elems = io->n_elems;
    event.raw = io->raw;
    event.exponents = io->exponents;
    event.bf16 = io->bf16;
    event.place.segment = session->staging->segment->id;
    event.place.offset = io->staging_offset;
    if (kind == CST_EV_READ && cstd_span_reads(job, &event)) {
        if (cstd_span_read(job, &event, bytes, &err) != CST_OK) {
            cstd_session_fail(session->daemon, request, &err);
        }
        return;
    }
    cstd_job_feed(job, &event);
}

void cstd_serve_tensor_read(struct cstd_session *session, uint64_t id, void *body)
{
    serve_tensor(session, id, body, CISTERN__MSG_TYPE__MSG_TENSOR_READ, CST_EV_READ);
}

void cstd_serve_tensor_write(struct cstd_session *session, uint64_t id, void *body)
{
    serve_tensor(session, id, body, CISTERN__MSG_TYPE__MSG_TENSOR_WRITE, CST_EV_WRITE);
}
