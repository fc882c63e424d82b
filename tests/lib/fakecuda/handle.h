/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of device memory, by the numbers that the program knows. With the lock. */
#ifndef CST_FAKE_HANDLE_H
#define CST_FAKE_HANDLE_H

#include "tests/lib/fakecuda/address.h"

struct cst_fake_handle {
    struct cst_fake_handle *next;
    CUmemGenericAllocationHandle number; /* never used again */
    struct cst_fake_memory *memory;      /* a reference */
};

/* NULL: no handle, or one that was released. */
struct cst_fake_handle *cst_fake_handle_find(CUmemGenericAllocationHandle number);

/* Is @n a multiple of the granularity? */
bool cst_fake_is_granular(unsigned long long n);

/* Handles that were created or imported and not released. */
size_t cst_fake_n_handles(void);

#endif
