/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20)

void *gpt_memory_get(size_t bytes)
{
    const size_t align = bytes >= HUGE_BYTES ? HUGE_BYTES : 128;
    void *p;

    if (bytes > SIZE_MAX - align) {
        return NULL;
    }
    /* aligned_alloc may return NULL for 0 bytes, which would mean that memory is short. */
    bytes = bytes == 0 ? align : (bytes + align - 1) & ~(align - 1);
    p = aligned_alloc(align, bytes);
    if (p == NULL) {
        return NULL;
    }
    if (align == HUGE_BYTES) {
        (void)madvise(p, bytes, MADV_HUGEPAGE); /* Huge pages are optional. */
    }
    /* This also backs the pages now, and not in the first pass. */
    memset(p, 0, bytes);
    return p;
}

void gpt_memory_put(void *p)
{
    free(p);
}
