/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that concern a job as a whole: open, declare, commit, layout, pool, arena, edge, leave,
 * remove. */
#include "cistern/cistern.h"
#include "daemon/job/base_job.h"
#include "daemon/job/commit.h"
#include "daemon/base/daemon_state.h"
#include "daemon/job/declare.h"
#include "daemon/job/pool_share.h"
#include "daemon/memory/rank_devices.h"
#include "daemon/serve/serve.h"
#include "daemon/job/core_driver.h"
#include "daemon/base/log.h"
#include "daemon/memory/device_reservation.h"
#include "daemon/job/worker.h"
#include "offload/layout/edge.h"
#include "proto/cistern.pb-c.h"
#include "proto/job_name.h"
#include "proto/plan_message.h"
#include "proto/text.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/gpus.h"
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"
#include "daemon/job/span.h"
#include "daemon/job/standby.h"
#include "daemon/memory/memory.h"
#include "daemon/session/pending.h"
#include "daemon/session/listen.h"
#include "daemon/session/session.h"
#include "daemon/memory/tiers/tier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYOUT_PAGE = 4096, /* Most tensors in a LayoutPart; each takes at most 12 bytes. */
};

static int read_request(const Cistern__JobOpen *message, struct cstd_job_request *out,
                        struct cst_err *err)
{
    if (message->has_token && message->token.len != CSTD_JOB_TOKEN_BYTES) {
        return cst_err_set(err, CST_EINVAL, "token of %zu bytes, a token has %d",
                           message->token.len, CSTD_JOB_TOKEN_BYTES);
    }
    if (message->n_drives > CST_LAYOUT_MAX_DEVICES) {
        return cst_err_set(
            err, CST_EINVAL,
            "states on %zu drives: a job can have %d. Name fewer directories, or make "
            "one drive of several (RAID 0)",
            message->n_drives, CST_LAYOUT_MAX_DEVICES);
    }
    *out = (struct cstd_job_request){
        .again = message->again,
        .token = message->has_token ? message->token.data : NULL,
        .any_device = message->device == NULL || strcmp(message->device, "auto") == 0,
        .n_drives = message->n_drives,
        .drives = message->drives,
    };
    return cstd_job_options_read(message, &out->spec, err);
}

static void reply_opened(struct cstd_session *session, uint64_t id, bool created)
{
    struct cstd_job *job = session->job;
    const struct cstd_job *states = job->predecessor != NULL ? job->predecessor : job;
    struct cst_core_stats stats = {.step = 0};
    Cistern__JobOpened opened = CISTERN__JOB_OPENED__INIT;

    /* A job that is reshaped has the states of its predecessor after the commit. */
    if (states->core != NULL) {
        cst_core_stats(states->core, &stats);
    }
    opened.job = job->serial;
    opened.token.data = job->workers[session->rank].token;
    opened.token.len = CSTD_JOB_TOKEN_BYTES;
    opened.step = stats.step;
    opened.created = created;
    opened.initialised = stats.initialised;
    opened.device = (char *)(uintptr_t)cstd_rank_devices_name(&job->workers[session->rank]);
    opened.committed = cstd_job_is_decided(job);
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_JOB_OPENED, &opened.base, NULL, 0);
}

/* The job that @message opens, or its base, is not revived yet: serve the request afterwards. */
static bool wait_for_job(struct cstd_session *session, uint64_t id, const Cistern__JobOpen *message)
{
    struct cstd_daemon *daemon = session->daemon;
    uid_t uid = session->peer.uid;
    struct cstd_job *job = cstd_job_find(daemon, uid, message->name),
                    *base = message->base_job != NULL
                                ? cstd_job_find(daemon, uid, message->base_job)
                                : NULL;

    return cstd_serve_wait(job, session, id, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &message->base,
                           cstd_serve_job_open) ||
           cstd_serve_wait(base, session, id, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &message->base,
                           cstd_serve_job_open);
}

