/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/populate.h"

#include "proto/fallocate.h"
#include "proto/round_up.h"
#include "proto/segment_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Added in Linux 5.14. */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Added in Linux 6.1. */
#endif

/* Write to each page without changing it. */
static void touch(char *at, uint64_t bytes, size_t page_bytes)
{
    for (uint64_t i = 0; i < bytes; i += page_bytes) {
        (void)__atomic_fetch_or(at + i, 0, __ATOMIC_RELAXED);
    }
}

/* Returns whether no page of [@offset, @offset + @bytes) has been allocated. */
static bool is_hole(int fd, uint64_t offset, uint64_t bytes)
{
    off_t data = lseek(fd, (off_t)offset, SEEK_DATA);

    return data >= 0 ? (uint64_t)data >= offset + bytes : errno == ENXIO;
}

/* Allocate the large page at @at, the unit of the file at @offset, if nothing of it is there. Where
 * this fails, small pages are allocated later. */
static void collapse(int fd, char *at, uint64_t offset)
{
    if (is_hole(fd, offset, CST_LARGE_PAGE) &&
        madvise(at, (size_t)sysconf(_SC_PAGESIZE), MADV_POPULATE_WRITE) == 0 &&
        madvise(at, CST_LARGE_PAGE, MADV_COLLAPSE) != 0 && errno == EAGAIN) {
        (void)madvise(at, CST_LARGE_PAGE, MADV_COLLAPSE); /* Something short was in the way. */
    }
}

int cste_populate(int fd, void *base, uint64_t offset, uint64_t bytes)
{
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    const uint64_t start = offset - offset % page_bytes;
    char *at = (char *)base + start;
    int errnum;

    bytes += offset - start;
    for (uint64_t unit = cst_round_up(start, CST_LARGE_PAGE);
         unit + CST_LARGE_PAGE <= start + bytes; unit += CST_LARGE_PAGE) {
        collapse(fd, (char *)base + unit, unit);
    }
    errnum = madvise(at, bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
    if (errnum == ENOMEM || errnum == EFAULT || errnum == EHWPOISON) {
        return errnum;
    }
    /* Other errors mean that the kernel lacks MADV_POPULATE_WRITE, and emulators ignore it. What is
     * not there is allocated before it is touched, so that a lack of memory is no signal. Such
     * pages are small, because fallocate does not know the advice that the mapping has. */
    if (cst_fallocate(fd, FALLOC_FL_KEEP_SIZE, start, bytes) != 0) {
        return errno;
    }
    if (errnum != 0) {
        touch(at, bytes, page_bytes);
    }
    return 0;
}
