/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/job.h"

#include "client/lib/debug.h"
#include "client/lib/disk.h"

#include "client/lib/batch.h"
#include "client/lib/opened.h"
#include "proto/job_options.h"
#include "proto/plan_message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- life ------------------------------------------------------------------------------------- */

static int check_spec(const struct cst_client *client, const struct cst_job_spec *spec,
                      struct cst_err *err)
{
    if (client->job != NULL) {
        return cst_err_set(err, CST_EINVAL, "this connection has job '%s' open: one job per client",
                           client->job->name);
    }
    return cst_job_options_check(spec, err);
}

/* Keep the request, so that the job can be opened again after the daemon's end. */
static int keep_opening(struct cst_job *job, Cistern__JobOpen *msg, struct cst_err *err)
{
    bool reshape = msg->has_reshape;

    msg->has_again = msg->again = true;
    msg->has_reshape = false; /* It is reshaped then. */
    job->opening_bytes = cistern__job_open__get_packed_size(msg);
    job->opening = malloc(job->opening_bytes);
    if (job->opening == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for job '%s'", msg->name);
    }
    (void)cistern__job_open__pack(msg, job->opening);
    msg->has_again = msg->again = false;
    msg->has_reshape = reshape;
    return CST_OK;
}

/* Send Leave. The daemon answers a sync of this rank that waits: its reply is not needed. */
static int send_leave(struct cst_job *job, struct cst_err *err)
{
    const bool in_sync = job->pending.kind == CSTC_PENDING_SYNC;
    struct cstc_call call = {0};
    int rc;

    job->client->pending = job->client->pending && !in_sync;
    rc = cstc_call_sync(job->client, &call, CISTERN__MSG_TYPE__MSG_LEAVE, NULL,
                        CISTERN__MSG_TYPE__MSG_OK, NULL, err);
    if (rc != CST_OK) {
        job->client->pending = job->client->pending || in_sync;
        return rc;
    }
    job->left = true;
    cstc_opened_tell(CSTC_OPENED_LEFT, job->rank);
    cstc_call_reset(&call);
    while (job->call.state != CSTC_CALL_IDLE && job->call.state != CSTC_CALL_DONE) {
        (void)cstc_call_wait(job->client, -1, err);
    }
    cstc_call_reset(&job->call);
    job->pending.kind = CSTC_PENDING_NONE;
    return CST_OK;
}

int cst_job_open(struct cst_job **out, struct cst_client *client, const struct cst_job_spec *spec,
                 struct cst_err *err)
{
    Cistern__JobOpen msg;
    Cistern__JobPlan plan_msg;
    struct cst_saved_plan plan;
    struct cst_job_texts texts;
    struct cstc_disk_drives drives;
    const Cistern__JobOpened *opened;
    struct cstc_call call = {0};
    struct cst_job *job;
    struct cstc_debug debug = {.poison = false};
    bool committed;
    int rc = cstc_client_check(client, err);

    if (rc == CST_OK) {
        rc = check_spec(client, spec, err);
    }
    if (rc == CST_OK) {
        rc = cstc_debug_read(&debug, err);
    }
    rc = rc == CST_OK ? cstc_disk_find(spec, &drives, err) : rc;
    if (rc == CST_OK && spec->planning.plan_file != NULL) {
        rc = cst_saved_plan_read(&plan, spec->planning.plan_file, err);
        rc = rc == CST_ENOTFOUND ? cst_err_set(err, rc,
                                               "there is no plan in %.200s: 'cistern plan --save "
                                               "FILE' makes one",
                                               spec->planning.plan_file)
                                 : rc;
    }
    if (rc != CST_OK) {
        return rc;
    }
    job = calloc(1, sizeof *job);
    if (job == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for job '%s'", spec->name);
    }
    cistern__job_open__init(&msg);
    cst_job_texts_make(&texts, spec);
    cst_job_options_fill(&msg.base, spec, &texts, CST_JOB_ALL);
    msg.n_drives = drives.n;
    msg.drives = drives.list;
    if (spec->planning.plan_file != NULL) {
        cst_plan_message_fill(&plan_msg, &plan);
        msg.plan = &plan_msg;
    }
    rc = keep_opening(job, &msg, err);
    if (rc == CST_OK) {
        rc = cstc_call_sync(client, &call, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &msg.base,
                            CISTERN__MSG_TYPE__MSG_JOB_OPENED, &cistern__job_opened__descriptor,
                            err);
    }
    if (rc != CST_OK) {
        free(job->opening);
        free(job);
        return rc;
    }
    opened = (const Cistern__JobOpened *)call.reply;
    job->client = client;
    (void)snprintf(job->name, sizeof job->name, "%s", spec->name);
    (void)snprintf(job->device_name, sizeof job->device_name, "%s", opened->device);
    job->debug = debug;
    job->timeout_ms = spec->limits.timeout_ms;
    job->rank = spec->rank;
    job->world = spec->world;
    job->micro_batches = spec->updates.micro_batches > 1 ? spec->updates.micro_batches : 1;
    job->unit_batches = job->micro_batches * (spec->world / cst_job_block_ranks(spec));
    job->optimizer = spec->states.optimizer;
    job->moments = spec->states.moments;
    job->weights_follow =
        spec->states.grad_over_weight || spec->states.masters == CST_MASTERS_SPLIT;
    job->has_base = spec->model.base != NULL;
    job->overlap = spec->updates.overlap;
    job->unused.skips = spec->updates.unused == CST_UNUSED_SKIP;
    job->initialised = opened->initialised;
    job->steps = opened->step;
    job->begun = -1;
    cst_model_init(&job->model);
    committed = opened->committed;
    cstc_call_reset(&call);
    client->job = job;
    client->free_job = cstc_job_free;
    cstc_opened_tell(CSTC_OPENED_JOB, spec->rank);
    if (drives.n > 0 && !committed) {
        rc = cstc_disk_give(client, spec, err);
    }
    if (rc != CST_OK) {
        (void)send_leave(job, NULL);
        client->job = NULL;
        cstc_job_free(job);
        return rc;
    }
    *out = job;
    return CST_OK;
}

