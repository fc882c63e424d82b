/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on the GPU's memory: the functions of cistern/comm_device.h. By NCCL: its threads
 * enqueue a call some time after the program has made it. Only then an event is recorded in the
 * stream, which says when the call has ended.
 *
 *   start --NCCL: not ncclInProgress--> in the stream, event recorded --event--> ended
 *
 * A thread that waits long is woken by a host function in a side stream, which waits for the event.
 * The side stream is the communicator's own: in that of the marks (marks.c), blocks would have to
 * wait for other ranks. */
#include "cistern/comm_device.h"
#include "client/cuda/cuda.h"
#include "client/cuda/nccl_calls.h"
#include "client/cuda/peers.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES ((size_t)4096)

_Static_assert(CST_COMM_DEVICE_ID_BYTES == NCCL_UNIQUE_ID_BYTES, "ids are NCCL's");

struct comm {
    struct cst_cuda *cuda; /* Borrowed. */
    struct cstc_nccl nccl;
    CUstream stream;                       /* The program's stream. Borrowed. */
    CUstream side;                         /* For host functions; NULL: not created. */
    uint32_t rank, size;                   /* This rank in the group, and the number of ranks. */
    bool made_id;                          /* The id in `cuda` was offered for this group. */
    bool joined;                           /* All ranks have joined. */
    ncclComm_t handle;                     /* NULL: not joined, or aborted. */
    bool in_order;                         /* The program wants sums in the order of the ranks. */
    bool by_flow;                          /* The group does not use NCCL. */
    struct cstc_cuda_peers peers;          /* If ranks have slots on their GPUs. */
    void *host;                            /* Host memory for copies; NULL: none. Owned. */
    size_t host_bytes;                     /* Its length. */
    bool is_pinned;                        /* It is pinned. */
    bool stopped;                          /* Nothing is called any more but ncclCommAbort. */
    CUdeviceptr word;                      /* 4 bytes that a barrier sums; 0: not allocated. */
    uint64_t n_started;                    /* Number of calls. */
    uint64_t n_in_stream;                  /* Number of calls with an event. */
    uint64_t n_ended;                      /* Number of calls whose event has passed. */
    CUevent events[CST_COMM_MAX_CALLS];    /* Call i has event i mod that; or NULL. */
    char (*uuids)[CST_CUDA_UUID_BYTES];    /* Of the other GPUs, for the offer. Owned. */
    const char **reachable, **unreachable; /* Point to these. Owned. */
    size_t n_reachable, n_unreachable;
};

static int check(struct comm *comm, ncclResult_t result, struct cst_err *err, const char *what)
{
    return cstc_nccl_check(&comm->nccl, comm->handle, result, err, what);
}

/* -- joining ---------------------------------------------------------------------------------- */

/* Add @device to one of the lists. */
static int look_at(struct comm *comm, CUdevice device, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &comm->cuda->driver;
    char *uuid = comm->uuids[comm->n_reachable + comm->n_unreachable];
    int reaches = 0;
    int rc =
        cst_cuda_check(driver, driver->cuDeviceCanAccessPeer(&reaches, comm->cuda->device, device),
                       err, "access of %s to device %d", comm->cuda->uuid, (int)device);

    rc = rc == CST_OK ? cst_cuda_uuid(driver, device, uuid, err) : rc;
    if (rc == CST_OK && reaches != 0) {
        comm->reachable[comm->n_reachable++] = uuid;
    } else if (rc == CST_OK) {
        comm->unreachable[comm->n_unreachable++] = uuid;
    }
    return rc;
}

