/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cuda/nccl_calls.h"

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
static ncclResult_t gather_parts(const struct cstc_nccl_comm *comm,
                                 const struct cst_comm_call *call)
{
    const struct type type = type_of(call->type);
    ncclResult_t result = ncclSuccess;
    char *out = call->out;

    for (uint32_t i = 0; i < comm->size && (result == ncclSuccess || result == ncclInProgress);
         i++) {
        if (call->counts[i] > 0) {
            result =
                comm->nccl->ncclBroadcast(i == comm->rank ? call->in : out, out, call->counts[i],
                                          type.nccl, (int)i, comm->handle, comm->stream);
        }
        out += call->counts[i] * type.bytes;
    }
    return result;
}

/* Parts of different lengths: one reduction per rank. */
static ncclResult_t scatter_parts(const struct cstc_nccl_comm *comm,
                                  const struct cst_comm_call *call)
{
    const struct type type = type_of(call->type);
    ncclResult_t result = ncclSuccess;
    const char *in = call->in;

    for (uint32_t i = 0; i < comm->size && (result == ncclSuccess || result == ncclInProgress);
         i++) {
        if (call->counts[i] > 0) {
            result = comm->nccl->ncclReduce(in, i == comm->rank ? call->out : NULL, call->counts[i],
                                            type.nccl, ncclSum, (int)i, comm->handle, comm->stream);
        }
        in += call->counts[i] * type.bytes;
    }
    return result;
}

/* A send to each rank and a receive from each, the own one included. */
static ncclResult_t exchange_parts(const struct cstc_nccl_comm *comm,
                                   const struct cst_comm_call *call)
{
    const struct type type = type_of(call->type);
    ncclResult_t result = ncclSuccess;
    const char *in = call->in;
    char *out = call->out;

    for (uint32_t i = 0; i < comm->size && (result == ncclSuccess || result == ncclInProgress);
         i++) {
        if (call->counts[i] > 0) {
            result = comm->nccl->ncclSend(in, call->counts[i], type.nccl, (int)i, comm->handle,
                                          comm->stream);
        }
        if (call->recv_counts[i] > 0 && (result == ncclSuccess || result == ncclInProgress)) {
            result = comm->nccl->ncclRecv(out, call->recv_counts[i], type.nccl, (int)i,
                                          comm->handle, comm->stream);
        }
        in += call->counts[i] * type.bytes;
        out += call->recv_counts[i] * type.bytes;
    }
    return result;
}

/* Make several calls that NCCL carries out together. The group is ended in any case. */
static ncclResult_t in_group(const struct cstc_nccl_comm *comm, const struct cst_comm_call *call,
                             ncclResult_t (*parts)(const struct cstc_nccl_comm *comm,
                                                   const struct cst_comm_call *call))
{
    ncclResult_t result = comm->nccl->ncclGroupStart(), end;

    if (result != ncclSuccess) {
        return result;
    }
    result = parts(comm, call);
    end = comm->nccl->ncclGroupEnd();
    return result == ncclSuccess || result == ncclInProgress ? end : result;
}

ncclResult_t cstc_nccl_enqueue(const struct cstc_nccl_comm *comm, const struct cst_comm_call *call)
{
    const struct cstc_nccl *nccl = comm->nccl;
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
