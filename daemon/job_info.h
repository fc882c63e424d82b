/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of job descriptions that several replies contain. The replies JobList, JobInfo and Explain
 * themselves are served in job_info.c. */
#ifndef CST_JOB_INFO_H
#define CST_JOB_INFO_H

#include "daemon/job.h"
#include "proto/cistern.pb-c.h"

/* Description of a pool by size class. */
struct cstd_job_info_pool {
    Cistern__PoolClass classes[CST_LAYOUT_MAX_CLASSES];
    /* Pointers to the first n_classes entries of classes; n_classes is the layout's. */
    Cistern__PoolClass *pointers[CST_LAYOUT_MAX_CLASSES];
};

/* Fill @out with the pool of @rank of @job, which must be committed. */
void cstd_job_info_pool(const struct cstd_job *job, uint32_t rank, struct cstd_job_info_pool *out);

/* Add the bytes in each state of the pool of @rank to @out. @job must be committed. A job that is
 * done has no pools and adds nothing. */
void cstd_job_info_add_books(const struct cstd_job *job, uint32_t rank, Cistern__Books *out);

#endif
