/* SPDX-License-Identifier: Apache-2.0 */
/* Hyper-parameters of a step: from the worker's struct to the message for the daemon. */
#ifndef CSTC_HYPER_H
#define CSTC_HYPER_H

#include "client/lib/job.h"

/* Fill *out with the message for @params and the parameter groups of @job, which it borrows, with
 * the defaults described at struct cst_hyper_params for the optimizer of @job. CST_EINVAL: a
 * parameter is out of range; *out is unchanged. */
int cstc_hyper_fill(const struct cst_job *job, const struct cst_hyper_params *params,
                    Cistern__Hyper *out, struct cst_err *err);

#endif
