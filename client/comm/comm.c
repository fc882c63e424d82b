/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/comm.h"

#include "client/comm/flow.h"
#include "client/lib/job.h"

#include <poll.h>
#include <stdlib.h>

struct cst_comm {
    struct cst_comm *next;  /* Next in the list of the job. */
    struct cst_comm **link; /* The pointer in that list that points to this communicator. */
    struct cst_job *job;
    uint64_t id;                 /* The daemon's number of the communicator. */
    uint64_t epoch;              /* The daemon process that made it. */
    uint32_t lease_epoch;        /* The job's sync after which it was opened. */
    uint32_t timeout_ms;         /* Longest wait for a rank that does nothing. */
    struct cstc_segment segment; /* The shared memory. */
    struct cstc_flow flow;
};

/* -- opening and closing ---------------------------------------------------------------------- */

static int check_group(const struct cst_job *job, int group, struct cst_err *err)
{
    if (group < 0 || (uint32_t)group >= job->model.n_groups) {
        return cst_err_set(err, CST_EINVAL, "job '%s' has groups 0 to %u, and no group %d",
                           job->name, job->model.n_groups - 1, group);
    }
    if ((job->model.groups[group] >> job->rank & 1) == 0) {
        return cst_err_set(err, CST_EINVAL, "rank %u is not in group %d of job '%s'", job->rank,
                           group, job->name);
    }
    return CST_OK;
}

static int ask(struct cst_job *job, int group, struct cstc_call *call, struct cst_err *err)
{
    Cistern__CommOpen msg = CISTERN__COMM_OPEN__INIT;

    msg.attempt = job->attempt;
    msg.group = (uint32_t)group;
    call->max_fds = 1;
    return cstc_call_sync(job->client, call, CISTERN__MSG_TYPE__MSG_COMM_OPEN, &msg.base,
                          CISTERN__MSG_TYPE__MSG_COMM_OPENED, &cistern__comm_opened__descriptor,
                          err);
}

/* Use the memory that the daemon sent. CST_EPROTO: it is not possible. */
static int take(struct cst_comm *comm, struct cstc_call *call, uint64_t ranks, struct cst_err *err)
{
    const Cistern__CommOpened *msg = (const Cistern__CommOpened *)call->reply;
    const struct cst_job *job = comm->job;
    uint32_t names[CST_COMM_MAX_RANKS], size = 0, own = 0;
    int rc;

    for (uint32_t rank = 0; rank < job->world; rank++) {
        if ((ranks >> rank & 1) != 0) {
            own = rank == job->rank ? size : own;
            names[size++] = rank;
        }
    }
    if (call->n_fds != 1 || msg->slot_bytes % 64 != 0 || msg->slot_bytes < 64 * (uint64_t)size ||
        msg->slot_bytes > UINT32_MAX || msg->bytes != cst_comm_bytes(size, msg->slot_bytes)) {
        return cst_err_set(err, CST_EPROTO,
                           "a communicator of %u ranks with slots of %llu bytes in %llu bytes, and "
                           "%u fds",
                           size, (unsigned long long)msg->slot_bytes,
                           (unsigned long long)msg->bytes, call->n_fds);
    }
    rc = cstc_segment_map(&comm->segment, call->fds[0], msg->bytes, err);
    if (rc != CST_OK) {
        return rc;
    }
    comm->id = msg->id;
    comm->timeout_ms = msg->timeout_ms;
    cstc_flow_init(&comm->flow, comm->segment.base, own, size, msg->slot_bytes, names);
    return CST_OK;
}

static void insert(struct cst_comm *comm)
{
    struct cst_comm **first = &comm->job->comms;

    comm->next = *first;
    comm->link = first;
    if (comm->next != NULL) {
        comm->next->link = &comm->next;
    }
    *first = comm;
}

