/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/open.h"

#include "client/comm/device_comm.h"

#include <stdlib.h>

_Static_assert(sizeof(struct cst_comm_control) <= CST_COMM_PAGE_BYTES, "one page has `closed`");

/* -- leaving ---------------------------------------------------------------------------------- */

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

void cstc_comm_leave(struct cst_comm *comm)
{
    struct cst_err why;

    *comm->link = comm->next;
    if (comm->next != NULL) {
        comm->next->link = comm->link;
    }
    if (!comm->job->client->forked) {
        cstc_peers_close(comm); /* Before the daemon gives their charge back. */
        /* In a void step the others learn its cause, of which the end of this rank's part is only a
         * consequence. */
        if (cstc_job_check_step(comm->job, &why) == CST_OK) {
            cstc_channel_close(&comm->flow.channel);
        }
        /* The number means nothing to another process of the daemon. */
        if (comm->epoch == comm->job->client->epoch) {
            tell(comm);
        }
        cstc_wakeup_close(&comm->wakeup);
        cstc_segment_unmap(&comm->segment);
    }
}

/* -- opening ---------------------------------------------------------------------------------- */

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

/* Describe what this rank can. @msg, which is initialised, borrows from @offer. */
static void describe(const struct cst_comm_device_offer *offer, bool makes_id,
                     Cistern__CommDevice *msg)
{
    msg->nccl_version = offer->nccl_version;
    if (offer->nccl_version == 0) {
        msg->nccl_error = (char *)offer->nccl_error.text;
    }
    msg->has_in_order = true;
    msg->in_order = offer->in_order;
    msg->n_reachable = offer->n_reachable;
    msg->reachable = (char **)offer->reachable;
    msg->n_unreachable = offer->n_unreachable;
    msg->unreachable = (char **)offer->unreachable;
    if (makes_id && offer->nccl_version != 0) {
        msg->has_nccl_id = true;
        msg->nccl_id.data = (uint8_t *)offer->id;
        msg->nccl_id.len = sizeof offer->id;
    }
}

/* Ask the daemon for the memory of @comm. If it refuses, it has given the id to nobody. If the
 * connection has ended, that is not known. */
static int ask(const struct cst_comm *comm, int group, struct cstc_call *call, struct cst_err *err)
{
    const struct cst_job *job = comm->job;
    const bool is_first = (uint32_t)__builtin_ctzll(job->model.groups[group]) == job->rank;
    Cistern__CommOpen msg = CISTERN__COMM_OPEN__INIT;
    Cistern__CommDevice device = CISTERN__COMM_DEVICE__INIT;
    struct cst_comm_device_offer offer = {0};
    int rc;

    if (comm->device != NULL) {
        rc = comm->device->offer(comm->device_arg, is_first, &offer, err);
        if (rc != CST_OK) {
            return rc;
        }
        describe(&offer, is_first, &device);
        device.has_reads_peers = true;
        device.reads_peers = cstc_peers_can(comm);
        msg.device = &device;
    }
    msg.attempt = job->attempt;
    msg.group = (uint32_t)group;
    call->max_fds = comm->device != NULL ? CST_FRAME_MAX_FDS : 1;
    rc = cstc_call_sync(job->client, call, CISTERN__MSG_TYPE__MSG_COMM_OPEN, &msg.base,
                        CISTERN__MSG_TYPE__MSG_COMM_OPENED, &cistern__comm_opened__descriptor, err);
    if (rc != CST_OK && comm->device != NULL && comm->epoch == job->client->epoch &&
        cstc_client_check(job->client, NULL) == CST_OK) {
        comm->device->spare(comm->device_arg);
    }
    return rc;
}

/* This rank, number @own of the group, cannot map the memory @fd. A page of it suffices to say so
 * to the others, which would wait for this rank otherwise. */
static void give_up(const struct cst_comm *comm, int fd, uint32_t own)
{
    struct cstc_segment page;
    struct cstc_channel channel;
    struct cst_err why;

    if (cstc_segment_map(&page, fd, CST_COMM_PAGE_BYTES, &why) == CST_OK) {
        cstc_channel_init(&channel, page.base, own, 0, 0);
        cstc_channel_close(&channel);
        cstc_segment_unmap(&page);
    }
    tell(comm);
}

