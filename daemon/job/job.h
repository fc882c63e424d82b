/* SPDX-License-Identifier: Apache-2.0 */
/* A job: the declared model, its memory, its core, and the workers that are attached as its ranks.
 * A job outlives its workers. The states of a rank are in worker.h. The phases of a commit
 * (commit.c) lead through the first three states.
 *
 *   DECLARING --all ranks committed--> POPULATING --engines done--> READY
 *      ^   \ last worker gone             | no memory: all ranks get the error
 *      |    \--> CLOSING                  |
 *      +----------------------------------+
 *   REVIVING --its memory is mapped--> READY   (a job of an earlier daemon: daemon/revive/revive.h)
 *   any of these --removed, time to live, drain--> CLOSING --memory given back--> freed
 *
 * A job in REVIVING has an owner, a name, perhaps a base, and charges. Requests about it wait. */
#ifndef CSTD_JOB_H
#define CSTD_JOB_H

#include "daemon/job/comms.h"
#include "daemon/job/durable.h"
#include "daemon/job/interleave_tuner.h"
#include "daemon/job/pause.h"
#include "daemon/memory/files.h"
#include "daemon/memory/job_options.h"
#include "daemon/memory/upkeep.h"
#include "daemon/base/log.h"
#include "daemon/memory/memory.h"
#include "daemon/session/peer.h"
#include "daemon/session/pending.h"
#include "daemon/job/planner.h"
#include "daemon/job/readers.h"
#include "daemon/ledger/ledger.h"
#include "daemon/engine/rates.h"
#include "daemon/base/history.h"
#include "daemon/base/record.h"
#include "offload/core/core.h"
#include "offload/layout/buffers.h"
#include "proto/job_name.h"
#include "proto/saved_plan.h"

#include <uv.h>

#define CSTD_JOB_TOKEN_BYTES 16
/* Tickets of a job start at serial << CSTD_JOB_TICKET_SHIFT. */
#define CSTD_JOB_TICKET_SHIFT 40

struct cstd_daemon;
struct cstd_tier;
struct cstd_job_request;
struct cstd_quota_account;
struct cstd_session;
struct cstd_span;

/* Argument for cstd_log_about: an event of a job or of one of its ranks. */
#define CSTD_JOB_ABOUT(job_)                                                                       \
    (&(struct cstd_log_about){.job = (job_)->name, .rank = CSTD_LOG_NONE, .uid = (job_)->uid})
#define CSTD_JOB_ABOUT_RANK(job_, rank_)                                                           \
    (&(struct cstd_log_about){.job = (job_)->name, .rank = (rank_), .uid = (job_)->uid})

enum cstd_job_state {
    CSTD_JOB_DECLARING,
    CSTD_JOB_POPULATING,
    CSTD_JOB_READY,
    CSTD_JOB_REVIVING,
    CSTD_JOB_CLOSING
};

/* Phases of a job's commit in their order. The table in commit.c says what each one does. */
enum cstd_commit_phase {
    CSTD_COMMIT_COLLECT, /* Wait for the Commits of all ranks. */
    CSTD_COMMIT_MEET,    /* Find the job's ranks on other nodes. */
    CSTD_COMMIT_ENGINES, /* Start the engines of the job's accelerators. */
    CSTD_COMMIT_PLAN,    /* Take the given plan, or search for one. */
    CSTD_COMMIT_CHUNKS,  /* Wait for the node that plans the job. */
    CSTD_COMMIT_LAYOUT,  /* Compute chunks and rows, in a thread. */
    CSTD_COMMIT_POOLS,   /* Size the pools, and check all budgets. */
    CSTD_COMMIT_MEMORY,  /* Create the segments; the engines map and populate them. */
    CSTD_COMMIT_JOIN,    /* Connect the engines of the job's nodes. */
    CSTD_COMMIT_CORE,    /* Open the core and write the job table. */
    CSTD_COMMIT_LEDGER,  /* Make the ledger, in a thread. */
    CSTD_COMMIT_STATES,  /* Take the states of the predecessor, and take its place. */
    CSTD_COMMIT_ATTACH,  /* Tell the core about the attached ranks. */
    CSTD_COMMIT_ANSWER,  /* Answer the Commits, when no step is closing and all pools exist. */
    CSTD_COMMIT_DONE,    /* The job is committed, and no Commit waits. */
};

struct cstd_describe_work;
struct cstd_layout_work;
struct cstd_migrate;
struct cstd_state_copy;

