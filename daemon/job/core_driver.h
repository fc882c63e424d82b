/* SPDX-License-Identifier: Apache-2.0 */
/* Connects the cores of jobs with the event loop: passes an event to a core, carries out the
 * resulting actions (commands to engines, replies to requests, lines to the log), and sets the
 * timer for the core's deadline. */
#ifndef CSTD_CORE_DRIVER_H
#define CSTD_CORE_DRIVER_H

#include "daemon/job/job.h"

/* What the daemon does when a core has moved on. */
struct cstd_core_driver_ops {
    /* The actions of an event are carried out, and the job is still READY. */
    void (*settled)(struct cstd_job *job);
    /* The core has released @rank, whose worker asked to leave. */
    void (*left)(struct cstd_job *job, uint32_t rank);
    /* @reply answers a request of the daemon itself (state_copy.h). */
    void (*copied)(struct cstd_job *job, const struct cst_reply *reply);
    /* A command of the job could not be sent to its engine, so the job cannot go on. */
    void (*lost)(struct cstd_job *job, const struct cst_err *why);
};

/* Pass @event to the core of @job, whose state is READY, and carry out the actions. The function
 * sets event->now. Sessions and jobs that end as a consequence are closed at the end of the
 * iteration of the loop. */
void cstd_job_feed(struct cstd_job *job, struct cst_event *event);

/* Answer the request that @reply is for. A request that was answered already stays so. */
void cstd_core_driver_reply(struct cstd_daemon *daemon, const struct cst_reply *reply);

/* Tell the core of the job that owns @ticket about a completed command. A cstd_engines_done_fn;
 * @daemon is the struct cstd_daemon. */
void cstd_core_driver_done(void *daemon, uint64_t ticket, int status, double value,
                           const char *text);

/* Add the time in which an engine worked on @ticket to the job's record. A cstd_engines_timed_fn.
 */
void cstd_core_driver_timed(void *daemon, uint64_t ticket, unsigned engine, uint64_t began_ns,
                            uint64_t ended_ns);

/* Tell all jobs that have commands in engine @engine that it was given up and keeps their commands.
 * A cstd_engines_given_up_fn. */
void cstd_core_driver_given_up(void *daemon, unsigned engine, const char *why);

#endif