void cstd_serve_job_open(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__JobOpen *message = body;
    struct cstd_job_request asked;
    struct cst_err err = {0};
    bool created = false;
    int rc;

    if (session->job != NULL) {
        cstd_serve_error(session, id, CST_EINVAL, "job '%s' is open on this connection already",
                         session->job->name);
        return;
    }
    rc = read_request(body, &asked, &err);
    if (rc == CST_OK) {
        rc =
            cstd_tiers_choose(session->daemon, message->device, asked.spec.rank, &asked.tier, &err);
    }
    /* The GPUs of this machine are not known yet. */
    if (rc == CST_EAGAIN && cstd_gpus_wait(session->daemon->gpus, session, id, &message->base,
                                           cstd_serve_job_open, &err) == CST_OK) {
        return;
    }
    if (rc == CST_OK && wait_for_job(session, id, message)) {
        return;
    }
    if (rc == CST_OK && message->plan != NULL) {
        rc = cst_plan_message_read(message->plan, &asked.plan, &err);
    }
    if (rc == CST_OK) {
        rc = cstd_worker_attach(session, &asked, &created, &err);
    }
    if (rc == CST_OK) {
        reply_opened(session, id, created);
    } else {
        cstd_session_error(session, id, &err);
    }
}

void cstd_serve_declare(struct cstd_session *session, uint64_t id, void *body)
{
    struct cstd_job *job = session->job;
    struct cstd_worker *worker = &job->workers[session->rank];
    struct cst_err err = {0};
    int rc = cstd_declare(worker, body, &err);

    if (rc == CST_OK) {
        cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
        return;
    }
    cstd_session_error(session, id, &err);
    /* The other ranks must be told, too; this one has its answer. */
    if (rc == CST_EMISMATCH) {
        cstd_commit_disagree(job, worker, &err);
    }
}

/* Refuse a worker that cannot copy weights itself although the configuration requires this. */
static int check_copies(const struct cstd_worker *worker, bool copies, struct cst_err *err)
{
    const struct cst_layout_states states = cst_layout_job_states(&worker->job->spec);

    if (copies || !cstd_memory_worker_copies(worker->tier, &states)) {
        return CST_OK;
    }
    return cst_err_set(err, CST_EUNSUPPORTED,
                       "the worker of rank %u cannot copy weights to %s, which this daemon "
                       "requires ('copies = worker' in [gpu])",
                       worker->rank, cstd_rank_devices_name(worker));
}

/* Check the Commit of @worker. */
static int check_commit(const struct cstd_worker *worker, const Cistern__Commit *commit,
                        struct cst_err *err)
{
    bool ready = worker->job->state == CSTD_JOB_READY;
    int rc = cstd_declare_check(worker, commit->n_tensors, commit->n_operators, err);

    if (rc == CST_OK && worker->commit != NULL) {
        rc = cst_err_set(err, CST_EINVAL, "rank %u is committing already", worker->rank);
    }
    rc = rc == CST_OK ? check_copies(worker, commit->has_copies && commit->copies, err) : rc;
    /* The rank's pool could not be made again on another device. The worker must open the job
     * anew. */
    if (rc == CST_OK && ready && worker->relocate_err.status != CST_OK) {
        *err = worker->relocate_err;
        rc = err->status;
    }
    /* Pools of a committed job keep their sizes; a worker that comes back must ask for the pool
     * that exists. */
    return rc == CST_OK && ready ? cstd_pool_share_check(worker, err) : rc;
}

