/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/poison.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xffffu /* A NaN in bf16 that is no result of arithmetic. */

int cstc_poison_read(bool *on, struct cst_err *err)
{
    const char *words = getenv("CISTERN_DEBUG");

    *on = words != NULL && strcmp(words, "poison") == 0;
    return words == NULL || *words == '\0' || *on
               ? CST_OK
               : cst_err_set(err, CST_EINVAL, "CISTERN_DEBUG='%s': only 'poison' is known", words);
}

static bool is_on(const struct cst_job *job)
{
    return job->poison && job->device.calls == NULL;
}

void cstc_poison_fill(const struct cst_job *job, const struct cst_io *io, uint32_t n_io)
{
    for (uint32_t i = 0; is_on(job) && i < n_io; i++) {
        if (io[i].grad != NULL && !io[i].accumulate) {
            memset(io[i].grad, POISON & 0xff, 2 * io[i].n_elems);
        }
    }
}

static int check_tensor(const struct cst_job *job, uint32_t op, uint32_t tensor,
                        struct cst_err *err)
{
    const struct cst_lease *lease = &job->sequence.leases.chunks[job->tensor_chunk[tensor]].grad;
    uint64_t n = job->model.tensors[tensor].n_elems;
    const uint16_t *grad = cstc_job_address(job, lease, tensor);

    for (uint64_t i = 0; i < n; i++) {
        if (grad[i] == POISON) {
            return cst_err_set(
                err, CST_EINVAL,
                "operator '%s': the gradient of tensor '%s' was not written: element "
                "%" PRIu64 " of %" PRIu64 " is as CISTERN_DEBUG=poison left it",
                job->model.operators[op].name, job->model.tensors[tensor].name, i, n);
        }
    }
    return CST_OK;
}

int cstc_poison_check(const struct cst_job *job, uint32_t op, struct cst_err *err)
{
    const struct cst_lease_operator *o = &job->operators[op];
    int rc = CST_OK;

    for (uint32_t i = 0; is_on(job) && rc == CST_OK && i < o->n_tensors; i++) {
        uint32_t tensor = o->tensors[i];

        if (job->traits[job->tensor_chunk[tensor]].trains &&
            !job->sequence.leases.written[tensor]) {
            rc = check_tensor(job, op, tensor, err);
        }
    }
    return rc;
}