int cst_comm_open(struct cst_comm **out, struct cst_job *job, int group, struct cst_err *err)
{
    struct cstc_call call = {0};
    struct cst_comm *comm;
    struct cst_err why = {0};
    int rc = cstc_job_check_step(job, err);

    rc = rc == CST_OK ? check_group(job, group, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a communicator");
    }
    comm->job = job;
    comm->epoch = job->client->epoch;
    comm->lease_epoch = job->lease_epoch;
    rc = ask(job, group, &call, &why);
    if (rc == CST_OK) {
        rc = take(comm, &call, job->model.groups[group], &why);
        cstc_call_reset(&call);
        rc = rc == CST_EPROTO ? cstc_job_distrust(job, &why, &why) : rc;
    }
    if (rc != CST_OK) {
        if (rc == CST_EPEERDIED) {
            cstc_job_void(job, &why);
        }
        free(comm);
        return cst_err_set(err, rc, "communicator of group %d: %.512s", group, why.text);
    }
    insert(comm);
    *out = comm;
    return CST_OK;
}

static void on_closed(struct cstc_call *call)
{
    cstc_call_reset(call);
    free(call);
}

/* Tell the daemon, without waiting for its answer. If that is not possible, the daemon closes the
 * communicator when the attempt ends. */
static void tell(const struct cst_comm *comm)
{
    Cistern__CommClose msg = CISTERN__COMM_CLOSE__INIT;
    struct cstc_call *call = calloc(1, sizeof *call);

    msg.id = comm->id;
    if (call == NULL) {
        return;
    }
    call->done = on_closed;
    if (cstc_call_start(comm->job->client, call, CISTERN__MSG_TYPE__MSG_COMM_CLOSE, &msg.base,
                        CISTERN__MSG_TYPE__MSG_OK, NULL, NULL) != CST_OK) {
        free(call);
    }
}

void cst_comm_close(struct cst_comm *comm)
{
    if (comm == NULL) {
        return;
    }
    *comm->link = comm->next;
    if (comm->next != NULL) {
        comm->next->link = comm->link;
    }
    if (!comm->job->client->forked) {
        /* The number means nothing to another process of the daemon. */
        if (comm->epoch == comm->job->client->epoch) {
            tell(comm);
        }
        cstc_segment_unmap(&comm->segment);
    }
    free(comm);
}

void cstc_comm_free_all(struct cst_comm *comm, bool forked)
{
    while (comm != NULL) {
        struct cst_comm *next = comm->next;

        if (!forked) {
            cstc_segment_unmap(&comm->segment);
        }
        free(comm);
        comm = next;
    }
}

uint32_t cst_comm_rank(const struct cst_comm *comm)
{
    return comm->flow.shape.rank;
}

uint32_t cst_comm_size(const struct cst_comm *comm)
{
    return comm->flow.shape.size;
}

/* -- calls ------------------------------------------------------------------------------------ */

static int check(const struct cst_comm *comm, struct cst_err *err)
{
    const int rc = cstc_client_check(comm->job->client, err);

    /* A sync ends it, even if a daemon that has died could not say so. */
    if (rc == CST_OK && comm->lease_epoch != comm->job->lease_epoch) {
        return cst_err_set(err, CST_EPEERDIED,
                           "the communicator was opened before cst_sync: close it and open it "
                           "again");
    }
    return rc;
}

int cst_comm_start(struct cst_comm *comm, const struct cst_comm_call *call, uint64_t *ticket,
                   struct cst_err *err)
{
    const int rc = check(comm, err);

    return rc == CST_OK ? cstc_flow_start(&comm->flow, call, ticket, err) : rc;
}

/* Nothing moves. The daemon tells of ranks that die; here the daemon itself is looked at, and the
 * time limit. */
