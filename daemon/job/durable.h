/* SPDX-License-Identifier: Apache-2.0 */
/* Seals of durable jobs: a thread flushes the job's files, writes the record of the last step and
 * flushes it (proto/durable.h). The first time, it also writes what describes the job. Loop thread
 * only. */
#ifndef CSTD_DURABLE_H
#define CSTD_DURABLE_H

#include "cistern/status.h"

#include <stdbool.h>

struct cstd_durable_work;
struct cstd_job;

/* All 0: nothing is under way. */
struct cstd_durable {
    struct cstd_durable_work *work; /* The seal under way; NULL: there is none. */
    bool describing; /* A thread reads the job: until it is over, the job must not be freed. */
    bool described;  /* The files say what they are. */
    bool unnamed;    /* The log says that a file has no name any more. */
};

/* CST_EINVAL: the job is to be durable, and something of it that steps change, or that nobody could
 * make again, would not be in its files. @err names the tensor and what to do. Needs the layout. */
int cstd_durable_check(const struct cstd_job *job, struct cst_err *err);

/* Carry out CST_ACT_SEAL: CST_EV_SEALED follows, never within this call. CST_ENOMEM: it does not
 * follow. */
int cstd_durable_seal(struct cstd_job *job, struct cst_err *err);

/* The core of @job, which is READY, has moved on: workers leave that have waited for a seal. */
void cstd_durable_look(struct cstd_job *job);

/* The job ends, and nothing is `describing`: it does not wait for a seal any more. What a thread
 * has begun to write it writes to the end. */
void cstd_durable_close(struct cstd_job *job);

#endif
