/* SPDX-License-Identifier: Apache-2.0 */
/* Runs operations of streams so that an address that faults is the operation's error, as on a GPU,
 * instead of the end of the process. Other faults are not changed. */
#ifndef CST_FAKE_TRAP_H
#define CST_FAKE_TRAP_H

#include "tests/lib/fakecuda/op.h"

/* Run @op. Returns CUDA_ERROR_ILLEGAL_ADDRESS if it accessed an invalid address, otherwise its
 * result. Called by a stream's thread without the lock. */
CUresult cst_fake_trap(struct cst_fake_op *op);

#endif
