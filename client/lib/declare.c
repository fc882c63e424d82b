/* SPDX-License-Identifier: Apache-2.0 */
/* The calls with which a worker declares its groups, edges, tensors and operators. They are added
 * to the job's struct cst_model, which checks them as the daemon will. Here only that is checked
 * which a model cannot express: negative numbers, the type, lists of ranks, and pointers that are
 * NULL. */
#include "client/lib/job.h"
#include "offload/layout/edge.h"

static int check_declaring(struct cst_job *job)
{
    int rc = cstc_job_check(job, &job->declare_err);

    if (rc == CST_OK && job->commit.phase != CSTC_COMMIT_DECLARE) {
        rc = cst_err_set(&job->declare_err, CST_EINVAL, "job '%s' is committed", job->name);
    }
    if (rc == CST_OK && job->pending.kind == CSTC_PENDING_COMMIT) {
        rc = cst_err_set(&job->declare_err, CST_EBUSY, "job '%s': a commit is pending", job->name);
    }
    return rc;
}

/* -- groups ----------------------------------------------------------------------------------- */

int cst_group(struct cst_job *job, const uint32_t *ranks, uint32_t n_ranks)
{
    struct cst_set group;
    int rc = check_declaring(job);

    if (rc == CST_OK) {
        rc = cst_model_ranks(job->model.n_groups, ranks, ranks != NULL ? n_ranks : 0, job->world,
                             &group, &job->declare_err);
    }
    if (rc == CST_OK) {
        rc = cst_model_group(&job->model, group, &job->declare_err);
    }
    return rc == CST_OK ? (int)job->model.n_groups - 1 : rc;
}

/* -- edges ------------------------------------------------------------------------------------ */

int cst_edge(struct cst_job *job, const struct cst_edge_spec *spec)
{
    int rc = check_declaring(job);

    if (rc == CST_OK && spec == NULL) {
        rc = cst_err_set(&job->declare_err, CST_EINVAL,
                         "job '%s': the description of the edge is missing", job->name);
    }
    if (rc == CST_OK) {
        const struct cst_edge_words words = {.name = spec->name,
                                             .from = spec->from,
                                             .to = spec->to,
                                             .slot_bytes = spec->slot_bytes,
                                             .n_slots = spec->n_slots,
                                             .on_device = spec->on_device};

        rc = cst_model_edge(&job->model, &words, job->world, &job->declare_err);
    }
    return rc == CST_OK ? (int)job->model.n_edges - 1 : rc;
}

/* -- tensors ---------------------------------------------------------------------------------- */

static int check_spec(struct cst_job *job, const struct cst_tensor_spec *spec)
{
    if (spec == NULL) {
        return cst_err_set(&job->declare_err, CST_EINVAL,
                           "job '%s': the description of the tensor is missing", job->name);
    }
    if (spec->name == NULL) {
        return cst_err_set(&job->declare_err, CST_EINVAL, "a tensor without a name");
    }
    if (spec->shape == NULL) {
        return cst_err_set(&job->declare_err, CST_EINVAL, "tensor '%.255s' has no shape",
                           spec->name);
    }
    if (spec->dtype != CST_BF16 && spec->dtype != CST_FP32) {
        return cst_err_set(&job->declare_err, CST_EINVAL,
                           "tensor '%.255s': dtype %d; only CST_BF16 and CST_FP32 exist",
                           spec->name, (int)spec->dtype);
    }
    for (uint32_t i = 0; i < spec->n_external; i++) {
        if (spec->external_names == NULL || spec->external_names[i] == NULL) {
            return cst_err_set(&job->declare_err, CST_EINVAL,
                               "tensor '%.255s': external name %u of %u is missing", spec->name, i,
                               spec->n_external);
        }
    }
    /* Perhaps the status of a cst_group that failed. */
    if (spec->group < 0) {
        return cst_err_set(&job->declare_err, CST_EINVAL,
                           "tensor '%.255s' is of group %d, only 0..%u are declared", spec->name,
                           spec->group, job->model.n_groups - 1);
    }
    return CST_OK;
}