void cstc_job_free(struct cst_job *job)
{
    if (job == NULL) {
        return;
    }
    cstc_edge_close(job); /* Needs the model and the device. */
    if (!job->client->forked) {
        /* A forked child does not inherit the mappings (MADV_DONTFORK). It may have other memory at
         * these addresses, which must stay mapped. */
        if (job->device.calls != NULL) {
            cstc_device_unmap(job);
        }
        for (uint32_t i = 0; job->slabs != NULL && i < job->n_slabs; i++) {
            cstc_segment_unmap(&job->slabs[i]);
        }
    }
    if (job->comms != NULL) {
        job->comm_ops->free(job->comms, job->client->forked);
    }
    cstc_call_reset(&job->call);
    cstc_batch_free_all(job);
    cst_sequence_close(&job->sequence);
    cstc_load_close(&job->device.loads);
    cst_model_close(&job->model);
    free(job->opening);
    free(job->slabs);
    free(job->tensor_chunk);
    cstc_unused_close(job);
    free(job->tensor_offset);
    free(job->traits);
    free(job->operators);
    free(job);
}

static int leave(struct cst_job *job, struct cst_err *err)
{
    int rc = cstc_job_check(job, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (job->pending.kind != CSTC_PENDING_NONE && job->pending.kind != CSTC_PENDING_SYNC) {
        return cst_err_set(err, CST_EBUSY, "job '%s': another call is pending", job->name);
    }
    /* The device's work must end first: after Leave the daemon may give the blocks to another
     * worker. */
    rc = cstc_device_finish(job, err);
    return rc == CST_OK ? send_leave(job, err) : rc;
}

int cst_job_leave(struct cst_job *job, struct cst_err *err)
{
    int rc;

    do {
        rc = leave(job, err);
    } while (cstc_job_goes_on(job, &rc, err));
    return rc;
}

int cst_job_remove(struct cst_client *client, const char *name, struct cst_err *err)
{
    Cistern__JobName msg = CISTERN__JOB_NAME__INIT;
    struct cstc_call call = {0};
    int rc;

    msg.name = (char *)(uintptr_t)name;
    rc = cstc_call_sync(client, &call, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &msg.base,
                        CISTERN__MSG_TYPE__MSG_OK, NULL, err);
    if (rc == CST_OK) {
        cstc_call_reset(&call);
    }
    return rc;
}

/* -- state ------------------------------------------------------------------------------------ */

bool cst_job_initialised(const struct cst_job *job)
{
    return job->initialised;
}

uint64_t cst_job_steps(const struct cst_job *job)
{
    return job->steps;
}

/* -- the pending call ------------------------------------------------------------------------- */

/* Return whether @a and @b are equal bit by bit: a loss may be NaN, which is not equal to itself.
 * There is no padding between the members. */
static bool same_params(const struct cst_hyper_params *a, const struct cst_hyper_params *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

int cstc_job_pend(struct cst_job *job, const struct cstc_pending *want, struct cst_err *err)
{
    const struct cstc_pending *have = &job->pending;

    if (have->kind == CSTC_PENDING_NONE && job->client->pending) {
        return cst_err_set(err, CST_EBUSY, "another call is pending: repeat it until it has ended");
    }
    if (have->kind == CSTC_PENDING_NONE) {
        job->pending = *want;
        job->pending.sent = false;
        job->client->pending = true;
        return CST_OK;
    }
    if (have->kind != want->kind || have->op != want->op || have->backward != want->backward ||
        memcmp(&have->loss, &want->loss, sizeof have->loss) != 0 ||
        !same_params(&have->params, &want->params)) {
        return cst_err_set(err, CST_EBUSY,
                           "job '%s': another call is pending; repeat it with its own arguments",
                           job->name);
    }
    return CST_OK;
}

int cstc_job_drive(struct cst_job *job, int (*advance)(struct cst_job *job, struct cst_err *err),
                   bool block, struct cst_err *err)
{
    int rc;

    if (!block) {
        /* The status is not needed: if the connection ends, the calls in flight fail, and @advance
         * returns the cause. */
        (void)cstc_call_pump(job->client, err);
    }
    /* The stream may have passed marks since the last call. What waited for them is given back now,
     * because this call may need the blocks. */
    if (job->device.calls != NULL) {
        cstc_device_pump(job);
    }
    while ((rc = advance(job, err)) == CST_EAGAIN && block) {
        (void)cstc_call_wait(job->client, -1, err);
        /* Otherwise a stream that waits for a rank that has died would never pass its marks. */
        if (job->comms != NULL) {
            job->comm_ops->stop_over(job->comms);
        }
    }
    if (rc != CST_EAGAIN) {
        job->pending.kind = CSTC_PENDING_NONE;
        job->client->pending = false;
    }
    return rc;
}

int cstc_job_answer(struct cst_job *job, struct cst_err *err)
{
    int rc = cstc_call_result(&job->call, err);

    if (rc != CST_OK && rc != CST_EAGAIN) {
        cstc_call_reset(&job->call);
    }
    return rc;
}
