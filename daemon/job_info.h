/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of what is told of jobs that several replies have. */
#ifndef CST_JOB_INFO_H
#define CST_JOB_INFO_H

#include "daemon/job.h"
#include "proto/cistern.pb-c.h"

/* A pool by size class. */
struct cst_job_info_pool {
    Cistern__PoolClass classes[CST_LAYOUT_MAX_CLASSES];
    Cistern__PoolClass *pointers[CST_LAYOUT_MAX_CLASSES]; /* the layout's n_classes of them */
};

/* The pool of @rank of @job, which is committed. */
void cst_job_info_pool(const struct cst_job *job, uint32_t rank, struct cst_job_info_pool *out);

/* Add the bytes of @rank's pool of @job, which is committed, to @out, by state. */
void cst_job_info_add_books(const struct cst_job *job, uint32_t rank, Cistern__Books *out);

#endif
