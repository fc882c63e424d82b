/* SPDX-License-Identifier: Apache-2.0 */
/* What a job uses: the part of JobInfo that says how much memory of each place is charged for it,
 * and what its ranks and drives have moved. Reads the books alone and is therefore cheap enough for
 * a list that is asked for every second. Loop thread only. */
#ifndef CSTD_JOB_USE_H
#define CSTD_JOB_USE_H

#include "daemon/budget/arena.h"
#include "proto/cistern.pb-c.h"

struct cstd_job;

/* The places are host memory, pools in host memory, and each device or drive. */
#define CSTD_JOB_USE_PLACES (2 + CSTD_ARENA_MAX_ENGINES)

/* The storage of the messages in a JobInfo. */
struct cstd_job_use {
    Cistern__JobMemory places[CSTD_JOB_USE_PLACES];
    Cistern__JobMemory *pointers[CSTD_JOB_USE_PLACES];
};

/* Fill in the fields of @out that begin with `hits`. They point into @use and into @job. */
void cstd_job_use_fill(const struct cstd_job *job, struct cstd_job_use *use, Cistern__JobInfo *out);

#endif
