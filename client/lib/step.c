/* SPDX-License-Identifier: Apache-2.0 */
/* cst_sync, at which a step begins for all ranks; cst_accumulate, which ends a micro-batch;
 * cst_step, which ends the step. */
#include "client/lib/debug.h"
#include "client/lib/hyper.h"
#include "client/lib/job.h"
#include "client/lib/stepped.h"
#include "proto/reason.h"

/* -- sync ------------------------------------------------------------------------------------- */

/* Send the Sync. From then on, replies to earlier batches are ignored. If the sync fails, the step
 * stays void, and the worker must call cst_sync again. */
static int start_sync(struct cst_job *job, struct cst_err *err)
{
    Cistern__Sync msg = CISTERN__SYNC__INIT;
    struct cst_err cause;
    int rc;

    /* Once all ranks have synced, another one may write to the slots. */
    cstc_edge_forget(job);
    rc = cstc_call_start(job->client, &job->call, CISTERN__MSG_TYPE__MSG_SYNC, &msg.base,
                         CISTERN__MSG_TYPE__MSG_SYNCED, &cistern__synced__descriptor, err);
    if (rc != CST_OK) {
        return rc;
    }
    /* A sync that begins the job may complete without an answer, if the daemon ends then. */
    job->client->returns = job->client->returns || job->keeps;
    (void)cst_err_set(&cause, CST_ESTALE, "a sync did not complete");
    cstc_job_void(job, &cause);
    job->lease_epoch++;
    job->begun = -1;
    job->commit.has_refused = false;
    cstc_debug_lock(job);
    job->micro_batch = 0;
    job->prepared = false;
    cstc_unused_reset(job);
    cst_sequence_forget(&job->sequence);
    return CST_OK;
}

/* Sync with the other ranks. The step stays void. */
static int sync_ranks(struct cst_job *job, struct cst_err *err)
{
    const Cistern__Synced *msg;
    int rc = CST_OK;

    /* The Sync tells the daemon that this rank no longer uses its blocks; the device must have
     * finished before. */
    if (job->call.state == CSTC_CALL_IDLE) {
        rc = cstc_job_check(job, err);
        rc = rc == CST_OK ? cstc_device_drain(job, err) : rc;
        rc = rc == CST_OK ? start_sync(job, err) : rc;
    }
    if (rc == CST_OK) {
        rc = cstc_job_answer(job, err);
    }
    if (rc == CST_OK) {
        msg = (const Cistern__Synced *)job->call.reply;
        job->attempt = msg->attempt;
        job->unit = 0;
        job->steps = msg->step;
        job->initialised = true;
        job->keeps = job->client->returns = msg->has_kept && msg->kept;
        job->edges_wanted = msg->edges_replaced;
        cstc_call_reset(&job->call);
        if (job->edges_wanted != job->edges_mapped) {
            cstc_edge_close(job);
            job->commit.n_edges = 0;
        }
    }
    return rc;
}

/* Slots of edges were replaced: map all edges of this rank. */
static int renew_edges(struct cst_job *job, struct cst_err *err)
{
    const uint32_t wanted = job->edges_wanted;
    int rc = cstc_job_advance_edges(job, err);

    if (rc == CST_OK) {
        job->edges_mapped = job->edges_wanted = wanted;
    } else if (rc != CST_EAGAIN) { /* The next cst_sync syncs first. */
        job->edges_wanted = job->edges_mapped;
    }
    return rc;
}

static int advance_sync(struct cst_job *job, struct cst_err *err)
{
    int rc;

    do {
        rc = job->edges_wanted == job->edges_mapped ? sync_ranks(job, err) : CST_OK;
        if (rc == CST_OK && job->edges_wanted != job->edges_mapped) {
            rc = renew_edges(job, err);
        }
        /* The ranks at the other ends have mapped the slots that this rank has refused. They get
         * the new ones when all have synced once more. */
    } while (rc == CST_OK && job->commit.has_refused);
    if (rc == CST_OK) {
        job->synced = true;
        job->void_step.status = CST_OK;
        job->device.loads.over = false;
    }
    return rc;
}

/* Sync with the daemon, or with its next process if it is known to have ended. */
static int sync_once(struct cst_job *job, bool block, struct cst_err *err)
{
    struct cstc_pending want = {.kind = CSTC_PENDING_SYNC};
    int rc = cstc_job_check_committed(job, err);

    if (job->reopening || (rc == CST_EPEERDIED && job->client->returns)) {
        rc = cstc_job_reopen(job, block, err);
    }
    if (rc == CST_OK) {
        rc = cstc_job_pend(job, &want, err);
    }
    if (rc == CST_OK) {
        rc = cstc_job_drive(job, advance_sync, block, err);
    }
    return rc;
}

static int sync_job(struct cst_job *job, bool block, uint64_t *step, struct cst_err *err)
{
    int rc;

    do { /* The daemon may end meanwhile, and the next process, too. */
        rc = sync_once(job, block, err);
    } while (rc == CST_EPEERDIED && job->client->returns &&
             job->client->dead.status == CST_EPEERDIED);
    if (rc == CST_OK && step != NULL) {
        *step = job->steps;
    }
    return rc;
}

int cst_sync(struct cst_job *job, uint64_t *step, struct cst_err *err)
{
    return sync_job(job, true, step, err);
}

int cst_try_sync(struct cst_job *job, uint64_t *step, struct cst_err *err)
{
    return sync_job(job, false, step, err);
}

/* -- micro-batches ---------------------------------------------------------------------------- */

