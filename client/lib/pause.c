/* SPDX-License-Identifier: Apache-2.0 */
/* A client pauses a job, and lets it go on. */
#include "client/lib/job.h"
#include "proto/cistern.pb-c.h"

int cst_job_pause(struct cst_client *client, const char *name, bool release_pools,
                  struct cst_pause_result *out, struct cst_err *err)
{
    Cistern__JobPause msg = CISTERN__JOB_PAUSE__INIT;
    struct cstc_call call = {0};
    int rc;

    msg.name = (char *)(uintptr_t)name;
    msg.has_release_pools = msg.release_pools = release_pools;
    rc = cstc_call_sync(client, &call, CISTERN__MSG_TYPE__MSG_PAUSE, &msg.base,
                        CISTERN__MSG_TYPE__MSG_OK, &cistern__paused__descriptor, err);
    if (rc == CST_OK) {
        const Cistern__Paused *reply = (const Cistern__Paused *)call.reply;

        if (out != NULL) {
            *out = (struct cst_pause_result){.step = reply->step,
                                             .wait_s = reply->wait_s,
                                             .update_s = reply->update_s,
                                             .release_s = reply->release_s,
                                             .released_bytes = reply->released_bytes,
                                             .already = reply->already};
        }
        cstc_call_reset(&call);
    }
    return rc;
}

int cst_job_resume(struct cst_client *client, const char *name, struct cst_resume_result *out,
                   struct cst_err *err)
{
    Cistern__JobName msg = CISTERN__JOB_NAME__INIT;
    struct cstc_call call = {0};
    int rc;

    msg.name = (char *)(uintptr_t)name;
    rc = cstc_call_sync(client, &call, CISTERN__MSG_TYPE__MSG_RESUME, &msg.base,
                        CISTERN__MSG_TYPE__MSG_OK, &cistern__resumed__descriptor, err);
    if (rc == CST_OK) {
        const Cistern__Resumed *reply = (const Cistern__Resumed *)call.reply;

        if (out != NULL) {
            *out = (struct cst_resume_result){.step = reply->step,
                                              .paused_s = reply->paused_s,
                                              .resume_s = reply->resume_s,
                                              .pool_bytes = reply->pool_bytes};
        }
        cstc_call_reset(&call);
    }
    return rc;
}
