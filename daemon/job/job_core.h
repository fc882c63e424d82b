/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the core of a job from the job's plan, layout and memory, and closes it. core_driver.h
 * connects the core with the event loop. Loop thread only. */
#ifndef CSTD_JOB_CORE_H
#define CSTD_JOB_CORE_H

#include "daemon/job/job.h"

struct cst_core_record;

/* Open job->core for a job whose memory and table were kept. The core gets CST_EV_REVIVE next.
 * CST_ELOST: @record and table do not belong together (offload/core/revival.h). Other statuses as
 * below. */
int cstd_job_core_reopen(struct cstd_job *job, const struct cst_core_record *record,
                         struct cst_err *err);

/* Open job->core and fill in the job table. @job must have its plan, layout and memory. CST_ENOMEM;
 * CST_EINVAL, CST_EUNSUPPORTED: statuses of cst_core_open. */
int cstd_job_core_open(struct cstd_job *job, struct cst_err *err);

/* Replace job->core, which has no command in flight, by one that was just opened, as
 * cstd_job_core_open does. On failure job->core is as it was. */
int cstd_job_core_renew(struct cstd_job *job, struct cst_err *err);

/* Close job->core, and free what was kept about its work. Commands in the engines are forgotten. */
void cstd_job_core_close(struct cstd_job *job);

#endif
