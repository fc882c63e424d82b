/* SPDX-License-Identifier: Apache-2.0 */
/* CISTERN_DEBUG=poison: blocks for gradients are filled with NaN before an operator's backward
 * pass, and when it ends, what it has not written is named. For host memory; a device's memory is
 * left alone. */
#ifndef CST_POISON_H
#define CST_POISON_H

#include "client/job.h"

/* Whether $CISTERN_DEBUG asks for it. CST_EINVAL: it says something else than "poison" or nothing.
 */
int cst_poison_read(bool *on, struct cst_err *err);

/* Fill io[i].grad of each tensor of @op that nothing has been written to in this micro-batch. */
void cst_poison_fill(const struct cst_job *job, const struct cst_io *io, uint32_t n_io);

/* @op's backward pass ends. CST_EINVAL: a gradient that was filled is still poison somewhere: which
 * tensor, which operator, and the first element. The operator stays begun. */
int cst_poison_check(const struct cst_job *job, uint32_t op, struct cst_err *err);

#endif
