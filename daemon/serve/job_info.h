/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of job descriptions that several replies contain. The replies JobList, JobInfo and Explain
 * themselves are served in job_info.c. */
#ifndef CST_JOB_INFO_H
#define CST_JOB_INFO_H

#include "daemon/job/pool_info.h"
#include "proto/cistern.pb-c.h"

/* Add the bytes in each state of the pool of @rank to @out. @job must be committed. A job that is
 * done has no pools and adds nothing. */
void cstd_job_info_add_books(const struct cstd_job *job, uint32_t rank, Cistern__Books *out);

#endif
