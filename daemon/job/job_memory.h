/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the memory of a job whose commit has a layout and pools, and closes it when the commit
 * fails. A job that another daemon has committed gets its memory in daemon/revive/revive_job.c.
 * Loop thread only. */
#ifndef CSTD_JOB_MEMORY_H
#define CSTD_JOB_MEMORY_H

#include "daemon/job/job.h"

/* Open job->memory from the layout, pools and device reservations of @job, and charge what a move
 * of its predecessor's states needs in addition. on_ready of the memory follows. CST_EBUDGET,
 * CST_ENOMEM: as cstd_memory_open; there is neither memory nor a move then. */
int cstd_job_memory_open(struct cstd_job *job, struct cst_err *err);

/* End the move of states to @job, if there is one, and begin to close job->memory. on_gone of the
 * memory follows. */
void cstd_job_memory_close(struct cstd_job *job);

#endif