static int list_others(struct comm *comm, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &comm->cuda->driver;
    int n = 0;
    int rc = cst_cuda_check(driver, driver->cuDeviceGetCount(&n), err, "counting devices");

    if (rc != CST_OK) {
        return rc;
    }
    comm->uuids = calloc((size_t)n, sizeof *comm->uuids);
    comm->reachable = calloc((size_t)n, sizeof *comm->reachable);
    comm->unreachable = calloc((size_t)n, sizeof *comm->unreachable);
    if (comm->uuids == NULL || comm->reachable == NULL || comm->unreachable == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of %d GPUs", n);
    }
    for (int i = 0; i < n && rc == CST_OK; i++) {
        CUdevice device;

        rc = cst_cuda_check(driver, driver->cuDeviceGet(&device, i), err, "device %d", i);
        if (rc == CST_OK && device != comm->cuda->device) {
            rc = look_at(comm, device, err);
        }
    }
    return rc;
}

/* Offer the spare id, or a new one. */
static int offer_id(struct comm *comm, struct cst_comm_device_offer *out, struct cst_err *err)
{
    struct cst_cuda *cuda = comm->cuda;
    ncclUniqueId id;

    if (!cuda->nccl_id_is_spare) {
        const int rc = check(comm, comm->nccl.ncclGetUniqueId(&id), err, "a unique id of NCCL");

        if (rc != CST_OK) {
            return rc;
        }
        memcpy(cuda->nccl_id, id.internal, sizeof cuda->nccl_id);
    }
    memcpy(out->id, cuda->nccl_id, sizeof out->id);
    cuda->nccl_id_is_spare = false;
    comm->made_id = true;
    return CST_OK;
}

static int offer(void *arg, bool makes_id, struct cst_comm_device_offer *out, struct cst_err *err)
{
    struct comm *comm = arg;
    int rc = cstc_cuda_enter(comm->cuda, err);

    rc = rc == CST_OK ? list_others(comm, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    out->reachable = comm->reachable;
    out->n_reachable = comm->n_reachable;
    out->unreachable = comm->unreachable;
    out->n_unreachable = comm->n_unreachable;
    out->in_order = comm->in_order;
    /* Without NCCL the group can do without it. */
    if (cstc_nccl_open(&comm->nccl, &out->nccl_error) != CST_OK) {
        return CST_OK;
    }
    if (!makes_id || offer_id(comm, out, &out->nccl_error) == CST_OK) {
        out->nccl_version = comm->nccl.version;
    }
    return CST_OK;
}

static void spare(void *arg)
{
    const struct comm *comm = arg;

    comm->cuda->nccl_id_is_spare = comm->cuda->nccl_id_is_spare || comm->made_id;
}

static int create(struct comm *comm, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &comm->cuda->driver;
    int rc = cst_cuda_check(driver, driver->cuMemAlloc(&comm->word, 4), err,
                            "4 bytes for barriers on %s", comm->cuda->uuid);

    for (int i = 0; i < CST_COMM_MAX_CALLS && rc == CST_OK; i++) {
        rc =
            cst_cuda_check(driver, driver->cuEventCreate(&comm->events[i], CU_EVENT_DISABLE_TIMING),
                           err, "an event of %s", comm->cuda->uuid);
    }
    if (rc == CST_OK) {
        rc = cst_cuda_check(driver, driver->cuMemsetD8Async(comm->word, 0, 4, comm->stream), err,
                            "zeros for barriers on %s", comm->cuda->uuid);
    }
    return rc;
}

static int join(void *arg, uint32_t rank, uint32_t size,
                const unsigned char bytes[CST_COMM_DEVICE_ID_BYTES], struct cst_err *err)
{
    struct comm *comm = arg;
    ncclConfig_t config = {.size = sizeof config,
                           .magic = NCCL_API_MAGIC,
                           .version = CSTC_NCCL_MIN_VERSION,
                           .blocking = 0};
    ncclUniqueId id;
    int rc = cstc_cuda_enter(comm->cuda, err);

    rc = rc == CST_OK ? create(comm, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    comm->rank = rank;
    comm->size = size;
    memcpy(id.internal, bytes, sizeof id.internal);
    return check(
        comm, comm->nccl.ncclCommInitRankConfig(&comm->handle, (int)size, id, (int)rank, &config),
        err, "joining a communicator");
}

/* -- calls ------------------------------------------------------------------------------------ */

static int start(void *arg, const struct cst_comm_call *call, struct cst_err *err)
{
    struct comm *comm = arg;
    const struct cstc_nccl_comm by = {.nccl = &comm->nccl,
                                      .handle = comm->handle,
                                      .stream = comm->stream,
                                      .rank = comm->rank,
                                      .size = comm->size,
                                      .word = comm->word};
    int rc = cstc_cuda_enter(comm->cuda, err);

    if (rc == CST_OK) {
        rc = check(comm, cstc_nccl_enqueue(&by, call), err, "a collective");
    }
    comm->n_started += rc == CST_OK;
    return rc;
}

/* -- slots on the ranks' GPUs ----------------------------------------------------------------- */

static int use_peers(void *arg, struct cst_err *err)
{
    struct comm *comm = arg;
    int rc = cstc_cuda_enter(comm->cuda, err);

    comm->by_flow = true;
    rc = rc == CST_OK ? create(comm, err) : rc;
    return rc == CST_OK ? cstc_cuda_peers_open(&comm->peers, &comm->cuda->driver, err) : rc;
}

static int mark(void *arg, struct cst_err *err)
{
    struct comm *comm = arg;

    (void)err;
    comm->n_started++; /* The next poll records its event. */
    return CST_OK;
}

static int copy_peer(void *arg, void *dst, const void *src, size_t bytes, struct cst_err *err)
{
    struct comm *comm = arg;
    const struct cst_cuda_driver *driver = &comm->cuda->driver;
    const int rc = cstc_cuda_enter(comm->cuda, err);

    return rc == CST_OK ? cst_cuda_check(driver,
                                         driver->cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)dst,
                                                                   (CUdeviceptr)(uintptr_t)src,
                                                                   bytes, comm->stream),
                                         err, "a copy of %zu bytes for a collective", bytes)
                        : rc;
}

