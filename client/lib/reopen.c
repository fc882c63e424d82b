/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a job again that has outlived a process of the daemon. */
#include "client/lib/job.h"

#include "proto/clock.h"

#include <stdio.h>
#include <time.h>

enum {
    DEFAULT_WAIT_MS =
        60000,    /* Longest wait for the daemon, if the job has no timeout of its own. */
    LOOK_MS = 10, /* Time between two attempts to connect. */
};

static int64_t now_ms(void)
{
    return (int64_t)(cst_clock_ns() / 1000000);
}

/* Connect to the next process of the daemon. While a service is restarted, a connection can be made
 * and be closed again. The time limit is for all attempts until the job is there again: processes
 * of the daemon can also end one after the other. */
static int connect_again(struct cst_job *job, bool block, struct cst_err *err)
{
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000};
    const uint32_t wait_ms = job->timeout_ms > 0 ? job->timeout_ms : DEFAULT_WAIT_MS;
    struct cst_err why = {.text = "the processes of the daemon ended"};

    if (job->reopen_until_ms == 0) {
        job->reopen_until_ms = now_ms() + wait_ms;
    }
    while (now_ms() < job->reopen_until_ms) {
        if (cstc_client_reopen(job->client, &why) == CST_OK) {
            return CST_OK;
        }
        if (!block) {
            /* The client's descriptor polls readable when the next attempt is due. */
            cstc_wake_resend(&job->client->wake, job->client->sock, CSTC_RESEND_LATER);
            return CST_EAGAIN;
        }
        (void)nanosleep(&pause, NULL);
    }
    return cst_err_set(err, CST_ECONN, "job '%s' was not there again within %u ms: %.256s",
                       job->name, wait_ms, why.text);
}

/* Send the JobOpen of cst_job_open again. */
static int open_again(struct cst_job *job, struct cst_err *err)
{
    Cistern__JobOpen *msg = cistern__job_open__unpack(NULL, job->opening_bytes, job->opening);
    const Cistern__JobOpened *opened;
    struct cstc_call call = {0};
    int rc;

    if (msg == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to open job '%s' again", job->name);
    }
    rc = cstc_call_sync(job->client, &call, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &msg->base,
                        CISTERN__MSG_TYPE__MSG_JOB_OPENED, &cistern__job_opened__descriptor, err);
    if (rc == CST_OK) {
        opened = (const Cistern__JobOpened *)call.reply;
        job->steps = opened->step;
        job->initialised = job->initialised || opened->initialised;
        cstc_call_reset(&call);
    }
    cistern__job_open__free_unpacked(msg, NULL);
    return rc;
}

bool cstc_job_goes_on(struct cst_job *job, int *rc, struct cst_err *err)
{
    if (*rc != CST_EPEERDIED || !job->client->returns || job->begun >= 0 ||
        job->client->dead.status != CST_EPEERDIED) {
        return false;
    }
    do {
        *rc = cstc_job_reopen(job, true, err);
    } while (*rc == CST_EPEERDIED); /* That process of the daemon has ended, too. */
    return *rc == CST_OK;
}

int cstc_job_reopen(struct cst_job *job, bool block, struct cst_err *err)
{
    struct cst_err cause;
    int rc = CST_OK;

    if (cstc_client_check(job->client, &cause) != CST_OK) {
        cstc_job_void(job, &cause);
        job->reopening = false;
        /* The call that was pending has ended with the connection. */
        job->client->pending = job->client->pending && job->pending.kind == CSTC_PENDING_NONE;
        job->pending.kind = CSTC_PENDING_NONE;
        rc = connect_again(job, block, err);
    }
    if (rc == CST_OK && !job->reopening) {
        rc = open_again(job, err);
        /* The step is void, but its work on the device may still use the old memory. */
        rc = rc == CST_OK ? cstc_device_finish(job, err) : rc;
        if (rc == CST_OK) {
            cstc_call_reset(&job->call);
            cstc_job_uncommit(job);
            cstc_segment_unmap(&job->client->staging);
            job->reopening = true;
        } else {
            /* Without the job, this connection is of no use. */
            cstc_client_die(job->client, err);
        }
    }
    if (rc == CST_OK) {
        rc = cstc_job_drive(job, cstc_job_advance_commit, true, err);
    }
    job->reopening = job->reopening && rc != CST_OK;
    if (rc != CST_EAGAIN && rc != CST_EPEERDIED) {
        job->reopen_until_ms = 0;
    }
    return rc;
}