static int look(void *arg, unsigned waited_ms, uint32_t late, struct cst_err *err)
{
    const struct cst_comm *comm = arg;
    const struct cst_client *client = comm->job->client;
    struct pollfd p = {.fd = client->sock, .events = POLLRDHUP};

    if (client->sock < 0 ||
        (poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)) {
        return cst_err_set(err, client->returns ? CST_EPEERDIED : CST_ECONN,
                           "the daemon at %s has ended while rank %u waited for rank %u",
                           client->path, comm->job->rank, late);
    }
    if (waited_ms >= comm->timeout_ms) {
        return cst_err_set(err, CST_ETIMEDOUT, "rank %u waited %u ms for rank %u", comm->job->rank,
                           waited_ms, late);
    }
    return CST_OK;
}

static int wait_for(struct cst_comm *comm, uint64_t ticket, const struct cstc_flow_watch *watch,
                    struct cst_err *err)
{
    struct cst_err why = {0};
    int rc = check(comm, &why);

    rc = rc == CST_OK ? cstc_flow_wait(&comm->flow, ticket, watch, &why) : rc;
    if (rc == CST_EPEERDIED) {
        cstc_job_void(comm->job, &why);
    }
    if (rc != CST_OK && err != NULL) {
        *err = why;
    }
    return rc;
}

int cst_comm_wait(struct cst_comm *comm, uint64_t ticket, struct cst_err *err)
{
    return wait_for(comm, ticket, &(struct cstc_flow_watch){.look = look, .arg = comm}, err);
}

int cst_comm_try_wait(struct cst_comm *comm, uint64_t ticket, struct cst_err *err)
{
    return wait_for(comm, ticket, NULL, err);
}

static int run(struct cst_comm *comm, const struct cst_comm_call *call, struct cst_err *err)
{
    uint64_t ticket = 0;
    const int rc = cst_comm_start(comm, call, &ticket, err);

    return rc == CST_OK ? cst_comm_wait(comm, ticket, err) : rc;
}

int cst_comm_barrier(struct cst_comm *comm, struct cst_err *err)
{
    return run(comm, &(struct cst_comm_call){.op = CST_COMM_BARRIER}, err);
}

int cst_comm_broadcast(struct cst_comm *comm, void *data, size_t n_elems, enum cst_comm_type type,
                       uint32_t root, struct cst_err *err)
{
    return run(comm,
               &(struct cst_comm_call){.op = CST_COMM_BROADCAST,
                                       .type = type,
                                       .in = data,
                                       .out = data,
                                       .n_elems = n_elems,
                                       .root = root},
               err);
}

int cst_comm_all_gather(struct cst_comm *comm, const void *in, void *out, const size_t *counts,
                        enum cst_comm_type type, struct cst_err *err)
{
    return run(comm,
               &(struct cst_comm_call){
                   .op = CST_COMM_ALL_GATHER, .type = type, .in = in, .out = out, .counts = counts},
               err);
}

int cst_comm_reduce_scatter(struct cst_comm *comm, const void *in, void *out, const size_t *counts,
                            enum cst_comm_type type, struct cst_err *err)
{
    return run(
        comm,
        &(struct cst_comm_call){
            .op = CST_COMM_REDUCE_SCATTER, .type = type, .in = in, .out = out, .counts = counts},
        err);
}

int cst_comm_all_reduce(struct cst_comm *comm, const void *in, void *out, size_t n_elems,
                        enum cst_comm_type type, struct cst_err *err)
{
    return run(
        comm,
        &(struct cst_comm_call){
            .op = CST_COMM_ALL_REDUCE, .type = type, .in = in, .out = out, .n_elems = n_elems},
        err);
}

int cst_comm_all_to_all(struct cst_comm *comm, const void *in, const size_t *counts, void *out,
                        const size_t *recv_counts, enum cst_comm_type type, struct cst_err *err)
{
    return run(comm,
               &(struct cst_comm_call){.op = CST_COMM_ALL_TO_ALL,
                                       .type = type,
                                       .in = in,
                                       .out = out,
                                       .counts = counts,
                                       .recv_counts = recv_counts},
               err);
}
