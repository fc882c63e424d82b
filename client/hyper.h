/* SPDX-License-Identifier: Apache-2.0 */
/* Hyper-parameters of a step, as the worker gives them and as they go to the daemon. */
#ifndef CST_HYPER_H
#define CST_HYPER_H

#include "client/job.h"

/* *out is what goes into a message for @params of @job's optimizer, with the defaults of
 * cst_hyper_params. CST_EINVAL: what no optimizer takes. */
int cst_hyper_fill(const struct cst_job *job, const struct cst_hyper_params *params,
                   Cistern__Hyper *out, struct cst_err *err);

#endif
