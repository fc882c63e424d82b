/* SPDX-License-Identifier: Apache-2.0 */
/* CISTERN_DEBUG=poison: gradients are filled with NaN before the backward pass of an operator. If
 * the operator does not write all of them, its end fails and names the tensor. This works in host
 * memory only; on a device whose memory the processor cannot access, nothing is done. */
#ifndef CST_POISON_H
#define CST_POISON_H

#include "client/lib/job.h"

/* Set *on to whether the environment variable CISTERN_DEBUG is "poison". CST_EINVAL: it has another
 * value, and is not empty. */
int cstc_poison_read(bool *on, struct cst_err *err);

/* Fill with NaN each of the @n_io gradients in @io to which nothing was written in this
 * micro-batch. */
void cstc_poison_fill(const struct cst_job *job, const struct cst_io *io, uint32_t n_io);

/* Check the gradients at the end of the backward pass of @op. CST_EINVAL: an element was not
 * written; the error names the tensor, the operator and the first such element. */
int cstc_poison_check(const struct cst_job *job, uint32_t op, struct cst_err *err);

#endif
