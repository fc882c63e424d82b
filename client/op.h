/* SPDX-License-Identifier: Apache-2.0 */
/* Internal interface of op.c (cst_op_begin and cst_op_end) for step.c, which also hands in
 * gradients. */
#ifndef CST_OP_H
#define CST_OP_H

#include "client/job.h"

/* Fill with zeros, in each chunk that job->leases has planned to hand in, the gradients of the
 * tensors that were not written in this micro-batch: a block comes with undefined contents. The
 * gaps between tensors are not cleared, because nobody reads them. If the device fails, returns its
 * status, and the step is void. */
int cstc_op_zero_unwritten(struct cst_job *job, struct cst_err *err);

#endif
