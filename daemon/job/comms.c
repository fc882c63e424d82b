/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/comms.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/comm_device.h"
#include "daemon/job/comm_slots.h"
#include "daemon/memory/page_work.h"
#include "daemon/base/log.h"
#include "daemon/base/reason_lines.h"
#include "proto/cistern.pb-c.h"
#include "proto/comm_memory.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/engines.h"
#include "daemon/job/job.h"
#include "daemon/session/pending.h"
#include "daemon/session/session.h"
#include "daemon/memory/tiers/tier.h"

#include <stdio.h>
#include <stdlib.h>

enum state { GATHERING, ALLOCATING, BACKING, OPEN };

/* A rank of a communicator. */
struct member {
    uint64_t tag; /* Before OPEN: its CommOpen, if it is one of those that asked. */
    struct cstd_comm_device *device; /* Owned. NULL: its arrays are in host memory. */
};

struct cstd_comm {
    TAILQ_ENTRY(cstd_comm) link;
    struct cstd_job *job;
    uint64_t id;
    enum state state;
    uint32_t group;
    uint64_t attempt;
    struct cst_set ranks;           /* Ranks of the group. */
    struct cst_set asked, closed;   /* Ranks that have asked for it, and that use it no more. */
    uint64_t until_ns;              /* GATHERING: when the ranks that wait give up. */
    enum cst_transport transport;   /* From ALLOCATING on: how the ranks exchange data, */
    char why[CST_TRANSPORT_WORDS];  /* and why. */
    struct cstd_comm_slots slots;   /* From ALLOCATING on: on the ranks' GPUs, if they use them. */
    size_t slot_bytes;              /* From BACKING on: data in a slot of the memory. */
    struct cstd_segment *segment;   /* From BACKING on. */
    struct cstd_page_work *work;    /* BACKING. */
    struct cstd_shared_heads heads; /* OPEN: the head of the memory. */
    struct cstd_charge charge;      /* For this structure and the devices of its members. */
    struct member members[];        /* In the order of the ranks. */
};

static void arm(struct cstd_job *job);

static uint32_t n_ranks(const struct cstd_comm *comm)
{
    return cst_set_count(&comm->ranks);
}

/* @rank is one of the group. */
static struct member *member(struct cstd_comm *comm, uint32_t rank)
{
    return &comm->members[cst_set_count_below(&comm->ranks, rank)];
}

static void free_comm(struct cstd_comm *comm)
{
    const uint32_t n = n_ranks(comm);

    TAILQ_REMOVE(&comm->job->comms.list, comm, link);
    cstd_page_work_abandon(comm->work);
    cstd_comm_slots_close(&comm->slots);
    cstd_shared_heads_close(&comm->heads);
    if (comm->segment != NULL) {
        cstd_segment_unref(comm->segment);
    }
    for (uint32_t i = 0; i < n; i++) {
        free(comm->members[i].device);
    }
    cstd_charge_force(&comm->charge, 0);
    free(comm);
}

/* The request of @rank, which waits; NULL: there is none, or its session has ended. */
static struct cstd_pending *request_of(struct cstd_comm *comm, uint32_t rank)
{
    uint32_t item;

    return cst_set_has(&comm->asked, rank)
               ? cstd_pending_find(comm->job->daemon->requests, member(comm, rank)->tag, &item)
               : NULL;
}

/* Answer the ranks that wait for @comm with @why, and free it. */
static void fail(struct cstd_comm *comm, const struct cst_err *why)
{
    struct cstd_job *job = comm->job;

    CST_SET_EACH (rank, &comm->ranks) {
        struct cstd_pending *request = request_of(comm, rank);

        if (request != NULL) {
            cstd_session_fail(job->daemon, request, why);
        }
    }
    free_comm(comm);
}

/* -- opening ---------------------------------------------------------------------------------- */

/* All ranks have asked: choose how they exchange data. */
static void choose(struct cstd_comm *comm)
{
    const char *names[CST_COMM_MAX_RANKS][CSTD_COMM_DEVICE_MAX_GPUS];
    struct cst_transport_rank ranks[CST_COMM_MAX_RANKS];
    const struct cstd_job *job = comm->job;
    size_t n = 0;

    CST_SET_EACH (rank, &comm->ranks) {
        ranks[n] = cstd_comm_device_rank(comm->members[n].device, rank,
                                         job->workers[rank].tier->uuid, names[n]);
        n++;
    }
    comm->transport = cst_transport_choose(ranks, n, comm->why);
}

