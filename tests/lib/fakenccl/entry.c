/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points of the stand-in for libnccl.so.2. All communicators are non-blocking:
 *
 *   a call --> pending: ncclInProgress, nothing is in the stream
 *   ncclCommGetAsyncError, after a few calls --> the work is in the stream: ncclSuccess
 *
 * A work is a host function of the stream, which waits for the other ranks, for ever if one has
 * died: NCCL's kernels do the same. A communicator lives until its last work has run. */
#include "kernels/cuda/driver.h"
#include "tests/lib/fakenccl/settings.h"
#include "tests/lib/fakenccl/work.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_PARTS = 64, /* Parts of one call or group. */
    MAX_POLLS = 3,  /* Most answers ncclInProgress before a call goes on. */
};

struct batch {
    struct ncclComm *comm;
    CUstream stream;
    struct work works[MAX_PARTS];
    size_t n_works;
};

struct ncclComm {
    _Atomic unsigned refs; /* The program's, and one for each batch. */
    _Atomic bool aborted;  /* Work gives up. */
    _Atomic int failed;    /* ncclResult_t of work that failed. */
    struct cst_cuda_driver driver;
    struct arena *arena; /* NULL: not yet mapped. */
    ncclUniqueId id;
    uint32_t rank, size;
    bool joined;           /* All ranks have mapped the arena. */
    struct batch *pending; /* The call that is not in the stream. */
    unsigned n_polls, n_calls;
};

static _Thread_local unsigned group_depth;
static _Thread_local struct batch *group; /* The calls of the group so far; NULL: none. */

static ncclResult_t misuse(const char *words)
{
    (void)fprintf(stderr, "fakenccl: misuse: %s\n", words);
    return ncclInvalidUsage;
}

static void unref(struct ncclComm *comm)
{
    if (atomic_fetch_sub(&comm->refs, 1) == 1) {
        arena_unmap(comm->arena, &comm->id);
        free(comm);
    }
}

/* -- what needs no communicator --------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetVersion(int *version)
{
    *version = settings_version();
    return settings_fault(__func__);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId);
ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
{
    const ncclResult_t fault = settings_fault(__func__);

    return fault != ncclSuccess || arena_make_id(uniqueId) ? fault : ncclSystemError;
}

const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const words[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};

    return (unsigned)result < sizeof words / sizeof words[0] ? words[result]
                                                             : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm);
const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}

/* -- joining ---------------------------------------------------------------------------------- */

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config)
{
    const ncclResult_t fault = settings_fault(__func__);
    struct ncclComm *new;

    if (fault != ncclSuccess) {
        return fault;
    }
    if (config == NULL || config->magic != NCCL_API_MAGIC || config->size < sizeof *config ||
        config->version < CSTC_NCCL_MIN_VERSION || config->blocking != 0) {
        return misuse("a communicator that blocks, or a bad configuration");
    }
    if (nranks < 1 || nranks > ARENA_MAX_RANKS || rank < 0 || rank >= nranks) {
        return ncclInvalidArgument;
    }
    new = calloc(1, sizeof *new);
    if (new == NULL || cst_cuda_driver_open(&new->driver, NULL) != CST_OK) {
        free(new);
        return ncclSystemError;
    }
    new->refs = 1;
    new->id = commId;
    new->rank = (uint32_t)rank;
    new->size = (uint32_t)nranks;
    *comm = new;
    return ncclInProgress;
}

/* Two ranks on one GPU are refused, as by NCCL. */
static ncclResult_t check_gpus(const struct ncclComm *comm)
{
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        if (rank != comm->rank &&
            memcmp(comm->arena->uuids[rank], comm->arena->uuids[comm->rank], 16) == 0) {
            return misuse("two ranks on one GPU");
        }
    }
    return ncclSuccess;
}

/* Go on with joining. */
static ncclResult_t join(struct ncclComm *comm)
{
    CUuuid uuid = {{0}};
    CUdevice device;

    if (comm->arena == NULL) {
        if (comm->driver.cuCtxGetDevice(&device) != CUDA_SUCCESS ||
            comm->driver.cuDeviceGetUuid(&uuid, device) != CUDA_SUCCESS) {
            return ncclUnhandledCudaError;
        }
        comm->arena = arena_map(&comm->id);
        if (comm->arena == NULL) {
            return ncclRemoteError;
        }
        memcpy(comm->arena->uuids[comm->rank], uuid.bytes, sizeof uuid.bytes);
        (void)atomic_fetch_add(&comm->arena->n_joined, 1);
    }
    if (atomic_load(&comm->arena->n_joined) < comm->size) {
        return ncclInProgress;
    }
    comm->joined = true;
    return check_gpus(comm);
}

