/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment variable CISTERN_DEBUG asks for; a list with commas:
 *   - poison: gradients are filled with NaN before the backward pass of an operator. If the
 *     operator does not write all of them, its end fails and names the tensor.
 *   - guard: outside of its operators, a worker cannot access the pool. During an operator it can
 *     read the blocks of weights and write the blocks of gradients of this operator.
 * This works in host memory only; on a device whose memory the processor cannot access, nothing is
 * done. */
#ifndef CST_CLIENT_DEBUG_H
#define CST_CLIENT_DEBUG_H

#include "client/lib/job.h"

/* Set *out to what CISTERN_DEBUG asks for. CST_EINVAL: it has an unknown word. */
int cstc_debug_read(struct cstc_debug *out, struct cst_err *err);

/* guard: the operator @op begins, and the worker may access its blocks. CST_ENOMEM: the process has
 * too many mappings. */
int cstc_debug_unlock(const struct cst_job *job, uint32_t op, bool backward, struct cst_err *err);

/* guard: no operator is begun, and the worker may not access the pool. */
void cstc_debug_lock(const struct cst_job *job);

/* poison: fill with NaN each gradient in @io, of the tensors of operator @op, to which nothing was
 * written in this micro-batch. */
void cstc_debug_poison(const struct cst_job *job, uint32_t op, const struct cst_io *io);

/* poison: check the gradients at the end of the backward pass of @op. CST_EINVAL: an element was
 * not written; the error names the tensor, the operator and the first such element. */
int cstc_debug_check(const struct cst_job *job, uint32_t op, struct cst_err *err);

#endif
