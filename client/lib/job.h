/* SPDX-License-Identifier: Apache-2.0 */
/* The internals of a job: one rank's declarations, layout, mapped pool and leases, and the one call
 * that may be pending. Internal header of libcistern. job.c and job_state.c define its functions.
 *
 * A job is owned by its client: cst_job_open makes it, and cst_disconnect frees it by
 * cstc_job_free. Used by the job's thread only, which is the one that uses the client at that time
 * (cistern.h: one thread at a time). There is no lock.
 *
 *   open -> declaring --commit--> committed --sync--> stepping --leave--> left
 *                                                     |      ^
 *                                    EPEERDIED, ESTALE|      |sync
 *                                                     v      |
 *                                                     void step
 *
 * Each call that can block is written as an advance function, which goes on as far as possible and
 * returns CST_EAGAIN if a reply is missing. The cst_try_... form of the call calls the advance
 * function once, the blocking form until it returns another status (cstc_job_drive). */
#ifndef CSTC_JOB_H
#define CSTC_JOB_H

#include "client/lib/call.h"
#include "client/lib/declare_message.h"
#include "client/lib/job_device.h"
#include "client/lib/edge.h"
#include "client/lib/unused.h"
#include "offload/worker/sequence.h"
#include "client/lib/segment.h"
#include "proto/job_name.h"

struct cstc_batch;

enum cstc_pending_kind {
    CSTC_PENDING_NONE,
    CSTC_PENDING_COMMIT,
    CSTC_PENDING_SYNC,
    CSTC_PENDING_BEGIN,
    CSTC_PENDING_STEP,
    CSTC_PENDING_NEXT,
};

/* The call that was begun and has not ended, with its arguments. A cst_try_... call that has
 * returned CST_EAGAIN must be repeated with the same arguments. */
struct cstc_pending {
    enum cstc_pending_kind kind;    /* NONE: no call is pending. */
    bool sent;                      /* STEP, NEXT: the request was sent. */
    double loss;                    /* NEXT: the loss of the unit that is done. */
    int op;                         /* BEGIN: the operator. */
    bool backward;                  /* BEGIN: the direction. */
    struct cst_hyper_params params; /* STEP: the parameters. */
};

/* Phases of cst_commit, in order. After a failure, the next cst_commit continues with the phase
 * that failed. */
enum cstc_commit_phase {
    CSTC_COMMIT_DECLARE, /* Send the declarations. */
    CSTC_COMMIT_COMMIT,  /* Wait for the other ranks and the arenas. */
    CSTC_COMMIT_LAYOUT,  /* Get the place of each tensor. */
    CSTC_COMMIT_POOL,    /* Get and map the slabs. */
    CSTC_COMMIT_EDGES,   /* Get and map the memory of this rank's edges. */
    CSTC_COMMIT_ARENAS,  /* Get and map the arenas, if this worker copies weights itself. */
    CSTC_COMMIT_LEASES,  /* Prepare the leases. */
    CSTC_COMMIT_DONE,
};

struct cst_comm;

/* What a job does with its communicators, of which @comm is the first in the list: functions of
 * client/comm, which lies above. */
struct cstc_comm_ops {
    /* The attempt is over, and @why is the cause: what they have on devices is given up, so that
     * streams do not wait for ranks that are gone. */
    void (*stop)(struct cst_comm *comm, const struct cst_err *why);
    /* As stop, when the connection to the daemon ends because of @why, before its socket is
     * closed. */
    void (*hang_up)(struct cst_comm *comm, const struct cst_err *why);
    /* As stop, for those of which the shared memory says that the attempt is over. The next call
     * that asks the daemon gets the cause. */
    void (*stop_over)(struct cst_comm *comm);
    /* Free them, when their client has ended its connection. @forked: this is a forked child, which
     * did not inherit the mappings. */
    void (*free)(struct cst_comm *comm, bool forked);
};

/* Progress of cst_commit. */
struct cstc_commit {
    enum cstc_commit_phase phase;      /* The phase to do now. */
    struct cstc_declare_cursor cursor; /* DECLARE: the declarations that the daemon accepted. */
    /* DECLARE: the declarations that the daemon will have accepted after the next reply. */
    struct cstc_declare_cursor asked;
    uint32_t n_placed; /* LAYOUT: number of tensors whose place is known. */
    uint32_t n_mapped; /* POOL: number of slabs that are mapped. */
    uint32_t n_edges;  /* EDGES: number of this rank's edges that are mapped. */
    /* EDGES: how often slots of edges were replaced before the first one was mapped. */
    uint32_t slots_replaced;
    /* EDGES: this rank cannot map the slots of edge `refused` in device memory, because of
     * `refusal`, and asks the daemon for slots in host memory. Status CST_OK: there is none. */
    uint32_t refused;
    struct cst_err refusal;
    bool has_refused; /* Slots were refused since the last sync began: other ranks have the old. */
};

