/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on the GPU's memory by NCCL: the functions of cistern/comm_device.h. NCCL's threads
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
#include "client/cuda/nccl.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES ((size_t)4096)

_Static_assert(CST_COMM_DEVICE_ID_BYTES == NCCL_UNIQUE_ID_BYTES, "ids are NCCL's");

struct comm {
    struct cst_cuda *cuda; /* Borrowed. */
    struct cstc_nccl nccl;
    CUstream stream;                          /* The program's stream. Borrowed. */
    CUstream side;                            /* For host functions; NULL: not created. */
    uint32_t rank, size;                      /* This rank in the group, and the number of ranks. */
    bool made_id;                             /* The id in `cuda` was offered for this group. */
    bool joined;                              /* All ranks have joined. */
    ncclComm_t handle;                        /* NULL: not joined, or aborted. */
    bool staged;                              /* The group does not use NCCL. */
    void *host;                               /* Host memory for copies; NULL: none. Owned. */
    size_t host_bytes;                        /* Its length. */
    bool is_pinned;                           /* It is pinned. */
    bool stopped;                             /* Nothing is called any more but ncclCommAbort. */
    CUdeviceptr word;                         /* 4 bytes that a barrier sums; 0: not allocated. */
    uint64_t n_started;                       /* Number of calls. */
    uint64_t n_in_stream;                     /* Number of calls with an event. */
    uint64_t n_ended;                         /* Number of calls whose event has passed. */
    CUevent events[CST_COMM_MAX_CALLS];       /* Call i has event i mod that; or NULL. */
    char (*unreachable)[CST_CUDA_UUID_BYTES]; /* For the offer. Owned. */
    const char **unreachable_list;            /* Points to these. Owned. */
    size_t n_unreachable;
};

static int check(struct comm *comm, ncclResult_t result, struct cst_err *err, const char *what)
{
    return cstc_nccl_check(&comm->nccl, comm->handle, result, err, what);
}

/* -- joining ---------------------------------------------------------------------------------- */

/* Add @device to the list if the job's GPU cannot access its memory. */
static int look_at(struct comm *comm, CUdevice device, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &comm->cuda->driver;
    int reaches = 0;
    int rc =
        cst_cuda_check(driver, driver->cuDeviceCanAccessPeer(&reaches, comm->cuda->device, device),
                       err, "access of %s to device %d", comm->cuda->uuid, (int)device);

    if (rc == CST_OK && reaches == 0) {
        char *uuid = comm->unreachable[comm->n_unreachable];

        rc = cst_cuda_uuid(driver, device, uuid, err);
        comm->unreachable_list[comm->n_unreachable] = uuid;
        comm->n_unreachable += rc == CST_OK;
    }
    return rc;
}