/* Return whether all ranks say whether they can use the transport. */
static bool can_refuse(const struct cstd_comm *comm)
{
    const uint32_t n = n_ranks(comm);

    for (uint32_t i = 0; i < n; i++) {
        if (comm->members[i].device == NULL || !comm->members[i].device->can_refuse) {
            return false;
        }
    }
    return comm->transport == CST_TRANSPORT_NCCL || comm->transport == CST_TRANSPORT_PEERS;
}

/* Tell ranks on GPUs how they exchange data. Others need not know. @opened borrows from @comm. */
static void tell_transport(struct cstd_comm *comm, Cistern__CommOpened *opened)
{
    struct cstd_comm_device *first = comm->members[0].device;

    if (comm->transport == CST_TRANSPORT_HOST) {
        return;
    }
    opened->has_transport = true;
    opened->transport = (Cistern__CommTransport)comm->transport;
    opened->transport_reason = comm->why;
    if (comm->transport == CST_TRANSPORT_NCCL && first->has_id) {
        opened->has_nccl_id = true;
        opened->nccl_id.data = first->id;
        opened->nccl_id.len = sizeof first->id;
    }
    if (comm->transport == CST_TRANSPORT_PEERS) {
        opened->has_peer_bytes = opened->has_peer_slot_bytes = true;
        opened->peer_bytes = comm->slots.bytes;
        opened->peer_slot_bytes = CST_COMM_PEER_SLOT_BYTES;
    }
    opened->has_can_refuse = true;
    opened->can_refuse = can_refuse(comm);
}

static void answer(struct cstd_comm *comm, int fd)
{
    struct cstd_job *job = comm->job;
    Cistern__CommOpened opened = CISTERN__COMM_OPENED__INIT;
    int fds[1 + CST_TRANSPORT_MAX_PEERS] = {fd};

    opened.id = comm->id;
    opened.bytes = comm->segment->bytes;
    opened.slot_bytes = comm->slot_bytes;
    opened.timeout_ms = job->spec.limits.timeout_ms;
    tell_transport(comm, &opened);
    for (uint32_t i = 0; i < comm->slots.n; i++) {
        fds[1 + i] = comm->slots.v[i]->fd;
    }
    CST_SET_EACH (rank, &comm->ranks) {
        struct cstd_pending *request = request_of(comm, rank);

        if (request != NULL) {
            cstd_session_answer(job->daemon, request, CISTERN__MSG_TYPE__MSG_COMM_OPENED,
                                &opened.base, fds, 1 + comm->slots.n);
        }
    }
}

static void on_backed(void *arg, const struct cst_err *result)
{
    struct cstd_comm *comm = arg;
    struct cst_err err = *result;
    int fd = -1;

    comm->work = NULL;
    if (err.status == CST_OK) {
        (void)cstd_segment_share(comm->segment, &fd, &err);
    }
    if (err.status == CST_OK) {
        (void)cstd_shared_heads_add(&comm->heads, comm->segment->fd, &err);
    }
    if (err.status != CST_OK) {
        fail(comm, &err);
        return;
    }
    comm->state = OPEN;
    answer(comm, fd);
}

/* Words for the memory of @comm. */
static void describe(const struct cstd_comm *comm, char what[112])
{
    (void)snprintf(what, 112, "communicator of group %u of job '%s'", comm->group, comm->job->name);
}

/* Say in the log which ranks could not use what the group used before, and what it uses now. */
static void warn_of_refusals(struct cstd_comm *comm)
{
    CST_SET_EACH (rank, &comm->ranks) {
        const struct cstd_comm_device *device = member(comm, rank)->device;

        if (device != NULL && device->refused != 0) {
            cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT_RANK(comm->job, rank),
                           "communicator of group %u: rank %u cannot use %s: %s; its %u ranks use "
                           "%s instead",
                           comm->group, rank, cst_transport_name(device->refused),
                           device->refused == CST_TRANSPORT_NCCL ? device->nccl_error
                                                                 : device->peers_error,
                           n_ranks(comm), cst_transport_name(comm->transport));
        }
    }
}

