/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL, loaded at run time. No part of cistern is linked with libnccl, and it is not needed to
 * build cistern: libnccl.so.2 is opened by name when a communicator is opened. This header declares
 * only what libcistern-cuda uses. Names, values, and layouts are those of NCCL's public header
 * nccl.h (src/nccl.h.in of https://github.com/NVIDIA/nccl), whose interface NCCL keeps within
 * version 2; cudaStream_t and CUstream are one type.
 *
 * Communicators do not block (blocking = 0). A call may return ncclInProgress, before its work is
 * in the stream. Then ncclCommGetAsyncError must be called until it says something else, and before
 * that no other function may be called for the communicator, except ncclCommAbort and
 * ncclCommRevoke. */
#ifndef CSTC_NCCL_H
#define CSTC_NCCL_H

#include "cistern/status.h"

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ncclComm *ncclComm_t;

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
} ncclResult_t;

typedef enum { ncclUint8 = 1, ncclFloat32 = 7, ncclBfloat16 = 9 } ncclDataType_t;

typedef enum { ncclSum = 0 } ncclRedOp_t;

/* The configuration as of NCCL 2.14, which is the first version that had one, and the oldest that
 * is used. Later versions read no more than `size` bytes, and use their defaults for all fields
 * that came after `version`. */
#define NCCL_API_MAGIC 0xcafebeef
#define CSTC_NCCL_MIN_VERSION 21400
typedef struct {
    size_t size;          /* Of this struct, in bytes. */
    unsigned int magic;   /* NCCL_API_MAGIC */
    unsigned int version; /* CSTC_NCCL_MIN_VERSION */
    int blocking;
} ncclConfig_t;

/* Every entry point that is used, as CALL(name, result, parameters). */
#define CSTC_NCCL_CALLS(CALL)                                                                      \
    CALL(ncclGetVersion, ncclResult_t, (int *version))                                             \
    CALL(ncclGetUniqueId, ncclResult_t, (ncclUniqueId * uniqueId))                                 \
    CALL(ncclCommInitRankConfig, ncclResult_t,                                                     \
         (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config))     \
    CALL(ncclCommAbort, ncclResult_t, (ncclComm_t comm))                                           \
    CALL(ncclCommGetAsyncError, ncclResult_t, (ncclComm_t comm, ncclResult_t * asyncError))        \
    CALL(ncclGetErrorString, const char *, (ncclResult_t result))                                  \
    CALL(ncclGetLastError, const char *, (ncclComm_t comm))                                        \
    CALL(ncclReduce, ncclResult_t,                                                                 \
         (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,             \
          ncclRedOp_t op, int root, ncclComm_t comm, CUstream stream))                             \
    CALL(ncclBroadcast, ncclResult_t,                                                              \
         (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,   \
          ncclComm_t comm, CUstream stream))                                                       \
    CALL(ncclAllReduce, ncclResult_t,                                                              \
         (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,             \
          ncclRedOp_t op, ncclComm_t comm, CUstream stream))                                       \
    CALL(ncclReduceScatter, ncclResult_t,                                                          \
         (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,         \
          ncclRedOp_t op, ncclComm_t comm, CUstream stream))                                       \
    CALL(ncclAllGather, ncclResult_t,                                                              \
         (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,         \
          ncclComm_t comm, CUstream stream))                                                       \
    CALL(ncclSend, ncclResult_t,                                                                   \
         (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,  \
          CUstream stream))                                                                        \
    CALL(ncclRecv, ncclResult_t,                                                                   \
         (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,        \
          CUstream stream))                                                                        \
    CALL(ncclGroupStart, ncclResult_t, (void))                                                     \
    CALL(ncclGroupEnd, ncclResult_t, (void))

/* Those that only newer versions have: the field is NULL otherwise. */
#define CSTC_NCCL_OPTIONAL_CALLS(CALL)                                                             \
    CALL(ncclCommRevoke, ncclResult_t, (ncclComm_t comm, int revokeFlags))

/* The opened library: a function pointer for each entry point, with its name. */
struct cstc_nccl {
    void *library;    /* Handle from dlopen. */
    uint32_t version; /* As ncclGetVersion counts: 22703 is 2.27.3. */
#define CSTC_NCCL_FIELD(name, result, parameters) result(*name) parameters;
    CSTC_NCCL_CALLS(CSTC_NCCL_FIELD)
    CSTC_NCCL_OPTIONAL_CALLS(CSTC_NCCL_FIELD)
#undef CSTC_NCCL_FIELD
};

/* Open libnccl.so.2, which stays loaded for the life of the process. Starts no thread and uses no
 * GPU. Any thread. CST_EUNSUPPORTED: it cannot be opened (with the message of dlopen), lacks an
 * entry point, or is older than CSTC_NCCL_MIN_VERSION; *nccl has the version if it is known. */
int cstc_nccl_open(struct cstc_nccl *nccl, struct cst_err *err);

/* Set @err to @what, followed by NCCL's words for @result, and those of the last error of @comm,
 * which may be NULL. Returns the status:
 *   - CST_OK for ncclSuccess and ncclInProgress; @err is not changed.
 *   - CST_EGPU for ncclUnhandledCudaError.
 *   - CST_EINTERNAL for all others. */
int cstc_nccl_check(const struct cstc_nccl *nccl, ncclComm_t comm, ncclResult_t result,
                    struct cst_err *err, const char *what);

#endif
