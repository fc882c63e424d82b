/* SPDX-License-Identifier: Apache-2.0 */
/* Allocates the pages of shared memory. */
#ifndef CSTE_POPULATE_H
#define CSTE_POPULATE_H

#include <stdint.h>

/* Allocate and touch the pages of [@offset, @offset + @bytes) of @base, a shared mapping of the
 * memfd @fd from its start on. The content is kept. The pages are large where the system allows it
 * for a mapping with MADV_HUGEPAGE, and @base has this advice. Any thread. Returns 0 or an error
 * number: ENOMEM, ENOSPC, EFAULT: no page is left, which is a result and not a signal. Pages that
 * were allocated before the error stay. */
int cste_populate(int fd, void *base, uint64_t offset, uint64_t bytes);

#endif
