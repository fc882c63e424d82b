/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/device_comm.h"

#include "client/comm/agreement.h"
#include "client/comm/device_failure.h"
#include "client/comm/progress.h"
#include "client/comm/wakeup.h"
#include "client/lib/shared_wait.h"
#include "proto/clock.h"

#include <inttypes.h>
#include <sched.h>

enum {
    /* Time between two looks at a device that lets calls end after a failure: it may fail, too. */
    LOOK_MS = 100,
    /* Before a rank sleeps, it looks at the device all the time for this long. NCCL's threads need
     * some 10 us to enqueue a call, and a small call not much more to end. */
    SPIN_NS = 200000,
};

/* What a rank waits for: until all its works are in the stream, and so many have ended. */
struct look {
    struct cst_comm *comm;
    uint64_t ticket;  /* Calls. */
    uint64_t n_works; /* Works. */
    bool blocks;      /* The cause of a failure can be awaited. */
    bool in_stream;   /* All works that were started were in the stream at the last look. */
};

/* -- waiting ---------------------------------------------------------------------------------- */

/* Look at the device, and count what it has done. *in_stream: all works that were started are in
 * the stream. Called with the lock. */
static int look_at_device(struct cst_comm *comm, bool *in_stream, struct cst_err *err)
{
    struct cst_comm_device_progress progress = {0};
    int rc = comm->by_flow ? CST_OK : cstc_agreement_look(comm, comm->n_started, err);

    rc = rc == CST_OK ? comm->device->poll(comm->device_arg, &progress, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    comm->n_done = progress.n_ended;
    while (comm->n_ended < comm->n_started && (comm->by_flow || comm->n_ended < comm->n_compared) &&
           comm->ends[comm->n_ended % CST_COMM_MAX_CALLS] <= comm->n_done) {
        comm->n_ended++;
    }
    *in_stream = progress.in_stream;
    if (progress.in_stream) {
        cstc_progress_say(comm, comm->n_ended);
    }
    return CST_OK;
}

/* CST_EAGAIN: what @look waits for has not happened. */
static int poll(struct look *look, struct cst_err *err)
{
    struct cst_comm *comm = look->comm;
    int rc;

    look->in_stream = false;
    (void)pthread_mutex_lock(&comm->watch.lock);
    rc = comm->watch.has_stopped
             ? cst_err_set(err, CST_ECANCELLED, "the calls of the communicator were given up")
             : look_at_device(comm, &look->in_stream, err);
    (void)pthread_mutex_unlock(&comm->watch.lock);
    if (rc != CST_OK) {
        return rc;
    }
    return look->in_stream && comm->n_ended >= look->ticket && comm->n_done >= look->n_works
               ? CST_OK
               : CST_EAGAIN;
}

/* Return whether @arg, a struct look, is over. A rank that has closed its communicator has written
 * its line before, so the device is looked at last. */
static bool is_over(void *arg)
{
    struct look *look = arg;
    struct cst_comm *comm = look->comm;
    uint32_t missing;
    struct cst_err why;
    int rc;

    if (comm->failed.status != CST_OK) {
        return true;
    }
    if (comm->suspected.status != CST_OK) {
        cstc_failure_find(comm, look->blocks);
        return comm->failed.status != CST_OK;
    }
    missing = cstc_progress_missing(comm, look->ticket);
    rc = poll(look, &why);
    if (rc == CST_EAGAIN && missing == CST_COMM_MAX_RANKS) {
        return false;
    }
    if (rc == CST_EAGAIN) {
        cstc_failure_closed(comm, missing);
    } else if (rc != CST_OK) {
        cstc_failure_by_device(comm, &why, look->blocks);
    }
    return comm->failed.status != CST_OK || rc == CST_OK;
}

/* Look until it is over, for a short time. Returns whether it is. */
static bool spin(struct look *look)
{
    const uint64_t end = cst_clock_ns() + SPIN_NS;

    do {
        if (is_over(look)) {
            return true;
        }
        (void)sched_yield(); /* The threads of the device may need this processor. */
    } while (cst_clock_ns() < end);
    return false;
}

/* Let the device wake this thread when it has done what @look waits for. */
static int order_wakeup(const struct look *look, struct cst_err *err)
{
    struct cst_comm *comm = look->comm;
    uint64_t n_works = look->n_works;
    int rc = CST_OK;

    if (look->ticket > comm->n_ended) {
        const uint64_t end = comm->ends[(look->ticket - 1) % CST_COMM_MAX_CALLS];

        n_works = end > n_works ? end : n_works;
    }
    (void)pthread_mutex_lock(&comm->watch.lock);
    if (!comm->watch.has_stopped && n_works > comm->n_done) {
        rc = comm->device->wake(comm->device_arg, n_works, cstc_wakeup_call,
                                cstc_wakeup_arg(&comm->wakeup), err);
    }
    (void)pthread_mutex_unlock(&comm->watch.lock);
    return rc;
}

/* Sleep until @look is over, at most @timeout_ms. NCCL tells nobody that a work is in the stream.
 * Then the device says when it is done. */
static int sleep_for(struct look *look, uint32_t timeout_ms, struct cst_err *err)
{
    struct cst_comm *comm = look->comm;
    struct cst_shared_head *head = comm->segment.base;
    struct cst_err why;

    if (!look->in_stream) {
        return cstc_shared_poll(comm->job, head, is_over, look, timeout_ms, err);
    }
    if (timeout_ms > 0 && order_wakeup(look, &why) != CST_OK) {
        cstc_failure_by_device(comm, &why, true);
        return cstc_failure_status(comm, err);
    }
    return cstc_shared_wait(comm->job, head, 0, is_over, look, timeout_ms, err);
}

/* Wait for @look at most @timeout_ms. CST_EAGAIN: @timeout_ms is 0, and it is not over. */
static int wait_for(struct look *look, uint32_t timeout_ms, struct cst_err *err)
{
    struct cst_comm *comm = look->comm;
    struct cst_err why;
    int rc;

    look->blocks = timeout_ms > 0;
    if (timeout_ms > 0 ? spin(look) : is_over(look)) {
        return cstc_failure_status(comm, err);
    }
    rc = sleep_for(look, timeout_ms, &why);
    if (rc == CST_ETIMEDOUT && timeout_ms == 0) {
        return CST_EAGAIN;
    }
    if (rc == CST_ETIMEDOUT) {
        const uint32_t late = cstc_progress_late(comm, look->ticket);

        (void)cst_err_set(&why, rc, "rank %" PRIu32 " waited %" PRIu32 " ms for %s %" PRIu32,
                          comm->job->rank, timeout_ms,
                          late == comm->flow.shape.rank ? "its own GPU; it is rank" : "rank",
                          comm->flow.names[late]);
    }
    if (rc != CST_OK) {
        cstc_failure_set(comm, &why);
    }
    return cstc_failure_status(comm, err);
}

static bool is_settled(void *arg)
{
    return poll(arg, NULL) != CST_EAGAIN;
}

/* The communicator has failed, but what @look waits for ends without other ranks, or probably so.
 * If it does not, the status is that of the failure. */
static int finish(struct look *look, bool blocks, struct cst_err *err)
{
    const struct cst_shared_wait wait = {.attempt = UINT64_MAX, .ready = is_settled, .arg = look};
    int rc = poll(look, NULL);

    if (rc == CST_EAGAIN && blocks && look->in_stream) {
        (void)order_wakeup(look, NULL); /* If it fails, poll says so next. */
    }
    for (int ms = 0; rc == CST_EAGAIN && blocks && ms < CSTC_PROGRESS_END_MS; ms += LOOK_MS) {
        (void)cst_shared_wait(look->comm->segment.base, &wait, LOOK_MS);
        rc = poll(look, NULL);
    }
    return rc == CST_OK || (rc == CST_EAGAIN && !blocks) ? rc
                                                         : cstc_failure_status(look->comm, err);
}

/* -- calls by flow --------------------------------------------------------------------------- */

/* Count a work of the device that was started with the result @rc, which is returned. */
static int start_work(struct cst_comm *comm, int rc)
{
    comm->n_works += rc == CST_OK;
    return rc;
}

static size_t total(const size_t *counts, uint32_t n)
{
    size_t all = 0;

    for (uint32_t i = 0; i < n; i++) {
        all += counts[i];
    }
    return all;
}

/* Numbers of elements that this rank needs on the host before @call, and on the device after it. */
static void count_elems(const struct cst_comm *comm, const struct cst_comm_call *call, size_t *in,
                        size_t *out)
{
    const uint32_t rank = comm->flow.shape.rank, size = comm->flow.shape.size;
    const bool is_root = call->op == CST_COMM_BROADCAST && rank == call->root;

    *in = *out = 0;
    switch (call->op) {
    case CST_COMM_BARRIER:
        break;
    case CST_COMM_BROADCAST:
        *in = is_root ? call->n_elems : 0;
        *out = is_root && (call->out == NULL || call->out == call->in) ? 0 : call->n_elems;
        break;
    case CST_COMM_ALL_REDUCE:
        *in = *out = call->n_elems;
        break;
    case CST_COMM_ALL_GATHER:
        *in = call->counts[rank];
        *out = total(call->counts, size);
        break;
    case CST_COMM_REDUCE_SCATTER:
        *in = total(call->counts, size);
        *out = call->counts[rank];
        break;
    case CST_COMM_ALL_TO_ALL:
        *in = total(call->counts, size);
        *out = total(call->recv_counts, size);
        break;
    }
}

/* Wait until the device has done all works, so that the host memory can be used. */
static int await_works(struct cst_comm *comm, struct cst_err *err)
{
    struct look look = {.comm = comm, .n_works = comm->n_works};

    return wait_for(&look, comm->timeout_ms, err);
}

/* Let the flow of @comm make @call. */
static int call_by_flow(struct cst_comm *comm, const struct cst_comm_call *call,
                        struct cst_err *err)
{
    uint64_t ticket = 0;
    const int rc = cstc_flow_start(&comm->flow, call, &ticket, err);

    return rc == CST_OK ? cstc_flow_wait(&comm->flow, ticket, cstc_comm_wait_workers, comm, err)
                        : rc;
}

/* Copy the input of @call to the host, make the call there, and begin to copy the output back. */
static int exchange(struct cst_comm *comm, const struct cst_comm_call *call, size_t elem_bytes,
                    struct cst_err *err)
{
    const struct cst_comm_device_calls *device = comm->device;
    struct cst_comm_call on_host = *call;
    size_t in_bytes, out_bytes;
    void *base = NULL;
    int rc = await_works(comm, err);

    count_elems(comm, call, &in_bytes, &out_bytes);
    in_bytes *= elem_bytes;
    out_bytes *= elem_bytes;
    rc = rc == CST_OK ? device->reserve(comm->device_arg, in_bytes + 64 + out_bytes, &base, err)
                      : rc;
    if (rc == CST_OK && in_bytes > 0) {
        rc = start_work(comm, device->copy(comm->device_arg, base, call->in, in_bytes, false, err));
        rc = rc == CST_OK ? await_works(comm, err) : rc;
    }
    if (rc != CST_OK) {
        return rc;
    }
    on_host.in = base;
    on_host.out = out_bytes > 0 ? (char *)base + (in_bytes + 63) / 64 * 64 : NULL;
    rc = call_by_flow(comm, &on_host, err);
    if (rc == CST_OK && out_bytes > 0) {
        rc = start_work(
            comm, device->copy(comm->device_arg, call->out, on_host.out, out_bytes, true, err));
    }
    return rc;
}

/* Make @call in the slots on the ranks' GPUs, after what is in the stream. That can wait for other
 * ranks. Therefore it is awaited like a call, and not in the driver. */
static int exchange_peers(struct cst_comm *comm, const struct cst_comm_call *call,
                          struct cst_err *err)
{
    int rc = start_work(comm, comm->device->mark(comm->device_arg, err));

    rc = rc == CST_OK ? await_works(comm, err) : rc;
    return rc == CST_OK ? call_by_flow(comm, call, err) : rc;
}

int cstc_comm_device_use_host(struct cst_comm *comm, struct cst_err *err)
{
    comm->by_flow = true;
    return comm->device->use_host(comm->device_arg, err);
}

/* -- calls ------------------------------------------------------------------------------------ */

int cstc_comm_device_join(struct cst_comm *comm, const unsigned char *id, struct cst_err *err)
{
    struct look look = {.comm = comm};
    int rc =
        comm->device->join(comm->device_arg, comm->flow.shape.rank, comm->flow.shape.size, id, err);

    rc = rc == CST_OK ? wait_for(&look, comm->timeout_ms, err) : rc;
    return rc == CST_OK ? cstc_watch_start(comm, err) : rc;
}

/* Let the device begin @call, unless the watch has noticed the end, or another rank makes a
 * different call. Counts the call. */
static int begin(struct cst_comm *comm, const struct cst_comm_call *call,
                 const struct cstc_transfer *checked, struct cst_err *err)
{
    int rc;

    (void)pthread_mutex_lock(&comm->watch.lock);
    if (comm->watch.has_noticed) {
        rc = cst_err_set(err, CST_ECANCELLED, "the attempt at the step is over");
    } else {
        comm->flow.calls[comm->n_started % CST_COMM_MAX_CALLS] = *checked;
        cstc_agreement_say(comm);
        rc = cstc_agreement_look(comm, comm->n_started + 1, err);
        if (rc != CST_OK) {
            cst_shared_wake(comm->segment.base); /* The others' streams wait for nothing. */
        }
        rc = rc == CST_OK ? start_work(comm, comm->device->start(comm->device_arg, call, err)) : rc;
    }
    comm->n_started += rc == CST_OK;
    (void)pthread_mutex_unlock(&comm->watch.lock);
    return rc;
}

/* Return CST_OK if a further call can be started. */
static int check_credit(struct cst_comm *comm, struct cst_err *err)
{
    struct look look = {.comm = comm, .ticket = comm->n_ended, .blocks = true};
    int rc = CST_OK;

    if (comm->n_started - comm->n_ended == CST_COMM_MAX_CALLS) {
        (void)is_over(&look);
        rc = cstc_failure_status(comm, err);
    }
    if (rc == CST_OK && comm->n_started - comm->n_ended == CST_COMM_MAX_CALLS) {
        rc = cst_err_set(err, CST_ENOCREDIT,
                         "%d collectives have not ended: wait for the first of them",
                         CST_COMM_MAX_CALLS);
    }
    return rc;
}

int cstc_comm_device_start(struct cst_comm *comm, const struct cst_comm_call *call,
                           uint64_t *ticket, struct cst_err *err)
{
    struct look look = {.comm = comm, .ticket = comm->n_ended};
    struct cstc_transfer checked;
    struct cst_err why;
    int rc;

    cstc_failure_heed_watch(comm);
    rc = cstc_failure_status(comm, err);
    rc = rc == CST_OK ? cstc_transfer_begin(&checked, &comm->flow.shape, call, err) : rc;
    rc = rc == CST_OK ? check_credit(comm, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    if (comm->by_flow) {
        rc = comm->peers.n > 0 ? exchange_peers(comm, call, &why)
                               : exchange(comm, call, checked.elem_bytes, &why);
        comm->n_started += rc == CST_OK;
    } else {
        rc = begin(comm, call, &checked, &why);
    }
    if (rc != CST_OK) {
        cstc_failure_by_device(comm, &why, true);
        return cstc_failure_status(comm, err);
    }
    comm->ends[(comm->n_started - 1) % CST_COMM_MAX_CALLS] = comm->n_works;
    *ticket = comm->n_started;
    return wait_for(&look, comm->timeout_ms, err);
}

int cstc_comm_device_wait(struct cst_comm *comm, uint64_t ticket, bool blocks, struct cst_err *err)
{
    struct look look = {.comm = comm, .ticket = ticket};
    int rc;

    if (ticket == 0 || ticket > comm->n_started) {
        return cst_err_set(err, CST_EINVAL, "collective %" PRIu64 " was not started", ticket);
    }
    if (comm->n_ended >= ticket) {
        return CST_OK;
    }
    if (comm->failed.status == CST_OK) {
        rc = wait_for(&look, blocks ? comm->timeout_ms : 0, err);
    } else {
        rc = cstc_failure_status(comm, err);
    }
    return rc != CST_OK && comm->finishes ? finish(&look, blocks, err) : rc;
}

/* -- the end ---------------------------------------------------------------------------------- */

void cstc_comm_device_say(struct cst_comm *comm, bool forked)
{
    struct look look = {.comm = comm};

    if (comm->device != NULL && !forked && comm->failed.status == CST_OK) {
        /* What fails now, nobody waits for. */
        (void)poll(&look, NULL);
    }
}

void cstc_comm_device_close(struct cst_comm *comm, bool forked)
{
    if (comm->device != NULL && !forked) {
        comm->device->close(comm->device_arg);
    }
}
