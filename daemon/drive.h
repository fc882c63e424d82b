/* SPDX-License-Identifier: Apache-2.0 */
/* Driving a job's core: an event in, its actions carried out (commands to engines, results to
 * requests, lines to the log), its timer armed. */
#ifndef CST_DRIVE_H
#define CST_DRIVE_H

#include "daemon/job.h"

/* Step the core of @job, which is READY, with @event (its time is set here). Sessions and jobs that
 * end thereby do so at the end of the turn. */
void cst_job_feed(struct cst_job *job, struct cst_event *event);

/* An engine has completed @ticket: find its job and feed it. cst_engines_done_fn of the daemon. */
void cst_drive_done(void *daemon, uint64_t ticket, int status, double value, const char *text);

/* An engine says when it worked on @ticket: for the job's record. cst_engines_timed_fn. */
void cst_drive_timed(void *daemon, uint64_t ticket, unsigned engine, uint64_t began_ns,
                     uint64_t ended_ns);

/* An engine was given up and keeps commands: the jobs whose they are hear of it.
 * cst_engines_given_up_fn. */
void cst_drive_given_up(void *daemon, unsigned engine, const char *why);

#endif
