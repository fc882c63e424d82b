/* SPDX-License-Identifier: Apache-2.0 */
/* cst_next: what this rank does next, in a model that is cut into stages. */
#include "client/lib/job.h"

/* Hand in what is left of the unit, and send the Next after it: the daemon processes requests in
 * order. CST_EAGAIN: not everything could be sent yet. */
static int send_next(struct cst_job *job, struct cst_err *err)
{
    Cistern__Next msg = CISTERN__NEXT__INIT;
    int rc = cstc_job_check_step(job, err);

    if (rc == CST_OK) {
        rc = cst_sequence_flush(&job->sequence, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    msg.attempt = job->attempt;
    msg.has_unit = true;
    msg.unit = job->unit;
    msg.has_loss = true;
    msg.loss = job->pending.loss;
    return cstc_call_start(job->client, &job->call, CISTERN__MSG_TYPE__MSG_NEXT, &msg.base,
                           CISTERN__MSG_TYPE__MSG_UNIT, &cistern__unit__descriptor, err);
}

static int advance_next(struct cst_job *job, struct cst_err *err)
{
    int rc = CST_OK;

    if (!job->pending.sent) {
        rc = send_next(job, err);
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

/* Return whether @msg is a unit that this job cannot have, with the reason in *why. */
static bool is_wrong(const struct cst_job *job, const Cistern__Unit *msg, struct cst_err *why)
{
    if (msg->stage >= job->model.n_stages || msg->micro_batch >= job->unit_batches) {
        (void)cst_err_set(why, CST_EPROTO, "stage %u of %u, micro-batch %u of %u", msg->stage,
                          job->model.n_stages, msg->micro_batch, job->unit_batches);
        return true;
    }
    if (msg->has_number && msg->number <= job->unit) {
        (void)cst_err_set(why, CST_EPROTO, "unit %llu after unit %llu",
                          (unsigned long long)msg->number, (unsigned long long)job->unit);
        return true;
    }
    return false;
}

/* Take the unit out of the reply. CST_EPROTO: there is no such unit, or the rank has done it. */
static int take_unit(struct cst_job *job, struct cst_unit *unit, struct cst_err *err)
{
    const Cistern__Unit *msg = (const Cistern__Unit *)job->call.reply;
    const struct cst_unit got = {
        .kind = msg->kind == CISTERN__UNIT__KIND__FORWARD    ? CST_UNIT_FORWARD
                : msg->kind == CISTERN__UNIT__KIND__BACKWARD ? CST_UNIT_BACKWARD
                                                             : CST_UNIT_STEP,
        .stage = msg->stage,
        .micro_batch = msg->micro_batch};
    struct cst_err why = {0};
    const bool wrong = is_wrong(job, msg, &why);

    job->unit = msg->has_number && !wrong ? msg->number : job->unit;
    cstc_call_reset(&job->call);
    cst_sequence_stepped(&job->sequence);
    if (wrong) {
        return cstc_job_distrust(job, &why, err);
    }
    *unit = got;
    return CST_OK;
}

static int next(struct cst_job *job, bool block, double loss, struct cst_unit *unit,
                struct cst_err *err)
{
    struct cstc_pending want = {.kind = CSTC_PENDING_NEXT, .loss = loss};
    /* The step can become void while the answer is on its way, which ends the call nevertheless. */
    int rc = job->pending.kind == CSTC_PENDING_NEXT ? cstc_job_check_committed(job, err)
                                                    : cstc_job_check_step(job, err);

    if (rc == CST_OK && job->model.n_stages == 0) {
        rc = cst_err_set(err, CST_EINVAL, "job '%s': the model is not cut into stages", job->name);
    }
    if (rc == CST_OK && unit == NULL) {
        rc = cst_err_set(err, CST_EINVAL, "job '%s': no place for the next unit", job->name);
    }
    if (rc == CST_OK && job->begun >= 0) {
        rc = cst_err_set(err, CST_EINVAL, "the next unit before the end of operator '%s'",
                         job->model.operators[job->begun].name);
    }
    if (rc == CST_OK) {
        rc = cstc_job_pend(job, &want, err);
    }
    if (rc == CST_OK) {
        rc = cstc_job_drive(job, advance_next, block, err);
    }
    return rc == CST_OK ? take_unit(job, unit, err) : rc;
}

int cst_next(struct cst_job *job, double loss, struct cst_unit *unit, struct cst_err *err)
{
    return next(job, true, loss, unit, err);
}

int cst_try_next(struct cst_job *job, double loss, struct cst_unit *unit, struct cst_err *err)
{
    return next(job, false, loss, unit, err);
}
