/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a durable job say of the job, and once: the description and the heads
 * (proto/durable.h). They are made in the buffer of the job's records (daemon/memory/records.h),
 * and written from there by the engines of the drives (durable.c). */
#ifndef CSTD_DURABLE_DESCRIPTION_H
#define CSTD_DURABLE_DESCRIPTION_H

#include "cistern/status.h"
#include "proto/durable.h"

struct cstd_job;
struct cstd_progress;

/* Make the description of @job, which has made @progress, and the heads of all files. The seal in
 * the buffer has the checksums of frozen weights. Any thread, while the job has its model, its
 * layout and its memory. CST_ENOMEM: out of memory, or the file has too little space for the
 * description. CST_EIO: there are no random bytes. */
int cstd_durable_describe(struct cstd_job *job, const struct cstd_progress *progress,
                          struct cst_err *err);

/* The head in the first CST_DURABLE_HEADS blocks of a file, which are at @start. NULL: neither of
 * them is one. */
const struct cst_durable_head *cstd_durable_head_in(const char *start);

#endif
