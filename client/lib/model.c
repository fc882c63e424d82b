/* SPDX-License-Identifier: Apache-2.0 */
/* The calls with which a worker declares its model: groups, tensors and operators. */
#include "client/lib/job.h"

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

int cst_group(struct cst_job *job, const uint32_t *ranks, uint32_t n_ranks)
{
    int rc = check_declaring(job);

    if (rc == CST_OK) {
        rc = cstc_declare_add_group(&job->declare, ranks, n_ranks, &job->declare_err);
    }
    return rc == CST_OK ? (int)job->declare.n_groups - 1 : rc;
}

int cst_tensor_as(struct cst_job *job, const struct cst_tensor_spec *spec)
{
    int rc = check_declaring(job);

    if (rc == CST_OK && spec == NULL) {
        rc = cst_err_set(&job->declare_err, CST_EINVAL,
                         "job '%s': the description of the tensor is missing", job->name);
    }
    if (rc == CST_OK) {
        rc = cstc_declare_add_tensor(&job->declare, spec, &job->declare_err);
    }
    return rc == CST_OK ? (int)job->declare.n_tensors - 1 : rc;
}

int cst_tensor_scaled(struct cst_job *job, const char *name, enum cst_dtype dtype, uint32_t n_dims,
                      const int64_t *shape, enum cst_group group, float lr_scale, float decay_scale)
{
    const struct cst_tensor_spec spec = {.name = name,
                                         .dtype = dtype,
                                         .n_dims = n_dims,
                                         .shape = shape,
                                         .group = (int)group,
                                         .lr_scale = lr_scale,
                                         .decay_scale = decay_scale};

    return cst_tensor_as(job, &spec);
}

int cst_tensor(struct cst_job *job, const char *name, enum cst_dtype dtype, uint32_t n_dims,
               const int64_t *shape, enum cst_group group)
{
    return cst_tensor_scaled(job, name, dtype, n_dims, shape, group, 1.0f, 1.0f);
}

int cst_operator_as(struct cst_job *job, const char *name, const int *tensors, uint32_t n_tensors,
                    const struct cst_operator_cost *cost)
{
    int rc = check_declaring(job);

    if (rc == CST_OK) {
        rc = cstc_declare_add_operator(&job->declare, name, tensors, n_tensors, cost,
                                       &job->declare_err);
    }
    return rc == CST_OK ? (int)job->declare.n_operators - 1 : rc;
}

int cst_operator(struct cst_job *job, const char *name, const int *tensors, uint32_t n_tensors)
{
    return cst_operator_as(job, name, tensors, n_tensors, NULL);
}

const struct cst_err *cst_job_error(const struct cst_job *job)
{
    return &job->declare_err;
}
