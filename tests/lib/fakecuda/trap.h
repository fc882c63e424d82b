/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of streams run under a trap: an address that faults is the operation's error, as on a
 * GPU, and not the end of the process. Faults elsewhere stay what they were. */
#ifndef CST_FAKE_TRAP_H
#define CST_FAKE_TRAP_H

#include "tests/lib/fakecuda/op.h"

/* Run @op. CUDA_ERROR_ILLEGAL_ADDRESS if it touched what is not there; else what it returned. By a
 * stream's thread, without the lock. */
CUresult cst_fake_trap(struct cst_fake_op *op);

#endif
