/* SPDX-License-Identifier: Apache-2.0 */
/* The register of all jobs: finds a job by owner and name. Makes and removes none (job.h). Loop
 * thread only. */
#ifndef CSTD_JOBS_H
#define CSTD_JOBS_H

#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

struct cstd_daemon;
struct cstd_job;

TAILQ_HEAD(cstd_job_list, cstd_job);

/* All jobs of the daemon. */
struct cstd_jobs {
    struct cstd_job_list living;
    struct cstd_job_list closing;
    uint32_t n;      /* Number of living jobs. */
    uint64_t serial; /* Serial number of the newest job. */
};

/* Initialise empty lists of jobs. */
void cstd_jobs_init(struct cstd_jobs *jobs);

/* Returns the living job of owner @uid with this @name, or NULL. A job that is to replace another
 * one (reshape.h) is not found. */
struct cstd_job *cstd_job_find(struct cstd_daemon *daemon, uid_t uid, const char *name);

#endif
