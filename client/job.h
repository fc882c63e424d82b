/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a job: one rank's declarations, layout, mapped pool, leases, and the one call that
 * may be pending.
 *
 *   open -> declaring --commit--> committed --sync--> stepping --leave--> left
 *                                                     |      ^
 *                                    EPEERDIED, ESTALE|      |sync
 *                                                     v      |
 *                                                     void step
 *
 * What blocks is written as an advance function that goes as far as it can and returns CST_EAGAIN
 * where a reply is missing. The try forms call it once, the blocking forms until it has ended. */
#ifndef CST_JOB_H
#define CST_JOB_H

#include "client/call.h"
#include "client/declare.h"
#include "client/device.h"
#include "client/lease.h"
#include "client/segment.h"

struct cst_batch;

enum cst_pending_kind {
    CST_PENDING_NONE,
    CST_PENDING_COMMIT,
    CST_PENDING_SYNC,
    CST_PENDING_BEGIN,
    CST_PENDING_STEP,
};

/* The call that a try form has begun and not finished, with the arguments that must come again. */
struct cst_pending {
    enum cst_pending_kind kind;     /* NONE: nothing is pending */
    bool planned;                   /* STEP: the hand-ins, which may wait for the device */
    bool sent;                      /* BEGIN: the batch; STEP: the request */
    bool wanted;                    /* BEGIN: it was said that what was asked ahead is waited for */
    int op;                         /* BEGIN */
    bool backward;                  /* BEGIN */
    struct cst_hyper_params params; /* STEP */
};

/* How far a commit has come. A commit that failed is taken up here again. */
enum cst_commit_phase {
    CST_COMMIT_DECLARE, /* sending declarations */
    CST_COMMIT_COMMIT,  /* waiting for the other ranks and the arenas */
    CST_COMMIT_LAYOUT,  /* fetching where each tensor lies */
    CST_COMMIT_POOL,    /* fetching and mapping slabs */
    CST_COMMIT_ARENAS,  /* the same with arenas, where this worker copies weights itself */
    CST_COMMIT_LEASES,  /* making the books of leases */
    CST_COMMIT_DONE,
};

struct cst_commit {
    enum cst_commit_phase phase;      /* the one to do now */
    struct cst_declare_cursor cursor; /* DECLARE: what is accepted */
    struct cst_declare_cursor asked;  /* DECLARE: what is accepted when the reply comes */
    uint32_t n_placed;                /* LAYOUT: tensors whose place is known */
    uint32_t n_mapped;                /* POOL: slabs */
};

/* Slabs of the pool that hold the blocks of one size class. */
struct cst_slabs {
    uint32_t first; /* index into cst_job.slabs */
    uint32_t n;     /* how many */
};

struct cst_job {
    struct cst_client *client;         /* owns this job */
    char name[CST_DECLARE_NAME_BYTES]; /* NUL-terminated */
    uint32_t rank;                     /* 0..world-1 */
    uint32_t world;                    /* ranks */
    char device_name[64];              /* "host" or a UUID; NUL-terminated */
    struct cst_device device;          /* the calls that it takes, if it is not the host */
    bool left;                         /* cst_job_leave was called */
    bool poison;                       /* $CISTERN_DEBUG asks for it, see poison.h */
    bool initialised;                  /* a sync has completed in the job's life */
    bool synced;                       /* by this worker: attempt is valid */
    uint64_t steps;                    /* committed, as last heard */
    uint64_t attempt;                  /* goes into Batch and Step */
    uint32_t micro_batches;            /* per step, at least 1 */
    uint32_t micro_batch;              /* of the step under way, the one under way, from 0 */
    enum cst_optimizer optimizer;      /* as opened, as is overlap */
    enum cst_overlap overlap;
    bool prepared;                 /* the step under way, with prepared_hyper */
    Cistern__Hyper prepared_hyper; /* as sent */
    struct cst_declare declare;    /* groups, tensors and operators */
    struct cst_err declare_err;    /* of the last cst_tensor or cst_operator that failed */
    struct cst_commit commit;      /* how far it has come */
    struct cst_plan plan;          /* from COMMIT_LAYOUT on */
    struct cst_slabs class_slabs[CST_PLAN_MAX_CLASSES]; /* by size class */
    uint32_t n_slabs;                                   /* of the pool */
    struct cst_segment *slabs;                          /* n_slabs */
    struct cst_segment staging;                         /* mapped at the first read or write */
    uint32_t *tensor_chunk;                             /* per tensor */
    uint64_t *tensor_offset;              /* per tensor: elements from its chunk's start */
    struct cst_lease_trait *traits;       /* per chunk */
    struct cst_lease_operator *operators; /* borrow the declaration's lists */
    struct cst_leases leases;             /* valid from COMMIT_DONE on */
    struct cst_err void_step;  /* status != 0: the step under way is void until cst_sync, and why */
    uint32_t lease_epoch;      /* grows with each sync: replies from before are dropped */
    struct cst_batch *batches; /* all batches, in flight or not */
    uint32_t n_awaited;        /* batches in flight that the pending call waits for */
    struct cst_err awaited;    /* first failure among them */
    int begun;                 /* operator, or -1 */
    bool begun_backward;       /* its direction */
    struct cst_pending pending; /* the call to repeat */
    struct cst_call call;       /* of the pending call, commit, sync and step */
};

/* Free @job and unmap its memory (not in a forked child). NULL is allowed. The connection is over.
 */
void cst_job_free(struct cst_job *job);

/* CST_OK if requests can be made for this job. CST_EINVAL: it was left. */
int cst_job_check(const struct cst_job *job, struct cst_err *err);

/* As cst_job_check, and it is committed. */
int cst_job_check_committed(const struct cst_job *job, struct cst_err *err);

/* As cst_job_check_committed, and a step can go on: synced, and not void. */
int cst_job_check_step(const struct cst_job *job, struct cst_err *err);

/* Make @want the pending call, or go on with it if it is. CST_EBUSY: another one is pending. */
int cst_job_pend(struct cst_job *job, const struct cst_pending *want, struct cst_err *err);

/* Drive the pending call: to its end if @block, else as far as it goes (CST_EAGAIN). Nothing is
 * pending afterwards unless CST_EAGAIN is returned. */
int cst_job_drive(struct cst_job *job, int (*advance)(struct cst_job *job, struct cst_err *err),
                  bool block, struct cst_err *err);

/* For job->call, once started: CST_EAGAIN while in flight; a failure, and the call is reset;
 * CST_OK: the caller reads the reply and resets it. */
int cst_job_answer(struct cst_job *job, struct cst_err *err);

/* The step under way is void, because of @cause. The first cause stays. */
void cst_job_void(struct cst_job *job, const struct cst_err *cause);

/* The daemon said something that cannot be: the connection ends with CST_EPROTO and @why's words.
 */
int cst_job_distrust(struct cst_job *job, const struct cst_err *why, struct cst_err *err);

#endif