int cst_tensor_as(struct cst_job *job, const struct cst_tensor_spec *spec)
{
    int rc = check_declaring(job);

    if (rc == CST_OK) {
        rc = check_spec(job, spec);
    }
    if (rc == CST_OK) {
        const struct cst_tensor_words words = {.name = spec->name,
                                               .dtype = (uint32_t)spec->dtype,
                                               .shape = spec->shape,
                                               .n_dims = spec->n_dims,
                                               .lr_scale = spec->lr_scale,
                                               .decay_scale = spec->decay_scale,
                                               .param_group = spec->param_group,
                                               .update = (uint32_t)spec->update,
                                               .group = (uint32_t)spec->group,
                                               .pattern = (uint32_t)spec->pattern,
                                               .whole_name = spec->whole_name,
                                               .whole = spec->whole_shape,
                                               .first = spec->first,
                                               .packed = spec->packed,
                                               .external_names = spec->external_names,
                                               .external_rows = spec->external_rows,
                                               .n_external = spec->n_external,
                                               .transposed = spec->transposed};

        rc = cst_model_tensor(&job->model, &words, &job->declare_err);
    }
    return rc == CST_OK ? (int)job->model.n_tensors - 1 : rc;
}

int cst_tensor(struct cst_job *job, const char *name, enum cst_dtype dtype, uint32_t n_dims,
               const int64_t *shape, enum cst_group group)
{
    const struct cst_tensor_spec spec = {.name = name,
                                         .dtype = dtype,
                                         .n_dims = n_dims,
                                         .shape = shape,
                                         .group = (int)group,
                                         .lr_scale = 1,
                                         .decay_scale = 1};

    return cst_tensor_as(job, &spec);
}

/* -- operators -------------------------------------------------------------------------------- */

static int check_operator(struct cst_job *job, const char *name, const int *tensors,
                          uint32_t n_tensors)
{
    if (name == NULL) {
        return cst_err_set(&job->declare_err, CST_EINVAL, "an operator without a name");
    }
    if (tensors == NULL && n_tensors > 0) {
        return cst_err_set(&job->declare_err, CST_EINVAL,
                           "operator '%.255s' has no list of tensors", name);
    }
    if (n_tensors > job->model.n_tensors) {
        return cst_err_set(&job->declare_err, CST_EINVAL,
                           "operator '%.255s' uses %u tensors, but only %u are declared", name,
                           n_tensors, job->model.n_tensors);
    }
    for (uint32_t i = 0; i < n_tensors; i++) {
        /* Perhaps the status of a cst_tensor that failed. */
        if (tensors[i] < 0) {
            return cst_err_set(&job->declare_err, CST_EINVAL,
                               "operator '%.255s' uses tensor %d, only %u are declared", name,
                               tensors[i], job->model.n_tensors);
        }
    }
    return CST_OK;
}

int cst_stage(struct cst_job *job)
{
    int rc = check_declaring(job);

    if (rc == CST_OK) {
        rc = cst_model_stage(&job->model, &job->declare_err);
    }
    return rc == CST_OK ? (int)job->model.n_stages - 1 : rc;
}

int cst_operator_as(struct cst_job *job, const char *name, const int *tensors, uint32_t n_tensors,
                    const struct cst_operator_cost *cost)
{
    struct cst_operator_hints hints = {0};
    int rc = check_declaring(job);

    if (cost != NULL) {
        hints = (struct cst_operator_hints){.flops = cost->flops,
                                            .activation_bytes = cost->activation_bytes,
                                            .expected_uses = cost->expected_uses};
    }
    if (rc == CST_OK) {
        rc = check_operator(job, name, tensors, n_tensors);
    }
    if (rc == CST_OK) {
        rc = cst_model_operator(&job->model, name, (const uint32_t *)tensors, n_tensors, &hints,
                                &job->declare_err);
    }
    return rc == CST_OK ? (int)job->model.n_operators - 1 : rc;
}

int cst_operator(struct cst_job *job, const char *name, const int *tensors, uint32_t n_tensors)
{
    return cst_operator_as(job, name, tensors, n_tensors, NULL);
}

const struct cst_err *cst_job_error(const struct cst_job *job)
{
    return &job->declare_err;
}
