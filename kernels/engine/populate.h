/* SPDX-License-Identifier: Apache-2.0 */
/* Allocates the pages of shared memory, as large pages where the kernel has them.
 *
 * Linux gives shared memory pages of 4 KiB, unless the administrator allows others (cisternd(8)).
 * MADV_COLLAPSE (Linux 6.1) makes a large page of small ones without that permission, unless it is
 * refused by the setting `deny`. If one small page is there and all others are holes, it clears a
 * new large page and copies nothing but the small one. If more pages have been allocated before, it
 * would copy all of them, which is slow: such memory is left as it is. */
#ifndef CSTE_POPULATE_H
#define CSTE_POPULATE_H

#include <stdint.h>

/* Allocate and touch the pages of [@offset, @offset + @bytes) of @base, a shared mapping of the
 * memfd @fd from its start on (proto/segment_map.h). The content is kept. The memory has large
 * pages where the range has whole ones of which nothing was allocated before, and the kernel gives
 * them. @fd may be a descriptor that other processes share: its position is not used, and the call
 * changes it. Any thread. Returns 0 or an error number: ENOMEM, ENOSPC, EFAULT: no page is left,
 * which is a result and not a signal. Pages that were allocated before the error stay. */
int cste_populate(int fd, void *base, uint64_t offset, uint64_t bytes);

#endif