void cstd_serve_commit(struct cstd_session *session, uint64_t id, void *body)
{
    struct cstd_job *job = session->job;
    struct cstd_worker *worker = &job->workers[session->rank];
    struct cstd_pending *request;
    struct cst_err err = {0};
    int rc = check_commit(worker, body, &err);

    if (rc == CST_OK) {
        rc = cstd_session_defer(session, job, id, CISTERN__MSG_TYPE__MSG_COMMIT, 1, &request, &err);
    }
    if (rc != CST_OK) {
        /* The worker is answered before cstd_commit_disagree tells the other ranks and drops the
         * model. */
        cstd_session_error(session, id, &err);
        if (rc == CST_EMISMATCH) {
            cstd_commit_disagree(job, worker, &err);
        }
        return;
    }
    cstd_commit_add(worker, request);
}

static bool check_committed(struct cstd_session *session, uint64_t id)
{
    if (!cstd_job_is_committed(session->job)) {
        cstd_serve_error(session, id, CST_EINVAL, "job '%s' is not committed yet",
                         session->job->name);
        return false;
    }
    return true;
}

/* Reply which Adam steps the @n tensors from @first on have missed. */
static void reply_missed(struct cstd_session *session, uint64_t id, uint32_t first, uint32_t n)
{
    const struct cstd_job *job = session->job;
    uint64_t *missed = calloc(job->model.n_tensors, sizeof *missed);
    Cistern__LayoutPart part = CISTERN__LAYOUT_PART__INIT;

    if (missed == NULL) {
        cstd_serve_error(session, id, CST_ENOMEM, "no memory for the numbers of %u tensors", n);
        return;
    }
    cst_core_missed_steps(job->core, missed);
    part.first = first;
    part.n_missed = n;
    part.missed = missed + first;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_LAYOUT_PART, &part.base, NULL, 0);
    free(missed);
}

void cstd_serve_layout(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__LayoutGet *get = body;
    const struct cst_model *model = &session->job->model;
    Cistern__LayoutPart part = CISTERN__LAYOUT_PART__INIT;
    uint32_t chunk[LAYOUT_PAGE], size_class[LAYOUT_PAGE], n;
    uint64_t offset[LAYOUT_PAGE];

    if (!check_committed(session, id)) {
        return;
    }
    if (get->first >= model->n_tensors) {
        cstd_serve_error(session, id, CST_EINVAL, "layout from tensor %u of %u", get->first,
                         model->n_tensors);
        return;
    }
    n = model->n_tensors - get->first;
    n = n < LAYOUT_PAGE ? n : LAYOUT_PAGE;
    if (get->missed) {
        reply_missed(session, id, get->first, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        chunk[i] = model->tensors[get->first + i].chunk;
        offset[i] = model->tensors[get->first + i].offset;
        size_class[i] = session->job->layout.chunks[chunk[i]].size_class;
    }
    part.first = get->first;
    part.n_chunk = part.n_offset = part.n_size_class = n;
    part.size_class = size_class;
    part.chunk = chunk;
    part.offset = offset;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_LAYOUT_PART, &part.base, NULL, 0);
}

void cstd_serve_pool(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__PoolGet *get = body;
    const struct cstd_memory *memory = &session->job->memory;
    const struct cstd_tier *tier = session->job->workers[session->rank].tier;
    Cistern__PoolPart part = CISTERN__POOL_PART__INIT;
    uint64_t bytes[CST_FRAME_MAX_FDS];
    int fds[CST_FRAME_MAX_FDS];
    uint32_t n_slabs, n = 0;
    struct cst_err err = {0};

    if (!check_committed(session, id)) {
        return;
    }
    /* The pools of a parked job have no slabs. */
    n_slabs = memory->parked ? 0 : cstd_memory_n_slabs(memory, session->rank);
    if (get->first >= n_slabs) {
        cstd_serve_error(session, id, CST_EINVAL, "pool from slab %u of %u", get->first, n_slabs);
        return;
    }
    for (; n < CST_FRAME_MAX_FDS && get->first + n < n_slabs; n++) {
        struct cstd_segment *slab = cstd_memory_slab(memory, session->rank, get->first + n);

        bytes[n] = slab->bytes;
        if (cstd_segment_share(slab, &fds[n], &err) != CST_OK) {
            cstd_session_error(session, id, &err);
            return;
        }
    }
    part.first = get->first;
    part.n_bytes = n;
    part.bytes = bytes;
    part.has_device = part.device = tier->kind->handles;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_POOL_PART, &part.base, fds, n);
}

