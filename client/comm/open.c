/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/open.h"

#include "client/comm/device_comm.h"
#include "client/lib/shared_wait.h"
#include "proto/reason.h"

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

/* -- asking the daemon ------------------------------------------------------------------------ */

/* The rounds of an opening. Where a rank cannot use the transport that the daemon has chosen, the
 * group opens the communicator again without it. */
struct opening {
    int group;
    struct cst_err nccl, peers; /* Why this rank does without; status CST_OK: nothing has failed. */
    bool refuses;               /* This rank could not use the transport of the last round: */
    Cistern__CommTransport refused;
    bool again; /* A rank could not: all open the communicator once more. */
};

/* The transports are NCCL, slots on GPUs, and host memory, which is never refused. */
#define MAX_ROUNDS 3

static int check_group(const struct cst_job *job, int group, struct cst_err *err)
{
    struct cst_set ranks;

    if (group < 0 || (uint32_t)group >= job->model.n_groups) {
        return cst_err_set(err, CST_EINVAL, "job '%s' has groups 0 to %u, and no group %d",
                           job->name, job->model.n_groups - 1, group);
    }
    ranks = cst_model_group_ranks(&job->model, (uint32_t)group);
    if (!cst_set_has(&ranks, job->rank)) {
        return cst_err_set(err, CST_EINVAL, "rank %u is not in group %d of job '%s'", job->rank,
                           group, job->name);
    }
    ranks = cst_set_intersect(ranks, cst_set_range(0, job->world));
    if (cst_set_count(&ranks) > CST_COMM_MAX_RANKS) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "group %d of job '%s' has %u ranks, and a communicator has at most %d: "
                           "declare smaller groups",
                           group, job->name, cst_set_count(&ranks), CST_COMM_MAX_RANKS);
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

/* Add what this rank has found out in earlier rounds. @msg borrows from @opening. */
static void describe_refusals(const struct cst_comm *comm, const struct opening *opening,
                              Cistern__CommDevice *msg)
{
    msg->has_reads_peers = msg->has_can_refuse = true;
    msg->reads_peers = opening->peers.status == CST_OK && cstc_peers_can(comm);
    if (opening->peers.status != CST_OK) {
        msg->peers_error = (char *)opening->peers.text;
    }
    msg->can_refuse = comm->device->restart != NULL;
    msg->has_refused = opening->refuses;
    msg->refused = opening->refused;
}

/* Let the device say what this rank can. */
static int make_offer(const struct cst_comm *comm, const struct opening *opening, bool is_first,
                      struct cst_comm_device_offer *offer, struct cst_err *err)
{
    const bool has_failed = opening->nccl.status != CST_OK;
    const int rc = comm->device->offer(comm->device_arg, is_first && !has_failed, offer, err);

    if (has_failed) {
        offer->nccl_version = 0;
        offer->nccl_error = opening->nccl;
    }
    return rc;
}

/* Ask the daemon for the memory of @comm. If it refuses, it has given the id to nobody. If the
 * connection has ended, that is not known. */
static int ask(const struct cst_comm *comm, const struct opening *opening, struct cstc_call *call,
               struct cst_err *err)
{
    const struct cst_job *job = comm->job;
    const struct cst_set ranks = cst_model_group_ranks(&job->model, (uint32_t)opening->group);
    const bool is_first = cst_set_first(&ranks) == job->rank;
    Cistern__CommOpen msg = CISTERN__COMM_OPEN__INIT;
    Cistern__CommDevice device = CISTERN__COMM_DEVICE__INIT;
    struct cst_comm_device_offer offer = {0};
    int rc;

