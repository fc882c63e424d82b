/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's answer to a Commit: the plan of the job, whose numbers are checked before anything
 * is allocated or mapped. Internal header of libcistern. */
#ifndef CST_COMMITTED_H
#define CST_COMMITTED_H

#include "cistern/status.h"
#include "proto/cistern.pb-c.h"

struct cst_job;

/* Check that the numbers of @msg can be those of @job. CST_EPROTO: they cannot. */
int cstc_committed_check(const struct cst_job *job, const Cistern__Committed *msg,
                         struct cst_err *why);

/* Copy the size classes of @msg, which was checked, to the plan of @job. */
void cstc_committed_take_classes(struct cst_job *job, const Cistern__Committed *msg);

#endif
