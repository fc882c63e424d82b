/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/shared_wait.h"

enum {
    /* Time between two looks at the connection. The end of the daemon wakes nobody. */
    LOOK_MS = 100,
    /* Time between two questions to the daemon: see `asleep_ms` in struct cst_job. */
    QUESTION_MS = 500,
};

/* Ask the daemon whether the attempt is over, with a request that changes nothing if it is: a hint.
 * Its answer has the cause. CST_OK: the attempt goes on; *paused: the job is paused. */
static int ask(struct cst_job *job, bool *paused, struct cst_err *err)
{
    Cistern__BatchItem item = CISTERN__BATCH_ITEM__INIT, *items = &item;
    Cistern__Batch msg = CISTERN__BATCH__INIT;
    const Cistern__BatchDone *done;
    struct cstc_call call = {0};
    struct cst_err why = {0};
    int rc;

    item.kind = CISTERN__BATCH_ITEM__KIND__PREFETCH;
    msg.attempt = job->attempt;
    msg.n_items = 1;
    msg.items = &items;
    rc = cstc_call_sync(job->client, &call, CISTERN__MSG_TYPE__MSG_BATCH, &msg.base,
                        CISTERN__MSG_TYPE__MSG_BATCH_DONE, &cistern__batch_done__descriptor, err);
    if (rc != CST_OK) {
        return rc;
    }
    done = (const Cistern__BatchDone *)call.reply;
    *paused = done->has_paused && done->paused;
    if (done->n_results == 1 && done->results[0]->status < 0) {
        int status = done->results[0]->status;

        (void)cst_err_set(&why, status, "%s",
                          done->results[0]->text != NULL ? done->results[0]->text
                                                         : cst_status_words(status));
    }
    cstc_call_reset(&call);
    /* A hint for a chunk that this rank does not use is refused, too. */
    if (why.status != CST_OK && why.status != CST_EINVAL) {
        cstc_job_void(job, &why);
    }
    return cstc_job_check_step(job, err);
}

/* Do what cannot be left until the wait is over. @asks: ask the daemon, too. */
static int look_around(struct cst_job *job, bool asks, bool *paused, struct cst_err *err)
{
    int rc = asks ? ask(job, paused, err) : cstc_call_pump(job->client, err);

    if (rc == CST_OK && job->device.calls != NULL) {
        cstc_device_pump(job);
    }
    return rc == CST_OK ? cstc_job_check_step(job, err) : rc;
}

/* Return whether blocks or gradients wait for marks of the job's stream. The stream wakes nobody
 * here when it passes a mark, and another rank may need them first. */
static bool holds_back(const struct cst_job *job)
{
    return job->device.calls != NULL && job->sequence.fences.n > 0;
}

/* Time until the next look, after a wait of @waited_ms. @polls: as cstc_shared_poll. */
static uint32_t interval(bool polls, uint32_t waited_ms)
{
    const uint32_t ms = waited_ms / 8 > 0 ? waited_ms / 8 : 1;

    return polls && ms < LOOK_MS ? ms : LOOK_MS;
}

/* Wait for @wait as cstc_shared_wait does, or, if @polls, as cstc_shared_poll does. */
static int wait_looking(struct cst_job *job, struct cst_shared_head *head,
                        struct cst_shared_wait wait, bool polls, uint32_t timeout_ms,
                        struct cst_err *err)
{
    uint32_t left_ms = timeout_ms;

    for (;;) {
        bool paused = false;
        const uint32_t look_ms = interval(polls || holds_back(job), timeout_ms - left_ms);
        const uint32_t ms = left_ms < look_ms ? left_ms : look_ms;
        int rc = cst_shared_wait(head, &wait, ms);

        if (rc == CST_OK) {
            return CST_OK;
        }
        if (rc == CST_EPEERDIED) {
            rc = ask(job, &paused, err);
            /* If it is not over, a rank has written a wrong number there. Only the daemon counts
             * from now on. */
            wait.attempt = UINT64_MAX;
        } else {
            left_ms -= ms;
            job->asleep_ms += ms;
            rc = look_around(job,
                             (left_ms == 0 && timeout_ms > 0) || wait.attempt == UINT64_MAX ||
                                 job->asleep_ms >= QUESTION_MS,
                             &paused, err);
            job->asleep_ms = job->asleep_ms >= QUESTION_MS ? 0 : job->asleep_ms;
        }
        if (rc != CST_OK) {
            return rc;
        }
        left_ms = paused ? timeout_ms : left_ms; /* A pause has no deadlines. */
        if (left_ms == 0) {
            return CST_ETIMEDOUT;
        }
    }
}

int cstc_shared_wait(struct cst_job *job, struct cst_shared_head *head, uint32_t n_processes,
                     bool (*ready)(void *arg), void *arg, uint32_t timeout_ms, struct cst_err *err)
{
    const struct cst_shared_wait wait = {
        .attempt = job->attempt, .n_processes = n_processes, .ready = ready, .arg = arg};

    return wait_looking(job, head, wait, false, timeout_ms, err);
}

int cstc_shared_poll(struct cst_job *job, struct cst_shared_head *head, bool (*ready)(void *arg),
                     void *arg, uint32_t timeout_ms, struct cst_err *err)
{
    const struct cst_shared_wait wait = {.attempt = job->attempt, .ready = ready, .arg = arg};

    return wait_looking(job, head, wait, true, timeout_ms, err);
}
