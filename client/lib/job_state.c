/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/job.h"
#include "proto/reason.h"

/* What a call may do in the state that the job is in, and what breaks that state. */

int cstc_job_check(const struct cst_job *job, struct cst_err *err)
{
    int rc = cstc_client_check(job->client, err);

    if (rc == CST_OK && job->left) {
        rc = cst_err_set(err, CST_EINVAL, "job '%s': this rank has left it", job->name);
    }
    return rc;
}

int cstc_job_check_committed(const struct cst_job *job, struct cst_err *err)
{
    int rc = cstc_job_check(job, err);

    if (rc == CST_OK && job->commit.phase != CSTC_COMMIT_DONE) {
        rc =
            cst_err_set(err, CST_EINVAL, "job '%s' is not committed: call commit first", job->name);
    }
    return rc;
}

int cstc_job_check_step(const struct cst_job *job, struct cst_err *err)
{
    int rc = cstc_job_check_committed(job, err);

    if (rc == CST_OK && job->void_step.status != CST_OK) {
        rc =
            cst_err_give_reason(err, job->void_step.reason,
                                cst_err_set(err, job->void_step.status, "%s", job->void_step.text));
    } else if (rc == CST_OK && !job->synced) {
        rc = cst_err_set(err, CST_EINVAL, "job '%s': call sync before the first step", job->name);
    }
    return rc;
}

void cstc_job_void(struct cst_job *job, const struct cst_err *cause)
{
    /* After these, a sync does not help, and the text must not advise it. */
    bool engine = cause->status == CST_EENGINE || cause->status == CST_ELOST;

    if (job->void_step.status == CST_OK) {
        (void)cst_err_set(&job->void_step, cause->status, "job '%s': the step is void%s: %.256s",
                          job->name, engine ? "" : ", call sync and do it again", cause->text);
        (void)cst_err_give_reason(&job->void_step, cause->reason, cause->status);
        cstc_job_stop_comms(job, &job->void_step);
    }
}

int cstc_job_distrust(struct cst_job *job, const struct cst_err *why, struct cst_err *err)
{
    return cstc_client_distrust(job->client, why, err);
}
