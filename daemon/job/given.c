/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/given.h"

#include "cistern/cistern.h"
#include "daemon/base/daemon_state.h"
#include "daemon/job/worker.h"
#include "offload/plan/saved.h"
#include "proto/reason.h"
#include "proto/size.h"
#include "daemon/job/job.h"
#include "daemon/job/planner.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* -- plans in requests ------------------------------------------------------------------------ */

/* Settle one field of a worker's request: the planned value if the worker left it open, else the
 * worker's value, which must be the planned one. */
static int settle(const char *name, uint64_t planned, bool open, uint64_t *field, uint32_t rank,
                  struct cst_err *err)
{
    if (!open && *field != planned) {
        return cst_err_set(err, CST_EMISMATCH,
                           "the plan has %s %" PRIu64 ", but rank %" PRIu32 " asks for %" PRIu64,
                           name, planned, rank, *field);
    }
    *field = planned;
    return CST_OK;
}

/* The properties of the worker's job in the form of a plan, for the comparison with @plan. The
 * model is compared later, because it is not declared yet. */
static struct cst_saved_plan facts_of(const struct cstd_job_request *request,
                                      const struct cst_saved_plan *plan)
{
    struct cst_saved_plan facts = *plan;

#define CST_PLAN_OPTION(member, path, ...) facts.member = (uint32_t)request->spec.path;
#include "proto/saved_plan.def"
    return facts;
}

static bool is_open(uint64_t bytes)
{
    return bytes == 0 || bytes == CST_PLAN_DEVICE_UPDATE_AUTO;
}

/* device_update_bytes as a worker asks for it: lent memory, or a number of bytes. */
static int settle_update(const struct cst_saved_plan *plan, struct cstd_job_request *request,
                         struct cst_err *err)
{
    const bool asked = request->spec.memory.device_update_bytes == CST_DEVICE_UPDATE_LENT;

    if (asked && !plan->lent) {
        return cst_err_set(err, CST_EMISMATCH,
                           "the plan has device_update_bytes %" PRIu64 ", but rank %" PRIu32
                           " asks for lent memory",
                           plan->device_update_bytes, request->spec.rank);
    }
    if (plan->lent && !asked && !is_open(request->spec.memory.device_update_bytes)) {
        return cst_err_set(err, CST_EMISMATCH,
                           "the plan has updates in lent memory, but rank %" PRIu32
                           " asks for device_update_bytes %" PRIu64,
                           request->spec.rank, request->spec.memory.device_update_bytes);
    }
    if (plan->lent) {
        request->spec.memory.device_update_bytes = CST_DEVICE_UPDATE_LENT;
        return CST_OK;
    }
    return settle("device_update_bytes", plan->device_update_bytes,
                  is_open(request->spec.memory.device_update_bytes),
                  &request->spec.memory.device_update_bytes, request->spec.rank, err);
}

static int fill_request(struct cstd_job_request *request, const struct cst_saved_plan *plan,
                        struct cst_err *err)
{
    struct cst_saved_plan facts = facts_of(request, plan);
    int rc = cst_saved_plan_is_for(plan, &facts, err);

    if (rc == CST_OK && request->spec.model.base != NULL) {
        rc = cst_err_set(
            err, CST_EINVAL,
            "a plan cannot be combined with base '%s', because a plan is for all chunks of a job",
            request->spec.model.base);
    }
    if (rc == CST_OK) {
        rc = settle("chunk_elems", plan->chunk_elems[0], request->spec.planning.chunk_elems == 0,
                    &request->spec.planning.chunk_elems, request->spec.rank, err);
    }
    if (rc == CST_OK) {
        /* The request names the size of the first class alone; the plan has the sizes of all
         * classes. */
        request->spec.planning.chunk_elems = 0;
        rc = settle("pool_bytes", plan->pool_bytes, request->spec.memory.pool_bytes == 0,
                    &request->spec.memory.pool_bytes, request->spec.rank, err);
    }
    if (rc == CST_OK) {
        rc = settle_update(plan, request, err);
    }
    if (rc == CST_OK) {
        rc = settle("device_states", plan->device_states,
                    is_open(request->spec.memory.device_states),
                    &request->spec.memory.device_states, request->spec.rank, err);
    }
    return rc;
}