static int list_unreachable(struct comm *comm, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &comm->cuda->driver;
    int n = 0;
    int rc = cst_cuda_check(driver, driver->cuDeviceGetCount(&n), err, "counting devices");

    if (rc != CST_OK) {
        return rc;
    }
    comm->unreachable = calloc((size_t)n, sizeof *comm->unreachable);
    comm->unreachable_list = calloc((size_t)n, sizeof *comm->unreachable_list);
    if (comm->unreachable == NULL || comm->unreachable_list == NULL) {
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

    rc = rc == CST_OK ? list_unreachable(comm, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    out->unreachable = comm->unreachable_list;
    out->n_unreachable = comm->n_unreachable;
    /* Without NCCL the group can do without it. */
    if (cstc_nccl_open(&comm->nccl, &out->nccl_error) != CST_OK) {
        return CST_OK;
    }
    out->nccl_version = comm->nccl.version;
    return makes_id ? offer_id(comm, out, err) : CST_OK;
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

struct type {
    ncclDataType_t nccl;
    size_t bytes; /* Of an element. */
};

static struct type type_of(enum cst_comm_type type)
{
    switch (type) {
    case CST_COMM_BF16:
        return (struct type){ncclBfloat16, 2};
    case CST_COMM_FP32:
        return (struct type){ncclFloat32, 4};
    case CST_COMM_BYTE:
        break;
    }
    return (struct type){ncclUint8, 1};
}

static bool are_equal(const size_t *counts, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        if (counts[i] != counts[0]) {
            return false;
        }
    }
    return true;
}

/* Parts of different lengths: one broadcast per rank. */
static ncclResult_t gather_parts(struct comm *comm, const struct cst_comm_call *call)
{
    const struct type type = type_of(call->type);
    ncclResult_t result = ncclSuccess;
    char *out = call->out;

    for (uint32_t i = 0; i < comm->size && (result == ncclSuccess || result == ncclInProgress);
         i++) {
        if (call->counts[i] > 0) {
            result =
                comm->nccl.ncclBroadcast(i == comm->rank ? call->in : out, out, call->counts[i],
                                         type.nccl, (int)i, comm->handle, comm->stream);
        }
        out += call->counts[i] * type.bytes;
    }
    return result;
}

/* Parts of different lengths: one reduction per rank. */
static ncclResult_t scatter_parts(struct comm *comm, const struct cst_comm_call *call)
{
    const struct type type = type_of(call->type);
    ncclResult_t result = ncclSuccess;
    const char *in = call->in;

    for (uint32_t i = 0; i < comm->size && (result == ncclSuccess || result == ncclInProgress);
         i++) {
        if (call->counts[i] > 0) {
            result = comm->nccl.ncclReduce(in, i == comm->rank ? call->out : NULL, call->counts[i],
                                           type.nccl, ncclSum, (int)i, comm->handle, comm->stream);
        }
        in += call->counts[i] * type.bytes;
    }
    return result;
}

/* A send to each rank and a receive from each, the own one included. */
static ncclResult_t exchange_parts(struct comm *comm, const struct cst_comm_call *call)
{
    const struct type type = type_of(call->type);
    ncclResult_t result = ncclSuccess;
    const char *in = call->in;
    char *out = call->out;

    for (uint32_t i = 0; i < comm->size && (result == ncclSuccess || result == ncclInProgress);
         i++) {
        if (call->counts[i] > 0) {
            result = comm->nccl.ncclSend(in, call->counts[i], type.nccl, (int)i, comm->handle,
                                         comm->stream);
        }
        if (call->recv_counts[i] > 0 && (result == ncclSuccess || result == ncclInProgress)) {
            result = comm->nccl.ncclRecv(out, call->recv_counts[i], type.nccl, (int)i, comm->handle,
                                         comm->stream);
        }
        in += call->counts[i] * type.bytes;
        out += call->recv_counts[i] * type.bytes;
    }
    return result;
}

/* Make several calls that NCCL carries out together. The group is ended in any case. */
static ncclResult_t in_group(struct comm *comm, const struct cst_comm_call *call,
                             ncclResult_t (*parts)(struct comm *comm,
                                                   const struct cst_comm_call *call))
{
    ncclResult_t result = comm->nccl.ncclGroupStart(), end;

    if (result != ncclSuccess) {
        return result;
    }
    result = parts(comm, call);
    end = comm->nccl.ncclGroupEnd();
    return result == ncclSuccess || result == ncclInProgress ? end : result;
}

static ncclResult_t enqueue(struct comm *comm, const struct cst_comm_call *call)
{
    const struct cstc_nccl *nccl = &comm->nccl;
    const ncclDataType_t type = type_of(call->type).nccl;
    void *word = (void *)(uintptr_t)comm->word;

    switch (call->op) {
    case CST_COMM_BARRIER:
        return nccl->ncclAllReduce(word, word, 1, ncclFloat32, ncclSum, comm->handle, comm->stream);
    case CST_COMM_BROADCAST:
        return nccl->ncclBroadcast(
            call->in,
            comm->rank == call->root && call->out == NULL ? (void *)(uintptr_t)call->in : call->out,
            call->n_elems, type, (int)call->root, comm->handle, comm->stream);
    case CST_COMM_ALL_REDUCE:
        return nccl->ncclAllReduce(call->in, call->out, call->n_elems, type, ncclSum, comm->handle,
                                   comm->stream);
    case CST_COMM_ALL_GATHER:
        return are_equal(call->counts, comm->size)
                   ? nccl->ncclAllGather(call->in, call->out, call->counts[0], type, comm->handle,
                                         comm->stream)
                   : in_group(comm, call, gather_parts);
    case CST_COMM_REDUCE_SCATTER:
        return are_equal(call->counts, comm->size)
                   ? nccl->ncclReduceScatter(call->in, call->out, call->counts[0], type, ncclSum,
                                             comm->handle, comm->stream)
                   : in_group(comm, call, scatter_parts);
    case CST_COMM_ALL_TO_ALL:
        return in_group(comm, call, exchange_parts);
    }
    return ncclInvalidArgument;
}

static int start(void *arg, const struct cst_comm_call *call, struct cst_err *err)
{
    struct comm *comm = arg;
    int rc = cstc_cuda_enter(comm->cuda, err);

    if (rc == CST_OK) {
        rc = check(comm, enqueue(comm, call), err, "a collective");
    }
    comm->n_started += rc == CST_OK;
    return rc;
}

/* -- copies to the host and back -------------------------------------------------------------- */

static int use_host(void *arg, struct cst_err *err)
{
    struct comm *comm = arg;
    const int rc = cstc_cuda_enter(comm->cuda, err);

    comm->staged = true;
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
    if (rc == CST_OK && !comm->staged) {
        rc = check(comm, comm->nccl.ncclCommGetAsyncError(comm->handle, &state), err,
                   "the state of a communicator");
    }
    rc = rc == CST_OK && !comm->staged ? check(comm, state, err, "collectives") : rc;
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

static void close_comm(void *arg)
{
    struct comm *comm = arg;
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
    }
    free(comm->unreachable);
    free(comm->unreachable_list);
    free(comm);
}

static const struct cst_comm_device_calls calls = {
    .offer = offer,
    .join = join,
    .start = start,
    .use_host = use_host,
    .reserve = reserve,
    .copy = copy,
    .poll = poll,
    .wake = wake,
    .stop = stop,
    .close = close_comm,
    .spare = spare,
};

int cst_cuda_comm_open(struct cst_comm **out, struct cst_cuda *cuda, int group, void *stream,
                       struct cst_err *err)
{
    struct comm *comm = calloc(1, sizeof *comm);
    int rc;

    if (comm == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a communicator");
    }
    comm->cuda = cuda;
    comm->stream = stream;
    rc = cst_comm_open_device(out, cuda->job, group, &calls, comm, err);
    if (rc != CST_OK) {
        close_comm(comm);
    }
    return rc;
}