/* Make the memory that the ranks share, and back it with pages in a thread. */
static void make(struct cstd_comm *comm)
{
    struct cstd_job *job = comm->job;
    struct cstd_daemon *daemon = job->daemon;
    struct cstd_pages pages = {0};
    char what[112];
    struct cst_err err = {0};
    size_t bytes;
    int rc;

    comm->slot_bytes =
        comm->transport == CST_TRANSPORT_NCCL || comm->transport == CST_TRANSPORT_PEERS
            ? cst_comm_call_slot_bytes(n_ranks(comm))
            : CST_COMM_SLOT_BYTES;
    bytes = cst_comm_bytes(n_ranks(comm), comm->slot_bytes);
    pages.bytes = bytes;
    describe(comm, what);
    rc = cstd_segment_open(&comm->segment, cstd_engines_segment_id(daemon->engines), bytes,
                           daemon->host, job->account, what, &err);
    if (rc == CST_OK) {
        pages.segment = comm->segment;
        rc = cstd_page_work_start(&comm->work, &daemon->loop, &pages, 1, on_backed, comm, &err);
    }
    if (rc != CST_OK) {
        fail(comm, &err);
        return;
    }
    comm->state = BACKING;
    warn_of_refusals(comm);
    cstd_log_about(CSTD_LOG_DEBUG, CSTD_JOB_ABOUT(job),
                   "communicator of group %u: %u ranks, %zu bytes, by %s: %s", comm->group,
                   n_ranks(comm), bytes, cst_transport_name(comm->transport), comm->why);
}

/* There is no memory for slots on the GPUs, because of @err. */
static void stage(struct cstd_comm *comm, const struct cst_err *err)
{
    cstd_comm_slots_close(&comm->slots);
    comm->transport = CST_TRANSPORT_STAGED;
    cst_transport_add_reason(comm->why, err->text);
    cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT(comm->job),
                   "communicator of group %u: there are no slots on the GPUs of its %u ranks: %s; "
                   "they use %s instead",
                   comm->group, n_ranks(comm), err->text, cst_transport_name(comm->transport));
    make(comm);
}

static void on_allocated(void *arg, const struct cst_err *err)
{
    struct cstd_comm *comm = arg;

    if (err->status != CST_OK) {
        stage(comm, err);
    } else {
        make(comm);
    }
}

/* Have slots allocated on the GPUs of the ranks. */
static void allocate(struct cstd_comm *comm)
{
    struct cstd_job *job = comm->job;
    char what[112];
    struct cstd_comm_slots_request request = {.bytes = CST_COMM_SLOTS *
                                                       (uint64_t)CST_COMM_PEER_SLOT_BYTES,
                                              .account = job->account,
                                              .what = what};
    struct cst_err err;

    describe(comm, what);
    CST_SET_EACH (rank, &comm->ranks) {
        request.tiers[request.n++] = job->workers[rank].tier;
    }
    comm->state = ALLOCATING;
    if (cstd_comm_slots_open(&comm->slots, job->daemon, &request, on_allocated, comm, &err) !=
        CST_OK) {
        stage(comm, &err);
    }
}

/* All ranks have asked. */
static void begin(struct cstd_comm *comm)
{
    choose(comm);
    if (comm->transport == CST_TRANSPORT_PEERS) {
        allocate(comm);
    } else {
        make(comm);
    }
}

/* Charge @comm for one more rank, on a GPU if @device. */
static int charge_rank(struct cstd_comm *comm, bool device, struct cst_err *err)
{
    uint64_t bytes = comm->charge.bytes;
    char what[112];

    if (bytes == 0) {
        bytes = sizeof *comm + n_ranks(comm) * sizeof comm->members[0];
    }
    describe(comm, what);
    return cstd_charge_set(&comm->charge, bytes + (device ? sizeof(struct cstd_comm_device) : 0),
                           what, err);
}

static int find_or_add(struct cstd_session *session, uint32_t group, uint64_t attempt,
                       struct cstd_comm **out, struct cst_err *err)
{
    struct cstd_job *job = session->job;
    struct cstd_comm *comm;
    struct cst_set ranks;

