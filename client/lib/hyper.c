/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults and ranges of hyper-parameters; and cst_prepare_step, which sends them in advance. */
#include "client/lib/hyper.h"

#include "client/lib/batch.h"
#include "proto/optimizers.h"

#include <float.h>
#include <math.h>

static int check(const struct cst_job *job, const Cistern__Hyper *h, struct cst_err *err)
{
    /* The update computes in fp32, where a larger lr, eps, weight_decay or grad_scale would be
     * infinite, and a smaller eps or grad_scale could be 0. */
    const struct {
        const char *name;
        double value, low, high; /* Must hold: low <= value < high. */
    } fields[] = {
        {"lr", h->lr, 0.0, FLT_MAX},
        {"beta1", h->beta1, 0.0, 1.0},
        {"beta2", h->beta2, 0.0, 1.0},
        {"eps", h->eps, FLT_MIN, FLT_MAX},
        {"weight_decay", h->weight_decay, 0.0, FLT_MAX},
        {"clip_norm", h->clip_norm, 0.0, INFINITY},
        {"grad_scale", h->grad_scale, FLT_MIN, FLT_MAX},
    };

    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        double v = fields[i].value;

        if (!isfinite(v) || v < fields[i].low || v >= fields[i].high) {
            return cst_err_set(err, CST_EINVAL,
                               "job '%s': %s = %g with %s: %g <= %s < %g is required", job->name,
                               fields[i].name, v, cst_optimizer_names[job->optimizer],
                               fields[i].low, fields[i].name, fields[i].high);
        }
    }
    return CST_OK;
}

int cstc_hyper_fill(const struct cst_job *job, const struct cst_hyper_params *params,
                    Cistern__Hyper *out, struct cst_err *err)
{
    /* If beta2 is given, beta1 is meant as it is: betas of {0, 0.99} are a choice, not an
     * omission. */
    bool default_beta1 = params->beta1 == 0.0 && params->beta2 == 0.0;
    bool no_momentum = cst_optimizer_rows[job->optimizer].beta1_may_be_0 && params->beta1 < 0;
    Cistern__Hyper hyper = CISTERN__HYPER__INIT;
    int rc;

    hyper.lr = params->lr;
    hyper.beta1 = default_beta1 ? CST_OPTIMIZER_BETA1 : params->beta1;
    hyper.beta1 = no_momentum ? 0.0 : hyper.beta1;
    hyper.beta2 = params->beta2 == 0.0 ? cst_optimizer_beta2(job->optimizer) : params->beta2;
    hyper.eps = params->eps == 0.0 ? 1e-8 : params->eps;
    hyper.weight_decay = params->weight_decay;
    hyper.clip_norm = params->clip_norm;
    hyper.grad_scale = params->grad_scale == 0.0 ? 1.0 : params->grad_scale;
    hyper.n_lr_factor = hyper.n_decay_factor = job->n_param_groups;
    hyper.lr_factor = (double *)(uintptr_t)job->lr_factors;
    hyper.decay_factor = (double *)(uintptr_t)job->decay_factors;
    rc = check(job, &hyper, err);
    if (rc == CST_OK) {
        *out = hyper;
    }
    return rc;
}

/* -- parameter groups ------------------------------------------------------------------------ */

int cst_param_groups(struct cst_job *job, const struct cst_param_group *groups, uint32_t n,
                     struct cst_err *err)
{
    int rc = cstc_job_check(job, err);

    if (rc == CST_OK && job->pending.kind != CSTC_PENDING_NONE) {
        rc = cst_err_set(err, CST_EBUSY, "job '%s': another call is pending", job->name);
    }
    if (rc == CST_OK && (n > CST_MAX_PARAM_GROUPS || (n > 0 && groups == NULL))) {
        rc = cst_err_set(err, CST_EINVAL, "job '%s': %u parameter groups, at most %d are allowed",
                         job->name, n, CST_MAX_PARAM_GROUPS);
    }
    for (uint32_t i = 0; rc == CST_OK && i < n; i++) {
        if (!(groups[i].lr >= 0 && groups[i].lr < FLT_MAX && groups[i].weight_decay >= 0 &&
              groups[i].weight_decay < FLT_MAX)) {
            rc = cst_err_set(err, CST_EINVAL,
                             "job '%s': parameter group %u has the factors %g and %g: factors "
                             "from 0 to below %g are required",
                             job->name, i, groups[i].lr, groups[i].weight_decay, FLT_MAX);
        }
    }
    if (rc != CST_OK) {
        return rc;
    }
    job->n_param_groups = n;
    for (uint32_t i = 0; i < n; i++) {
        job->lr_factors[i] = groups[i].lr;
        job->decay_factors[i] = groups[i].weight_decay;
    }
    return CST_OK;
}

/* -- cst_prepare_step ------------------------------------------------------------------------- */

static bool same_hyper(const Cistern__Hyper *a, const Cistern__Hyper *b)
{
    return a->lr == b->lr && a->beta1 == b->beta1 && a->beta2 == b->beta2 && a->eps == b->eps &&
           a->weight_decay == b->weight_decay && a->clip_norm == b->clip_norm &&
           a->grad_scale == b->grad_scale;
}

int cst_prepare_step(struct cst_job *job, const struct cst_hyper_params *params,
                     struct cst_err *err)
{
    Cistern__Hyper hyper;
    int rc = cstc_job_check_step(job, err);

    if (rc == CST_OK && job->pending.kind != CSTC_PENDING_NONE) {
        rc = cst_err_set(err, CST_EBUSY, "job '%s': another call is pending", job->name);
    }
    if (rc == CST_OK && params == NULL) {
        rc = cst_err_set(err, CST_EINVAL, "job '%s': the parameters of the step are missing",
                         job->name);
    }
    if (rc == CST_OK) {
        rc = cstc_hyper_fill(job, params, &hyper, err);
    }
    if (rc != CST_OK || job->overlap != CST_OVERLAP_EARLY) {
        return rc;
    }
    /* Updates may run already with the parameters of the first call. */
    if (job->prepared && !same_hyper(&job->prepared_hyper, &hyper)) {
        return cst_err_set(err, CST_EINVAL,
                           "job '%s': step %llu was prepared with other parameters", job->name,
                           (unsigned long long)job->steps);
    }
    if (!job->prepared) {
        rc = cstc_batch_prepare(job, &hyper, err);
        job->prepared = rc == CST_OK;
        job->prepared_hyper = hyper;
    }
    return rc;
}
