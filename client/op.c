/* SPDX-License-Identifier: Apache-2.0 */
/* cst_op_begin and cst_op_end: fetch the chunks that an operator lacks, and give its tensors their
 * addresses. */
#include "client/op.h"

#include "client/batch.h"
#include "client/poison.h"

#include <string.h>

static void *address(const struct cst_job *job, const struct cst_lease *lease, uint32_t tensor)
{
    return (char *)job->slabs[lease->slab].base + lease->offset + 2 * job->tensor_offset[tensor];
}

static void fill_io(const struct cst_job *job, int op, bool backward, struct cst_io *io)
{
    const struct cst_lease_operator *o = &job->operators[op];

    for (uint32_t i = 0; i < o->n_tensors; i++) {
        uint32_t tensor = o->tensors[i];
        const struct cst_lease_chunk *chunk = &job->leases.chunks[job->tensor_chunk[tensor]];
        bool has_grad = backward && job->traits[job->tensor_chunk[tensor]].trains;

        io[i] = (struct cst_io){
            .weight = address(job, &chunk->weight, tensor),
            .grad = has_grad ? address(job, &chunk->grad, tensor) : NULL,
            .accumulate = has_grad && job->leases.written[tensor],
            .n_elems = job->declare.tensors[tensor].n_elems,
        };
    }
}

static int zero_unwritten_of(struct cst_job *job, const struct cst_lease_item *item,
                             struct cst_err *err)
{
    const struct cst_lease_chunk *chunk = &job->leases.chunks[item->chunk];
    int rc = CST_OK;

    for (uint32_t i = 0; rc == CST_OK && i < chunk->n_tensors; i++) {
        uint32_t tensor = job->leases.by_chunk[chunk->first_tensor + i];

        if (!job->leases.written[tensor]) {
            rc = cstc_device_zero(job, address(job, &item->lease, tensor),
                                  2 * job->declare.tensors[tensor].n_elems, err);
        }
    }
    return rc;
}

int cstc_op_zero_unwritten(struct cst_job *job, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; rc == CST_OK && i < job->leases.n_items; i++) {
        if (job->leases.items[i].kind == CST_LEASE_REDUCE_SCATTER) {
            rc = zero_unwritten_of(job, &job->leases.items[i], err);
        }
    }
    return rc;
}

static int check_args(struct cst_job *job, int op, enum cst_direction direction,
                      const struct cst_io *io, uint32_t n_io, struct cst_err *err)
{
    const struct cstc_declare_operator *o;
    uint32_t tensor;

    if (op < 0 || (uint32_t)op >= job->declare.n_operators) {
        return cst_err_set(err, CST_EINVAL, "there is no operator %d, %u are declared", op,
                           job->declare.n_operators);
    }
    o = &job->declare.operators[op];
    if (direction != CST_FORWARD && direction != CST_BACKWARD) {
        return cst_err_set(err, CST_EINVAL, "operator '%s': direction %d", o->name, (int)direction);
    }
    if (!o->runs) {
        return cst_err_set(err, CST_EINVAL,
                           "operator '%s' is not rank %u's: it is not in the groups of all its "
                           "tensors",
                           o->name, job->rank);
    }
    if (io == NULL || n_io != o->n_tensors) {
        return cst_err_set(err, CST_EINVAL,
                           "operator '%s': io has %u entries, but the operator uses %u tensors",
                           o->name, io == NULL ? 0 : n_io, o->n_tensors);
    }
    if (job->begun >= 0) {
        return cst_err_set(err, CST_EINVAL, "operator '%s' begins before the end of operator '%s'",
                           o->name, job->declare.operators[job->begun].name);
    }
    tensor = direction == CST_BACKWARD ? cst_lease_handed_in(&job->leases, (uint32_t)op)
                                       : CST_LEASE_NONE;
    if (tensor != CST_LEASE_NONE) {
        return cst_err_set(err, CST_EINVAL,
                           "operator '%s': the gradient of tensor '%s' was handed in already in "
                           "this %s",
                           o->name, job->declare.tensors[tensor].name,
                           job->micro_batches > 1 ? "micro-batch" : "step");
    }
    return CST_OK;
}

/* Wait for the reply to the fetch ahead. If it has not arrived, tell the daemon once that the
 * worker now waits for it: the daemon cannot know otherwise. Older daemons do not have this
 * request. */
static int settle(struct cst_job *job, uint32_t op, bool backward, struct cst_err *err)
{
    int rc = CST_OK;

    (void)cstc_call_pump(job->client, err); /* If the connection ends, its calls fail. */
    if (!cst_lease_must_settle(&job->leases, op, backward)) {
        return cstc_job_check_step(job, err);
    }
    if (!job->pending.wanted && (job->client->features & CISTERN__FEATURE__FEATURE_WANT) != 0) {
        cst_lease_want(&job->leases);
        rc = cstc_batch_send(job, false, err);
        job->pending.wanted = rc == CST_OK;
    }
    return rc == CST_OK ? CST_EAGAIN : rc;
}

/* Request what the operator lacks. CST_OK: the request is sent, or nothing is missing. While the
 * end of a micro-batch waits for the device, no gradient of the next one is fetched: it would
 * belong to the wrong micro-batch. */
static int ask(struct cst_job *job, uint32_t op, bool backward, struct cst_err *err)
{
    int rc =
        cst_lease_must_settle(&job->leases, op, backward) ? settle(job, op, backward, err) : CST_OK;

    if (rc != CST_OK) {
        return rc;
    }
    if (backward && job->device.fences.n_turns > 0) {
        return CST_EAGAIN;
    }
    rc = cst_lease_begin(&job->leases, op, backward, err);
    if (rc != CST_OK) {
        (void)cst_err_prefix(err, "operator '%s'", job->declare.operators[op].name);
        return rc;
    }
    job->awaited.status = CST_OK;
    return cstc_device_send(job, true, err);
}

static int advance(struct cst_job *job, struct cst_err *err)
{
    uint32_t op = (uint32_t)job->pending.op;
    bool backward = job->pending.backward;
    int rc = cstc_job_check_step(job, err);

    if (rc == CST_OK && !job->pending.sent) {
        rc = ask(job, op, backward, err);
        job->pending.sent = rc == CST_OK;
    }
    if (rc != CST_OK) {
        return rc;
    }
    if (job->n_awaited > 0) {
        return CST_EAGAIN;
    }
    if (job->awaited.status != CST_OK) {
        return cst_err_set(err, job->awaited.status, "operator '%s': %.256s",
                           job->declare.operators[op].name, job->awaited.text);
    }
    rc = cstc_load_await_op(job, op, err);
    if (rc != CST_OK) {
        return rc;
    }
    cst_lease_ahead(&job->leases, op, backward);
    return cstc_device_send(job, false, err);
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
    if (rc == CST_OK) {
        fill_io(job, op, want.backward, io);
        cstc_poison_fill(job, io, n_io);
        job->begun = op;
        cstc_device_begun(&job->device);
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
                           job->begun < 0 ? "" : job->declare.operators[job->begun].name);
    }
    rc = cstc_job_check_step(job, err);
    if (rc == CST_OK && job->begun_backward) {
        rc = cstc_poison_check(job, (uint32_t)op, err);
        if (rc != CST_OK) {
            return rc; /* The operator stays begun: the program can still write the gradient. */
        }
    }
    job->begun = -1;
    if (rc != CST_OK) {
        return rc;
    }
    cst_lease_end(&job->leases, (uint32_t)op, job->begun_backward);
    rc = cstc_op_zero_unwritten(job, err);
    return rc == CST_OK ? cstc_device_send(job, false, err) : rc;
}