/* One rank of a job, and the worker that occupies it. */
struct cstd_worker {
    struct cstd_job *job;
    uint32_t rank;
    /* A process occupies the rank; it is attached or has hung up. */
    bool present;
    struct cstd_session *session; /* The attached session; NULL: hung up or absent. */
    /* The process that occupies the rank; valid while present. */
    pid_t pid;
    /* Watches the end of the process. NULL: the process cannot be watched, and a hang-up counts as
     * its end. */
    struct cstd_watch *watch;
    uint8_t token[CSTD_JOB_TOKEN_BYTES]; /* Token in the rank's last JobOpened reply. */
    bool has_token;
    bool left;           /* The last worker left in good order. */
    bool died;           /* The last worker died, or left without saying so. */
    bool shut_out;       /* The present worker has hung up and cannot write what others use. */
    uint64_t hung_up_ms; /* Time of the loop at which the present worker hung up, if it has. */
    /* Size of the pool that the present worker asks for, in bytes; 0: as large as is useful. */
    uint64_t pool_asked;
    /* The size that was asked for when the job's memory was decided, as above. */
    uint64_t pool_bytes;
    struct cstd_memory_pool pool; /* The rank's pool, from phase POOLS of the commit on. */
    /* Requested values of device_update_bytes and device_states; CST_PLAN_DEVICE_UPDATE_AUTO: the
     * plan decides. */
    uint64_t device_update_asked, states_asked;
    /* Bytes of the device reservation, in which chunks are updated. Fixed when the job's memory is
     * decided. */
    uint64_t device_update_bytes;
    /* Blocks of the pool serve for device updates instead. Fixed when the job's memory is decided.
     */
    bool lends;
    /* Bytes for states that stay on the accelerator. Fixed when the job's memory is decided. */
    uint64_t device_states;
    /* Tier of the pool, and that of device_update_bytes and device_states, which is that of host
     * memory if there is neither. Their engines are in use until the job is freed. */
    const struct cstd_tier *tier, *update_tier;
    /* 1 + the engine of the node that was nearest to the accelerator when the job was laid out; 0:
     * none. */
    uint32_t near_node;
    /* Groups that the present worker has declared, without the predefined group 0. */
    uint32_t n_groups;
    /* Edges, tensors and operators that the present worker has declared. */
    uint32_t n_edges, n_tensors, n_operators;
    /* The last request to hurry a fetch ahead: its time in ns, and its chunk. */
    uint64_t wanted_ns;
    uint32_t wanted_chunk;
    uint32_t n_trace; /* Entries that the record of the rank's requests may have (core.h). */
    bool unheard;     /* The worker still has to be told job->disagreement. */
    /* The rank's pool is being made again, possibly on another device. */
    bool moves;
    /* Why the pool could not be made again on another device; status 0: it exists. */
    struct cst_err relocate_err;
    struct cstd_pending *commit; /* The worker's waiting Commit request; NULL: none. */
};

/* A job's description as of a committed step, in a sealed memfd. */
struct cstd_description {
    bool exists;
    int fd; /* Owned. */
    uint64_t bytes;
    uint64_t step;
};

