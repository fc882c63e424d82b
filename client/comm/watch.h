/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that watches a communicator by NCCL. A program can wait for its stream without
 * libcistern (cuStreamSynchronize), and the stream for a rank that has died. The thread sleeps on
 * the head of the shared memory. It gives up the calls in the stream, so that the stream goes on,
 *   - when the daemon says there that the attempt is over, or has given the memory back,
 *   - when a rank closes its communicator before it has done these calls,
 *   - when two ranks make different calls (agreement.h),
 *   - when the connection to the daemon has ended,
 *   - when the job's thread says that the communicator has failed.
 * It asks the daemon nothing: the job's thread learns the cause by its next call (device_comm.c).
 * It believes the shared memory, in which any rank of the group can write: a rank that wrote a
 * wrong number ends the communicator, as it could by dying.
 *
 * Two threads use the device then, but never at the same time: `lock` is held meanwhile. */
#ifndef CSTC_WATCH_H
#define CSTC_WATCH_H

#include "cistern/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct cst_comm;

struct cstc_watch {
    pthread_mutex_t lock; /* For the device, what the shared memory says of calls, and: */
    int sock;             /* Connection to the daemon. Borrowed; -1: it has ended. */
    bool quits;           /* The thread is to end. */
    bool has_failed;      /* The job's thread says that the communicator has failed. */
    bool has_noticed;     /* The thread has noticed the end, and ends. */
    bool has_stopped;     /* The device was told to stop. What ends afterwards was given up. */
    uint64_t attempt;     /* The job's attempt. Does not change while the thread runs. */
    pthread_t thread;
    bool runs; /* There is a thread. For the job's thread only. */
};

/* Make the lock of @comm. */
void cstc_watch_init(struct cst_comm *comm);

/* Start the thread. CST_ENOMEM. */
int cstc_watch_start(struct cst_comm *comm, struct cst_err *err);

/* The connection to the daemon ends: its socket will be closed. */
void cstc_watch_hang_up(struct cst_comm *comm);

/* The communicator has failed. The thread gives up the calls in the stream that do not end by
 * themselves (CSTC_PROGRESS_END_MS). */
void cstc_watch_fail(struct cst_comm *comm);

/* End the thread, if there is one. The shared memory is mapped still. @forked: this is a forked
 * child, which has no such thread. */
void cstc_watch_end(struct cst_comm *comm, bool forked);

#endif