static int check_accumulate(const struct cst_job *job, struct cst_err *err)
{
    int rc = cstc_job_check_step(job, err);

    if (rc == CST_OK && job->pending.kind != CSTC_PENDING_NONE) {
        rc = cst_err_set(err, CST_EBUSY, "job '%s': another call is pending", job->name);
    }
    if (rc == CST_OK && job->begun >= 0) {
        rc =
            cst_err_set(err, CST_EINVAL, "the end of a micro-batch before the end of operator '%s'",
                        job->model.operators[job->begun].name);
    }
    if (rc == CST_OK && job->model.n_stages > 0) {
        rc = cst_err_set(err, CST_EINVAL,
                         "job '%s': the model is cut into stages, and next, not accumulate, ends "
                         "what was begun",
                         job->name);
    }
    if (rc == CST_OK && job->micro_batch + 1 >= job->micro_batches) {
        rc = cst_err_give_reason(
            err, CST_REASON_LAST_MICRO_BATCH,
            cst_err_set(err, CST_EINVAL,
                        "job '%s': micro-batch %u of %u is the last one of the step: end it with "
                        "step",
                        job->name, job->micro_batch + 1, job->micro_batches));
    }
    return rc;
}

int cst_accumulate(struct cst_job *job, struct cst_err *err)
{
    int rc = check_accumulate(job, err);

    if (rc == CST_OK) {
        rc = cst_sequence_accumulate(&job->sequence, err);
        job->micro_batch += rc == CST_OK;
    }
    return rc;
}

/* -- step ------------------------------------------------------------------------------------- */

static int start_step(struct cst_job *job, struct cst_err *err)
{
    Cistern__Hyper hyper;
    Cistern__Step msg = CISTERN__STEP__INIT;
    int rc = cstc_hyper_fill(job, &job->pending.params, &hyper, err);

    if (rc != CST_OK) {
        return rc;
    }
    msg.attempt = job->attempt;
    msg.hyper = &hyper;
    msg.has_loss = true;
    msg.loss = job->pending.params.loss;
    msg.tokens = job->pending.params.tokens;
    msg.has_tokens = msg.tokens > 0;
    cstc_unused_fill(job, &msg);
    return cstc_call_start(job->client, &job->call, CISTERN__MSG_TYPE__MSG_STEP, &msg.base,
                           CISTERN__MSG_TYPE__MSG_STEPPED, &cistern__stepped__descriptor, err);
}

/* Send the Step after the last hand-in, without waiting for its reply: the daemon processes
 * requests in order. */
static int send_step(struct cst_job *job, struct cst_err *err)
{
    int rc = cstc_job_check_step(job, err);

    if (rc == CST_OK) {
        rc = cst_sequence_flush(&job->sequence, err);
    }
    return rc == CST_OK ? start_step(job, err) : rc;
}

static int advance_step(struct cst_job *job, struct cst_err *err)
{
    int rc = CST_OK;

    if (!job->pending.sent) {
        rc = send_step(job, err);
        job->pending.sent = rc == CST_OK;
    }
    if (rc == CST_OK) {
        rc = cstc_job_answer(job, err);
    }
    if (rc == CST_EPEERDIED || rc == CST_ESTALE) {
        cstc_job_void(job, &job->call.err);
    }
    return rc;
}

static void take_step(struct cst_job *job, struct cst_step_result *result)
{
    const Cistern__Stepped *msg = (const Cistern__Stepped *)job->call.reply;

    job->steps = msg->step;
    if (result != NULL) {
        *result = (struct cst_step_result){
            .step = msg->step,
            .skipped = msg->skipped,
            .grad_norm = msg->grad_norm,
            .clip = msg->clip,
            .loss = msg->loss,
            .n_skipped = msg->n_skipped,
            .overflow = msg->has_overflow ? msg->overflow : msg->skipped,
        };
    }
    job->micro_batch = 0;
    job->prepared = false;
    cstc_unused_reset(job);
    cstc_call_reset(&job->call);
    cst_sequence_stepped(&job->sequence);
    job->unit = 0;
}

static int step_job(struct cst_job *job, bool block, const struct cst_hyper_params *params,
                    struct cst_step_result *result, struct cst_err *err)
{
    struct cstc_pending want = {.kind = CSTC_PENDING_STEP};
    int rc = cstc_job_check_committed(job, err);

    if (rc == CST_OK && params == NULL) {
        rc = cst_err_set(err, CST_EINVAL, "job '%s': the parameters of the step are missing",
                         job->name);
    }
    if (rc == CST_OK && job->begun >= 0) {
        rc = cst_err_set(err, CST_EINVAL, "a step before the end of operator '%s'",
                         job->model.operators[job->begun].name);
    }
    if (rc == CST_OK) {
        /* Checks the parameters before anything is sent. */
        rc = cstc_hyper_fill(job, params, &(Cistern__Hyper){0}, err);
    }
    if (rc == CST_OK) {
        want.params = *params;
        rc = cstc_job_pend(job, &want, err);
    }
    if (rc == CST_OK) {
        rc = cstc_job_drive(job, advance_step, block, err);
    }
    if (rc == CST_OK) {
        take_step(job, result);
        if (!job->told_run) {
            cstc_stepped_tell();
            job->told_run = true;
        }
    }
    return rc;
}

int cst_step(struct cst_job *job, const struct cst_hyper_params *params,
             struct cst_step_result *result, struct cst_err *err)
{
    return step_job(job, true, params, result, err);
}

int cst_try_step(struct cst_job *job, const struct cst_hyper_params *params,
                 struct cst_step_result *result, struct cst_err *err)
{
    return step_job(job, false, params, result, err);
}