    if (comm->device != NULL) {
        rc = make_offer(comm, opening, is_first, &offer, err);
        if (rc != CST_OK) {
            return rc;
        }
        describe(&offer, is_first, &device);
        describe_refusals(comm, opening, &device);
        msg.device = &device;
    }
    msg.attempt = job->attempt;
    msg.group = (uint32_t)opening->group;
    call->max_fds = comm->device != NULL ? CST_FRAME_MAX_FDS : 1;
    rc = cstc_call_sync(job->client, call, CISTERN__MSG_TYPE__MSG_COMM_OPEN, &msg.base,
                        CISTERN__MSG_TYPE__MSG_COMM_OPENED, &cistern__comm_opened__descriptor, err);
    if (rc != CST_OK && comm->device != NULL && comm->epoch == job->client->epoch &&
        cstc_client_check(job->client, NULL) == CST_OK) {
        comm->device->spare(comm->device_arg);
    }
    return rc;
}

/* -- joining ---------------------------------------------------------------------------------- */

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
static int take(struct cst_comm *comm, struct cstc_call *call, struct cst_set ranks,
                struct cst_err *err)
{
    const Cistern__CommOpened *msg = (const Cistern__CommOpened *)call->reply;
    const struct cst_job *job = comm->job;
    uint32_t names[CST_COMM_MAX_RANKS], size = 0, own = 0;
    int rc;

