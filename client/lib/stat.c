/* SPDX-License-Identifier: Apache-2.0 */
/* cst_stat and cst_job_waits: what the daemon knows about a job. */
#include "client/lib/job.h"

#include <stdio.h>

static void fill(const Cistern__JobInfo *job, const Cistern__RankInfo *rank,
                 struct cst_rank_stat *out)
{
    *out = (struct cst_rank_stat){
        .hits = rank->hits,
        .late = rank->late,
        .misses = rank->misses,
        .weight_wait_seconds = rank->weight_wait_seconds,
        .evictions = rank->evictions,
        .prefetches = rank->prefetches,
        .surprises = rank->surprises,
        .bytes_up = rank->bytes_up,
        .bytes_down = rank->bytes_down,
        .pool_bytes = rank->pool != NULL ? rank->pool->capacity : 0,
        .step = job->step,
        .step_seconds = job->step_seconds,
        .exposed_seconds = job->exposed_seconds,
        .n_skipped = job->n_skipped,
    };
}

static int stat_rank(struct cst_job *job, struct cst_rank_stat *out, struct cst_err *err)
{
    Cistern__JobName msg = CISTERN__JOB_NAME__INIT;
    const Cistern__JobInfo *info;
    struct cstc_call call = {0};
    int rc = cstc_job_check(job, err);

    if (rc != CST_OK) {
        return rc;
    }
    msg.name = job->name;
    msg.has_first_rank = true;
    msg.first_rank = job->rank;
    rc = cstc_call_sync(job->client, &call, CISTERN__MSG_TYPE__MSG_JOB_INFO, &msg.base,
                        CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY, &cistern__job_info_reply__descriptor,
                        err);
    if (rc != CST_OK) {
        return rc;
    }
    info = ((const Cistern__JobInfoReply *)call.reply)->job;
    rc = cst_err_set(err, CST_ENOTFOUND, "job '%s': the daemon has no numbers of rank %u",
                     job->name, job->rank);
    for (size_t i = 0; rc != CST_OK && i < info->n_ranks; i++) {
        if (info->ranks[i]->rank == job->rank) {
            fill(info, info->ranks[i], out);
            rc = CST_OK;
        }
    }
    cstc_call_reset(&call);
    return rc;
}

int cst_stat(struct cst_job *job, struct cst_rank_stat *out, struct cst_err *err)
{
    int rc;

    do {
        rc = stat_rank(job, out, err);
    } while (cstc_job_goes_on(job, &rc, err));
    return rc;
}

int cst_job_waits(struct cst_client *client, const char *name, char *words, size_t size,
                  struct cst_err *err)
{
    Cistern__JobName msg = CISTERN__JOB_NAME__INIT;
    const Cistern__JobInfo *info;
    struct cstc_call call = {0};
    int rc;

    msg.name = (char *)(uintptr_t)name;
    rc = cstc_call_sync(client, &call, CISTERN__MSG_TYPE__MSG_JOB_INFO, &msg.base,
                        CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY, &cistern__job_info_reply__descriptor,
                        err);
    if (rc != CST_OK) {
        return rc;
    }
    info = ((const Cistern__JobInfoReply *)call.reply)->job;
    (void)snprintf(words, size, "%s", info->waits_for != NULL ? info->waits_for : "");
    cstc_call_reset(&call);
    return CST_OK;
}
