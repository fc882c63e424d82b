/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/comm.h"

#include "client/comm/device_comm.h"
#include "client/comm/open.h"
#include "client/lib/shared_wait.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define NO_ATTEMPT UINT64_MAX /* The attempt of ranks that are threads: it is never over. */

_Static_assert(CST_COMM_MAX_THREADS <= CST_COMM_MAX_RANKS, "lines of a communicator");

/* Memory of ranks that are threads. The rank that closes its communicator last frees it. */
struct cstc_comm_threads {
    _Atomic uint32_t n_open; /* Communicators that are not closed. */
    void *base;
};

/* -- ranks that are threads ------------------------------------------------------------------- */

static void free_threads(struct cstc_comm_threads *threads)
{
    free(threads->base);
    free(threads);
}

/* NULL: no memory. */
static struct cstc_comm_threads *new_threads(uint32_t n_ranks)
{
    const size_t bytes = cst_comm_bytes(n_ranks, CST_COMM_SLOT_BYTES);
    struct cstc_comm_threads *threads = calloc(1, sizeof *threads);

    if (threads != NULL) {
        threads->n_open = n_ranks;
        threads->base = aligned_alloc(CST_COMM_PAGE_BYTES, bytes);
        if (threads->base == NULL) {
            free(threads);
            return NULL;
        }
        memset(threads->base, 0, bytes);
        cst_shared_join(threads->base);
    }
    return threads;
}

/* The communicator of one of @n_ranks threads. NULL: no memory. */
static struct cst_comm *new_thread(struct cstc_comm_threads *threads, uint32_t rank,
                                   uint32_t n_ranks)
{
    struct cst_comm *comm = calloc(1, sizeof *comm);
    uint32_t names[CST_COMM_MAX_RANKS];

    if (comm != NULL) {
        for (uint32_t i = 0; i < n_ranks; i++) {
            names[i] = i;
        }
        comm->threads = threads;
        cstc_flow_init(&comm->flow, threads->base, rank, n_ranks, CST_COMM_SLOT_BYTES, names);
    }
    return comm;
}

int cst_comm_open_threads(struct cst_comm **out, uint32_t n_ranks, struct cst_err *err)
{
    struct cst_comm *comms[CST_COMM_MAX_THREADS];
    struct cstc_comm_threads *threads;
    uint32_t n = 0;

    if (n_ranks == 0 || n_ranks > CST_COMM_MAX_THREADS) {
        return cst_err_set(err, CST_EINVAL, "a communicator of %u threads; it can have 1 to %d",
                           n_ranks, CST_COMM_MAX_THREADS);
    }
    threads = new_threads(n_ranks);
    while (threads != NULL && n < n_ranks && (comms[n] = new_thread(threads, n, n_ranks)) != NULL) {
        n++;
    }
    if (n == n_ranks) {
        memcpy(out, comms, n * sizeof(struct cst_comm *));
        return CST_OK;
    }
    while (n > 0) {
        free(comms[--n]);
    }
    if (threads != NULL) {
        free_threads(threads);
    }
    return cst_err_set(err, CST_ENOMEM, "no memory for a communicator of %u threads", n_ranks);
}

/* -- closing ---------------------------------------------------------------------------------- */

static void close_thread(const struct cst_comm *comm)
{
    cstc_channel_close(&comm->flow.channel);
    if (atomic_fetch_sub(&comm->threads->n_open, 1) == 1) {
        free_threads(comm->threads);
    }
}

void cst_comm_close(struct cst_comm *comm)
{
    if (comm == NULL) {
        return;
    }
    if (comm->job == NULL) {
        close_thread(comm);
    } else {
        const bool forked = comm->job->client->forked;

        cstc_watch_end(comm, forked);
        cstc_comm_device_say(comm, forked);
        cstc_comm_leave(comm);
        cstc_comm_device_close(comm, forked);
    }
    free(comm);
}

