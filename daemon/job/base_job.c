/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/base_job.h"

#include "daemon/base/daemon_state.h"
#include "offload/layout/box.h"
#include "daemon/job/jobs.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NAMED_USERS = 4, USERS_TEXT = 320 };

/* Check that the weights of @job exist, are valid, and stay: the end of a reshape removes the job
 * together with its users. */
static int check_weights(const struct cstd_job *job, const char *name, struct cst_err *err)
{
    struct cst_core_stats stats = {0};

    if (job->core != NULL) {
        cst_core_stats(job->core, &stats);
    }
    if (!stats.initialised) {
        return cst_err_set(
            err, CST_EINVAL,
            "base of job '%s': job '%s' has no weights yet, because no sync has completed in it",
            name, job->name);
    }
    if (stats.phase == CST_PHASE_FAILED) {
        return cst_err_set(err, CST_EINVAL,
                           "base of job '%s': job '%s' has failed, and its states may be damaged",
                           name, job->name);
    }
    if (stats.n_writes_left > 0) {
        return cst_err_set(
            err, CST_EBUSY,
            "base of job '%s': %u writes of states of job '%s' were cut off when the "
            "daemon ended: it can be a base again when its workers have repeated "
            "them",
            name, stats.n_writes_left, job->name);
    }
    if (job->successor != NULL && job->successor->state != CSTD_JOB_CLOSING) {
        return cst_err_set(err, CST_EBUSY,
                           "base of job '%s': job '%s' is being reshaped to %u ranks: it can be a "
                           "base again after that",
                           name, job->name, job->successor->world);
    }
    return CST_OK;
}

int cstd_base_job_find(struct cstd_daemon *daemon, uid_t uid, const char *name, const char *base,
                       struct cstd_job **out, struct cst_err *err)
{
    struct cstd_job *job = cstd_job_find(daemon, uid, base);

    if (strcmp(name, base) == 0) {
        return cst_err_set(err, CST_EINVAL, "job '%s' cannot be the base of itself", name);
    }
    if (job == NULL) {
        return cst_err_set(err, CST_ENOTFOUND,
                           "base of job '%s': uid %u has no job '%s' (cistern jobs)", name,
                           (unsigned)uid, base);
    }
    /* A base must hold all frozen tensors itself; those of a base's base are in another job. */
    if (job->base != NULL) {
        return cst_err_set(err, CST_EINVAL,
                           "base of job '%s': job '%s' has a base of its own, '%s': use that one",
                           name, base, job->base->name);
    }
    if (check_weights(job, name, err) != CST_OK) {
        return err->status;
    }
    *out = job;
    return CST_OK;
}

static int check_tensor(const struct cstd_job *job, const struct cst_layout_tensor *tensor,
                        struct cst_err *err)
{
    const struct cstd_job *base = job->base;
    uint32_t i = cst_model_find(&base->model, tensor->name);
    const struct cst_layout_tensor *theirs;

    if (i == UINT32_MAX && cst_box_is_named(tensor) &&
        cst_model_find(&base->model, tensor->box->name) != UINT32_MAX) {
        return cst_err_set(err, CST_ENOTFOUND,
                           "frozen tensor '%s' of job '%s': its base '%s' has '%s' whole, not this "
                           "part of it",
                           tensor->name, job->name, base->name, tensor->box->name);
    }
    if (i == UINT32_MAX) {
        return cst_err_set(err, CST_ENOTFOUND,
                           "frozen tensor '%s' of job '%s': its base '%s' has no such tensor",
                           tensor->name, job->name, base->name);
    }
    theirs = &base->model.tensors[i];
    if (cst_pattern(theirs->pattern)->has_states) {
        return cst_err_set(err, CST_EINVAL,
                           "frozen tensor '%s' of job '%s' is trained in its base '%s'",
                           tensor->name, job->name, base->name);
    }
    if (theirs->n_dims != tensor->n_dims ||
        memcmp(theirs->shape, tensor->shape, tensor->n_dims * sizeof *tensor->shape) != 0) {
        return cst_err_set(err, CST_EMISMATCH,
                           "frozen tensor '%s' of job '%s' has %" PRIu64
                           " elements in %u dimensions, in its base '%s' %" PRIu64
                           " in %u: shapes differ",
                           tensor->name, job->name, tensor->n_elems, tensor->n_dims, base->name,
                           theirs->n_elems, theirs->n_dims);
    }
    if (!cst_box_same_part(theirs, tensor)) {
        return cst_err_set(err, CST_EMISMATCH,
                           "frozen tensor '%s' of job '%s' is another part of a larger tensor than "
                           "in its base '%s'",
                           tensor->name, job->name, base->name);
    }
    if (theirs->dtype != tensor->dtype) {
        return cst_err_set(err, CST_EMISMATCH,
                           "frozen tensor '%s' of job '%s' is %s, in its base '%s' %s",
                           tensor->name, job->name, cst_dtype_name(tensor->dtype), base->name,
                           cst_dtype_name(theirs->dtype));
    }
    return CST_OK;
}

int cstd_base_job_check(const struct cstd_job *job, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; job->base != NULL && i < job->model.n_tensors && rc == CST_OK; i++) {
        if (!cst_pattern(job->model.tensors[i].pattern)->has_states) {
            rc = check_tensor(job, &job->model.tensors[i], err);
        }
    }
    return rc;
}

/* Returns the first job after @last in @list whose base is @base. *passed: @last was found
 * already, or there is none. Closing jobs count as users too, because they still map the memory
 * of the base. */
static struct cstd_job *next_in(const struct cstd_job_list *list, const struct cstd_job *base,
                                const struct cstd_job *last, bool *passed)
{
    struct cstd_job *job;

    TAILQ_FOREACH(job, list, link)
    {
        if (*passed && job->base == base) {
            return job;
        }
        *passed = *passed || job == last;
    }
    return NULL;
}

struct cstd_job *cstd_base_job_user(const struct cstd_job *job, const struct cstd_job *last)
{
    const struct cstd_jobs *jobs = job->daemon->jobs;
    bool passed = last == NULL;
    struct cstd_job *user = next_in(&jobs->living, job, last, &passed);

    return user != NULL ? user : next_in(&jobs->closing, job, last, &passed);
}

int cstd_base_job_check_unused(const struct cstd_job *job, const char *what, struct cst_err *err)
{
    char names[USERS_TEXT] = "";
    size_t used = 0;
    uint32_t n = 0;

    for (const struct cstd_job *user = cstd_base_job_user(job, NULL); user != NULL;
         user = cstd_base_job_user(job, user)) {
        if (n++ < NAMED_USERS) {
            used += (size_t)snprintf(names + used, sizeof names - used, "%s'%s'", n > 1 ? ", " : "",
                                     user->name);
        }
    }
    if (n == 0) {
        return CST_OK;
    }
    if (n > NAMED_USERS) {
        (void)snprintf(names + used, sizeof names - used, " and %u more", n - NAMED_USERS);
    }
    return cst_err_set(err, CST_EBUSY, "%s: it is the base of job%s %s", what, n > 1 ? "s" : "",
                       names);
}
