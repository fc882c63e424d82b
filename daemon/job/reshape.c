/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/reshape.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/base_job.h"
#include "daemon/job/done.h"
#include "daemon/job/migrate.h"
#include "daemon/job/state_copy.h"
#include "daemon/job/worker.h"
#include "daemon/memory/device_reservation.h"
#include "offload/layout/reshard.h"
#include "proto/optimizers.h"
#include "proto/size.h"
#include "daemon/ledger/ledger.h"
#include "daemon/memory/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- which job -------------------------------------------------------------------------------- */

static bool has_worker(const struct cstd_job *job)
{
    bool present = false;

    for (uint32_t r = 0; r < job->world; r++) {
        present = present || job->workers[r].present;
    }
    return present;
}

/* Check that the states of @job are whole and that nobody else uses them. */
static int check_rest(const struct cstd_job *job, struct cst_err *err)
{
    struct cst_core_stats stats;
    char what[96];

    cst_core_stats(job->core, &stats);
    if (stats.phase == CST_PHASE_FAILED) {
        return cst_err_set(err, CST_EBUSY,
                           "job '%s' cannot be reshaped: it has failed, and its states may be "
                           "damaged",
                           job->name);
    }
    if (stats.chunks_ahead > 0) {
        return cst_err_set(err, CST_EBUSY,
                           "job '%s' cannot be reshaped: step %" PRIu64
                           " has begun its updates, and must be finished with %u ranks",
                           job->name, stats.step, job->world);
    }
    if (stats.n_writes_left > 0) {
        return cst_err_set(err, CST_EBUSY,
                           "job '%s' cannot be reshaped: %u writes of its states were cut off when "
                           "the daemon ended, and its workers have not repeated them",
                           job->name, stats.n_writes_left);
    }
    if (job->pause.wanted) {
        return cst_err_set(err, CST_EBUSY,
                           "job '%s' cannot be reshaped while it is paused: resume it first "
                           "(cistern resume %s)",
                           job->name, job->name);
    }
    if (stats.saving || job->saver != NULL) {
        return cst_err_set(err, CST_EBUSY, "job '%s' cannot be reshaped while it is saved",
                           job->name);
    }
    (void)snprintf(what, sizeof what, "job '%s' cannot be reshaped", job->name);
    return cstd_base_job_check_unused(job, what, err);
}

/* Check that the states of @job mean the same in the job that @request describes. */
static int check_kind(const struct cstd_job *job, const struct cstd_job_request *request,
                      struct cst_err *err)
{
    const char *base = job->base != NULL ? job->base->name : "";
    const struct cst_option *option =
        cst_job_options_difference(&job->spec, &request->spec, CST_JOB_FIXED);
    char theirs[CST_JOB_VALUE_BYTES], mine[CST_JOB_VALUE_BYTES];

    if (job->span != NULL || request->spec.nodes.all_ranks > request->spec.world) {
        return cst_err_set(
            err, CST_EUNSUPPORTED,
            "job '%s' cannot be reshaped: it %s ranks on several nodes; save it, and "
            "load the checkpoint into a new job",
            job->name, job->span != NULL ? "has" : "would have");
    }
    /* Its files are those of the steps so far, and their names are taken. */
    if (job->spec.states.durable || request->spec.states.durable) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "job '%s' cannot be reshaped: it %s durable; save it, and load the "
                           "checkpoint into a new job",
                           job->name, job->spec.states.durable ? "is" : "would become");
    }
    if (option != NULL) {
        return cst_err_set(err, CST_EMISMATCH,
                           "job '%s' cannot be reshaped: its %s is %s, not %s as rank %u wants",
                           job->name, option->field,
                           cst_job_options_text(option, &job->spec, theirs),
                           cst_job_options_text(option, &request->spec, mine), request->spec.rank);
    }
    if (request->spec.model.base != NULL && strcmp(request->spec.model.base, base) != 0) {
        return cst_err_set(err, CST_EMISMATCH,
                           "job '%s' cannot be reshaped: its base is '%s', not '%s' as rank %u "
                           "wants",
                           job->name, base, request->spec.model.base, request->spec.rank);
    }
    return CST_OK;
}

int cstd_reshape_find(const struct cstd_job_request *request, struct cstd_job **job,
                      struct cstd_job **predecessor, struct cst_err *err)
{
    struct cstd_job *old = *job;
    int rc;

