/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/debug.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define POISON 0xff /* Each byte. A NaN in bf16 and in fp32 that is no result of arithmetic. */

int cstc_debug_read(struct cstc_debug *out, struct cst_err *err)
{
    const char *words = getenv("CISTERN_DEBUG");

    *out = (struct cstc_debug){.poison = false};
    for (const char *at = words; at != NULL && *at != '\0';) {
        size_t n = strcspn(at, ",");

        if (n == sizeof "poison" - 1 && strncmp(at, "poison", n) == 0) {
            out->poison = true;
        } else if (n == sizeof "guard" - 1 && strncmp(at, "guard", n) == 0) {
            out->guard = true;
        } else {
            return cst_err_set(err, CST_EINVAL,
                               "CISTERN_DEBUG='%s': only 'poison' and 'guard' are known", words);
        }
        at += n + (at[n] == ',');
    }
    return CST_OK;
}

static bool is_host(const struct cst_job *job)
{
    return job->device.calls == NULL;
}

/* -- guard ------------------------------------------------------------------------------------ */

static int protect(const struct cst_job *job, const struct cst_lease *lease, uint32_t chunk,
                   int access, struct cst_err *err)
{
    uint64_t bytes = 2 * job->plan.classes[job->traits[chunk].size_class].chunk_elems;

    return mprotect((char *)job->slabs[lease->slab].base + lease->offset, bytes, access) == 0
               ? CST_OK
               : cst_err_errno(err, CST_ENOMEM, errno, "CISTERN_DEBUG=guard: a block of the pool");
}

int cstc_debug_unlock(const struct cst_job *job, uint32_t op, bool backward, struct cst_err *err)
{
    const struct cst_lease_operator *o = &job->operators[op];
    int rc = CST_OK;

    for (uint32_t i = 0; job->debug.guard && is_host(job) && rc == CST_OK && i < o->n_tensors;
         i++) {
        uint32_t c = job->tensor_chunk[o->tensors[i]];
        const struct cst_lease_chunk *chunk = &job->sequence.leases.chunks[c];

        rc = protect(job, &chunk->weight, c, PROT_READ, err);
        if (rc == CST_OK && backward && job->traits[c].trains) {
            rc = protect(job, &chunk->grad, c, PROT_READ | PROT_WRITE, err);
        }
    }
    return rc;
}

void cstc_debug_lock(const struct cst_job *job)
{
    for (uint32_t i = 0; job->debug.guard && is_host(job) && i < job->n_slabs; i++) {
        if (job->slabs[i].base != NULL) {
            (void)mprotect(job->slabs[i].base, job->slabs[i].bytes, PROT_NONE);
        }
    }
}

/* -- poison ----------------------------------------------------------------------------------- */

static bool is_on(const struct cst_job *job)
{
    return job->debug.poison && is_host(job);
}

void cstc_debug_poison(const struct cst_job *job, uint32_t op, const struct cst_io *io)
{
    const struct cst_lease_operator *o = &job->operators[op];

    for (uint32_t i = 0; is_on(job) && i < o->n_tensors; i++) {
        if (io[i].grad != NULL && !io[i].accumulate) {
            enum cst_dtype dtype = job->model.tensors[o->tensors[i]].dtype;

            memset(io[i].grad, POISON, cst_dtype_bytes(dtype) * io[i].n_elems);
        }
    }
}

/* True if element @i of @grad is as cstc_debug_poison left it. */
static bool is_poison(const unsigned char *grad, uint64_t i, uint64_t elem_bytes)
{
    bool same = true;

    for (uint64_t b = 0; b < elem_bytes; b++) {
        same = same && grad[i * elem_bytes + b] == POISON;
    }
    return same;
}

static int check_tensor(const struct cst_job *job, uint32_t op, uint32_t tensor,
                        struct cst_err *err)
{
    const struct cst_lease *lease = &job->sequence.leases.chunks[job->tensor_chunk[tensor]].grad;
    uint64_t n = job->model.tensors[tensor].n_elems;
    uint64_t elem_bytes = cst_dtype_bytes(job->model.tensors[tensor].dtype);
    const unsigned char *grad = cstc_job_address(job, lease, tensor);

    for (uint64_t i = 0; i < n; i++) {
        if (is_poison(grad, i, elem_bytes)) {
            return cst_err_set(
                err, CST_EINVAL,
                "operator '%s': the gradient of tensor '%s' was not written: element "
                "%" PRIu64 " of %" PRIu64 " is as CISTERN_DEBUG=poison left it",
                job->model.operators[op].name, job->model.tensors[tensor].name, i, n);
        }
    }
    return CST_OK;
}

int cstc_debug_check(const struct cst_job *job, uint32_t op, struct cst_err *err)
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