/* -- calls ------------------------------------------------------------------------------------ */

/* A host function of the stream. */
static void CUDA_CB run(void *arg)
{
    struct batch *batch = arg;
    struct ncclComm *comm = batch->comm;
    const struct work_place place = {
        .arena = comm->arena, .rank = comm->rank, .size = comm->size, .aborted = &comm->aborted};
    const ncclResult_t fault = settings_fault("work");

    if (fault != ncclSuccess) {
        atomic_store(&comm->failed, (int)fault);
    } else {
        (void)work_run(&place, batch->works, batch->n_works);
    }
    free(batch);
    unref(comm);
}

/* The pending call goes to the stream. */
static ncclResult_t launch(struct ncclComm *comm)
{
    struct batch *batch = comm->pending;

    comm->pending = NULL;
    (void)atomic_fetch_add(&comm->refs, 1);
    if (comm->driver.cuLaunchHostFunc(batch->stream, run, batch) != CUDA_SUCCESS) {
        free(batch);
        unref(comm);
        return ncclUnhandledCudaError;
    }
    return ncclSuccess;
}

static ncclResult_t submit(struct batch *batch)
{
    struct ncclComm *comm = batch->comm;

    comm->pending = batch;
    comm->n_polls = 0;
    comm->n_calls++;
    return ncclInProgress;
}

/* Check that @comm can be called on @stream now, and find or make the batch for it. */
static ncclResult_t begin(struct ncclComm *comm, CUstream stream, size_t n_parts,
                          struct batch **out)
{
    struct batch *batch = group_depth > 0 ? group : NULL;

    if (comm == NULL || !comm->joined || comm->pending != NULL || atomic_load(&comm->aborted)) {
        return misuse("a call before ncclCommGetAsyncError has said ncclSuccess, or after the end");
    }
    if (batch == NULL) {
        batch = calloc(1, sizeof *batch);
        if (batch == NULL) {
            return ncclSystemError;
        }
        batch->comm = comm;
        batch->stream = stream;
        group = group_depth > 0 ? batch : NULL;
    }
    if (batch->comm != comm || batch->stream != stream) {
        return misuse("a group of several communicators or streams, which the stand-in lacks");
    }
    if (batch->n_works + n_parts > MAX_PARTS) {
        return misuse("a group of more calls than the stand-in takes");
    }
    *out = batch;
    return ncclSuccess;
}

static ncclResult_t end(struct batch *batch)
{
    return group_depth > 0 ? ncclSuccess : submit(batch);
}

static void add(struct batch *batch, const struct work *work)
{
    batch->works[batch->n_works++] = *work;
}

static ncclResult_t sum(const char *name, struct ncclComm *comm, CUstream stream,
                        const struct work *work)
{
    ncclResult_t result = settings_fault(name);
    struct batch *batch = NULL;

    if (result == ncclSuccess && work->type == ncclUint8) {
        result = ncclInvalidArgument; /* NCCL can; libcistern never asks for it. */
    }
    result = result == ncclSuccess ? begin(comm, stream, 1, &batch) : result;
    if (result != ncclSuccess) {
        return result;
    }
    add(batch, work);
    return end(batch);
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           CUstream stream);
ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           CUstream stream)
{
    (void)op;
    return sum(__func__, comm, stream,
               &(struct work){.kind = WORK_SUM,
                              .in = sendbuff,
                              .out = recvbuff,
                              .n_elems = count,
                              .receivers = UINT32_MAX,
                              .type = datatype});
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               CUstream stream);
ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               CUstream stream)
{
    (void)op;
    return sum(__func__, comm, stream,
               &(struct work){.kind = WORK_SUM,
                              .in = sendbuff,
                              .out = recvbuff,
                              .n_elems = recvcount,
                              .stride = recvcount,
                              .receivers = UINT32_MAX,
                              .type = datatype});
}

ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, CUstream stream);
ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, CUstream stream)
{
    (void)op;
    return sum(__func__, comm, stream,
               &(struct work){.kind = WORK_SUM,
                              .in = sendbuff,
                              .out = recvbuff,
                              .n_elems = count,
                              .receivers = UINT32_C(1) << root,
                              .type = datatype});
}