static void free_all(struct cst_comm *comm, bool forked)
{
    while (comm != NULL) {
        struct cst_comm *next = comm->next;

        cstc_watch_end(comm, forked);
        if (!forked) {
            cstc_peers_close(comm);
            cstc_wakeup_close(&comm->wakeup);
            cstc_segment_unmap(&comm->segment);
        }
        cstc_comm_device_close(comm, forked);
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
    int rc;

    if (comm->job == NULL) {
        return CST_OK;
    }
    rc = cstc_client_check(comm->job->client, err);
    /* A sync ends it, even if a daemon that has died could not say so. */
    if (rc == CST_OK && comm->lease_epoch != comm->job->lease_epoch) {
        return cst_err_set(err, CST_EPEERDIED,
                           "the communicator was opened before the last sync: close it and open it "
                           "again");
    }
    return rc;
}

/* As check, for a call that can wait. */
static int check_wait(const struct cst_comm *comm, struct cst_err *err)
{
    const int rc = check(comm, err);

    return rc == CST_OK && comm->job != NULL && comm->job->client->pending
               ? cst_err_set(err, CST_EBUSY,
                             "another call is pending: repeat it until it has ended")
               : rc;
}

int cst_comm_start(struct cst_comm *comm, const struct cst_comm_call *call, uint64_t *ticket,
                   struct cst_err *err)
{
    const int rc = comm->device != NULL ? check_wait(comm, err) : check(comm, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (call == NULL || ticket == NULL) {
        return cst_err_set(err, CST_EINVAL, "a call of a collective without %s",
                           call == NULL ? "a description (NULL)" : "a place for its ticket (NULL)");
    }
    return comm->device != NULL ? cstc_comm_device_start(comm, call, ticket, err)
                                : cstc_flow_start(&comm->flow, call, ticket, err);
}

/* cstc_flow_wait_fn: wait for ranks that are threads. */
static int wait_threads(void *arg, struct cst_shared_head *head, bool (*ready)(void *ready_arg),
                        void *ready_arg, struct cst_err *err)
{
    const struct cst_comm *comm = arg;
    const struct cst_shared_wait wait = {.attempt = NO_ATTEMPT,
                                         .n_processes = comm->flow.shape.size,
                                         .ready = ready,
                                         .arg = ready_arg};

    (void)err;
    while (cst_shared_wait(head, &wait, UINT_MAX) != CST_OK) {
    }
    return CST_OK;
}

int cstc_comm_wait_workers(void *arg, struct cst_shared_head *head, bool (*ready)(void *ready_arg),
                           void *ready_arg, struct cst_err *err)
{
    const struct cst_comm *comm = arg;
    const int rc = cstc_shared_wait(comm->job, head, comm->flow.shape.size, ready, ready_arg,
                                    comm->timeout_ms, err);

    return rc == CST_ETIMEDOUT
               ? cst_err_set(err, rc, "rank %u waited %u ms for rank %u", comm->job->rank,
                             comm->timeout_ms, comm->flow.names[comm->flow.channel.late])
               : rc;
}

/* cstc_flow_wait_fn: only look whether the attempt is over. */
static int look_workers(void *arg, struct cst_shared_head *head, bool (*ready)(void *ready_arg),
                        void *ready_arg, struct cst_err *err)
{
    const struct cst_comm *comm = arg;
    const int rc = cstc_shared_wait(comm->job, head, 0, ready, ready_arg, 0, err);

    return rc == CST_ETIMEDOUT ? CST_EAGAIN : rc;
}

static int wait_for(struct cst_comm *comm, uint64_t ticket, cstc_flow_wait_fn wait,
                    struct cst_err *err)
{
    const int rc = check_wait(comm, err);

    if (rc != CST_OK) {
        return rc;
    }
    return comm->device != NULL
               ? cstc_comm_device_wait(comm, ticket, wait == cstc_comm_wait_workers, err)
               : cstc_flow_wait(&comm->flow, ticket, wait, comm, err);
}

int cst_comm_wait(struct cst_comm *comm, uint64_t ticket, struct cst_err *err)
{
    return wait_for(comm, ticket, comm->job != NULL ? cstc_comm_wait_workers : wait_threads, err);
}

int cst_comm_try_wait(struct cst_comm *comm, uint64_t ticket, struct cst_err *err)
{
    return wait_for(comm, ticket, comm->job != NULL ? look_workers : NULL, err);
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

const struct cstc_comm_ops cstc_comm_ops = {.stop = cstc_comm_stop_all,
                                            .hang_up = cstc_comm_hang_up_all,
                                            .stop_over = cstc_comm_stop_over,
                                            .free = free_all};