static int add_up(void *arg, enum cst_comm_type type, size_t n_elems, uint32_t n_src,
                  const void *const *src, void *dst, struct cst_err *err)
{
    struct comm *comm = arg;
    const int rc = cstc_cuda_enter(comm->cuda, err);

    return rc == CST_OK ? cstc_cuda_peers_add_up(&comm->peers, comm->stream, type, n_elems, n_src,
                                                 src, dst, err)
                        : rc;
}

static int settle(void *arg, struct cst_err *err)
{
    struct comm *comm = arg;
    const struct cst_cuda_driver *driver = &comm->cuda->driver;
    const int rc = cstc_cuda_enter(comm->cuda, err);

    return rc == CST_OK ? cst_cuda_check(driver, driver->cuStreamSynchronize(comm->stream), err,
                                         "collectives on %s", comm->cuda->uuid)
                        : rc;
}

/* -- copies to the host and back -------------------------------------------------------------- */

static int use_host(void *arg, struct cst_err *err)
{
    struct comm *comm = arg;
    const int rc = cstc_cuda_enter(comm->cuda, err);

    comm->by_flow = true;
    return rc == CST_OK ? create(comm, err) : rc;
}

static void free_host(struct comm *comm)
{
    if (comm->is_pinned) {
        (void)comm->cuda->driver.cuMemFreeHost(comm->host);
    } else {
        free(comm->host);
    }
    comm->host = NULL;
    comm->host_bytes = 0;
}

