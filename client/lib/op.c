/* SPDX-License-Identifier: Apache-2.0 */
/* cst_op_begin and cst_op_end: fetch the chunks that an operator lacks, and give its tensors their
 * addresses. */
#include "client/lib/job.h"
#include "client/lib/debug.h"
#include "proto/reason.h"

static void fill_io(const struct cst_job *job, int op, bool backward, struct cst_io *io)
{
    const struct cst_lease_operator *o = &job->operators[op];

    for (uint32_t i = 0; i < o->n_tensors; i++) {
        uint32_t tensor = o->tensors[i];
        const struct cst_lease_chunk *chunk =
            &job->sequence.leases.chunks[job->tensor_chunk[tensor]];
        bool has_grad = backward && job->traits[job->tensor_chunk[tensor]].trains;

        io[i] = (struct cst_io){
            .weight = cstc_job_address(job, &chunk->weight, tensor),
            .grad = has_grad ? cstc_job_address(job, &chunk->grad, tensor) : NULL,
            .accumulate = has_grad && job->sequence.leases.written[tensor],
            .n_elems = job->model.tensors[tensor].n_elems,
        };
    }
}

static int check_op(const struct cst_job *job, int op, struct cst_err *err)
{
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
    return CST_OK;
}

static int check_args(struct cst_job *job, int op, enum cst_direction direction,
                      const struct cst_io *io, uint32_t n_io, struct cst_err *err)
{
    int rc = check_op(job, op, err);
    const struct cst_layout_operator *o;
    uint32_t tensor;

    if (rc != CST_OK) {
        return rc;
    }
    o = &job->model.operators[op];
    if (direction != CST_FORWARD && direction != CST_BACKWARD) {
        return cst_err_set(err, CST_EINVAL, "operator '%s': direction %d", o->name, (int)direction);
    }
    if (io == NULL || n_io != o->n_tensors) {
        return cst_err_set(err, CST_EINVAL,
                           "operator '%s': io has %u entries, but the operator uses %u tensors",
                           o->name, io == NULL ? 0 : n_io, o->n_tensors);
    }
    if (job->begun >= 0) {
        return cst_err_set(err, CST_EINVAL, "operator '%s' begins before the end of operator '%s'",
                           o->name, job->model.operators[job->begun].name);
    }
    tensor = direction == CST_BACKWARD ? cst_lease_handed_in(&job->sequence.leases, (uint32_t)op)
                                       : CST_LEASE_NONE;
    if (tensor != CST_LEASE_NONE) {
        return cst_err_give_reason(
            err, CST_REASON_HANDED_IN,
            cst_err_set(err, CST_EINVAL,
                        "operator '%s': the gradient of tensor '%s' was handed in already in "
                        "this %s",
                        o->name, job->model.tensors[tensor].name,
                        job->micro_batches > 1 ? "micro-batch" : "step"));
    }
    return CST_OK;
}

static int advance(struct cst_job *job, struct cst_err *err)
{
    int rc = cstc_job_check_step(job, err);

    return rc == CST_OK ? cst_sequence_begin(&job->sequence, (uint32_t)job->pending.op,
                                             job->pending.backward, err)
                        : rc;
}

static int begin(struct cst_job *job, int op, enum cst_direction direction, struct cst_io *io,
                 uint32_t n_io, bool block, struct cst_err *err)
{
    struct cstc_pending want = {
        .kind = CSTC_PENDING_BEGIN, .op = op, .backward = direction == CST_BACKWARD};
    int rc = cstc_job_check_step(job, err);

    if (rc == CST_OK) {
        rc = check_args(job, op, direction, io, n_io, err);
    }
    if (rc == CST_OK) {
        rc = cstc_job_pend(job, &want, err);
    }
    if (rc == CST_OK) {
        rc = cstc_job_drive(job, advance, block, err);
    }
    rc = rc == CST_OK ? cstc_debug_unlock(job, (uint32_t)op, want.backward, err) : rc;
    if (rc == CST_OK) {
        fill_io(job, op, want.backward, io);
        cstc_debug_poison(job, (uint32_t)op, io);
        job->begun = op;
        job->begun_backward = want.backward;
    }
    return rc;
}

int cst_op_begin(struct cst_job *job, int op, enum cst_direction direction, struct cst_io *io,
                 uint32_t n_io, struct cst_err *err)
{
    return begin(job, op, direction, io, n_io, true, err);
}

int cst_try_op_begin(struct cst_job *job, int op, enum cst_direction direction, struct cst_io *io,
                     uint32_t n_io, struct cst_err *err)
{
    return begin(job, op, direction, io, n_io, false, err);
}

/* In a void step the operator is ended, too, because the worker will call cst_sync next. */
int cst_op_end(struct cst_job *job, int op, struct cst_err *err)
{
    int rc = cstc_job_check_committed(job, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (job->begun < 0 || job->begun != op) {
        return cst_err_set(err, CST_EINVAL, "end of operator %d, which has not begun (%s%s)", op,
                           job->begun < 0 ? "none is" : "the current one is ",
                           job->begun < 0 ? "" : job->model.operators[job->begun].name);
    }
    rc = cstc_job_check_step(job, err);
    if (rc == CST_OK && job->begun_backward) {
        rc = cstc_debug_check(job, (uint32_t)op, err);
        if (rc != CST_OK) {
            return rc; /* The operator stays begun: the program can still write the gradient. */
        }
    }
    job->begun = -1;
    cstc_debug_lock(job);
    if (rc != CST_OK) {
        return rc;
    }
    if (job->begun_backward) {
        cstc_unused_written(job, (uint32_t)op);
    }
    return cst_sequence_end(&job->sequence, (uint32_t)op, job->begun_backward, err);
}

int cst_op_fits(struct cst_job *job, int op, struct cst_err *err)
{
    int rc = cstc_job_check_step(job, err);

    if (rc == CST_OK) {
        rc = check_op(job, op, err);
    }
    if (rc == CST_OK && job->begun >= 0) {
        rc = cst_err_set(err, CST_EINVAL, "operator '%s' is begun",
                         job->model.operators[job->begun].name);
    }
    if (rc == CST_OK && !cst_lease_fits(&job->sequence.leases, (uint32_t)op)) {
        rc =
            cst_err_set(err, CST_EPOOL, "gradients of later operators have to be handed in before");
    }
    return rc;
}
