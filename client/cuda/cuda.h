/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of libcistern-cuda: a job's GPU in this process, as the functions of
 * cistern/device.h. cuda.c opens and closes it, memory.c maps slabs, marks.c is the
 * program's stream and the marks in it, copies.c copies weights where the daemon leaves that to us.
 *
 *   the program's stream   ...work...| event 7 |...work...| event 8 |...
 *                                        \                    \
 *   side                                  wait, wake           wait, wake      (host functions)
 *                                               \                   \
 *   fd (epoll)                                   eventfd, and a timer, in case no host function
 *                                                runs because the GPU has failed
 *
 *   copies         weights from arenas | event 3 | weights | event 4 |   the program's stream waits
 *                                                                        for them where it must
 *
 * The program's stream is never held up: host functions are on a stream of their own. */
#ifndef CST_CLIENT_CUDA_H
#define CST_CLIENT_CUDA_H

#include "cistern/cuda.h"
#include "cistern/device.h"
#include "kernels/cuda/driver.h"

#include <sys/types.h>

#define CST_MARKS_LOOK_MS 100 /* how often one looks after a stream that says nothing */

struct cst_mark {
    CUevent event;   /* recorded on the program's stream */
    uint64_t number; /* of the mark; ascending */
};

#define CST_CUDA_COPIED 8 /* events behind copies; a later copy's stands for an earlier one */

/* Host memory that copies come from: one registration, made at the first copy. */
struct cst_host {
    void *base;
    uint64_t bytes;
    bool registered; /* with the driver */
};

struct cst_cuda {
    struct cst_cuda_driver driver;
    struct cst_device_calls calls;   /* what libcistern is given */
    pid_t pid;                       /* that opened it: CUDA does not outlive fork() */
    CUdevice device;                 /* number in this process */
    CUcontext context;               /* its primary context; NULL: not retained */
    char uuid[CST_CUDA_UUID_BYTES];  /* name of the device */
    CUstream stream;                 /* the program's */
    CUstream side;                   /* host functions run here; NULL: not made */
    int fd;                          /* epoll: wake and timer; -1: not open */
    int wake;                        /* eventfd, written when a mark has been reached */
    int timer;                       /* timerfd, runs while marks are open */
    bool timer_runs;                 /* it will fire */
    uint64_t last;                   /* number of the newest mark */
    uint64_t passed;                 /* number of the newest mark that has been reached */
    struct cst_mark *open;           /* marks not known to be reached: a ring of capacity entries */
    uint32_t first, n_open;          /* the oldest, and how many */
    uint32_t capacity;               /* of open and of idle */
    CUevent *idle;                   /* events without a mark */
    uint32_t n_idle;                 /* entries in idle */
    CUstream copies;                 /* of weights; NULL: none was made yet */
    CUevent copied[CST_CUDA_COPIED]; /* copy n is followed by event n modulo their number */
    uint32_t n_copied;               /* of them, made */
    uint64_t last_copy;              /* number of the newest copy */
    struct cst_host *hosts;          /* n_hosts of hosts_capacity; owned */
    uint32_t n_hosts, hosts_capacity;
};

/* Make the GPU's context the calling thread's. */
int cst_cuda_enter(struct cst_cuda *cuda, struct cst_err *err);

/* memory.c; as in cistern/device.h. */
int cst_cuda_map(void *arg, int fd, uint64_t bytes, void **base, struct cst_err *err);
void cst_cuda_unmap(void *arg, void *base, uint64_t bytes);
int cst_cuda_zero(void *arg, void *at, uint64_t bytes, struct cst_err *err);

/* Prepare the side stream and the descriptors. On failure cst_marks_close undoes what is done. */
int cst_marks_open(struct cst_cuda *cuda, struct cst_err *err);

/* Both streams are waited for first. */
void cst_marks_close(struct cst_cuda *cuda);

/* copies.c; as in cistern/device.h. */
int cst_cuda_map_host(void *arg, void *base, uint64_t bytes, struct cst_err *err);
void cst_cuda_unmap_host(void *arg, void *base, uint64_t bytes);
int cst_cuda_copy(void *arg, void *dst, const void *src, uint64_t bytes, uint64_t *number,
                  struct cst_err *err);
int cst_cuda_await(void *arg, uint64_t number, struct cst_err *err);

/* The stream of copies is waited for first. */
void cst_copies_close(struct cst_cuda *cuda);

/* marks.c; as in cistern/device.h. */
int cst_cuda_fence(void *arg, uint64_t *fence, struct cst_err *err);
int cst_cuda_done(void *arg, uint64_t *passed, struct cst_err *err);

#endif
