/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of device memory, identified by the numbers that the program uses. All functions need the
 * lock. */
#ifndef CST_FAKE_HANDLE_H
#define CST_FAKE_HANDLE_H

#include "tests/lib/fakecuda/address.h"

/* A handle in the list of handles. */
struct cst_fake_handle {
    struct cst_fake_handle *next;
    CUmemGenericAllocationHandle number; /* number of the handle, never used again */
    struct cst_fake_memory *memory;      /* a reference */
};

/* The handle with @number. NULL if there is none, or if it was released. */
struct cst_fake_handle *cst_fake_handle_find(CUmemGenericAllocationHandle number);

/* True if @n is a multiple of the granularity. */
bool cst_fake_is_granular(unsigned long long n);

/* Number of handles that were created or imported and not released. */
size_t cst_fake_n_handles(void);

#endif
