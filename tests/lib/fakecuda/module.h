/* SPDX-License-Identifier: Apache-2.0 */
/* Modules: the kernels that tests/lib/cudaemu has, by name. */
#ifndef CST_FAKE_MODULE_H
#define CST_FAKE_MODULE_H

#include <cuda.h>
#include <stddef.h>

/* @context ends: its modules too; they are named on stderr. With the lock. */
void cst_fake_modules_end(CUcontext context);

size_t cst_fake_n_modules(void);

#endif
