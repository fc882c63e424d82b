/* SPDX-License-Identifier: Apache-2.0 */
/* The communicators of a job, for the rest of libcistern. cistern/comm.h has the public functions.
 * open.c opens communicators of a job, comm.c closes them and has the calls, and device_comm.c
 * carries out calls on arrays in the memory of a device. */
#ifndef CSTC_COMM_H
#define CSTC_COMM_H

#include "cistern/comm_device.h"
#include "client/comm/device_peers.h"
#include "client/comm/flow.h"
#include "client/comm/wakeup.h"
#include "client/comm/watch.h"
#include "client/lib/job.h"

struct cstc_comm_threads; /* Memory of ranks that are threads. Private to comm.c. */

struct cst_comm {
    struct cst_comm *next;  /* Next in the list of the job. */
    struct cst_comm **link; /* The pointer in that list that points to this communicator. */
    struct cst_job *job;    /* NULL: the ranks are threads, and the next fields are not used. */
    struct cstc_comm_threads *threads; /* NULL: the ranks are workers of a job. */
    uint64_t id;                       /* The daemon's number of the communicator. */
    uint64_t epoch;                    /* The daemon process that made it. */
    uint32_t lease_epoch;              /* The job's sync after which it was opened. */
    uint32_t timeout_ms;               /* Longest wait for a rank that does nothing. */
    struct cstc_segment segment;       /* The shared memory. */
    struct cstc_flow flow;
    /* Functions of the device that has the arrays; NULL: they are in host memory, and the fields
     * below are not used. */
    const struct cst_comm_device_calls *device;
    void *device_arg;          /* First argument of these functions; owned. */
    struct cstc_wakeup wakeup; /* Through it the device wakes the thread that waits for it. */
    struct cstc_watch watch;   /* Gives up what the device waits for, while the program waits. */
    uint32_t said;             /* What this rank's line in the shared memory says (progress.h). */
    uint64_t n_compared;   /* By NCCL: number of calls that all ranks make alike (agreement.h). */
    uint64_t n_started;    /* Number of calls that were started. */
    uint64_t n_ended;      /* Number of calls that the device has done. */
    struct cst_err failed; /* Why no call ends any more; status CST_OK: calls end. */
    /* What the device has reported, while its cause is awaited; status CST_OK: nothing. */
    struct cst_err suspected;
    uint64_t cause_by_ns; /* By CLOCK_MONOTONIC: then `suspected` itself is the cause. */
    /* `flow` exchanges arrays, which the device copies to the host and back, or (peers) in slots on
     * the ranks' GPUs. */
    bool by_flow;
    struct cstc_peers peers;
    uint64_t n_works; /* Number of works of the device that were started: calls, or copies. */
    uint64_t n_done;  /* Number of those that it has done. */
    /* Call i has ended when works up to this one are done. Entry i mod CST_COMM_MAX_CALLS. */
    uint64_t ends[CST_COMM_MAX_CALLS];
    /* After a failure: calls that were started end all the same (progress.h). */
    bool finishes;
};

/* cstc_flow_wait_fn: wait for ranks that are workers of a job. @arg is the communicator. */
int cstc_comm_wait_workers(void *arg, struct cst_shared_head *head, bool (*ready)(void *ready_arg),
                           void *ready_arg, struct cst_err *err);

/* What the job does with its communicators (client/lib/job.h). */
extern const struct cstc_comm_ops cstc_comm_ops;

/* Members of cstc_comm_ops, in device_failure.c. */
void cstc_comm_stop_all(struct cst_comm *comm, const struct cst_err *why);
void cstc_comm_hang_up_all(struct cst_comm *comm, const struct cst_err *why);
void cstc_comm_stop_over(struct cst_comm *comm);

#endif