    *predecessor = NULL;
    if (old->successor != NULL && old->successor->state != CSTD_JOB_CLOSING) {
        *job = old->successor;
        return request->spec.reshape
                   ? CST_OK
                   : cst_err_set(err, CST_EBUSY,
                                 "job '%s' is being reshaped to %u ranks: until then it can be "
                                 "opened only with 'reshape'",
                                 old->name, old->successor->world);
    }
    if (!request->spec.reshape || old->state != CSTD_JOB_READY || has_worker(old)) {
        return CST_OK;
    }
    rc = check_rest(old, err);
    rc = rc == CST_OK ? check_kind(old, request, err) : rc;
    if (rc == CST_OK) {
        *job = NULL;
        *predecessor = old;
    }
    return rc;
}

/* -- from the first rank to the commit -------------------------------------------------------- */

void cstd_reshape_begin(struct cstd_job *job, struct cstd_job *predecessor)
{
    job->predecessor = predecessor;
    job->created_ns = predecessor->created_ns;
    predecessor->successor = job;
    cstd_done_look(predecessor);
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job), "is opened again, with %u ranks",
                   job->world);
}

int cstd_reshape_check(const struct cstd_job *job, struct cst_err *err)
{
    struct cst_reshard reshard;
    int rc;

    if (job->predecessor == NULL) {
        return CST_OK;
    }
    rc = cst_reshard_open(&reshard, &job->predecessor->model, &job->model, err);
    if (rc == CST_OK) {
        cst_reshard_close(&reshard);
        return CST_OK;
    }
    return cst_err_prefix(err, "job '%s' cannot be reshaped", job->name);
}

bool cstd_reshape_awaits_pools(struct cstd_job *job)
{
    const struct cstd_job *old = job->predecessor;
    struct cst_core_stats stats = {0};

    if (old != NULL) {
        cst_core_stats(old->core, &stats);
    }
    /* The pools are parked as soon as no command is in flight. */
    job->awaits_pools =
        old != NULL && (cstd_memory_has_pools(&old->memory) ? stats.commands_in_flight > 0
                                                            : cstd_memory_is_leaving(&old->memory));
    return job->awaits_pools;
}

void cstd_reshape_look(struct cstd_job *old)
{
    struct cstd_job *job = old->successor;

    if (job != NULL && job->awaits_pools) {
        cstd_deferred_add(&job->daemon->later, &job->pools_gone);
    }
    if (job != NULL) {
        cstd_state_copy_look(job);
    }
}

void cstd_reshape_settle(struct cstd_job *job)
{
    const struct cstd_job *old = job->predecessor;

    cstd_migrate_close(job); /* The plan of an earlier attempt. */
    job->inherits = old != NULL && cst_core_is_plain(old->core) &&
                    cst_reshard_is_in_place(&old->model, &old->layout, &job->model, &job->layout);
}

/* True if there is no memory for @job, because of @err, and the states would stay in that of its
 * predecessor if the chunks had its capacities. */
static bool may_keep_chunks(const struct cstd_job *job, const struct cst_err *err)
{
    const struct cst_layout_states states = cst_layout_job_states(&job->spec);
    struct cst_reshard reshard;
    struct cst_err unused;
    bool may;

    if (job->predecessor == NULL || job->inherits || job->keeps_chunks ||
        job->spec.planning.chunk_elems != 0 || cstd_job_has_given_plan(job) ||
        cstd_device_reservation_is_chosen(&job->workers[0]) ||
        (err->status != CST_EBUDGET && err->status != CST_ENOMEM) ||
        cst_reshard_open(&reshard, &job->predecessor->model, &job->model, &unused) != CST_OK) {
        return false;
    }
    may = cst_reshard_may_stay(&reshard, &job->predecessor->layout, &states,
                               cstd_job_grad_bytes(job));
    cst_reshard_close(&reshard);
    return may;
}

bool cstd_reshape_keep_chunks(struct cstd_job *job, const struct cst_err *err)
{
    if (!may_keep_chunks(job, err)) {
        return false;
    }
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job),
                   "there is no memory for other chunks: continuing with those of before, without "
                   "a plan: %s",
                   err->text);
    job->keeps_chunks = true;
    job->plan.valid = false;
    return true;
}

