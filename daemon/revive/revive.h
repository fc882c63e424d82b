/* SPDX-License-Identifier: Apache-2.0 */
/* Goes on with the jobs whose memory and ledgers an earlier process of the service has left in the
 * service manager's store. A job is as it was after its last committed step, without workers; they
 * open it again.
 *
 *   start:   each ledger is looked at; each job exists in CSTD_JOB_REVIVING, with its charges, and
 *            its numbers of segments and its undo slots belong to nobody else
 *   READY
 *   on the loop, one job after the other: a thread builds the model and the layout, and the engines
 *            map the memory (revive_job.h); then the job goes on
 *
 * The user for whom least has been done is next, and of this user's jobs one that is waited for,
 * or the smallest. A base job comes before its users. A job that cannot go on is named in the log
 * with the reason. Its memory stays in the store, for a daemon that can, until the service is
 * stopped. Loop thread only. */
#ifndef CSTD_REVIVE_H
#define CSTD_REVIVE_H

#include "cistern/status.h"
#include "daemon/base/deferred.h"
#include "daemon/session/held.h"

#include <stdbool.h>
#include <uv.h>

struct cstd_daemon;
struct cstd_job;
struct cstd_kept_job;

/* A user with jobs. */
struct cstd_revive_user {
    uid_t uid;
    uint64_t bytes;             /* Bytes of the ledgers of the jobs that have begun. */
    struct cstd_kept_job *next; /* While the next job is chosen: the best one of this user. */
};

struct cstd_revival {
    struct cstd_daemon *daemon;
    struct cstd_kept_job *jobs; /* In the order of serial numbers; owned. */
    uint32_t n;
    uint32_t n_settled, n_lost; /* Of jobs. */
    /* Memory of jobs with which this daemon cannot go on is in the store, for a later one. */
    bool keeps_lost;
    struct cstd_revive_user *users; /* Room for as many as there are jobs; owned. */
    uint32_t n_users;
    struct cst_err why;          /* Why no job can go on; status 0: any may. */
    struct cstd_kept_job *built; /* What the thread builds, with its heir; NULL: nothing. */
    uv_work_t work;
    struct cstd_held_list held;                     /* Requests about jobs in CSTD_JOB_REVIVING. */
    void (*go_ahead)(struct cstd_revival *revival); /* A unit was settled. */
    struct cstd_deferred removed; /* Work after the removal of a job in CSTD_JOB_REVIVING. */
    uint64_t began_ns;
};

/* Make all jobs in daemon->keeper. Before the engines are started. */
void cstd_revive_list(struct cstd_daemon *daemon);

/* The daemon serves requests now: begin to go on with the jobs. */
void cstd_revive_begin(struct cstd_daemon *daemon);

/* Another daemon has the jobs in daemon->keeper, and goes on with them: list them, and check that
 * this one can go on with each. CST_EBUSY: it cannot, for the reason in @err. The accelerators are
 * awaited. */
int cstd_revive_prove(struct cstd_daemon *daemon, struct cst_err *err);

/* The other daemon has ended: take over its engines' memory, and read where the jobs are now. */
void cstd_revive_proven(struct cstd_daemon *daemon);

/* True if jobs are not settled yet. */
bool cstd_revive_is_under_way(const struct cstd_daemon *daemon);

/* The request about @job, which is in CSTD_JOB_REVIVING, waits until the job goes on or is lost.
 * Then
 * @serve is called with it, as if it had just arrived. Errors: see cstd_hold. */
int cstd_revive_hold(struct cstd_job *job, struct cstd_session *session, uint64_t id, uint16_t type,
                     const ProtobufCMessage *message, cstd_held_fn serve, struct cst_err *err);

/* The daemon ends: begin no more, and forget the requests that wait. */
void cstd_revive_stop(struct cstd_daemon *daemon);

#endif
