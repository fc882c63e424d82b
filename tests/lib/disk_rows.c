/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/disk_rows.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* -- failures ------------------------------------------------------------------------------- */

struct disk_faults disk_faults;

/* True if the file @fd is in the directory of the faults. */
static bool is_there(int fd)
{
    char link[40], path[PATH_MAX];
    const size_t length = disk_faults.dir != NULL ? strlen(disk_faults.dir) : 0;
    ssize_t n;

    if (length == 0) {
        return true;
    }
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path);
    return n > (ssize_t)length && strncmp(path, disk_faults.dir, length) == 0 &&
           path[length] == '/';
}

/* Count a call for the file @fd. Returns whether it fails, with errno set. */
static bool fails(int fd, enum disk_call kind)
{
    unsigned n = disk_faults.n_fail > 0 ? disk_faults.n_fail : 1, call;

    if ((disk_faults.kinds != 0 && (disk_faults.kinds & kind) == 0) || !is_there(fd)) {
        return false;
    }
    call = atomic_fetch_add(&disk_faults.calls, 1) + 1;

    if (disk_faults.interrupted && call % 2 == 1) {
        errno = EINTR;
        return true;
    }
    errno = disk_faults.errnum;
    return disk_faults.nth > 0 && call >= disk_faults.nth && call - disk_faults.nth < n;
}

/* Returns the count that a call for @bytes gives. It does the whole blocks among them. */
static size_t limited(size_t bytes)
{
    return disk_faults.most > 0 && bytes > disk_faults.most ? disk_faults.most : bytes;
}

static size_t blocks_of(size_t bytes)
{
    return bytes - bytes % 4096;
}

/* Returns the count of a call that was to do @bytes, and has done @done. */
static ssize_t told(ssize_t done, size_t bytes)
{
    return done == (ssize_t)blocks_of(bytes) ? (ssize_t)bytes : done;
}

static ssize_t failing_read(int fd, void *to, size_t bytes, uint64_t offset)
{
    size_t n = limited(bytes);

    if (fails(fd, DISK_READ)) {
        if (!disk_faults.lies) {
            return -1;
        }
        if (cste_disk_direct.read(fd, to, bytes, offset) == (ssize_t)bytes) {
            ((char *)to)[bytes / 2] ^= 4;
        }
        return (ssize_t)bytes;
    }
    return told(cste_disk_direct.read(fd, to, blocks_of(n), offset), n);
}

static ssize_t failing_write(int fd, const void *from, size_t bytes, uint64_t offset)
{
    size_t n = limited(bytes);

    if (fails(fd, DISK_WRITE)) {
        return disk_faults.lies ? (ssize_t)bytes : -1;
    }
    return told(cste_disk_direct.write(fd, from, blocks_of(n), offset), n);
}

static int failing_allocate(int fd, int mode, uint64_t offset, uint64_t bytes)
{
    if (!fails(fd, DISK_ALLOCATE) || disk_faults.lies) {
        return cste_disk_direct.allocate(fd, mode, offset, bytes);
    }
    if (disk_faults.takes_half) {
        if (cste_disk_direct.allocate(fd, mode, offset, bytes / 2) != 0) {
            abort();
        }
        errno = disk_faults.errnum;
    }
    return -1;
}

static int failing_flush(int fd)
{
    return !fails(fd, DISK_FLUSH) || disk_faults.lies ? cste_disk_direct.flush(fd) : -1;
}

const struct cste_disk_io disk_failing = {.read = failing_read,
                                          .write = failing_write,
                                          .allocate = failing_allocate,
                                          .flush = failing_flush};

/* -- records -------------------------------------------------------------------------------- */

int disk_record_fd = -1;

uint64_t disk_record(int fd, enum disk_record_kind kind, uint64_t call, const void *from,
                     uint64_t bytes, uint64_t offset)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t calls;
    struct disk_record head = {.kind = kind, .call = call, .offset = offset, .bytes = bytes};
    struct iovec parts[] = {{.iov_base = &head, .iov_len = sizeof head},
                            {.iov_base = (void *)(uintptr_t)from, .iov_len = bytes}};
    struct stat st;
    bool ok;

    ok = fstat(fd, &st) == 0;
    head.inode = st.st_ino;
    (void)pthread_mutex_lock(&mutex);
    if (call == 0) {
        head.call = (uint64_t)getpid() << 32 | ++calls;
    }
    ok = ok && writev(disk_record_fd, parts, bytes > 0 ? 2 : 1) == (ssize_t)(sizeof head + bytes);
    (void)pthread_mutex_unlock(&mutex);
    if (!ok) {
        perror("disk_rows: record");
        abort();
    }
    return head.call;
}

