/* SPDX-License-Identifier: Apache-2.0 */
/* Which process works on a job as which rank. The state is struct cstd_worker in job.h.
 *
 *   ABSENT   --a session attaches-----------------------------------> ATTACHED
 *   ATTACHED --another session brings its token---------------------> ATTACHED, the old one ends
 *   ATTACHED --the session ends, the process lives------------------> HUNG UP
 *   ATTACHED --the worker leaves, or its process ends---------------> ABSENT
 *   HUNG UP  --the process attaches again, or another with its token-> ATTACHED
 *   HUNG UP  --the process ends-------------------------------------> ABSENT
 *
 * A process whose rank has hung up may still access the rank's blocks. If the job has no core yet,
 * because not all ranks have committed, there are no blocks, and the end of the session is the end
 * of the worker. Loop thread only. */
#ifndef CST_WORKER_H
#define CST_WORKER_H

#include "daemon/job/job.h"

/* Contents of a JobOpen whose form has been checked. */
struct cstd_job_request {
    /* Texts are borrowed. device_update_bytes, device_states: 0 is none or, if the job's memory is
     * decided already, what its rank has. */
    struct cst_job_spec spec;
    const struct cstd_tier *tier; /* Tier of the rank's pool. */
    bool any_device; /* "auto": the device that the rank has already, if it is decided. */
    bool again;      /* The job must exist: it was open with an earlier daemon process. */
    /* Numbers of the drives on which rank 0 wants the states, such as "259:1"; 0: it does not say.
     * Borrowed. */
    size_t n_drives;
    char *const *drives;
    const uint8_t *token; /* Token of CSTD_JOB_TOKEN_BYTES; NULL: none. */
    /* The plan that the worker brought; n_chunks 0: none. Fields above that it decides are settled
     * when the job is known (given.h). */
    struct cst_saved_plan plan;
};

/* Attach @session as a rank of the job that @request names. A job that does not exist is created;
 * *created tells whether. CST_EINVAL; CST_EMISMATCH: @request disagrees with the job;
 * CST_ENOTFOUND: there is no such base job; CST_EBUSY: another process holds the rank, the words
 * name its pid; CST_EBUDGET: too many jobs; CST_ENOMEM. */
int cstd_worker_attach(struct cstd_session *session, const struct cstd_job_request *request,
                       bool *created, struct cst_err *err);

/* The session of @rank has ended. */
void cstd_worker_hangup(struct cstd_job *job, uint32_t rank);

/* The worker of @rank has left in good order. The caller has already told the core. */
void cstd_worker_left(struct cstd_job *job, uint32_t rank);

#endif
