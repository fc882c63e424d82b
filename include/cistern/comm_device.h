/* SPDX-License-Identifier: Apache-2.0 */
/* How libcistern carries out collectives on arrays in the memory of a device: through functions
 * that a second library provides, as in cistern/device.h. A program uses cst_cuda_comm_open of
 * cistern/cuda.h and does not need this header.
 *
 *   - cst_comm_open_device calls offer(), which says what this rank can. The daemon collects the
 *     offers of all ranks and chooses. Then join() begins, and poll() is called until it has ended;
 *     or use_peers() or use_host(), if the group does not use NCCL. If that fails in a rank of the
 *     group, restart() is called in all of them, and everything begins again with offer(), without
 *     what has failed.
 *   - cst_comm_start calls start(), and poll() until the call is in the stream. In a group that
 *     uses memory of the GPUs it calls mark(), and then copy_peer(), add_up() and settle() until
 *     the arrays are exchanged. In a group that uses host memory it calls copy(), exchanges the
 *     arrays there, and calls copy() again.
 *   - cst_comm_wait calls poll() for a short time, then wake(), and sleeps until the call has
 *     ended.
 *   - After a death stop() is called: no work of the communicator holds up the stream any more.
 *   - cst_comm_close calls close(). */
#ifndef CISTERN_COMM_DEVICE_H
#define CISTERN_COMM_DEVICE_H

#include "cistern/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CST_COMM_DEVICE_ID_BYTES 128

/* What a rank can. */
struct cst_comm_device_offer {
    /* Version of NCCL in this process, as ncclGetVersion counts; 0: it cannot be used. */
    uint32_t nccl_version;
    struct cst_err nccl_error; /* Why nccl_version is 0. */
    bool in_order;             /* Sums must be taken in the order of the ranks. */
    /* UUIDs of GPUs that this process sees, and whose memory its GPU cannot access. Owned by the
     * device until close. */
    const char *const *unreachable;
    size_t n_unreachable; /* Number of entries of unreachable. */
    /* UUIDs of other GPUs that this process sees and whose memory its GPU can access. Owned by the
     * device until close. */
    const char *const *reachable;
    size_t n_reachable;                         /* Number of entries of reachable. */
    unsigned char id[CST_COMM_DEVICE_ID_BYTES]; /* For all ranks of the group. */
};

/* How far the work of a communicator is. */
struct cst_comm_device_progress {
    bool in_stream;   /* join and all calls that were started are enqueued. */
    uint64_t n_ended; /* Number of calls that the stream has done, in their order. */
};

/* The functions of a device. `arg` is the pointer that cst_comm_open_device was given. A function
 * that returns int returns CST_OK, or a negative status with its cause in *err. After that only
 * spare, poll, wake, stop, restart and close are called: copies that were enqueued before can still
 * end. No function waits for other ranks. They are called by the thread that uses the communicator.
 * A thread of libcistern, which watches the other ranks, also calls stop. No two functions run at
 * the same time. */
struct cst_comm_device_calls {
    /* Fill *offer, which is zeroed. @makes_id: this is the first rank of the group, and makes the
     * id, if nccl_version is not 0. */
    int (*offer)(void *arg, bool makes_id, struct cst_comm_device_offer *offer,
                 struct cst_err *err);
    /* Begin to join the communicator with @id, as rank @rank of @size. */
    int (*join)(void *arg, uint32_t rank, uint32_t size,
                const unsigned char id[CST_COMM_DEVICE_ID_BYTES], struct cst_err *err);
    /* Begin to enqueue @call, which has been checked. Called only if all earlier calls are in the
     * stream. */
    int (*start)(void *arg, const struct cst_comm_call *call, struct cst_err *err);
    /* The following five are for a group that does not use NCCL, and whose ranks access each
     * other's memory. Each rank has slots on its GPU, which all ranks map by the functions of
     * cistern/device.h. Begin, instead of join. NULL: this device cannot do that. */
    int (*use_peers)(void *arg, struct cst_err *err);
    /* Count as a call what is in the stream: it ends when the stream has done all of that. */
    int (*mark)(void *arg, struct cst_err *err);
    /* Enqueue a copy on the device. Does not count as a call. */
    int (*copy_peer)(void *arg, void *dst, const void *src, size_t bytes, struct cst_err *err);
    /* Enqueue the sum of @n_elems elements of @n_src arrays, in fp32 and in their order, as
     * cistern/comm.h has it. @type is bf16 or fp32. @dst may be one of @src. Does not count as a
     * call. */
    int (*add_up)(void *arg, enum cst_comm_type type, size_t n_elems, uint32_t n_src,
                  const void *const *src, void *dst, struct cst_err *err);
    /* Wait until the stream has done all of that. */
    int (*settle)(void *arg, struct cst_err *err);
    /* The following three are for all other groups. The ranks exchange their arrays in host memory.
     * Begin, instead of join. */
    int (*use_host)(void *arg, struct cst_err *err);
    /* Get at least @bytes of host memory for copies, *base, until the next call of this function or
     * close. The contents are lost. Called only if all copies have ended. */
    int (*reserve)(void *arg, size_t bytes, void **base, struct cst_err *err);
    /* Enqueue a copy between this memory and the device. It counts as a call. */
    int (*copy)(void *arg, void *dst, const void *src, size_t bytes, bool to_device,
                struct cst_err *err);
    /* Go on, and say how far everything is. */
    int (*poll)(void *arg, struct cst_comm_device_progress *progress, struct cst_err *err);
    /* Let @fn be called with @fn_arg when the first @n_calls calls have ended, of which poll has
     * said that they are in the stream. A thread that sleeps is woken so. @fn may be called in any
     * thread, and after close; it calls nothing of the device. It need not be called if the device
     * fails, which poll reports. */
    int (*wake)(void *arg, uint64_t n_calls, void (*fn)(void *fn_arg), void *fn_arg,
                struct cst_err *err);
    /* Give up what has not ended. The stream passes all work of the communicator afterwards. May be
     * called again. */
    void (*stop)(void *arg);
    /* Stop, and free @arg. */
    void (*close)(void *arg);
    /* After offer: no rank of the group will join with the id, so that a later communicator can
     * offer it again. Called before use_host, or after the opening has failed. */
    void (*spare)(void *arg);
    /* Give up what offer, join or use_peers have begun, so that offer can be called again. NULL:
     * this device cannot do that, and opening fails where join or use_peers fails. */
    void (*restart)(void *arg);
};

/* As cst_comm_open, for arrays in the memory of a device. @calls is borrowed until the communicator
 * is closed. After success @arg belongs to the communicator; after a failure it belongs to the
 * caller, who closes it. Statuses: those of cst_comm_open and of the functions. */
int cst_comm_open_device(struct cst_comm **out, struct cst_job *job, int group,
                         const struct cst_comm_device_calls *calls, void *arg, struct cst_err *err);

#ifdef __cplusplus
}
#endif

#endif
