/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/populate.h"

#include "proto/fallocate.h"
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

/* Allocate the whole large pages in [@offset, @offset + @bytes) of the file as large pages, if
 * nothing of them is there. Where this fails, small pages are allocated later. */
static void collapse(int fd, char *base, uint64_t offset, uint64_t bytes)
{
    const uint64_t unit = CST_LARGE_PAGE;
    const uint64_t start = (offset + unit - 1) / unit * unit;
    const uint64_t end = (offset + bytes) / unit * unit;

    if (start >= end || !is_hole(fd, start, end - start)) {
        return;
    }
    for (uint64_t at = start; at < end; at += unit) {
        if (madvise(base + at, (size_t)sysconf(_SC_PAGESIZE), MADV_POPULATE_WRITE) != 0) {
            return;
        }
    }
    (void)madvise(base + start, end - start, MADV_COLLAPSE);
}

int cste_populate(int fd, void *base, uint64_t offset, uint64_t bytes)
{
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    const uint64_t start = offset - offset % page_bytes;
    char *at = (char *)base + start;
    int errnum;

    bytes += offset - start;
    collapse(fd, base, start, bytes);
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