/* Use the memory that the daemon sent. CST_EPROTO: it cannot be right. CST_ENOMEM: the others know
 * that this rank takes no part. */
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
    if (call->n_fds == 0 || msg->slot_bytes % 64 != 0 || msg->slot_bytes < 64 * (uint64_t)size ||
        msg->slot_bytes > UINT32_MAX || msg->bytes != cst_comm_bytes(size, msg->slot_bytes)) {
        return cst_err_set(err, CST_EPROTO,
                           "a communicator of %u ranks with slots of %llu bytes in %llu bytes, and "
                           "%u fds",
                           size, (unsigned long long)msg->slot_bytes,
                           (unsigned long long)msg->bytes, call->n_fds);
    }
    comm->id = msg->id;
    rc = cstc_segment_map(&comm->segment, call->fds[0], msg->bytes, err);
    if (rc != CST_OK) {
        if (rc == CST_ENOMEM) {
            give_up(comm, call->fds[0], own);
        }
        return rc;
    }
    comm->timeout_ms = msg->timeout_ms;
    cst_shared_join(comm->segment.base);
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

/* Join the ranks on GPUs, if this rank is one. On failure *err has the cause, and @comm is as
 * before. */
static int join(struct cst_comm *comm, const struct cstc_call *call, struct cst_err *err)
{
    const Cistern__CommOpened *msg = (const Cistern__CommOpened *)call->reply;

    if (comm->device == NULL) {
        return CST_OK;
    }
    cstc_wakeup_open(&comm->wakeup, comm->segment.base);
    if (!msg->has_transport) {
        return cst_err_set(err, CST_EUNSUPPORTED, "the daemon knows no communicators of GPUs");
    }
    if (msg->transport != CISTERN__COMM_TRANSPORT__COMM_NCCL) {
        comm->device->spare(comm->device_arg);
        return msg->transport == CISTERN__COMM_TRANSPORT__COMM_PEERS
                   ? cstc_peers_open(comm, call, err)
                   : cstc_comm_device_use_host(comm, err);
    }
    if (msg->slot_bytes < cst_comm_call_slot_bytes(comm->flow.shape.size)) {
        return cst_err_set(err, CST_EPROTO,
                           "a communicator by NCCL of %u ranks with slots of %llu bytes",
                           comm->flow.shape.size, (unsigned long long)msg->slot_bytes);
    }
    if (msg->nccl_id.len != CST_COMM_DEVICE_ID_BYTES) {
        return cst_err_set(err, CST_EPROTO, "a unique id of NCCL with %zu bytes instead of %d",
                           msg->nccl_id.len, CST_COMM_DEVICE_ID_BYTES);
    }
    return cstc_comm_device_join(comm, msg->nccl_id.data, err);
}

/* Ask the daemon for the memory, use it, and join. After a failure @comm is not in the list of the
 * job. */
static int open_worker(struct cst_comm *comm, int group, struct cst_err *err)
{
    struct cst_job *job = comm->job;
    struct cstc_call call = {0};
    int rc = ask(comm, group, &call, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = take(comm, &call, job->model.groups[group], err);
    if (rc == CST_OK) {
        insert(comm);
        rc = join(comm, &call, err);
        if (rc != CST_OK) {
            cstc_comm_leave(comm);
        }
    }
    cstc_call_reset(&call);
    return rc == CST_EPROTO ? cstc_job_distrust(job, err, err) : rc;
}

int cst_comm_open_device(struct cst_comm **out, struct cst_job *job, int group,
                         const struct cst_comm_device_calls *calls, void *arg, struct cst_err *err)
{
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
    comm->device = calls;
    comm->device_arg = arg;
    cstc_watch_init(comm);
    rc = open_worker(comm, group, &why);
    if (rc != CST_OK) {
        if (rc == CST_EPEERDIED) {
            cstc_job_void(job, &why);
        }
        free(comm);
        return cst_err_set(err, rc, "communicator of group %d: %.512s", group, why.text);
    }
    *out = comm;
    return CST_OK;
}

int cst_comm_open(struct cst_comm **out, struct cst_job *job, int group, struct cst_err *err)
{
    return cst_comm_open_device(out, job, group, NULL, NULL, err);
}