void cstd_serve_arena(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__ArenaGet *get = body;
    const struct cstd_memory *memory = &session->job->memory;
    Cistern__ArenaPart part = CISTERN__ARENA_PART__INIT;
    uint32_t segment[CST_FRAME_MAX_FDS], n = 0;
    uint64_t bytes[CST_FRAME_MAX_FDS];
    int fds[CST_FRAME_MAX_FDS];
    struct cst_err err = {0};

    if (!check_committed(session, id)) {
        return;
    }
    if (!memory->pools[session->rank].worker_copies) {
        cstd_serve_error(
            session, id, CST_EDENIED,
            "arenas are for workers that copy weights: an engine does that for rank %u",
            session->rank);
        return;
    }
    if (get->first >= memory->n_arenas) {
        cstd_serve_error(session, id, CST_EINVAL, "arenas from %u of %u", get->first,
                         memory->n_arenas);
        return;
    }
    for (; n < CST_FRAME_MAX_FDS && get->first + n < memory->n_arenas; n++) {
        struct cstd_segment *arena = memory->segments[get->first + n];

        segment[n] = arena->id;
        bytes[n] = arena->bytes;
        if (cstd_segment_share(arena, &fds[n], &err) != CST_OK) {
            cstd_session_error(session, id, &err);
            return;
        }
    }
    part.first = get->first;
    part.n_segment = part.n_bytes = n;
    part.segment = segment;
    part.bytes = bytes;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_ARENA_PART, &part.base, fds, n);
}

/* The arrays of an EdgePart. */
struct edge_page {
    uint32_t n, edge[CST_FRAME_MAX_FDS]; /* Edges. */
    uint64_t bytes[CST_FRAME_MAX_FDS], slots_bytes[CST_FRAME_MAX_FDS];
    protobuf_c_boolean slots_device[CST_FRAME_MAX_FDS];
    int fds[CST_FRAME_MAX_FDS];
    uint32_t n_fds;
    bool any_slots; /* The slots of an edge have memory of their own. */
};

/* Add edge @i to @page, if it has room for the descriptors. CST_EAGAIN: it has not. */
static int add_edge(const struct cstd_memory *memory, uint32_t i, struct edge_page *page,
                    struct cst_err *err)
{
    struct cstd_segment *words = cstd_memory_edge(memory, i),
                        *slots = cstd_memory_edge_slots(memory, i);
    int rc;

    if (page->n_fds + (slots != NULL ? 2 : 1) > CST_FRAME_MAX_FDS) {
        return CST_EAGAIN;
    }
    page->edge[page->n] = i;
    page->bytes[page->n] = words->bytes;
    page->slots_bytes[page->n] = slots != NULL ? slots->bytes : 0;
    page->slots_device[page->n] =
        slots != NULL && cstd_tiers_of_segment(memory->daemon, slots)->kind->handles;
    page->any_slots = page->any_slots || slots != NULL;
    rc = cstd_segment_share(words, &page->fds[page->n_fds++], err);
    if (rc == CST_OK && slots != NULL) {
        rc = cstd_segment_share(slots, &page->fds[page->n_fds++], err);
    }
    page->n++;
    return rc;
}

/* Fill in the page of @rank's edges from number @first on. *passed: how many edges the rank has. */
static int fill_edges(const struct cstd_job *job, uint32_t rank, uint32_t first,
                      struct edge_page *page, uint32_t *passed, struct cst_err *err)
{
    const struct cst_model *model = &job->model;
    int rc = CST_OK;

