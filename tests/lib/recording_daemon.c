/* SPDX-License-Identifier: Apache-2.0 */
/* recording_daemon: cisternd whose writes and flushes of files on drives are appended to the file
 * $DISK_RECORD (tests/lib/disk_rows.h), as disk_engine appends its own with DISK_IO=record. With
 * DISK_FLUSH=N the N-th flush and all after it fail with EIO. */
#include "tests/lib/disk_rows.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/types.h>

ssize_t __real_pwrite(int fd, const void *from, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *from, size_t bytes, off_t offset);
int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);

/* Returns whether @fd is a file on a drive, whose calls are recorded. */
static bool records(int fd)
{
    const char *path = getenv("DISK_RECORD");
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || (flags & O_DIRECT) == 0 || path == NULL) {
        return false;
    }
    if (disk_record_fd < 0) {
        disk_record_fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    }
    return disk_record_fd >= 0;
}

ssize_t __wrap_pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
    uint64_t call =
        records(fd) ? disk_record(fd, DISK_RECORD_WRITE, 0, from, bytes, (uint64_t)offset) : 0;
    ssize_t n = __real_pwrite(fd, from, bytes, offset);

    if (call != 0 && n == (ssize_t)bytes) {
        (void)disk_record(fd, DISK_RECORD_WRITTEN, call, NULL, 0, 0);
    }
    return n;
}

int __wrap_fdatasync(int fd)
{
    static atomic_uint calls;
    const char *nth = getenv("DISK_FLUSH");
    uint64_t call = records(fd) ? disk_record(fd, DISK_RECORD_FLUSH, 0, NULL, 0, 0) : 0;
    int rc = 0;

    if (nth != NULL && atomic_fetch_add(&calls, 1) + 1 >= strtoul(nth, NULL, 0)) {
        errno = EIO;
        return -1;
    }
    rc = __real_fdatasync(fd);

    if (call != 0 && rc == 0) {
        (void)disk_record(fd, DISK_RECORD_FLUSHED, call, NULL, 0, 0);
    }
    return rc;
}
