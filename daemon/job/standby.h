/* SPDX-License-Identifier: Apache-2.0 */
/* Standbys: processes that wait to take the place of a rank whose worker has died. A connection is
 * a standby of one job at most, which need not exist yet.
 *
 *   WAITING --a rank of the job is vacant--> HOLDS: the rank is reserved for its process
 *   WAITING --all ranks left, or the job is removed--> answered with CST_ECANCELLED
 *   HOLDS   --its process opens the job--> done
 *   HOLDS   --its connection ends, or its time is over--> done; the rank is vacant again
 *
 * A rank is vacant if its last worker died, nobody has attached since, and no standby holds it. A
 * rank of a job of an earlier daemon, whose worker may have died unseen, is vacant if no worker has
 * come back within CSTD_STANDBY_RETURN_S. A rank is not vacant before the job is committed, nor
 * while its worker has hung up and its process lives. Loop thread only. */
#ifndef CSTD_STANDBY_H
#define CSTD_STANDBY_H

#include "cistern/status.h"
#include "daemon/base/deferred.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#define CSTD_STANDBY_RETURN_S 30

struct cstd_daemon;
struct cstd_job;
struct cstd_session;
struct cstd_standby; /* Private to standby.c. */
struct cstd_worker;

TAILQ_HEAD(cstd_standby_list, cstd_standby);

/* All standbys of the daemon. */
struct cstd_standbys {
    struct cstd_daemon *daemon;
    struct cstd_standby_list list; /* In the order of their requests. */
    struct cstd_deferred look;     /* Gives vacant ranks to standbys. */
    uv_timer_t timer;              /* Time at which a rank becomes vacant by itself. */
};

/* The loop of @daemon exists. Close ends the timer; no session is left. */
void cstd_standbys_init(struct cstd_daemon *daemon);
void cstd_standbys_close(struct cstd_daemon *daemon);

/* Let request @id of @session wait for a rank of the job @name of the session's user, which is then
 * reserved for @hold_ms. The request is answered later. CST_EINVAL: the session has a job;
 * CST_EBUSY: the session is a standby already; CST_ENOCREDIT, CST_ENOMEM. */
int cstd_standby_add(struct cstd_session *session, uint64_t id, const char *name, uint32_t hold_ms,
                     struct cst_err *err);

/* @session has ended, or has opened a job: it is no standby any more. */
void cstd_standby_drop(struct cstd_session *session);

/* CST_EBUSY: the rank of @worker is reserved for another process than that of @session. */
int cstd_standby_check(const struct cstd_worker *worker, const struct cstd_session *session,
                       struct cst_err *err);

/* A worker has attached as the rank of @worker: nobody holds it. */
void cstd_standby_attached(const struct cstd_worker *worker);

/* @job is being removed because of @why. @committed: it was not only declared. */
void cstd_standbys_job_ended(const struct cstd_job *job, bool committed, const struct cst_err *why);

/* A worker has died or left, or a job has ended: give vacant ranks to standbys, when the current
 * callback has returned. */
void cstd_standbys_look(struct cstd_daemon *daemon);

#endif