/* The slabs of the pool with the blocks of one size class. */
struct cstc_slabs {
    uint32_t first; /* Index of the first one in cst_job.slabs. */
    uint32_t n;     /* Number of slabs. */
};

/* What CISTERN_DEBUG asks for (debug.h). */
struct cstc_debug {
    bool poison, guard;
};

struct cst_job {
    struct cst_client *client;     /* The connection, which owns this job. */
    char name[CST_JOB_NAME_BYTES]; /* NUL-terminated. */
    uint32_t rank;                 /* Number of this rank, from 0 to world - 1. */
    uint32_t world;                /* Number of ranks. */
    char device_name[64];          /* "host", "paced:N" or a UUID; NUL-terminated. */
    struct cstc_device device;     /* The device's functions, if the pool is not on the host. */
    uint8_t *opening;              /* Packed JobOpen, to open the job again. Owned. */
    size_t opening_bytes;          /* Its length. */
    uint32_t timeout_ms;           /* From struct cst_job_spec. */
    /* Monotonic time until which the daemon is waited for, ms; 0: it is not. */
    int64_t reopen_until_ms;
    bool reopening;               /* The job is being opened again (reopen.c). */
    bool left;                    /* cst_job_leave has succeeded. */
    struct cstc_debug debug;      /* See debug.h. */
    bool initialised;             /* A sync has completed in the job's life. */
    bool keeps;                   /* Once initialised, the job outlives the daemon's process. */
    bool synced;                  /* This worker has completed a sync: `attempt` is valid. */
    uint64_t steps;               /* Number of committed steps, as the daemon last told it. */
    bool told_run;                /* `cistern run` was told of a step (stepped.h). */
    uint64_t attempt;             /* Number of the attempt, sent in Batch and Step. */
    uint64_t unit;                /* Number of the unit got last in this step; 0: none. */
    uint32_t micro_batches;       /* Number of micro-batches per step, at least 1. */
    uint32_t unit_batches;        /* With stages: micro-batches of all rank blocks on this node. */
    uint32_t micro_batch;         /* Number of the current micro-batch in the step, from 0. */
    enum cst_optimizer optimizer; /* From struct cst_job_spec. */
    enum cst_moments moments;     /* From struct cst_job_spec. */
    bool weights_follow;       /* Weights cannot be written: they follow from the master weights. */
    bool device_states;        /* Some states are on accelerators. */
    bool has_base;             /* Frozen tensors are those of a base job. */
    enum cst_overlap overlap;  /* From struct cst_job_spec. */
    struct cstc_unused unused; /* Which tensors have no gradient in the step (unused.h). */
    /* Factors of the parameter groups 0 to n_param_groups - 1 (cst_param_groups). */
    uint32_t n_param_groups;
    double lr_factors[CST_MAX_PARAM_GROUPS], decay_factors[CST_MAX_PARAM_GROUPS];
    bool prepared;                 /* cst_prepare_step was called in this step. */
    Cistern__Hyper prepared_hyper; /* If prepared: the parameters that cst_prepare_step sent. */
    struct cst_model model;        /* Groups, tensors and operators that were declared. */
    struct cst_err declare_err;    /* Cause of the last declaration that failed. */
    struct cstc_commit commit;     /* Progress of cst_commit. */
    struct cst_plan plan;          /* Valid from CSTC_COMMIT_LAYOUT on. */
    struct cstc_slabs class_slabs[CST_PLAN_MAX_CLASSES]; /* Per size class: its slabs. */
    uint32_t n_slabs;                                    /* Number of slabs of the pool. */
    struct cstc_segment *slabs;                          /* n_slabs entries. Owned. */
    struct cstc_copier copier; /* Copies for puts and takes that were started. */
    struct cstc_edge *edges;   /* One per edge of the model; NULL: this rank has none. Owned. */
    /* How often slots of edges were replaced: when `edges` were mapped, and according to the last
     * sync. While they differ, the sync is not complete, but maps the edges again. */
    uint32_t edges_mapped, edges_wanted;
    uint32_t *tensor_chunk;               /* Per tensor: number of its chunk. Owned. */
    uint64_t *tensor_offset;              /* Per tensor: its first element in the chunk. Owned. */
    struct cst_lease_trait *traits;       /* Per chunk. Owned. */
    struct cst_lease_operator *operators; /* Per operator. Owned; their lists are `model`'s. */
    /* The leases, and the order of requests. Valid from CSTC_COMMIT_DONE on. */
    struct cst_sequence sequence;
    /* Why the current step is void, until the next sync; status CST_OK: it is not void. */
    struct cst_err void_step;
    /* Increases with each sync. Replies to batches of an earlier epoch are ignored. */
    uint32_t lease_epoch;
    struct cstc_batch *batches; /* All batches, in flight or not. Owned. */
    int begun;                  /* The operator that has begun, or -1. */
    bool begun_backward;        /* Direction of that operator. */
    /* Time in which this rank has looked in vain for what it waits for from other ranks, since it
     * asked the daemon, ms. It is of all waits together: when a job is removed, the daemon clears
     * its memory, and `over` in it, every half second. Slots look free each time, so that a single
     * wait may always be short. */
    uint32_t asleep_ms;
    struct cst_comm *comms;               /* Communicators that are open (client/comm). Owned. */
    const struct cstc_comm_ops *comm_ops; /* Of comms; valid if there are any. */
    struct cstc_pending pending;          /* The call that has begun and not ended. */
    struct cstc_call call;                /* Request of the pending commit, sync or step. */
};

