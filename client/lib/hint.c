/* SPDX-License-Identifier: Apache-2.0 */
/* cst_hint and cst_hint_tensor: tell the daemon which weights are wanted soon, and which are
 * not. */
#include "client/lib/job.h"

/* Return whether the operator that has begun uses weights of @chunk. */
static bool is_in_use(const struct cst_job *job, uint32_t chunk)
{
    uint32_t n = 0;
    const uint32_t *chunks =
        job->begun < 0 ? NULL
                       : cst_lease_op_chunks(&job->sequence.leases, (uint32_t)job->begun, &n);

    for (uint32_t i = 0; i < n; i++) {
        if (chunks[i] == chunk) {
            return true;
        }
    }
    return false;
}

static int check(const struct cst_job *job, enum cst_hint hint, struct cst_err *err)
{
    int rc = cstc_job_check_step(job, err);

    if (rc == CST_OK && job->pending.kind != CSTC_PENDING_NONE) {
        rc = cst_err_set(err, CST_EBUSY, "job '%s': another call is pending", job->name);
    }
    if (rc == CST_OK && hint != CST_PREFETCH && hint != CST_EVICT) {
        rc = cst_err_set(err, CST_EINVAL, "hint %d is unknown: use PREFETCH (%d) or EVICT (%d)",
                         (int)hint, (int)CST_PREFETCH, (int)CST_EVICT);
    }
    return rc;
}

static int send_hint(struct cst_job *job, const uint32_t *chunks, uint32_t n, enum cst_hint hint,
                     const char *what, const char *name, struct cst_err *err)
{
    /* All chunks are checked first, so that a refused hint changes nothing. */
    for (uint32_t i = 0; i < n; i++) {
        if (hint == CST_EVICT && is_in_use(job, chunks[i])) {
            return cst_err_set(err, CST_EBUSY,
                               "%s '%s' cannot leave the pool: operator '%s', which is begun, uses "
                               "its weights or others of the same chunk",
                               what, name, job->model.operators[job->begun].name);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (hint == CST_EVICT) {
            cst_lease_evict(&job->sequence.leases, chunks[i]);
        } else {
            cst_lease_prefetch(&job->sequence.leases, chunks[i]);
        }
    }
    return cst_sequence_hint(&job->sequence, err);
}

int cst_hint(struct cst_job *job, int op, enum cst_hint hint, struct cst_err *err)
{
    int rc = check(job, hint, err);
    const uint32_t *chunks;
    uint32_t n;

    if (rc != CST_OK) {
        return rc;
    }
    if (op < 0 || (uint32_t)op >= job->model.n_operators) {
        return cst_err_set(err, CST_EINVAL, "there is no operator %d, %u are declared", op,
                           job->model.n_operators);
    }
    if (!job->operators[op].runs) {
        return cst_err_set(err, CST_EINVAL,
                           "operator '%s' is not rank %u's: it is not in the groups of all its "
                           "tensors",
                           job->model.operators[op].name, job->rank);
    }
    chunks = cst_lease_op_chunks(&job->sequence.leases, (uint32_t)op, &n);
    return send_hint(job, chunks, n, hint, "operator", job->model.operators[op].name, err);
}

/* Return whether this rank runs an operator that uses @tensor. */
static bool is_used(const struct cst_job *job, uint32_t tensor)
{
    for (uint32_t op = 0; op < job->model.n_operators; op++) {
        const struct cst_lease_operator *o = &job->operators[op];

        for (uint32_t i = 0; o->runs && i < o->n_tensors; i++) {
            if (o->tensors[i] == tensor) {
                return true;
            }
        }
    }
    return false;
}

int cst_hint_tensor(struct cst_job *job, int tensor, enum cst_hint hint, struct cst_err *err)
{
    int rc = check(job, hint, err);
    const char *name;

    if (rc != CST_OK) {
        return rc;
    }
    if (tensor < 0 || (uint32_t)tensor >= job->model.n_tensors) {
        return cst_err_set(err, CST_EINVAL, "there is no tensor %d, %u are declared", tensor,
                           job->model.n_tensors);
    }
    name = job->model.tensors[tensor].name;
    if (!is_used(job, (uint32_t)tensor)) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': no operator of rank %u uses it", name,
                           job->rank);
    }
    return send_hint(job, &job->tensor_chunk[tensor], 1, hint, "tensor", name, err);
}
