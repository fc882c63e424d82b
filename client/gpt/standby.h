/* SPDX-License-Identifier: Apache-2.0 */
/* A worker that waits to take the place of a rank that dies. */
#ifndef GPT_STANDBY_H
#define GPT_STANDBY_H

#include "client/gpt/options.h"

/* Wait until a rank of the job of @options has lost its worker, and set options->job.rank. *out
 * keeps the rank for this process, and is closed with cst_disconnect when the job is open.
 * CST_ECANCELLED: the job has ended, or a signal has requested the end (stop.h). The statuses of
 * cst_connect and cst_try_standby. */
int gpt_standby(struct gpt_options *options, struct cst_client **out, struct cst_err *err);

#endif