    TAILQ_FOREACH(comm, &job->comms.list, link)
    {
        if (comm->group == group && comm->state == GATHERING &&
            !cst_set_has(&comm->asked, session->rank)) {
            *out = comm;
            return CST_OK;
        }
    }
    ranks =
        cst_set_intersect(cst_model_group_ranks(&job->model, group), cst_set_range(0, job->world));
    comm = calloc(1, sizeof *comm + cst_set_count(&ranks) * sizeof comm->members[0]);
    if (comm == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a communicator");
    }
    comm->job = job;
    comm->charge = (struct cstd_charge){.budget = job->daemon->host, .account = job->account};
    comm->id = ++job->comms.last_id;
    comm->group = group;
    comm->attempt = attempt;
    comm->ranks = ranks;
    comm->until_ns = uv_hrtime() + (uint64_t)job->spec.limits.timeout_ms * 1000000;
    TAILQ_INSERT_TAIL(&job->comms.list, comm, link);
    *out = comm;
    return CST_OK;
}

/* Return whether @rank is the first of @group: the one that makes ids. */
static bool is_first(const struct cstd_job *job, uint32_t group, uint32_t rank)
{
    const struct cst_set ranks = cst_model_group_ranks(&job->model, group);

    return cst_set_first(&ranks) == rank;
}

static int check(const struct cstd_session *session, const Cistern__CommOpen *message,
                 struct cst_err *err)
{
    const struct cstd_job *job = session->job;
    struct cst_set ranks;

    if (!cstd_job_is_committed(job)) {
        return cst_err_set(err, CST_EINVAL, "job '%s' is not committed yet", job->name);
    }
    if (job->model.n_stages > 0) {
        return cst_err_set(
            err, CST_EINVAL,
            "the model of job '%s' is cut into stages: its steps go on without ranks "
            "that die, and a communicator cannot",
            job->name);
    }
    if (message->group >= job->model.n_groups) {
        return cst_err_set(err, CST_EINVAL, "job '%s' has groups 0 to %u, and no group %u",
                           job->name, job->model.n_groups - 1, message->group);
    }
    ranks = cst_model_group_ranks(&job->model, message->group);
    if (!cst_set_has(&ranks, session->rank)) {
        return cst_err_set(err, CST_EINVAL, "rank %u is not in group %u of job '%s'", session->rank,
                           message->group, job->name);
    }
    ranks = cst_set_intersect(ranks, cst_set_range(0, job->world));
    if (cst_set_count(&ranks) > CST_COMM_MAX_RANKS) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "group %u of job '%s' has %u ranks, and a communicator at most %d",
                           message->group, job->name, cst_set_count(&ranks), CST_COMM_MAX_RANKS);
    }
    if (message->device != NULL && !job->workers[session->rank].tier->kind->apart) {
        return cst_err_set(err, CST_EINVAL, "rank %u of job '%s' is not on a GPU", session->rank,
                           job->name);
    }
    if (message->device != NULL && message->device->nccl_version != 0 &&
        !message->device->has_nccl_id && is_first(job, message->group, session->rank)) {
        return cst_err_set(err, CST_EINVAL, "rank %u sends no unique id of NCCL for group %u",
                           session->rank, message->group);
    }
    return cst_core_check_attempt(job->core, message->attempt, err);
}

void cstd_comms_serve_open(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__CommOpen *message = body;
    struct cstd_pending *request = NULL;
    struct cstd_comm_device *device = NULL;
    struct cstd_comm *comm = NULL;
    struct cst_err err = {0};
    int rc = check(session, message, &err);

    if (rc == CST_OK && message->device != NULL) {
        rc = cstd_comm_device_copy(message->device, &device, &err);
    }
    if (rc == CST_OK) {
        rc = cstd_session_defer(session, session->job, id, CISTERN__MSG_TYPE__MSG_COMM_OPEN, 1,
                                &request, &err);
    }
    if (rc != CST_OK) {
        free(device);
        cstd_session_error(session, id, &err);
        return;
    }
    rc = find_or_add(session, message->group, message->attempt, &comm, &err);
    if (rc == CST_OK && charge_rank(comm, device != NULL, &err) != CST_OK) {
        rc = err.status;
        if (cst_set_none(&comm->asked)) {
            free_comm(comm);
        }
    }
    if (rc != CST_OK) {
        free(device);
        cstd_session_fail(session->daemon, request, &err);
        return;
    }
    *member(comm, session->rank) = (struct member){cstd_pending_tag(request, 0), device};
    cst_set_add(&comm->asked, session->rank);
    if (cst_set_equal(&comm->asked, &comm->ranks)) {
        begin(comm);
    }
    arm(session->job);
}

/* -- the end ---------------------------------------------------------------------------------- */

