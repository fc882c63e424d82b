/* SPDX-License-Identifier: Apache-2.0 */
/* Modules: the kernels of tests/lib/cudaemu by name. */
#ifndef CST_FAKE_MODULE_H
#define CST_FAKE_MODULE_H

#include <cuda.h>
#include <stddef.h>

/* Unload the modules of @context, which ends, and name them on stderr. Called with the lock. */
void cst_fake_modules_end(CUcontext context);

/* Number of modules that are loaded. */
size_t cst_fake_n_modules(void);

#endif
