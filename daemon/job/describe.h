/* SPDX-License-Identifier: Apache-2.0 */
/* The description of a job (JobDescription in proto/cistern.proto): what was declared, the options,
 * what the job has done. Loop thread only. */
#ifndef CSTD_DESCRIBE_H
#define CSTD_DESCRIBE_H

#include "cistern/status.h"

#include <stdint.h>

struct cstd_job;

/* Get a sealed memfd with the description of @job, which has a core. It is made once per committed
 * step, so that frequent saves cost other users nothing. *fd belongs to the job and is valid until
 * the next call; *bytes is its length. Its memory was charged with that of the job. CST_EBUDGET:
 * processes of the user hold earlier descriptions, and a limit is exceeded. CST_ENOMEM: out of
 * memory, or too many open files. */
int cstd_describe(struct cstd_job *job, int *fd, uint64_t *bytes, struct cst_err *err);

/* The description of @job is wrong now. */
void cstd_describe_outdate(struct cstd_job *job);

/* The description of @job is no longer needed. */
void cstd_describe_forget(struct cstd_job *job);

#endif