    for (uint32_t rank = 0; rank < job->world; rank++) {
        if (cst_set_has(&ranks, rank)) {
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

    comm->job->comm_ops = &cstc_comm_ops;
    comm->next = *first;
    comm->link = first;
    if (comm->next != NULL) {
        comm->next->link = &comm->next;
    }
    *first = comm;
}

/* Begin to use the transport, if this rank is on a GPU. */
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

/* Return whether @rc is a failure of the device, which another transport may not have. All others
 * end the opening: a rank has died or does nothing, or the daemon's answer is wrong. */
static bool is_of_device(int rc)
{
    return rc == CST_EGPU || rc == CST_EINTERNAL || rc == CST_ENOMEM || rc == CST_EUNSUPPORTED;
}

/* This rank cannot use @transport because of @why. */
static void refuse(const struct cst_comm *comm, struct opening *opening,
                   Cistern__CommTransport transport, const struct cst_err *why)
{
    *(transport == CISTERN__COMM_TRANSPORT__COMM_NCCL ? &opening->nccl : &opening->peers) = *why;
    opening->refuses = true;
    opening->refused = transport;
    cstc_channel_refuse(&comm->flow.channel);
}

static bool is_answered(void *arg)
{
    const struct cst_comm *comm = arg;
    uint32_t rank;

    return cstc_channel_ask(&comm->flow.channel, &rank) != CSTC_CHANNEL_UNKNOWN;
}

/* A rank of the group cannot use the transport. */
static int open_again(struct opening *opening)
{
    opening->again = true;
    return CST_EAGAIN;
}

/* Wait until all ranks can use the transport, or one cannot (open_again). */
static int await_others(struct cst_comm *comm, struct opening *opening, struct cst_err *err)
{
    const struct cstc_channel *channel = &comm->flow.channel;
    uint32_t rank = channel->rank;
    int rc;

    rc = cstc_shared_wait(comm->job, comm->segment.base, channel->size, is_answered, comm,
                          comm->timeout_ms, err);
    if (rc != CST_OK && rc != CST_ETIMEDOUT) {
        return rc;
    }
    switch (cstc_channel_ask(channel, &rank)) {
    case CSTC_CHANNEL_READY:
        return CST_OK;
    case CSTC_CHANNEL_REFUSED:
        return open_again(opening);
    case CSTC_CHANNEL_LEFT:
        return cst_err_set(err, CST_ECANCELLED, "rank %u has closed its communicator",
                           comm->flow.names[rank]);
    case CSTC_CHANNEL_UNKNOWN:
        break;
    }
    return cst_err_set(err, CST_ETIMEDOUT, "rank %u waited %u ms for rank %u", comm->job->rank,
                       comm->timeout_ms, comm->flow.names[rank]);
}

/* This rank has begun to use the transport of @msg with the result @rc. Find out whether all ranks
 * can use it. If one cannot, all open the communicator again (open_again). */
static int agree(struct cst_comm *comm, const Cistern__CommOpened *msg, struct opening *opening,
                 int rc, struct cst_err *err)
{
    const struct cstc_channel *channel = &comm->flow.channel;
    uint32_t rank;

    if (!msg->has_can_refuse || !msg->can_refuse || comm->device == NULL ||
        comm->device->restart == NULL) {
        return rc;
    }
    if (rc == CST_OK) {
        cstc_channel_say_ready(channel);
        return await_others(comm, opening, err);
    }
    if (rc != CST_ECANCELLED && !is_of_device(rc)) {
        return rc;
    }
    /* What has failed here after another rank has refused is a consequence of that. */
    if (cstc_channel_ask(channel, &rank) == CSTC_CHANNEL_REFUSED) {
        return open_again(opening);
    }
    if (rc != CST_ECANCELLED) {
        refuse(comm, opening, msg->transport, err);
        return open_again(opening);
    }
    return rc;
}

/* -- opening ---------------------------------------------------------------------------------- */

/* Ask the daemon for the memory, use it, and join. After a failure @comm is not in the list of the
 * job, and opening->again says whether to try once more. */
static int open_worker(struct cst_comm *comm, struct opening *opening, struct cst_err *err)
{
    struct cst_job *job = comm->job;
    struct cstc_call call = {0};
    int rc = ask(comm, opening, &call, err);

    if (rc != CST_OK) {
        return rc;
    }
    opening->refuses = false;
    rc = take(comm, &call, cst_model_group_ranks(&job->model, (uint32_t)opening->group), err);
    if (rc == CST_OK) {
        insert(comm);
        rc = join(comm, &call, err);
        rc = agree(comm, (const Cistern__CommOpened *)call.reply, opening, rc, err);
        if (rc != CST_OK) {
            cstc_watch_end(comm, false);
            cstc_comm_leave(comm);
        }
    }
    cstc_call_reset(&call);
    return rc == CST_EPROTO ? cstc_job_distrust(job, err, err) : rc;
}

/* Open the communicator in a new struct, *out, which is freed after a failure. The statuses are
 * those of open_worker. */
static int open_round(struct cst_comm **out, struct cst_job *job, struct opening *opening,
                      const struct cst_comm_device_calls *calls, void *arg, struct cst_err *err)
{
    struct cst_comm *comm = calloc(1, sizeof *comm);
    int rc;

    opening->again = false;
    if (comm == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a communicator");
    }
    comm->job = job;
    comm->epoch = job->client->epoch;
    comm->lease_epoch = job->lease_epoch;
    comm->device = calls;
    comm->device_arg = arg;
    cstc_watch_init(comm);
    rc = open_worker(comm, opening, err);
    if (rc != CST_OK) {
        free(comm);
        return rc;
    }
    *out = comm;
    return CST_OK;
}

int cst_comm_open_device(struct cst_comm **out, struct cst_job *job, int group,
                         const struct cst_comm_device_calls *calls, void *arg, struct cst_err *err)
{
    struct opening opening = {.group = group};
    struct cst_err why = {0};
    int rc = cstc_job_check_step(job, err);

    rc = rc == CST_OK ? check_group(job, group, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    rc = open_round(out, job, &opening, calls, arg, &why);
    for (int i = 1; opening.again && i < MAX_ROUNDS; i++) {
        calls->restart(arg);
        rc = open_round(out, job, &opening, calls, arg, &why);
    }
    if (opening.again) {
        (void)cst_err_set(&why, CST_EPROTO, "%d transports were refused", MAX_ROUNDS);
        rc = cstc_job_distrust(job, &why, &why);
    }
    if (rc == CST_EPEERDIED) {
        cstc_job_void(job, &why);
    }
    return rc == CST_OK
               ? CST_OK
               : cst_err_give_reason(
                     err, why.reason,
                     cst_err_set(err, rc, "communicator of group %d: %.512s", group, why.text));
}

int cst_comm_open(struct cst_comm **out, struct cst_job *job, int group, struct cst_err *err)
{
    return cst_comm_open_device(out, job, group, NULL, NULL, err);
}
