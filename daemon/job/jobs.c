/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/jobs.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/job.h"

#include <string.h>

void cstd_jobs_init(struct cstd_jobs *jobs)
{
    TAILQ_INIT(&jobs->living);
    TAILQ_INIT(&jobs->closing);
    jobs->n = 0;
    jobs->serial = 0;
}

struct cstd_job *cstd_job_find(struct cstd_daemon *daemon, uid_t uid, const char *name)
{
    struct cstd_job *job;

    TAILQ_FOREACH(job, &daemon->jobs->living, link)
    {
        if (job->uid == uid && job->predecessor == NULL && strcmp(job->name, name) == 0) {
            return job;
        }
    }
    return NULL;
}
