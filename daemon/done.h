/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that are done: all workers have left in good order, between two steps, and the engines have
 * finished the updates. Such a job is kept for its time to live, so that its states can be read and
 * another run can go on with them. Its pools are given back at once, and made anew for the first
 * worker that attaches again. Its arenas are what the owner can do without when memory is short, so
 * a refusal names it.
 *
 *   READY --all have left, nothing under way--> done: pools closed
 *         <--a worker attaches: pools are made--
 */
#ifndef CST_DONE_H
#define CST_DONE_H

#include "daemon/job.h"

/* Is @job done now? Then its pools go. Called after whatever may have been the last that was under
 * way. */
void cst_done_look(struct cst_job *job);

/* A worker is about to attach to @job: if it is done, its pools are made again, and Commits wait
 * for them. CST_EBUDGET, CST_ENOMEM: it stays done. */
int cst_done_resume(struct cst_job *job, struct cst_err *err);

/* @err says that host memory is short for @asker (its uid's jobs; of @manager all): add the
 * commands that would free some, by removing jobs that are done, the largest first. */
void cst_done_suggest(struct cst_daemon *daemon, uid_t asker, bool manager, struct cst_err *err);

#endif
