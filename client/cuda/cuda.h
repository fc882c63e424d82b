/* SPDX-License-Identifier: Apache-2.0 */
/* Internal header of libcistern-cuda: the GPU of a job in this process, which implements the
 * functions of cistern/device.h. cuda.c opens and closes it. memory.c maps slabs. marks.c handles
 * the program's stream and the marks in it. copies.c copies weights, if the daemon leaves copies to
 * the worker, and arrays of edges. comm.c carries out collectives, by NCCL (nccl_calls.h) or in
 * slots on the ranks' GPUs (peers.h). Used by the job's thread only; a function that the driver
 * runs in a thread of its own writes to `wake`.
 *
 *   the program's stream   ...work...| event 7 |...work...| event 8 |...
 *                                        \                    \
 *   side stream                           wait, wake           wait, wake      (host functions)
 *                                               \                   \
 *   fd (epoll)                                   eventfd, and a timer, in case no host function
 *                                                runs because the GPU has failed
 *
 *   weights        copies from arenas | event 3 | copies | event 4 |   the program's stream waits
 *                                                                      for them if necessary
 *   arrays         copies to edges and back | event 9 | ...            each begins after the work
 *                                                                      that the stream had
 *
 * The host functions run in the side stream, because they would hold up the program's stream. */
#ifndef CST_CLIENT_CUDA_H
#define CST_CLIENT_CUDA_H

#include "cistern/comm_device.h"
#include "cistern/cuda.h"
#include "cistern/device.h"
#include "kernels/cuda/driver.h"

#include <sys/types.h>

/* Interval between checks of a stream that does not wake the program, in milliseconds. */
#define CSTC_MARKS_LOOK_MS 100

struct cstc_mark {
    CUevent event;   /* Recorded in the program's stream. */
    uint64_t number; /* Number of the mark; numbers increase. */
};

/* Number of events that follow the copies of a queue. A later copy reuses the event of an earlier
 * one. */
#define CSTC_CUDA_COPIED 8

/* Copies in a stream of their own. Zeros: there is no stream, and no copy was enqueued. */
struct cstc_queue {
    CUstream stream;                  /* NULL: not created. */
    CUevent copied[CSTC_CUDA_COPIED]; /* Event n % CSTC_CUDA_COPIED follows copy n. */
    uint32_t n_copied;                /* Number of events in copied that are created. */
    uint64_t last;                    /* Number of the newest copy. */
};

/* Host memory that copies use: arenas with weights, and edges. It is registered with the driver as
 * a whole, by the first copy. */
struct cstc_host {
    void *base;
    uint64_t bytes;
    bool registered; /* Registered with the driver. */
    bool refused;    /* The driver did not register it, and copies it through memory of its own. */
};

struct cst_cuda {
    struct cst_cuda_driver driver;
    struct cst_job *job;            /* Borrowed. */
    struct cst_device_calls calls;  /* The functions that libcistern calls. */
    pid_t pid;                      /* Process that opened it: CUDA does not survive fork(). */
    CUdevice device;                /* Number of the GPU in this process. */
    CUcontext context;              /* The GPU's primary context; NULL: not retained. */
    char uuid[CST_CUDA_UUID_BYTES]; /* UUID of the GPU. */
    CUstream stream;                /* The program's stream. Borrowed. */
    CUstream side;                  /* Stream of the host functions; NULL: not created. */
    int fd;                         /* epoll of wake and timer; -1: not open. */
    int wake;                       /* eventfd, written when the stream has passed a mark. */
    int timer;                      /* timerfd, runs while marks are open. */
    bool timer_runs;                /* The timer will fire. */
    uint64_t last;                  /* Number of the newest mark. */
    uint64_t passed;                /* Number of the newest mark that the stream has passed. */
    struct cstc_mark *open;         /* Marks that may not be passed: a ring of capacity entries. */
    uint32_t first, n_open;         /* Index of the oldest open mark; number of open marks. */
    uint32_t capacity;              /* Number of entries in open, and in idle. */
    CUevent *idle;                  /* Events that no open mark uses. */
    uint32_t n_idle;                /* Number of entries in idle. */
    struct cstc_queue weights, arrays; /* Copies of weights, and of arrays of edges. */
    /* Recorded in the program's stream before a copy of an array; NULL: not created. */
    CUevent put;
    struct cstc_host *hosts;          /* Memory known by map_host. Owned. */
    uint32_t n_hosts, hosts_capacity; /* Numbers of entries in hosts, used and allocated. */
    /* The newest unique id of NCCL that this rank has made, and whether nobody joins with it. For
     * each id NCCL keeps a thread and a socket until all ranks have joined, and there is no
     * function that frees them. */
    unsigned char nccl_id[CST_COMM_DEVICE_ID_BYTES];
    bool nccl_id_is_spare;
};

/* context.c */

/* Make the GPU's context current in the calling thread. CST_EGPU. */
int cstc_cuda_enter(struct cst_cuda *cuda, struct cst_err *err);

/* Create a stream for host functions, which the caller destroys. It has the highest priority: host
 * functions must not wait for kernels of other streams. CST_EGPU. */
int cstc_cuda_side_stream(struct cst_cuda *cuda, CUstream *out, struct cst_err *err);

/* memory.c: functions of cistern/device.h. */
int cstc_cuda_map(void *arg, int fd, uint64_t bytes, void **base, struct cst_err *err);
void cstc_cuda_unmap(void *arg, void *base, uint64_t bytes);
int cstc_cuda_zero(void *arg, void *at, uint64_t bytes, struct cst_err *err);

/* Create the side stream and the descriptors. After a failure, cstc_marks_close undoes what was
 * done. */
int cstc_marks_open(struct cst_cuda *cuda, struct cst_err *err);

/* Wait for the program's stream and the side stream, then free everything. */
void cstc_marks_close(struct cst_cuda *cuda);

/* copies.c: functions of cistern/device.h. */
int cstc_cuda_map_host(void *arg, void *base, uint64_t bytes, struct cst_err *err);
void cstc_cuda_unmap_host(void *arg, void *base, uint64_t bytes);
int cstc_cuda_copy(void *arg, void *dst, const void *src, uint64_t bytes, uint64_t *number,
                   struct cst_err *err);
int cstc_cuda_await(void *arg, uint64_t number, struct cst_err *err);
int cstc_cuda_copy_array(void *arg, void *dst, const void *src, uint64_t bytes, uint64_t *number,
                         struct cst_err *err);
int cstc_cuda_await_array(void *arg, uint64_t number, bool blocks, struct cst_err *err);

/* Wait for the streams of the copies, then free everything. */
void cstc_copies_close(struct cst_cuda *cuda);

/* marks.c: functions of cistern/device.h. */
int cstc_cuda_fence(void *arg, uint64_t *fence, struct cst_err *err);
int cstc_cuda_done(void *arg, uint64_t *passed, struct cst_err *err);

#endif
