/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a job (proto/job_options.h) as the daemon reads and compares them. Pure
 * computation. */
#ifndef CSTD_JOB_OPTIONS_H
#define CSTD_JOB_OPTIONS_H

#include "offload/layout/layout.h"
#include "proto/cistern.pb-c.h"
#include "proto/job_options.h"

/* Read the options of @message into *out, whose texts are borrowed from it. CST_EINVAL: an option
 * is out of range, or options cannot be combined. */
int cstd_job_options_read(const Cistern__JobOpen *message, struct cst_job_spec *out,
                          struct cst_err *err);

/* Compare the options of the job @job that all ranks give equally with those in @request.
 * CST_EMISMATCH: they differ; @err has the name of the job, the option and both values. */
int cstd_job_options_same(const struct cst_job_spec *job, const struct cst_job_spec *request,
                          struct cst_err *err);

#endif