    *passed = 0;
    for (uint32_t i = 0; !job->memory.parked && i < model->n_edges && rc == CST_OK; i++) {
        if (cst_layout_edge_has(&model->edges[i], rank) && (*passed)++ >= first) {
            rc = add_edge(&job->memory, i, page, err);
        }
    }
    return rc == CST_EAGAIN ? CST_OK : rc;
}

void cstd_serve_edge(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__EdgeGet *get = body;
    Cistern__EdgePart part = CISTERN__EDGE_PART__INIT;
    struct edge_page page = {0};
    struct cst_err err = {0};
    uint32_t passed;

    if (!check_committed(session, id)) {
        return;
    }
    if (fill_edges(session->job, session->rank, get->first, &page, &passed, &err) != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    if (page.n == 0) {
        cstd_serve_error(session, id, CST_EINVAL, "edges from %u of %u that rank %u has",
                         get->first, passed, session->rank);
        return;
    }
    part.first = get->first;
    part.n_edge = part.n_bytes = page.n;
    part.edge = page.edge;
    part.bytes = page.bytes;
    part.n_slots_bytes = part.n_slots_device = page.any_slots ? page.n : 0;
    part.slots_bytes = page.slots_bytes;
    part.slots_device = page.slots_device;
    part.replaced = session->job->memory.slots_replaced;
    part.has_replaced = part.replaced > 0;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_EDGE_PART, &part.base, page.fds,
                       page.n_fds);
}

