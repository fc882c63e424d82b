/* SPDX-License-Identifier: Apache-2.0 */
/* The system calls by which an engine reaches files on a drive, as a table. Tests have tables that
 * fail, record or wait (tests/lib/disk_rows.h). */
#ifndef CST_DISK_IO_H
#define CST_DISK_IO_H

#include <stdint.h>
#include <sys/types.h>

/* The calls have the contracts of pread, pwrite, fallocate and fdatasync: -1 with errno is a
 * failure, and a call may do less than it was asked for. Several threads call them at a time. */
struct cste_disk_io {
    ssize_t (*read)(int fd, void *to, size_t bytes, uint64_t offset);
    ssize_t (*write)(int fd, const void *from, size_t bytes, uint64_t offset);
    int (*allocate)(int fd, int mode, uint64_t offset, uint64_t bytes);
    int (*flush)(int fd);
};

/* The system calls themselves. io_uring is not used: a process that is killed ends only when such a
 * call is over, so that none of its writes lands later on top of those of its successor. */
extern const struct cste_disk_io cste_disk_direct;

#endif
