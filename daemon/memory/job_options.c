/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/job_options.h"

#include "proto/reason.h"

#include <inttypes.h>

int cstd_job_options_read(const Cistern__JobOpen *message, struct cst_job_spec *out,
                          struct cst_err *err)
{
    struct cst_job_spec spec = {.name = NULL};
    int rc;

    rc = cst_job_options_take(&spec, &message->base, err);
    /* Ranks may say the same in two ways. */
    spec.updates.micro_batches = spec.updates.micro_batches > 1 ? spec.updates.micro_batches : 1;
    spec.nodes.copies = spec.nodes.copies > 1 ? spec.nodes.copies : 1;
    spec.nodes.all_ranks = spec.nodes.all_ranks != spec.world ? spec.nodes.all_ranks : 0;
    rc = rc == CST_OK ? cst_job_options_check(&spec, err) : rc;
    if (rc == CST_OK) {
        *out = spec;
    }
    return rc;
}

static enum cst_reason reason_of(const struct cst_option *option)
{
    return (option->traits & CST_JOB_FIXED) != 0 ? CST_REASON_FIXED_OPTION : CST_REASON_OPTION;
}

int cstd_job_options_same(const struct cst_job_spec *job, const struct cst_job_spec *request,
                          struct cst_err *err)
{
    const struct cst_option *option = cst_job_options_difference(job, request, CST_JOB_SAME);
    char theirs[CST_JOB_VALUE_BYTES], mine[CST_JOB_VALUE_BYTES];

    if (option == NULL) {
        return CST_OK;
    }
    return cst_err_give_reason(
        err, reason_of(option),
        cst_err_set(err, CST_EMISMATCH,
                    "job '%s' was opened with %s %s, not %s as rank %" PRIu32 " wants", job->name,
                    option->field, cst_job_options_text(option, job, theirs),
                    cst_job_options_text(option, request, mine), request->rank));
}