struct cstd_job {
    TAILQ_ENTRY(cstd_job) link; /* In the list of living or of closing jobs. */
    struct cstd_daemon *daemon;
    uint64_t serial; /* Number of the job; unique during the life of the daemon. */
    char name[CST_JOB_NAME_BYTES];
    uid_t uid; /* Owner of the job. */
    /* The owner's account, which is charged for memory; holds a reference. */
    struct cstd_quota_account *account;
    enum cstd_job_state state;
    /* How far the commit is: the last phase that was entered. It may be under way. */
    enum cstd_commit_phase phase;
    struct cst_err failure; /* Why the commit failed last, and goes back. */
    uint32_t world;         /* Number of ranks. */
    /* The options of the rank that created the job, with texts of the job's own and without those
     * of the rank. The limits are those in force. */
    struct cst_job_spec spec;
    struct cst_job_texts spec_texts; /* Its texts. */
    /* The base job, whose frozen tensors this job uses and which lives at least as long; NULL:
     * none. */
    struct cstd_job *base;
    struct cstd_worker *workers; /* Array of world workers, by rank. */
    struct cst_model model;
    struct cstd_charge declared; /* What is charged for the heap of the model. */
    struct cstd_upkeep upkeep;   /* What is charged with the memory, in addition to it. */
    struct cstd_charge traces;   /* What is charged for records of the ranks' requests. */
    struct cst_err disagreement; /* DECLARING: why the model was dropped last. */
    struct cst_layout layout;    /* Layout of the model; see cstd_job_has_layout. */
    /* What was chosen for the layout; read with cstd_device_reservation_drives. */
    struct cst_buffers_drives drives;
    /* The building of the layout in phase LAYOUT; NULL: not under way. */
    struct cstd_layout_work *layout_work;
    struct cstd_memory memory; /* Memory of the job, from phase MEMORY on. */
    struct cstd_files files;   /* Files for states, from a worker. */
    /* Bytes of copies from and to the files that this daemon has issued. */
    uint64_t drive_read_bytes, drive_written_bytes;
    struct cstd_durable durable;
    /* The job that this one replaces, and whose states it gets; NULL: none (reshape.h). */
    struct cstd_job *predecessor;
    /* The job that is to replace this one; NULL: none. Only one of both is ever set. */
    struct cstd_job *successor;
    /* POOLS: the commit waits for the predecessor's pools, which are being given back. */
    bool awaits_pools;
    struct cstd_deferred pools_gone; /* Looks whether they are given back. */
    /* The chunks have the capacities of the predecessor's, because memory is short for others. */
    bool keeps_chunks;
    /* The arenas are those of the predecessor: nothing is copied. Known from phase POOLS on. */
    bool inherits;
    /* The taking of the predecessor's states; NULL: not under way. */
    struct cstd_state_copy *state_copy;
    /* The states are moved in portions, because memory is short; NULL: they are not (migrate.h). */
    struct cstd_migrate *migrate;
    /* The move has stopped because of an error, and goes on with the next Commit of a rank. */
    bool stalled;
    struct cstd_pause pause;    /* The pause of the job. */
    struct cstd_ledger ledger;  /* What outlives the daemon of this job. */
    struct cstd_readers readers; /* Those who read its weights. */
    struct cstd_session *saver; /* The session that saves the job (saver.h); NULL: none. */
    /* Step of the newest checkpoint of which the daemon was told, and whether there is one. */
    uint64_t saved_step;
    bool was_saved;
    struct cstd_description description;   /* The last one that was made (describe.h). */
    struct cstd_describe_work *describing; /* The making of one; NULL: not under way. */
    struct cst_core *core;                 /* Core of the job, from phase CORE on; else NULL. */
    /* Plan that the workers brought; n_chunks is 0 if there is none. */
    struct cst_saved_plan given;
    /* Plan of the job: capacities, prefetch and others; see planner.h. */
    struct cstd_job_plan plan;
    struct cstd_drift drift; /* Deviation of the steps' duration from what is expected. */
    /* Limits the rate of log lines about plans that were changed after a drift. */
    struct cstd_log_pace replanned;
    struct cstd_interleave_tuner tuner; /* Choice of k, the share of device updates. */
    /* Number of the record's intervals that updates.c has read. */
    uint64_t updates_seen;
    struct cstd_deferred tuning; /* Deferred search for a better k. */
    bool resumes;                /* The job was done, and its pools are being made again. */
    /* Record of recent work for traces; NULL before the first command. */
    struct cstd_record *record;
    struct cstd_history history; /* The steps since the core was opened. */
    uint64_t tokens;             /* Tokens of the step under way; 0: no rank has told them yet. */
    struct cst_pending_list requests; /* Requests that wait for this job. */
    /* Tag of the JobRemove request that is answered when all memory is given back; 0: none. */
    uint64_t remover;
    /* DECLARING: time limit for the Commits of all ranks. READY: time of the core's next TICK. */
    uv_timer_t deadline;
    /* READY: monotonic time for which deadline is set; CST_CORE_NEVER: it is not set. */
    uint64_t deadline_ns;
    struct cstd_span *span;  /* The job's ranks on other nodes (span.h); NULL: it has none. */
    struct cstd_comms comms; /* Communicators of the ranks. */
    /* Time to live; runs while no worker is attached. A worker that has hung up is not attached. */
    uv_timer_t ttl;
    /* Runs while a rank of a dispatched job has hung up and its process lives (shut_out.h). */
    uv_timer_t hung_up;
    bool hung_up_told; /* Why the timer cannot shut a rank out is in the log. */
    unsigned n_holds;  /* Number of timers and memory objects that are not closed yet. */
    uint64_t created_ns;
    uint64_t revived_ms; /* Time of the loop at which an earlier daemon's job went on here; or 0. */
    /* Monotonic time at which the last worker left or hung up; 0: a worker is attached. */
    uint64_t idle_since_ns;
    struct cst_err closing;     /* CLOSING: error for the requests of the job. */
    struct cstd_deferred close; /* CLOSING: deferred work that frees the job's parts. */
    bool memory_closed;         /* CLOSING: the memory was closed, so that its end is the last. */
};

