/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the two that hand gradients in: the end of an operator and the step. */
#ifndef CST_OP_H
#define CST_OP_H

#include "client/job.h"

/* Zero, in each chunk that job->leases has planned to hand in, the tensors that have no gradient in
 * this step: blocks come with unspecified contents. What lies between tensors is read by nobody.
 * A device that cannot: its status, and the step is void. */
int cst_op_zero_unwritten(struct cst_job *job, struct cst_err *err);

#endif
