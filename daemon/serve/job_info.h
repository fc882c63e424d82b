/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of job descriptions that several replies contain. The replies JobList, JobInfo and Explain
 * themselves are served in job_info.c. */
#ifndef CST_JOB_INFO_H
#define CST_JOB_INFO_H

#include "daemon/job/pool_info.h"
#include "proto/cistern.pb-c.h"

struct cstd_session;

/* Add the bytes in each state of the pool of @rank to @out. @job must be committed. A job that is
 * done has no pools and adds nothing. */
void cstd_job_info_add_books(const struct cstd_job *job, uint32_t rank, Cistern__Books *out);

/* True if the session's user may see @job: the owner, root, and managers. A job that is to replace
 * another one (reshape.h) is not seen until then. */
bool cstd_serve_may_see(const struct cstd_session *session, const struct cstd_job *job);

#endif