bool cstd_reshape_migrate(struct cstd_job *job, const struct cst_err *err)
{
    const struct cstd_job *old = job->predecessor;
    struct cst_err why = {0};
    char old_bytes[CST_SIZE_TEXT], more[CST_SIZE_TEXT];

    if (old == NULL || job->inherits || (err->status != CST_EBUDGET && err->status != CST_ENOMEM) ||
        may_keep_chunks(job, err) || !cstd_reshape_has_states(job)) {
        return false;
    }
    if (cstd_migrate_open(job, &why) != CST_OK) {
        cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job), "%s", why.text);
        return false;
    }
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job),
                   "there is no memory for both the old states (%s) and the new ones: moving them "
                   "in %" PRIu32 " portions needs %s more",
                   cst_size_text(old->memory.arena_bytes, old_bytes), job->migrate->plan.n_portions,
                   cst_size_text(job->migrate->more_bytes, more));
    return true;
}

void cstd_reshape_explain(struct cstd_job *job, struct cst_err *err)
{
    char bytes[CST_SIZE_EXACT], more[CST_SIZE_EXACT];

    if (job->predecessor == NULL || job->inherits ||
        (err->status != CST_EBUDGET && err->status != CST_ENOMEM && err->status != CST_EPOOL)) {
        return;
    }
    (void)cst_size_exact(job->predecessor->memory.arena_bytes, bytes);
    if (job->migrate == NULL) {
        (void)cst_err_prefix(err, "reshaping keeps the old states of %s until the new ones exist",
                             bytes);
    } else {
        (void)cst_err_prefix(
            err, "reshaping moves the old states of %s in portions, which needs %s more", bytes,
            cst_size_exact(job->migrate->more_bytes, more));
        cstd_migrate_close(job);
    }
}

/* -- states ----------------------------------------------------------------------------------- */

int cstd_reshape_copy(struct cstd_job *job, void (*done)(struct cstd_job *, const struct cst_err *),
                      struct cst_err *err)
{
    int rc;

    if (job->predecessor == NULL) {
        return CST_OK;
    }
    if (!cstd_reshape_has_states(job)) { /* The ranks write the initial weights. */
        cstd_reshape_end(job);
        return CST_OK;
    }
    rc = cstd_state_copy_open(job, job->predecessor, done, err);
    return rc == CST_OK ? CST_EAGAIN : rc;
}

int cstd_reshape_take_configs(struct cstd_job *job, struct cst_err *err)
{
    const struct cstd_job *old = job->predecessor;

    if (job->spec.model.model_config != NULL || job->spec.model.adapter_config != NULL) {
        return CST_OK;
    }
    /* A thread may be reading the texts of the predecessor, so that they are not moved. */
    return cstd_job_set_model(job, &old->spec.model, err);
}

void cstd_reshape_end(struct cstd_job *job)
{
    struct cstd_job *old = job->predecessor;
    struct cst_err why = {0};
    char bytes[CST_SIZE_TEXT];

    if (old == NULL) {
        return;
    }
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job),
                   "is reshaped from %u to %u ranks, %s were copied", old->world, job->world,
                   cst_size_text(cstd_state_copy_bytes(job), bytes));
    if (job->migrate != NULL) {
        cstd_memory_fill(&job->memory, &old->memory);
        cstd_migrate_close(job);
        cstd_ledger_note(job); /* The move is over. */
    }
    if (job->inherits) {
        cstd_memory_inherit(&job->memory, &old->memory);
        job->inherits = false;
    }
    cstd_reshape_forget(job);
    (void)cst_err_set(&why, CST_ECANCELLED, "job '%s' was reshaped", old->name);
    cstd_job_remove(old, 0, &why);
}

int cstd_reshape_cancel(struct cstd_job *job)
{
    cstd_state_copy_close(job);
    return CST_OK;
}

void cstd_reshape_forget(struct cstd_job *job)
{
    struct cstd_job *old = job->predecessor;

    cstd_deferred_remove(&job->daemon->later, &job->pools_gone);
    if (old != NULL) {
        cstd_state_copy_close(job);
        /* Another job may have become its successor since @job was removed. */
        old->successor = old->successor == job ? NULL : old->successor;
        job->predecessor = NULL;
        old->daemon->status_changed = true;
    }
}
