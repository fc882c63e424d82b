/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that are done: all workers have left in good order between two steps, and the engines have
 * finished the updates. The daemon keeps such a job for its time to live. Its states can be read,
 * and another run can continue with them. Its pools are given back at once and made again for the
 * next worker that attaches. When memory is short, a refusal names the jobs of the user that are
 * done, because their arenas can be freed by removing them.
 *
 *   READY --all have left, no command in flight--> done: pools closed
 *         <--a worker attaches: pools are made---- */
#ifndef CST_DONE_H
#define CST_DONE_H

#include "daemon/job/job.h"

/* Close the pools of @job if the job is done now, or is to be replaced by another one (reshape.h).
 * Called after events that may have been the last ones of a run. */
void cstd_done_look(struct cstd_job *job);

/* True if @job is done. A job without pools is not done if an earlier daemon left it (ledger.h) and
 * its workers are expected to come back. */
bool cstd_done_is(const struct cstd_job *job);

/* Make the pools of @job again if they were closed. Called when a worker attaches; Commits wait
 * until the pools are ready. CST_EBUDGET, CST_ENOMEM: the pools cannot be made, and the job stays
 * done. */
int cstd_done_resume(struct cstd_job *job, struct cst_err *err);

/* Append to @err, which says that host memory is short for user @asker, the commands that would
 * free memory by removing jobs that are done, the largest jobs first. @manager: include jobs of
 * other users. */
void cstd_done_suggest(struct cstd_daemon *daemon, uid_t asker, bool manager, struct cst_err *err);

/* Append to @err, which says that user @asker has too many jobs, the commands that would remove
 * jobs that are done, the oldest jobs first. @manager: include jobs of other users. No job is
 * removed for another one: the daemon does not know whether a checkpoint has the states of a job's
 * last step. */
void cstd_done_suggest_oldest(struct cstd_daemon *daemon, uid_t asker, bool manager,
                              struct cst_err *err);

#endif
