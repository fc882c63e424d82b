/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping of segments, which engines and clients do alike. Engines allocate the memory of segments
 * in large pages (kernels/engine/populate.h). A process reaches a large page with one entry of its
 * page table if the page has an aligned address in the process. */
#ifndef CST_SEGMENT_MAP_H
#define CST_SEGMENT_MAP_H

#include <stdint.h>

/* Size of a large page of x86, and of aarch64 with small pages of 4 KiB. Other sizes are possible;
 * memory then has small pages. */
#define CST_LARGE_PAGE (UINT64_C(2) << 20)

/* Map the first @bytes of the memfd @fd shared, for reading and writing. The address is a multiple
 * of CST_LARGE_PAGE if @bytes is not smaller and the system can do it. munmap(address, @bytes)
 * unmaps it. Any thread. Returns MAP_FAILED, with errno, if the mapping fails. */
void *cst_segment_map(int fd, uint64_t bytes);

#endif