/* Return the address of @tensor in the block of @lease. */
static inline void *cstc_job_address(const struct cst_job *job, const struct cst_lease *lease,
                                     uint32_t tensor)
{
    return (char *)job->slabs[lease->slab].base + lease->offset +
           cst_dtype_bytes(job->model.tensors[tensor].dtype) * job->tensor_offset[tensor];
}

/* Free @job and, unless this is a forked child, unmap its memory. @job may be NULL. The caller has
 * ended the connection (cstc_client_die), and no call of the job is in flight. */
void cstc_job_free(struct cst_job *job);

/* CST_OK if requests can be made for @job. CST_EINVAL: this rank has left the job. If the
 * connection is over, the status is the one of cstc_client_check. */
int cstc_job_check(const struct cst_job *job, struct cst_err *err);

/* The attempt is over because of @why, for the job's communicators. */
static inline void cstc_job_stop_comms(struct cst_job *job, const struct cst_err *why)
{
    if (job->comms != NULL) {
        job->comm_ops->stop(job->comms, why);
    }
}

/* As cstc_job_check. In addition, CST_EINVAL: the job is not committed. */
int cstc_job_check_committed(const struct cst_job *job, struct cst_err *err);

/* As cstc_job_check_committed. In addition, CST_EINVAL: no cst_sync has succeeded. If the step is
 * void, the status is the one that made it void. */
int cstc_job_check_step(const struct cst_job *job, struct cst_err *err);

/* Make @want the pending call, or continue it if it is pending. CST_EBUSY: another call is
 * pending. */
int cstc_job_pend(struct cst_job *job, const struct cstc_pending *want, struct cst_err *err);

/* Continue the pending call with @advance: if @block, until it ends; otherwise as far as possible,
 * and CST_EAGAIN if it has not ended. After any other status no call is pending. */
int cstc_job_drive(struct cst_job *job, int (*advance)(struct cst_job *job, struct cst_err *err),
                   bool block, struct cst_err *err);

/* Get the result of job->call, which the caller has started. CST_EAGAIN: there is no reply yet.
 * CST_OK: the caller reads job->call.reply and then resets the call. Other statuses: the call has
 * failed, and this function has reset it. */
int cstc_job_answer(struct cst_job *job, struct cst_err *err);

/* reopen.c: after the daemon's end, connect to its next process, open the job again and commit it.
 * @block: wait for that process; else CST_EAGAIN if it is not there yet. CST_ECONN: it did not come
 * in time. CST_ELOST: it does not have the job. Other statuses are those of cst_job_open and
 * cst_commit; the next call goes on. */
int cstc_job_reopen(struct cst_job *job, bool block, struct cst_err *err);

/* reopen.c: true if the connection has ended with *rc, and the job was opened again: the caller
 * repeats what it did outside of steps. *rc is the status if it could not be opened again. Does
 * nothing while an operator is begun, because the worker then uses the pool. */
bool cstc_job_goes_on(struct cst_job *job, int *rc, struct cst_err *err);

/* commit.c: drop what a commit has made, and begin again. */
void cstc_job_uncommit(struct cst_job *job);

/* commit.c: continue the commit, for cstc_job_drive. */
int cstc_job_advance_commit(struct cst_job *job, struct cst_err *err);

/* commit.c: get and map the edges of this rank that are not mapped, for cstc_job_drive. If slots in
 * device memory cannot be mapped, the daemon makes them again in host memory. */
int cstc_job_advance_edges(struct cst_job *job, struct cst_err *err);

/* Make the current step void, because of @cause. If it is void already, its first cause is kept. */
void cstc_job_void(struct cst_job *job, const struct cst_err *cause);

/* End the connection, because the daemon sent something impossible, which @why describes. Returns
 * the status that ended the connection: CST_EPROTO, unless the connection was over already. */
int cstc_job_distrust(struct cst_job *job, const struct cst_err *why, struct cst_err *err);

#endif