/* Free @comm, which is OPEN, if no rank uses it any more. */
static void check_used(struct cstd_comm *comm)
{
    const struct cstd_worker *workers = comm->job->workers;

    for (uint32_t rank = 0; rank < comm->job->world; rank++) {
        if (!workers[rank].present) {
            cst_set_add(&comm->closed, rank);
        }
    }
    if (cst_set_within(&comm->ranks, &comm->closed)) {
        free_comm(comm);
    }
}

void cstd_comms_serve_close(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__CommClose *message = body;
    struct cstd_comm *comm;

    TAILQ_FOREACH(comm, &session->job->comms.list, link)
    {
        if (comm->id == message->id && comm->state == OPEN) {
            cst_set_add(&comm->closed, session->rank);
            check_used(comm);
            break;
        }
    }
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
}

void cstd_comms_look(struct cstd_job *job)
{
    const uint64_t over = cst_core_attempt_over(job->core);
    struct cstd_comm *comm, *next;
    struct cst_err why;

    for (comm = TAILQ_FIRST(&job->comms.list); comm != NULL; comm = next) {
        next = TAILQ_NEXT(comm, link);
        if (comm->attempt > over) {
            continue;
        }
        if (comm->state == OPEN) {
            cstd_shared_heads_end(&comm->heads, over);
            check_used(comm);
        } else {
            (void)cst_core_check_attempt(job->core, comm->attempt, &why);
            fail(comm, &why);
        }
    }
}

void cstd_comms_close(struct cstd_job *job)
{
    while (!TAILQ_EMPTY(&job->comms.list)) {
        free_comm(TAILQ_FIRST(&job->comms.list)); /* The job has answered its requests. */
    }
}

unsigned cstd_comms_explain(const struct cstd_job *job, char lines[][192], unsigned max)
{
    const struct cstd_comm *comm;
    unsigned n = 0;

    TAILQ_FOREACH(comm, &job->comms.list, link)
    {
        if (comm->state == OPEN && max - n >= 2) {
            char why[sizeof "because " + sizeof comm->why];

            (void)snprintf(lines[n++], 192, "communicator of group %u: its %u ranks use %s,",
                           comm->group, n_ranks(comm), cst_transport_name(comm->transport));
            (void)snprintf(why, sizeof why, "because %s", comm->why);
            n += cstd_reason_lines(why, lines + n, max - n);
        }
    }
    return n;
}

/* -- time ------------------------------------------------------------------------------------- */

static void expire(struct cstd_comm *comm)
{
    const struct cst_set late = cst_set_minus(comm->ranks, comm->asked);
    struct cst_err why;
    char missing[256] = "";
    size_t n = 0;

    CST_SET_EACH (rank, &late) {
        if (n < sizeof missing) {
            n += (size_t)snprintf(missing + n, sizeof missing - n, "%srank %u", n == 0 ? "" : ", ",
                                  rank);
        }
    }
    (void)cst_err_set(&why, CST_ETIMEDOUT, "waited %u ms for %s", comm->job->spec.limits.timeout_ms,
                      missing);
    fail(comm, &why);
}

static void on_deadline(uv_timer_t *timer)
{
    struct cstd_job *job = timer->data;
    struct cstd_comm *comm, *next;
    const uint64_t now = uv_hrtime();

    for (comm = TAILQ_FIRST(&job->comms.list); comm != NULL; comm = next) {
        next = TAILQ_NEXT(comm, link);
        if (comm->state == GATHERING && comm->until_ns <= now) {
            expire(comm);
        }
    }
    arm(job);
}

/* Set the timer to the first communicator that waits for ranks. They are in the order of their
 * times. */
static void arm(struct cstd_job *job)
{
    const uint64_t now = uv_hrtime();
    struct cstd_comm *comm;

    TAILQ_FOREACH(comm, &job->comms.list, link)
    {
        if (comm->state == GATHERING) {
            (void)uv_timer_start(&job->comms.deadline, on_deadline,
                                 comm->until_ns > now ? (comm->until_ns - now) / 1000000 + 1 : 1,
                                 0);
            return;
        }
    }
    (void)uv_timer_stop(&job->comms.deadline);
}

void cstd_comms_init(struct cstd_job *job)
{
    TAILQ_INIT(&job->comms.list);
    (void)uv_timer_init(&job->daemon->loop, &job->comms.deadline);
    job->comms.deadline.data = job;
}
