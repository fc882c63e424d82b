/* SPDX-License-Identifier: Apache-2.0 */
/* A job: the declared model, its memory, its core, and who is attached as which rank. It outlives
 * its workers.
 *
 *   DECLARING --all ranks committed--> POPULATING --engines done--> READY
 *      ^   \ last worker gone             | no memory: all ranks get the error
 *      |    \--> CLOSING                  |
 *      +----------------------------------+
 *   any of these --removed, time to live, drain--> CLOSING --memory back--> freed
 *
 * Who comes and goes as a rank is worker.h's. */
#ifndef CST_JOB_H
#define CST_JOB_H

#include "daemon/balance.h"
#include "daemon/job_options.h"
#include "daemon/log.h"
#include "daemon/memory.h"
#include "daemon/peer.h"
#include "daemon/pending.h"
#include "daemon/planner.h"
#include "daemon/rates.h"
#include "daemon/record.h"
#include "offload/core.h"
#include "proto/saved_plan.h"

#include <uv.h>

#define CST_JOB_TOKEN_BYTES 16
#define CST_JOB_TICKET_SHIFT 40 /* tickets of a job start at serial << this */

struct cst_daemon;
struct cst_gpu;
struct cst_job_wish;
struct cst_quota_account;
struct cst_session;

/* For cst_log_about: an event of a job, or of one of its ranks. */
#define CST_JOB_ABOUT(job_)                                                                        \
    (&(struct cst_log_about){.job = (job_)->name, .rank = CST_LOG_NONE, .uid = (job_)->uid})
#define CST_JOB_ABOUT_RANK(job_, rank_)                                                            \
    (&(struct cst_log_about){.job = (job_)->name, .rank = (rank_), .uid = (job_)->uid})

enum cst_job_state { CST_JOB_DECLARING, CST_JOB_POPULATING, CST_JOB_READY, CST_JOB_CLOSING };

struct cst_worker {
    struct cst_job *job;
    uint32_t rank;
    bool present;                       /* attached or hung up */
    struct cst_session *session;        /* attached; NULL: hung up, or absent */
    pid_t pid;                          /* while present */
    struct cst_watch *watch;            /* its process; NULL: a hang-up is its end */
    uint8_t token[CST_JOB_TOKEN_BYTES]; /* of the last JobOpened */
    bool has_token;
    bool left;                         /* the last one went in good order */
    uint64_t pool_bytes;               /* asked for; 0: as much as is of use */
    uint64_t room_asked, states_asked; /* as the next two; CST_PLAN_ROOM_AUTO: the plan's choice */
    uint64_t update_room;        /* bytes of accelerator in which updates may be done; as is ... */
    uint64_t device_states;      /* ... for states that stay there: decided as the device is */
    struct cst_gpu *gpu;         /* its device; NULL: the host. In use until the job is gone */
    struct cst_gpu *accelerator; /* whose memory those bytes are; NULL: nobody's. Same */
    uint32_t n_groups;           /* declared by the present one, number 0 not counted; as are */
    uint32_t n_tensors, n_operators; /* ... these */
    bool unheard;                    /* it is still to be told of job->disagreement */
    bool moves;                      /* its pool is being made in another place ... */
    struct cst_err homeless;         /* ... and could not be: why; status 0: it was */
    struct cst_pending *commit;      /* its Commit, waiting; NULL */
};

