/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors have no gradient in this step, and cst_no_gradient, by which the worker says so. */
#include "client/lib/unused.h"

#include "client/lib/job.h"

#include <stdlib.h>
#include <string.h>

#define MISSED_AT_ONCE 4096 /* Tensors in a message; each takes at most 10 bytes. */

int cstc_unused_open(struct cst_job *job, struct cst_err *err)
{
    struct cstc_unused *unused = &job->unused;

    if (!unused->skips) {
        return CST_OK;
    }
    cstc_unused_close(job);
    unused->n_bytes = (job->model.n_tensors + 7) / 8;
    unused->without = calloc(1, unused->n_bytes + 1);
    unused->discarded = calloc(1, unused->n_bytes + 1);
    if (unused->without == NULL || unused->discarded == NULL) {
        return cst_err_set(err, CST_ENOMEM, "job '%s': no memory for %u tensors", job->name,
                           job->model.n_tensors);
    }
    cstc_unused_reset(job);
    return CST_OK;
}

void cstc_unused_close(struct cst_job *job)
{
    free(job->unused.without);
    free(job->unused.discarded);
    job->unused.without = job->unused.discarded = NULL;
}

void cstc_unused_reset(struct cst_job *job)
{
    if (job->unused.without != NULL) {
        memset(job->unused.without, 0xff, job->unused.n_bytes);
        memset(job->unused.discarded, 0, job->unused.n_bytes);
    }
}

static void set(uint8_t *bits, uint32_t tensor, bool value)
{
    uint8_t bit = (uint8_t)(1u << tensor % 8);

    bits[tensor / 8] = (uint8_t)(value ? bits[tensor / 8] | bit : bits[tensor / 8] & ~bit);
}

void cstc_unused_written(struct cst_job *job, uint32_t op)
{
    const struct cst_lease_operator *o = &job->operators[op];

    for (uint32_t i = 0; job->unused.without != NULL && i < o->n_tensors; i++) {
        set(job->unused.without, o->tensors[i], false);
        set(job->unused.discarded, o->tensors[i], false);
    }
}

void cstc_unused_fill(struct cst_job *job, Cistern__Step *msg)
{
    if (job->unused.without != NULL) {
        msg->has_without = msg->has_discarded = true;
        msg->without.data = job->unused.without;
        msg->discarded.data = job->unused.discarded;
        msg->without.len = msg->discarded.len = job->unused.n_bytes;
    }
}

void cstc_unused_fill_missed(Cistern__Restore *msg, const uint64_t *missed, size_t n, size_t *told)
{
    const size_t left = n - *told;

    msg->has_more = msg->more = msg->has_first = true;
    msg->first = *told;
    msg->n_missed = left < MISSED_AT_ONCE ? left : MISSED_AT_ONCE;
    msg->missed = n > 0 ? (uint64_t *)(uintptr_t)missed + *told : NULL;
    *told += msg->n_missed;
}

static int check(const struct cst_job *job, int tensor, struct cst_err *err)
{
    int rc = cstc_job_check_step(job, err);

    if (rc == CST_OK && job->pending.kind != CSTC_PENDING_NONE) {
        rc = cst_err_set(err, CST_EBUSY, "job '%s': another call is pending", job->name);
    }
    if (rc == CST_OK && (tensor < 0 || (uint32_t)tensor >= job->model.n_tensors)) {
        rc = cst_err_set(err, CST_EINVAL, "job '%s': there is no tensor %d, %u are declared",
                         job->name, tensor, job->model.n_tensors);
    }
    if (rc == CST_OK && !job->traits[job->tensor_chunk[tensor]].trains) {
        rc = cst_err_set(err, CST_EINVAL, "job '%s': tensor '%s' is frozen and has no gradient",
                         job->name, job->model.tensors[tensor].name);
    }
    if (rc == CST_OK && !job->unused.skips) {
        rc =
            cst_err_set(err, CST_EINVAL,
                        "job '%s' was opened with unused zero: a tensor without a gradient has one "
                        "of zeros",
                        job->name);
    }
    return rc;
}

int cst_no_gradient(struct cst_job *job, int tensor, bool discard, struct cst_err *err)
{
    int rc = check(job, tensor, err);

    if (rc == CST_OK) {
        set(job->unused.without, (uint32_t)tensor, !discard);
        set(job->unused.discarded, (uint32_t)tensor, discard);
    }
    return rc;
}
