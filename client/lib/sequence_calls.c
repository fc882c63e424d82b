/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/sequence_calls.h"

#include "client/lib/batch.h"

#include <string.h>

static int send_items(void *arg, const struct cst_lease_item *items, uint32_t n, bool awaited,
                      struct cst_err *err)
{
    return cstc_batch_send(arg, items, n, awaited, err);
}

static int poll_replies(void *arg, struct cst_err *err)
{
    struct cst_job *job = arg;

    (void)cstc_call_pump(job->client, err); /* If the connection ends, its calls fail. */
    return cstc_job_check_step(job, err);
}

static int zero(void *arg, uint32_t tensor, const struct cst_lease *lease, struct cst_err *err)
{
    struct cst_job *job = arg;
    void *at = cstc_job_address(job, lease, tensor);
    const struct cst_layout_tensor *t = &job->model.tensors[tensor];
    uint64_t bytes = cst_dtype_bytes(t->dtype) * t->n_elems;

    if (job->device.calls != NULL) {
        return job->device.calls->zero(job->device.arg, at, bytes, err);
    }
    memset(at, 0, bytes);
    return CST_OK;
}

static int await(void *arg, uint64_t copy, struct cst_err *err)
{
    const struct cst_job *job = arg;

    return job->device.calls->await(job->device.arg, copy, err);
}

static int mark(void *arg, uint64_t *mark, struct cst_err *err)
{
    const struct cst_job *job = arg;

    return job->device.calls->fence(job->device.arg, mark, err);
}

static int failed(void *arg, const struct cst_err *why, struct cst_err *err)
{
    struct cst_job *job = arg;

    cstc_device_failed(job, why);
    return cstc_job_check_step(job, err);
}

const struct cst_sequence_calls cstc_sequence_calls = {
    .send = send_items,
    .poll = poll_replies,
    .zero = zero,
    .await = await,
    .mark = mark,
    .failed = failed,
};
