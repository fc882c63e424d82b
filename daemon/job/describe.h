/* SPDX-License-Identifier: Apache-2.0 */
/* The description of a job (JobDescription in proto/cistern.proto): what was declared, the options,
 * what the job has done. Loop thread only. */
#ifndef CSTD_DESCRIBE_H
#define CSTD_DESCRIBE_H

#include "cistern/status.h"

#include <stdint.h>

struct cstd_job;

/* Write the description of @job, which has a core, to a sealed memfd. The caller closes *fd; *bytes
 * is its length. CST_ENOMEM: out of memory, or too many open files. */
int cstd_describe(const struct cstd_job *job, int *fd, uint64_t *bytes, struct cst_err *err);

#endif