/* Create a job with @request's name for the user of @session, without workers. CST_ENOTFOUND:
 * there is no such base job. CST_EINVAL: the base job cannot be used (see cstd_base_job_find), or
 * the time to live exceeds the user's limit. CST_EBUSY: the base job is being reshaped.
 * CST_EBUDGET: too many jobs. CST_ENOMEM: out of memory.
 */
int cstd_job_make(struct cstd_session *session, const struct cstd_job_request *request,
                  struct cstd_job **out, struct cst_err *err);

/* Set the parts of job->spec that describe the model, with copies of the texts in @from.
 * CST_ENOMEM: nothing has changed. */
int cstd_job_set_model(struct cstd_job *job, const struct cst_job_model *from, struct cst_err *err);

/* Set job->spec from @from, without the options of one rank. The name, the number of ranks and the
 * base are those of @job. CST_ENOMEM: nothing has changed. */
int cstd_job_set_options(struct cstd_job *job, const struct cst_job_spec *from,
                         struct cst_err *err);

/* Create the job of @request for the user of @account, who is charged for it already, with the base
 * job @base (NULL: none). CST_ENOMEM. */
int cstd_job_create(struct cstd_daemon *daemon, struct cstd_quota_account *account,
                    const struct cstd_job_request *request, struct cstd_job *base, uint32_t ttl_s,
                    struct cstd_job **out, struct cst_err *err);

/* True if the job's memory is decided: its pools exist or are being made. */
static inline bool cstd_job_is_decided(const struct cstd_job *job)
{
    return job->state != CSTD_JOB_DECLARING;
}

/* True if the commit of @job is complete, states included, so that requests of steps can be served.
 * A worker is told so before it makes any. */
static inline bool cstd_job_is_committed(const struct cstd_job *job)
{
    return job->core != NULL && job->state != CSTD_JOB_POPULATING;
}

/* True if @job is paused: not while a step is still under way. */
static inline bool cstd_job_is_paused(const struct cstd_job *job)
{
    return job->pause.paused_ns != 0;
}

/* True if the pools of @job are released while it is paused. Whoever joins waits for them. */
static inline bool cstd_job_lacks_pools(const struct cstd_job *job)
{
    return job->pause.wanted && job->pause.release &&
           (job->memory.parked || job->memory.pool_pages.state != CSTD_POOL_PAGES_WHOLE);
}

/* Bytes of an element of the gradient rows of @job. */
static inline uint32_t cstd_job_grad_bytes(const struct cstd_job *job)
{
    return cst_layout_grad_elem_bytes(job->world, job->spec.updates.micro_batches);
}

/* True if the layout of @job exists. */
static inline bool cstd_job_has_layout(const struct cstd_job *job)
{
    return job->phase > CSTD_COMMIT_LAYOUT;
}

/* Handle the end of a worker's presence.
 * - A job that was never committed has no valuable states. It is removed when no rank is present.
 * - Any other job lives for its time to live after the last worker left or hung up. A process that
 *   occupies a rank without a connection does not prolong it. */
void cstd_job_check_idle(struct cstd_job *job);

/* Remove @job, its successor, the predecessor if it lacks states that @job has (migrate.h), and the
 * jobs that use it as their base. They are taken apart at the
 * end of this iteration of the loop; waiting requests fail with @why. The request with tag @remover
 * (0: none) is answered with OK when the memory of @job is given back. */
void cstd_job_remove(struct cstd_job *job, uint64_t remover, const struct cst_err *why);

/* True if @job was opened with a plan that a worker gave (given.h). */
static inline bool cstd_job_has_given_plan(const struct cstd_job *job)
{
    return job->given.n_chunks > 0;
}

/* True if no worker is attached as @rank, or @job has no such rank. A process that claims the rank
 * may then be the one for which the other ranks wait. A rank that has hung up is not awaited. */
static inline bool cstd_job_awaits_rank(const struct cstd_job *job, uint32_t rank)
{
    return rank >= job->world || !job->workers[rank].present;
}

#endif