struct cst_job {
    TAILQ_ENTRY(cst_job) link; /* in the list of the living or of the closing */
    struct cst_daemon *daemon;
    uint64_t serial; /* id on the wire; unique in the life of the daemon */
    char name[64];
    uid_t uid;                         /* owner */
    struct cst_quota_account *account; /* the owner's: memory is charged to it; a reference */
    enum cst_job_state state;
    uint32_t world;         /* ranks */
    uint64_t chunk_elems;   /* asked for; 0: chosen */
    uint32_t micro_batches; /* per step, at least 1 */
    bool recompute;         /* hint: workers do each forward pass again before its backward pass */
    struct cst_job_options options;
    struct cst_job *base; /* whose frozen tensors it uses; it stays as long as this; NULL: none */
    uint32_t timeout_ms;  /* longest wait for other ranks */
    uint32_t ttl_s;       /* life without a worker */
    struct cst_worker *workers; /* world of them */
    struct cst_model model;
    struct cst_err disagreement; /* DECLARING: why the model was dropped last */
    struct cst_layout layout;    /* valid where has_layout */
    bool has_layout;
    struct cst_err
        failure; /* POPULATING: why it goes back to DECLARING, once the memory is given back */
    struct cst_memory memory;         /* POPULATING, READY */
    struct cst_core *core;            /* READY */
    struct cst_saved_plan given;      /* a plan that its workers brought; n_chunks 0: none */
    struct cst_job_plan plan;         /* capacities, prefetch: see planner.h */
    struct cst_drift drift;           /* of its steps from what is expected */
    struct cst_log_pace replanned;    /* log lines on other plans because of what its steps take */
    struct cst_balance balance;       /* k of its updates in rooms */
    uint64_t updates_seen;            /* intervals of the record that it knows of */
    struct cst_later balancing;       /* looks for another k */
    bool resumes;                     /* it was done, and its pools are being made again */
    struct cst_record *record;        /* what it did; NULL before the first command */
    bool commits_held;                /* READY: a Commit waits for a step that closes */
    struct cst_pending_list requests; /* that wait for this job */
    uint64_t remover;    /* tag of the JobRemove that is answered when all is given back; 0: none */
    uv_timer_t deadline; /* DECLARING: of the barrier; READY: the core's next TICK */
    uint64_t deadline_ns; /* it is armed for; CST_CORE_NEVER: it is not */
    uv_timer_t ttl;       /* runs while nobody is attached; hung up is not attached */
    unsigned n_holds;     /* timers, memory: not closed yet */
    uint64_t created_ns;
    uint64_t idle_since_ns; /* when the last worker went or hung up; 0: one is attached */
    struct cst_err closing; /* why requests of a closing job fail */
    struct cst_later close; /* takes it apart */
};

TAILQ_HEAD(cst_job_list, cst_job);

struct cst_jobs {
    struct cst_job_list living;
    struct cst_job_list closing;
    uint32_t n;      /* living */
    uint64_t serial; /* of the last one */
};

void cst_jobs_init(struct cst_jobs *jobs);

/* The living job of that owner and name, or NULL. */
struct cst_job *cst_job_find(struct cst_daemon *daemon, uid_t uid, const char *name);

/* A job of @wish's name for the user of @session, without a worker yet. CST_ENOTFOUND (its base),
 * CST_EBUDGET (too many jobs), CST_EINVAL (its time to live), CST_ENOMEM. */
int cst_job_make(struct cst_session *session, const struct cst_job_wish *wish, struct cst_job **out,
                 struct cst_err *err);

/* Its pools are there, or being made. */
bool cst_job_is_decided(const struct cst_job *job);

/* If nobody is present, a job that was never committed holds nothing of value and is removed. Where
 * nobody is attached, another job lives on for its time, which counts from when the last worker
 * went or hung up: a process that keeps its rank without a connection does not keep the job. */
void cst_job_check_idle(struct cst_job *job);

/* Take @job apart at the end of the turn, with the jobs whose base it is; what waits for them fails
 * with @why. The request of tag @remover (0: none) is answered with OK when its memory is back. */
void cst_job_remove(struct cst_job *job, uint64_t remover, const struct cst_err *why);

/* "declaring", "populating", "ready", "training", "idle" (workers left between two steps), "done"
 * (all of them did; see done.h), "interrupted" (in the middle of one, or one died), "failed". */
const char *cst_job_state_name(const struct cst_job *job);

#endif