void cstd_serve_edge_refuse(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__EdgeRefuse *refuse = body;
    struct cstd_job *job = session->job;
    const struct cst_model *model = &job->model;
    struct cstd_pending *request;
    struct cst_err err = {0};
    int rc;

    if (!check_committed(session, id)) {
        return;
    }
    if (job->memory.parked || refuse->edge >= model->n_edges ||
        !model->edges[refuse->edge].on_device ||
        !cst_layout_edge_has(&model->edges[refuse->edge], session->rank)) {
        cstd_serve_error(session, id, CST_EINVAL,
                         "edge %u of %u has no slots of its own that rank %u could refuse",
                         refuse->edge, model->n_edges, session->rank);
        return;
    }
    if (cstd_session_defer(session, job, id, CISTERN__MSG_TYPE__MSG_EDGE_REFUSE, 1, &request,
                           &err) != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    rc = cstd_slot_refusals_add(&job->memory, refuse->edge, session->rank, refuse->reason,
                                cstd_pending_tag(request, 0), &err);
    if (rc == CST_OK) {
        cstd_session_answer(session->daemon, request, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
    } else if (rc != CST_EAGAIN) {
        cstd_session_fail(session->daemon, request, &err);
    }
}

void cstd_serve_job_files(struct cstd_session *session, uint64_t id, void *body)
{
    struct cst_frame *frame = body;
    struct cstd_job *job = session->job;
    struct cst_err err;

    if (session->rank != 0) {
        cstd_serve_error(session, id, CST_EINVAL,
                         "rank %u gives files for states: those of rank 0 are used", session->rank);
        return;
    }
    if (job->phase != CSTD_COMMIT_COLLECT || cstd_job_is_decided(job)) {
        cstd_serve_error(
            session, id, CST_EBUSY,
            "job '%s' is being committed or is committed already: its files for states "
            "stay as they are",
            job->name);
        return;
    }
    if (frame->n_fds == 0 && !cstd_files_may_come()) {
        cstd_serve_error(session, id, CST_EBUSY, "files of other jobs are still being closed");
        return;
    }
    cstd_listen_allow_descriptors(session->fd, frame->n_fds == 0);
    if (frame->n_fds > 0 && cstd_files_take(&job->files, job->daemon, job->account, frame->fds,
                                            frame->n_fds, &err) != CST_OK) {
        for (unsigned i = 0; i < frame->n_fds; i++) {
            cstd_files_close_apart(frame->fds[i]);
        }
        frame->n_fds = 0;
        cstd_session_error(session, id, &err);
        return;
    }
    frame->n_fds = 0;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
}

void cstd_serve_leave(struct cstd_session *session, uint64_t id, void *body)
{
    struct cst_event event = {.kind = CST_EV_LEAVE, .rank = session->rank};
    struct cstd_pending *request;
    struct cst_err err = {0};

    (void)body;
    /* Before the commit is complete there are no leases to give back, and nothing to wait for. */
    if (!cstd_job_is_committed(session->job)) {
        cstd_worker_left(session->job, session->rank);
        cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
        return;
    }
    if (cstd_session_defer(session, session->job, id, CISTERN__MSG_TYPE__MSG_LEAVE, 1, &request,
                           &err) != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    /* Who leaves a durable job may rely on its last step. */
    request->waits_seal = cst_core_seals(session->job->core);
    if (request->waits_seal) {
        return;
    }
    event.tag = cstd_pending_tag(request, 0);
    cstd_job_feed(session->job, &event);
}

void cstd_serve_standby(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__Standby *standby = body;
    const uint32_t hold_ms = standby->has_hold_ms ? standby->hold_ms : CST_STANDBY_HOLD_MS;
    struct cst_err err = {0};
    int rc = CST_OK;

    if (!cst_job_name_is_valid(standby->name)) {
        rc = cst_err_set(&err, CST_EINVAL, "'%.80s' is not the name of a job: " CST_JOB_NAME_RULE,
                         standby->name);
    } else if (hold_ms == 0 || hold_ms > CST_STANDBY_MAX_HOLD_MS) {
        rc = cst_err_set(&err, CST_EINVAL, "a rank is reserved for 1 to %d ms, not for %u ms",
                         CST_STANDBY_MAX_HOLD_MS, hold_ms);
    } else {
        rc = cstd_standby_add(session, id, standby->name, hold_ms, &err);
    }
    if (rc != CST_OK) {
        cstd_session_error(session, id, &err);
    }
}

/* Refuse to remove a job of whose ranks some are attached. */
static int check_no_worker(const struct cstd_job *job, struct cst_err *err)
{
    uint32_t n = 0;

    for (uint32_t rank = 0; rank < job->world; rank++) {
        n += job->workers[rank].session != NULL;
    }
    return n == 0 ? CST_OK
                  : cst_err_set(err, CST_EBUSY,
                                "job '%s' has %u rank%s that train%s: stop %s, or remove the job "
                                "all the same (cistern rm --force)",
                                job->name, n, n == 1 ? "" : "s", n == 1 ? "s" : "",
                                n == 1 ? "it" : "them");
}

void cstd_serve_job_remove(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__JobName *name = body;
    struct cstd_job *job;
    struct cstd_pending *request;
    struct cst_err err = {0}, why = {0};
    int rc = cstd_serve_find_job(session, name->name, name->has_uid, name->uid, &job, &err);

    if (rc == CST_OK && cstd_serve_wait(job, session, id, CISTERN__MSG_TYPE__MSG_JOB_REMOVE,
                                        &name->base, cstd_serve_job_remove)) {
        return;
    }
    if (rc == CST_OK) {
        char what[96];

        (void)snprintf(what, sizeof what, "job '%s' cannot be removed", job->name);
        rc = cstd_base_job_check_unused(job, what, &err);
    }
    if (rc == CST_OK && name->unused) {
        rc = check_no_worker(job, &err);
    }
    if (rc == CST_OK) {
        rc = cstd_session_defer(session, NULL, id, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, 1, &request,
                                &err);
    }
    if (rc != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job), "removed by pid %d (uid %u)",
                   (int)session->peer.pid, (unsigned)session->peer.uid);
    (void)cst_err_set(&why, CST_ECANCELLED, "job '%s' was removed", job->name);
    cstd_span_end_all(job);
    cstd_job_remove(job, cstd_pending_tag(request, 0), &why);
}