/* If @request brings a plan, check that it is the plan of its job. */
static int check_same(const struct cstd_job *job, const struct cstd_job_request *request,
                      struct cst_err *err)
{
    int rc;

    if (request->plan.n_chunks == 0) {
        return CST_OK;
    }
    rc = cstd_job_has_given_plan(job)
             ? cst_saved_plan_same(&job->given, &request->plan, request->spec.rank, err)
             : cst_err_set(err, CST_EMISMATCH,
                           "it was opened without the plan that rank %" PRIu32 " gives",
                           request->spec.rank);
    (void)cst_err_give_reason(err, CST_REASON_OPTION, rc);
    return rc == CST_OK ? rc : cst_err_prefix(err, "job '%s'", job->name);
}

int cstd_given_settle(const struct cstd_job *job, struct cstd_job_request *request,
                      struct cst_err *err)
{
    int rc = job != NULL ? check_same(job, request, err) : CST_OK;
    const struct cst_saved_plan *plan = job != NULL ? &job->given : &request->plan;

    return rc == CST_OK && plan->n_chunks > 0 ? fill_request(request, plan, err) : rc;
}

/* -- after all ranks have committed ------------------------------------------------------------ */

int cstd_given_take(struct cstd_job *job, struct cst_err *err)
{
    const struct cst_layout_states states = cst_layout_job_states(&job->spec);
    struct cstd_job_plan *plan = &job->plan;
    struct cst_saved_plan facts;
    char pool[CST_SIZE_TEXT];
    int rc;

    cst_plan_saved_job(&facts, &job->model, job->world, job->spec.updates.micro_batches, &states,
                       job->spec.updates.overlap);
    rc = cst_saved_plan_is_for(&job->given, &facts, err);
    if (rc != CST_OK) {
        return rc;
    }
    cstd_planner_cancel(job);
    plan->valid = true;
    plan->update_why[0] = plan->states_why[0] = '\0';
    plan->step_s = job->given.step_s;
    cst_plan_saved_choice(&job->given, &plan->choice);
    (void)snprintf(plan->words, sizeof plan->words,
                   "given with the job, for a pool of %s in each rank",
                   cst_size_text(job->given.pool_bytes, pool));
    return CST_OK;
}

int cstd_given_check(const struct cstd_job *job, struct cst_err *err)
{
    const struct cst_layout *layout = &job->layout;

    if (!cstd_job_has_given_plan(job)) {
        return CST_OK;
    }
    if (layout->n_chunks != job->given.n_chunks || layout->n_classes != job->given.n_classes) {
        return cst_err_set(err, CST_EMISMATCH,
                           "the plan has %" PRIu32 " chunks of %" PRIu32
                           " size classes, but the job's layout has %" PRIu32 " of %" PRIu32,
                           job->given.n_chunks, job->given.n_classes, layout->n_chunks,
                           layout->n_classes);
    }
    for (uint32_t i = 0; i < layout->n_classes; i++) {
        if (layout->classes[i].capacity != job->given.chunk_elems[i]) {
            return cst_err_set(err, CST_EMISMATCH,
                               "the plan has chunks of %" PRIu64
                               " elements, but the job's layout has chunks of %" PRIu64,
                               job->given.chunk_elems[i], layout->classes[i].capacity);
        }
        if (job->given.n_blocks[i] < layout->classes[i].min_blocks) {
            return cst_err_set(err, CST_EPOOL,
                               "the plan has %" PRIu32 " blocks of %" PRIu64
                               " elements, but the job needs %" PRIu32,
                               job->given.n_blocks[i], layout->classes[i].capacity,
                               layout->classes[i].min_blocks);
        }
        /* A search never plans more blocks than can be used. */
        if (job->given.n_blocks[i] > layout->classes[i].max_blocks) {
            return cst_err_set(err, CST_EINVAL,
                               "the plan has %" PRIu32 " blocks of %" PRIu64
                               " elements, but the job can use at most %" PRIu32,
                               job->given.n_blocks[i], layout->classes[i].capacity,
                               layout->classes[i].max_blocks);
        }
    }
    return CST_OK;
}
