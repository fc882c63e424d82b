/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a job, which the daemon sends in pages: each page is a JobInfo with some of them.
 * Does no I/O. */
#ifndef CLI_JOB_RANKS_H
#define CLI_JOB_RANKS_H

#include "cistern/status.h"
#include "proto/cistern.pb-c.h"

/* Fill in the request of the next page of @job, whose name and uid @next borrows. False: there is
 * no more to request. */
bool cli_job_ranks_next(const Cistern__JobInfo *job, Cistern__JobName *next);

/* Move the ranks of @page, the reply to that request, to the end of those of @job. *more: another
 * page should be requested. It is not if @page has no ranks, or is of another job with the same
 * name. CST_ENOMEM: nothing was moved. */
int cli_job_ranks_join(Cistern__JobInfo *job, Cistern__JobInfo *page, bool *more,
                       struct cst_err *err);

#endif