/* If the memory cannot be pinned, copies go through memory of the driver. */
static int reserve(void *arg, size_t bytes, void **base, struct cst_err *err)
{
    struct comm *comm = arg;
    /* The rest avoids an allocation for every small increase. */
    const size_t wanted = (bytes + bytes / 4 + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    int rc = cstc_cuda_enter(comm->cuda, err);

    if (rc == CST_OK && bytes > comm->host_bytes) {
        free_host(comm);
        comm->is_pinned = comm->cuda->driver.cuMemHostAlloc(&comm->host, wanted, 0) == CUDA_SUCCESS;
        if (!comm->is_pinned) {
            comm->host = aligned_alloc(PAGE_BYTES, wanted);
        }
        if (comm->host == NULL) {
            return cst_err_set(err, CST_ENOMEM, "%zu bytes of host memory for a collective",
                               wanted);
        }
        comm->host_bytes = wanted;
    }
    *base = comm->host;
    return rc;
}

static int copy(void *arg, void *dst, const void *src, size_t bytes, bool to_device,
                struct cst_err *err)
{
    struct comm *comm = arg;
    const struct cst_cuda_driver *driver = &comm->cuda->driver;
    int rc = cstc_cuda_enter(comm->cuda, err);

    if (rc == CST_OK) {
        rc = cst_cuda_check(
            driver,
            to_device
                ? driver->cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)dst, src, bytes, comm->stream)
                : driver->cuMemcpyDtoHAsync(dst, (CUdeviceptr)(uintptr_t)src, bytes, comm->stream),
            err, "a copy of %zu bytes for a collective", bytes);
    }
    comm->n_started += rc == CST_OK;
    return rc;
}

/* -- progress --------------------------------------------------------------------------------- */

/* Look whether events have passed. */
static int look_at_events(struct comm *comm, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &comm->cuda->driver;
    CUresult result = CUDA_SUCCESS;

    while (comm->n_ended < comm->n_in_stream && result == CUDA_SUCCESS) {
        result = driver->cuEventQuery(comm->events[comm->n_ended % CST_COMM_MAX_CALLS]);
        comm->n_ended += result == CUDA_SUCCESS;
    }
    return result == CUDA_ERROR_NOT_READY
               ? CST_OK
               : cst_cuda_check(driver, result, err, "collectives on %s", comm->cuda->uuid);
}

/* The state is read after the events: an error of a call is known before its event passes. */
static int poll(void *arg, struct cst_comm_device_progress *progress, struct cst_err *err)
{
    struct comm *comm = arg;
    const struct cst_cuda_driver *driver = &comm->cuda->driver;
    ncclResult_t state = ncclSuccess;
    int rc = cstc_cuda_enter(comm->cuda, err);

    rc = rc == CST_OK ? look_at_events(comm, err) : rc;
    if (rc == CST_OK && !comm->by_flow) {
        rc = check(comm, comm->nccl.ncclCommGetAsyncError(comm->handle, &state), err,
                   "the state of a communicator");
    }
    rc = rc == CST_OK && !comm->by_flow ? check(comm, state, err, "collectives") : rc;
    if (rc == CST_OK && state != ncclInProgress && comm->n_in_stream < comm->n_started) {
        CUevent event = comm->events[comm->n_in_stream % CST_COMM_MAX_CALLS];

        rc = cst_cuda_check(driver, driver->cuEventRecord(event, comm->stream), err,
                            "an event after a collective on %s", comm->cuda->uuid);
        comm->n_in_stream += rc == CST_OK;
    }
    if (rc == CST_OK) {
        comm->joined = comm->joined || state != ncclInProgress;
        progress->in_stream = state != ncclInProgress;
        progress->n_ended = comm->n_ended;
    }
    return rc;
}

static int wake(void *arg, uint64_t n_calls, void (*fn)(void *fn_arg), void *fn_arg,
                struct cst_err *err)
{
    struct comm *comm = arg;
    const struct cst_cuda_driver *driver = &comm->cuda->driver;
    const CUevent event = comm->events[(n_calls - 1) % CST_COMM_MAX_CALLS];
    int rc = cstc_cuda_enter(comm->cuda, err);

    if (rc == CST_OK && comm->side == NULL) {
        rc = cstc_cuda_side_stream(comm->cuda, &comm->side, err);
    }
    if (rc == CST_OK) {
        rc = cst_cuda_check(driver, driver->cuStreamWaitEvent(comm->side, event, 0), err,
                            "a wait for collectives on %s", comm->cuda->uuid);
    }
    return rc == CST_OK ? cst_cuda_check(driver, driver->cuLaunchHostFunc(comm->side, fn, fn_arg),
                                         err, "a host function of %s", comm->cuda->uuid)
                        : rc;
}