static ssize_t recording_write(int fd, const void *from, size_t bytes, uint64_t offset)
{
    uint64_t call =
        disk_record_fd >= 0 ? disk_record(fd, DISK_RECORD_WRITE, 0, from, bytes, offset) : 0;
    ssize_t n = cste_disk_direct.write(fd, from, bytes, offset);

    if (call != 0 && n == (ssize_t)bytes) {
        (void)disk_record(fd, DISK_RECORD_WRITTEN, call, NULL, 0, 0);
    }
    return n;
}

static ssize_t plain_read(int fd, void *to, size_t bytes, uint64_t offset)
{
    return cste_disk_direct.read(fd, to, bytes, offset);
}

static int plain_allocate(int fd, int mode, uint64_t offset, uint64_t bytes)
{
    return cste_disk_direct.allocate(fd, mode, offset, bytes);
}

static int plain_flush(int fd)
{
    return cste_disk_direct.flush(fd);
}

static int recording_flush(int fd)
{
    uint64_t call = disk_record_fd >= 0 ? disk_record(fd, DISK_RECORD_FLUSH, 0, NULL, 0, 0) : 0;
    int rc = cste_disk_direct.flush(fd);

    if (call != 0 && rc == 0) {
        (void)disk_record(fd, DISK_RECORD_FLUSHED, call, NULL, 0, 0);
    }
    return rc;
}

const struct cste_disk_io disk_recording = {.read = plain_read,
                                            .write = recording_write,
                                            .allocate = plain_allocate,
                                            .flush = recording_flush};

/* -- waits ---------------------------------------------------------------------------------- */

unsigned disk_slow_us;

static ssize_t slow_read(int fd, void *to, size_t bytes, uint64_t offset)
{
    (void)usleep(disk_slow_us);
    return cste_disk_direct.read(fd, to, bytes, offset);
}

static ssize_t slow_write(int fd, const void *from, size_t bytes, uint64_t offset)
{
    (void)usleep(disk_slow_us);
    return cste_disk_direct.write(fd, from, bytes, offset);
}

const struct cste_disk_io disk_slow = {
    .read = slow_read, .write = slow_write, .allocate = plain_allocate, .flush = plain_flush};

const char *disk_stuck_until;

/* Wait until the file disk_stuck_until appears. */
static void await_file(void)
{
    char dir[4096], events[4096];
    const char *slash = strrchr(disk_stuck_until, '/');
    int fd = inotify_init1(IN_CLOEXEC);

    (void)snprintf(dir, sizeof dir, "%.*s", (int)(slash - disk_stuck_until), disk_stuck_until);
    if (fd < 0 || inotify_add_watch(fd, dir, IN_CREATE | IN_MOVED_TO) < 0) {
        perror("disk_rows: inotify");
        abort();
    }
    while (access(disk_stuck_until, F_OK) != 0) {
        if (read(fd, events, sizeof events) < 0 && errno != EINTR) {
            perror("disk_rows: inotify");
            abort();
        }
    }
    (void)close(fd);
}

static ssize_t stuck_read(int fd, void *to, size_t bytes, uint64_t offset)
{
    if (fails(fd, DISK_READ)) {
        await_file();
    }
    return cste_disk_direct.read(fd, to, bytes, offset);
}

static ssize_t stuck_write(int fd, const void *from, size_t bytes, uint64_t offset)
{
    if (fails(fd, DISK_WRITE)) {
        await_file();
    }
    return cste_disk_direct.write(fd, from, bytes, offset);
}

static int stuck_allocate(int fd, int mode, uint64_t offset, uint64_t bytes)
{
    if (fails(fd, DISK_ALLOCATE)) {
        await_file();
    }
    return cste_disk_direct.allocate(fd, mode, offset, bytes);
}

static int stuck_flush(int fd)
{
    if (fails(fd, DISK_FLUSH)) {
        await_file();
    }
    return cste_disk_direct.flush(fd);
}

const struct cste_disk_io disk_stuck = {
    .read = stuck_read, .write = stuck_write, .allocate = stuck_allocate, .flush = stuck_flush};
