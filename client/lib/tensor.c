/* SPDX-License-Identifier: Apache-2.0 */
/* cst_tensor_read and cst_tensor_write: copy states of tensors through the staging segment, one
 * piece at a time. */
#include "client/lib/job.h"

#include "proto/table.h"

#include <string.h>

#define STAGING_BYTES (8u << 20) /* Requested size; the daemon may give less. */

static size_t elem_bytes(enum cst_state state)
{
    return state == CST_STATE_WEIGHT || state == CST_STATE_GRAD ? 2 : 4;
}

static int get_staging(struct cst_job *job, struct cst_err *err)
{
    Cistern__StagingGet msg = CISTERN__STAGING_GET__INIT;
    struct cstc_call call = {.max_fds = 1};
    struct cst_err why = {0};
    uint64_t bytes;
    int rc;

    if (job->staging.base != NULL) {
        return CST_OK;
    }
    msg.bytes = STAGING_BYTES;
    rc = cstc_call_sync(job->client, &call, CISTERN__MSG_TYPE__MSG_STAGING, &msg.base,
                        CISTERN__MSG_TYPE__MSG_STAGING_PART, &cistern__staging_part__descriptor,
                        err);
    if (rc != CST_OK) {
        return rc;
    }
    bytes = ((const Cistern__StagingPart *)call.reply)->bytes;
    if (call.n_fds != 1 || bytes < 4) {
        rc = cst_err_set(&why, CST_EPROTO, "a staging segment of %llu bytes with %u fds",
                         (unsigned long long)bytes, call.n_fds);
    } else {
        rc = cstc_segment_map(&job->staging, call.fds[0], bytes, &why);
    }
    /* A faulty daemon ends the connection; a lack of memory in this process does not. */
    if (rc == CST_EPROTO) {
        rc = cstc_job_distrust(job, &why, err);
    } else if (rc != CST_OK) {
        rc = cst_err_set(err, rc, "staging segment: %.256s", why.text);
    }
    cstc_call_reset(&call);
    return rc;
}

static int check_range(struct cst_job *job, int tensor, enum cst_state state, uint64_t first,
                       uint64_t n_elems, const void *data, struct cst_err *err)
{
    const struct cst_layout_tensor *t;

    if (tensor < 0 || (uint32_t)tensor >= job->model.n_tensors) {
        return cst_err_set(err, CST_EINVAL, "there is no tensor %d, %u are declared", tensor,
                           job->model.n_tensors);
    }
    t = &job->model.tensors[tensor];
    if ((int)state < CST_STATE_WEIGHT || state > CST_STATE_EXP_AVG_SQ) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': state %d", t->name, (int)state);
    }
    if (first > t->n_elems || n_elems > t->n_elems - first) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': elements %llu and %llu more, it has %llu",
                           t->name, (unsigned long long)first, (unsigned long long)n_elems,
                           (unsigned long long)t->n_elems);
    }
    if (data == NULL && n_elems > 0) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': no data", t->name);
    }
    return CST_OK;
}

static int transfer(struct cst_job *job, uint16_t type, int tensor, enum cst_state state,
                    uint64_t first, uint64_t n_elems, struct cst_err *err)
{
    Cistern__TensorIo msg = CISTERN__TENSOR_IO__INIT;
    struct cstc_call call = {0};
    int rc;

    msg.tensor = (uint32_t)tensor;
    msg.row = (Cistern__TensorIo__Row)state; /* Both enums have the same numbers. */
    msg.first = first;
    msg.n_elems = n_elems;
    msg.staging_offset = 0;
    rc = cstc_call_sync(job->client, &call, type, &msg.base, CISTERN__MSG_TYPE__MSG_OK, NULL, err);
    if (rc == CST_OK) {
        cstc_call_reset(&call);
    }
    return rc;
}

static int prepare(struct cst_job *job, int tensor, enum cst_state state, uint64_t first,
                   uint64_t n_elems, const void *data, struct cst_err *err)
{
    int rc = cstc_job_check_committed(job, err);

    if (rc == CST_OK) {
        rc = check_range(job, tensor, state, first, n_elems, data, err);
    }
    return rc == CST_OK ? get_staging(job, err) : rc;
}

/* Return the number of elements of the next piece, which begins at element @at. If possible, a
 * piece ends at the end of a block of 8-bit moments, because a block that is written in two pieces
 * is rounded twice. */
static uint64_t piece_of(const struct cst_job *job, enum cst_state state, uint64_t at,
                         uint64_t n_left)
{
    uint64_t most = job->staging.bytes / elem_bytes(state);
    uint64_t beyond = (at + most) % CST_MX8_BLOCK;

    return n_left <= most ? n_left : most > beyond ? most - beyond : most;
}

int cst_tensor_read(struct cst_job *job, int tensor, enum cst_state state, uint64_t first,
                    uint64_t n_elems, void *data, struct cst_err *err)
{
    int rc = prepare(job, tensor, state, first, n_elems, data, err);

    for (uint64_t done = 0, n; rc == CST_OK && done < n_elems; done += n) {
        n = piece_of(job, state, first + done, n_elems - done);
        rc = transfer(job, CISTERN__MSG_TYPE__MSG_TENSOR_READ, tensor, state, first + done, n, err);
        if (rc == CST_OK) {
            memcpy((char *)data + done * elem_bytes(state), job->staging.base,
                   n * elem_bytes(state));
        }
    }
    return rc;
}

int cst_tensor_write(struct cst_job *job, int tensor, enum cst_state state, uint64_t first,
                     uint64_t n_elems, const void *data, struct cst_err *err)
{
    int rc = prepare(job, tensor, state, first, n_elems, data, err);

    for (uint64_t done = 0, n; rc == CST_OK && done < n_elems; done += n) {
        n = piece_of(job, state, first + done, n_elems - done);
        memcpy(job->staging.base, (const char *)data + done * elem_bytes(state),
               n * elem_bytes(state));
        rc =
            transfer(job, CISTERN__MSG_TYPE__MSG_TENSOR_WRITE, tensor, state, first + done, n, err);
    }
    return rc;
}