/* -- the end ---------------------------------------------------------------------------------- */

/* Results of these functions change nothing: the communicator is not used any more. */
static void stop(void *arg)
{
    struct comm *comm = arg;

    if (comm->handle == NULL || comm->stopped || cstc_cuda_enter(comm->cuda, NULL) != CST_OK) {
        return;
    }
    comm->stopped = true;
    /* To revoke is enough, and leaves it to close() to free the communicator, which takes longer.
     * It is not possible before all ranks have joined. */
    if (comm->nccl.ncclCommRevoke != NULL && comm->joined) {
        const ncclResult_t result = comm->nccl.ncclCommRevoke(comm->handle, 0);

        if (result == ncclSuccess || result == ncclInProgress) {
            return;
        }
    }
    (void)comm->nccl.ncclCommAbort(comm->handle);
    comm->handle = NULL;
}

/* Free what belongs to @comm. */
static void free_parts(struct comm *comm)
{
    const struct cst_cuda_driver *driver = &comm->cuda->driver;

    if (cstc_cuda_enter(comm->cuda, NULL) == CST_OK) {
        if (comm->handle != NULL) {
            (void)comm->nccl.ncclCommAbort(comm->handle);
        }
        if (comm->side != NULL) {
            (void)driver->cuStreamDestroy(comm->side); /* What it has to do yet, it does. */
        }
        for (int i = 0; i < CST_COMM_MAX_CALLS && comm->events[i] != NULL; i++) {
            (void)driver->cuEventDestroy(comm->events[i]);
        }
        if (comm->host != NULL) {
            if (comm->n_ended < comm->n_started) {
                (void)driver->cuStreamSynchronize(comm->stream); /* Copies still use it. */
            }
            free_host(comm);
        }
        if (comm->word != 0) {
            (void)driver->cuMemFree(comm->word);
        }
        cstc_cuda_peers_close(&comm->peers);
    }
    free(comm->uuids);
    free(comm->reachable);
    free(comm->unreachable);
}

static void close_comm(void *arg)
{
    free_parts(arg);
    free(arg);
}

static void restart(void *arg)
{
    struct comm *comm = arg;

    free_parts(comm);
    *comm = (struct comm){.cuda = comm->cuda, .stream = comm->stream, .in_order = comm->in_order};
}

static const struct cst_comm_device_calls calls = {
    .offer = offer,
    .join = join,
    .start = start,
    .use_peers = use_peers,
    .mark = mark,
    .copy_peer = copy_peer,
    .add_up = add_up,
    .settle = settle,
    .use_host = use_host,
    .reserve = reserve,
    .copy = copy,
    .poll = poll,
    .wake = wake,
    .stop = stop,
    .close = close_comm,
    .spare = spare,
    .restart = restart,
};

static int open_comm(struct cst_comm **out, struct cst_cuda *cuda, int group, void *stream,
                     bool in_order, struct cst_err *err)
{
    struct comm *comm = calloc(1, sizeof *comm);
    int rc;

    if (comm == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a communicator");
    }
    comm->cuda = cuda;
    comm->stream = stream;
    comm->in_order = in_order;
    rc = cst_comm_open_device(out, cuda->job, group, &calls, comm, err);
    if (rc != CST_OK) {
        close_comm(comm);
    }
    return rc;
}

int cst_cuda_comm_open(struct cst_comm **out, struct cst_cuda *cuda, int group, void *stream,
                       struct cst_err *err)
{
    return open_comm(out, cuda, group, stream, false, err);
}

int cst_cuda_comm_open_in_order(struct cst_comm **out, struct cst_cuda *cuda, int group,
                                void *stream, struct cst_err *err)
{
    return open_comm(out, cuda, group, stream, true, err);
}
