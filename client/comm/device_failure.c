/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/device_failure.h"

#include "client/comm/agreement.h"
#include "client/comm/progress.h"
#include "client/lib/shared_wait.h"
#include "proto/clock.h"

#include <inttypes.h>

/* If the device reports a failure, it may be the consequence of a death or of another rank's end,
 * which this rank learns a little later. So long is the cause awaited. */
#define CAUSE_MS 2000

static void stop(struct cst_comm *comm)
{
    (void)pthread_mutex_lock(&comm->watch.lock);
    comm->device->stop(comm->device_arg);
    comm->watch.has_stopped = true;
    (void)pthread_mutex_unlock(&comm->watch.lock);
}

static bool has_noticed(struct cst_comm *comm)
{
    bool has;

    (void)pthread_mutex_lock(&comm->watch.lock);
    has = comm->watch.has_noticed;
    (void)pthread_mutex_unlock(&comm->watch.lock);
    return has;
}

/* Return whether calls that were started end after a failure: a rank may leave as soon as its last
 * call has ended. */
static bool ends(struct cst_comm *comm)
{
    bool does;

    (void)pthread_mutex_lock(&comm->watch.lock);
    does = !comm->watch.has_stopped && cstc_progress_ends(comm) != CSTC_ENDS_NEVER;
    (void)pthread_mutex_unlock(&comm->watch.lock);
    return does;
}

void cstc_failure_set(struct cst_comm *comm, const struct cst_err *why)
{
    if (comm->failed.status != CST_OK) {
        return;
    }
    comm->failed = *why;
    comm->finishes = ends(comm);
    if (comm->finishes) {
        cstc_watch_fail(comm);
    } else {
        stop(comm);
    }
}

int cstc_failure_status(const struct cst_comm *comm, struct cst_err *err)
{
    if (comm->failed.status != CST_OK && err != NULL) {
        *err = comm->failed;
    }
    return comm->failed.status;
}

static bool has_missing(void *arg)
{
    const struct cst_comm *comm = arg;

    return cstc_progress_missing(comm, comm->n_started) < CST_COMM_MAX_RANKS;
}

static int say_closed(const struct cst_comm *comm, uint32_t rank, struct cst_err *err)
{
    return cst_err_set(err, CST_ECANCELLED, "rank %" PRIu32 " has closed its communicator",
                       comm->flow.names[rank]);
}

void cstc_failure_closed(struct cst_comm *comm, uint32_t rank)
{
    struct cst_err why;

    (void)say_closed(comm, rank, &why);
    cstc_failure_set(comm, &why);
}

/* Return whether the ranks make different calls, with both in *err. */
static bool differ(struct cst_comm *comm, struct cst_err *err)
{
    bool do_differ;

    (void)pthread_mutex_lock(&comm->watch.lock);
    do_differ = !comm->by_flow && cstc_agreement_look(comm, comm->n_started, err) != CST_OK;
    (void)pthread_mutex_unlock(&comm->watch.lock);
    return do_differ;
}

/* Remember that the device has reported @why, if nothing is remembered yet. */
static void suspect(struct cst_comm *comm, const struct cst_err *why)
{
    const uint32_t ms = comm->timeout_ms < CAUSE_MS ? comm->timeout_ms : CAUSE_MS;

    if (comm->suspected.status == CST_OK) {
        comm->suspected = *why;
        comm->cause_by_ns = cst_clock_ns() + (uint64_t)ms * 1000000;
    }
}

void cstc_failure_find(struct cst_comm *comm, bool blocks)
{
    const uint64_t now = cst_clock_ns();
    const bool is_late = now >= comm->cause_by_ns;
    uint32_t left_ms = 0, missing;
    struct cst_err cause;
    int rc;

    if (differ(comm, &cause)) {
        cstc_failure_set(comm, &cause);
        return;
    }
    if (blocks && !is_late) {
        left_ms = (uint32_t)((comm->cause_by_ns - now) / 1000000) + 1;
    }
    rc = cstc_shared_wait(comm->job, comm->segment.base, 0, has_missing, comm, left_ms, &cause);
    missing = cstc_progress_missing(comm, comm->n_started);
    if (rc == CST_OK && missing < CST_COMM_MAX_RANKS) {
        (void)say_closed(comm, missing, &cause);
    } else if (rc == CST_OK || rc == CST_ETIMEDOUT) {
        if (!blocks && !is_late) {
            return;
        }
        cause = comm->suspected;
    }
    cstc_failure_set(comm, &cause);
}

void cstc_failure_by_device(struct cst_comm *comm, const struct cst_err *why, bool blocks)
{
    if (comm->failed.status != CST_OK) {
        return;
    }
    if (comm->by_flow && why->status != CST_EGPU) {
        cstc_failure_set(comm, why); /* The exchange in host memory has found the cause. */
        return;
    }
    if (!has_noticed(comm)) {
        stop(comm);
    }
    if (why->status == CST_EMISMATCH) {
        cstc_failure_set(comm, why);
    } else {
        suspect(comm, why);
        cstc_failure_find(comm, blocks);
    }
}

void cstc_failure_heed_watch(struct cst_comm *comm)
{
    struct cst_err why;

    if (comm->failed.status == CST_OK && has_noticed(comm)) {
        (void)cst_err_set(&why, CST_EPROTO,
                          "the shared memory says that the attempt is over, which is not so");
        suspect(comm, &why);
    }
    if (comm->failed.status == CST_OK && comm->suspected.status != CST_OK) {
        cstc_failure_find(comm, true);
    }
}

void cstc_comm_stop_all(struct cst_comm *comm, const struct cst_err *why)
{
    for (; comm != NULL; comm = comm->next) {
        if (comm->device != NULL) {
            cstc_failure_set(comm, why);
        }
    }
}

void cstc_comm_hang_up_all(struct cst_comm *comm, const struct cst_err *why)
{
    for (struct cst_comm *each = comm; each != NULL; each = each->next) {
        if (each->device != NULL) {
            cstc_watch_hang_up(each);
        }
    }
    cstc_comm_stop_all(comm, why);
}

void cstc_comm_stop_over(struct cst_comm *comm)
{
    struct cst_err why;

    for (; comm != NULL; comm = comm->next) {
        const struct cst_shared_head *head = comm->segment.base;

        if (comm->device != NULL && atomic_load(&head->over) >= comm->job->attempt) {
            (void)cst_err_set(&why, CST_EPEERDIED, "the attempt at the step is over: call sync");
            cstc_failure_set(comm, &why);
        }
    }
}