/* Every rank of @senders, one bit each, sends @bytes at @in to all, which go to @out, one after the
 * other. */
static ncclResult_t spread(const char *name, struct ncclComm *comm, CUstream stream,
                           uint32_t senders, const char *in, char *out, size_t bytes)
{
    ncclResult_t result = settings_fault(name);
    struct batch *batch = NULL;

    result = result == ncclSuccess ? begin(comm, stream, 2 * ARENA_MAX_RANKS, &batch) : result;
    if (result != ncclSuccess) {
        return result;
    }
    for (uint32_t i = 0; i < comm->size; i++) {
        if ((senders >> comm->rank & 1) != 0) {
            add(batch, &(struct work){.kind = WORK_SEND, .peer = i, .in = in, .bytes = bytes});
        }
        if ((senders >> i & 1) != 0) {
            add(batch, &(struct work){.kind = WORK_RECEIVE, .peer = i, .out = out, .bytes = bytes});
            out += bytes;
        }
    }
    return end(batch);
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm, CUstream stream);
ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm, CUstream stream)
{
    return spread(__func__, comm, stream, UINT32_C(1) << root, sendbuff, recvbuff,
                  count * work_elem_bytes(datatype));
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, CUstream stream);
ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, CUstream stream)
{
    return spread(__func__, comm, stream, UINT32_MAX, sendbuff, recvbuff,
                  sendcount * work_elem_bytes(datatype));
}

static ncclResult_t move(const char *name, struct ncclComm *comm, CUstream stream,
                         const struct work *work)
{
    ncclResult_t result = settings_fault(name);
    struct batch *batch = NULL;

    result = result == ncclSuccess ? begin(comm, stream, 1, &batch) : result;
    if (result != ncclSuccess) {
        return result;
    }
    add(batch, work);
    return end(batch);
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, CUstream stream);
ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, CUstream stream)
{
    return move(__func__, comm, stream,
                &(struct work){.kind = WORK_SEND,
                               .peer = (uint32_t)peer,
                               .in = sendbuff,
                               .bytes = count * work_elem_bytes(datatype)});
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, CUstream stream);
ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, CUstream stream)
{
    return move(__func__, comm, stream,
                &(struct work){.kind = WORK_RECEIVE,
                               .peer = (uint32_t)peer,
                               .out = recvbuff,
                               .bytes = count * work_elem_bytes(datatype)});
}

/* -- groups ----------------------------------------------------------------------------------- */

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupStart(void)
{
    const ncclResult_t fault = settings_fault(__func__);

    group_depth += fault == ncclSuccess;
    return fault;
}

ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclGroupEnd(void)
{
    const ncclResult_t fault = settings_fault(__func__);
    struct batch *batch = group;

    if (group_depth == 0) {
        return misuse("ncclGroupEnd without ncclGroupStart");
    }
    if (--group_depth > 0) {
        return fault;
    }
    group = NULL;
    if (fault != ncclSuccess || batch == NULL) {
        free(batch);
        return fault;
    }
    return submit(batch);
}

/* -- progress, and the end -------------------------------------------------------------------- */

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    const ncclResult_t fault = settings_fault(__func__);

    if (fault != ncclSuccess) {
        return fault;
    }
    if (atomic_load(&comm->failed) != ncclSuccess) {
        *asyncError = (ncclResult_t)atomic_load(&comm->failed);
    } else if (!comm->joined) {
        *asyncError = join(comm);
    } else if (comm->pending != NULL && comm->n_polls++ < comm->n_calls % (MAX_POLLS + 1)) {
        *asyncError = ncclInProgress;
    } else {
        *asyncError = comm->pending != NULL ? launch(comm) : ncclSuccess;
    }
    /* Work may have failed in the meantime. */
    if (*asyncError != ncclInProgress && *asyncError != ncclSuccess) {
        atomic_store(&comm->failed, (int)*asyncError);
    }
    return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags)
{
    const ncclResult_t fault = settings_fault(__func__);

    if (fault != ncclSuccess) {
        return fault;
    }
    if (revokeFlags != 0 || !comm->joined || atomic_load(&comm->aborted)) {
        (void)misuse("a communicator that is not joined, or is revoked already, is revoked");
        return ncclInvalidArgument;
    }
    atomic_store(&comm->aborted, true);
    return ncclInProgress;
}

ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    const ncclResult_t fault = settings_fault(__func__);

    atomic_store(&comm->aborted, true);
    free(comm->pending);
    comm->pending = NULL;
    unref(comm);
    return fault;
}
