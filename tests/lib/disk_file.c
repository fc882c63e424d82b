/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/disk_file.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static void must(bool ok, const char *what)
{
    if (!ok) {
        perror(what);
        abort();
    }
}

/* Returns a new file in @dir without a name; -1: it cannot be opened in this way. */
static int make_in(const char *dir, int flags)
{
    char path[PATH_MAX];
    int fd, direct;

    (void)snprintf(path, sizeof path, "%s/cistern-disk-XXXXXX", dir);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    direct = open(path, O_RDWR | O_DIRECT | O_CLOEXEC | flags);
    (void)unlink(path);
    (void)close(fd);
    return direct;
}

static bool fits(const char *dir)
{
    int fd = dir != NULL ? make_in(dir, 0) : -1;
    struct statfs fs;
    bool ok = fd >= 0 && fstatfs(fd, &fs) == 0 && fs.f_type != TMPFS_MAGIC;

    if (fd >= 0) {
        (void)close(fd);
    }
    return ok;
}

const char *disk_file_dir(void)
{
    const char *dirs[] = {getenv("TMPDIR"), ".", "/var/tmp"};

    for (unsigned i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        if (fits(dirs[i])) {
            return dirs[i];
        }
    }
    return NULL;
}

bool disk_file_is_missing(const char *program)
{
    bool missing = disk_file_dir() == NULL;

    if (missing) {
        printf("%s: skipped: no file system with O_DIRECT in $TMPDIR, the current directory or "
               "/var/tmp\n",
               program);
    }
    return missing;
}

int disk_file_make(uint64_t bytes, int flags)
{
    int fd = make_in(disk_file_dir(), flags);

    must(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0, "file on a drive");
    return fd;
}

void disk_file_read(int fd, void *to, uint64_t bytes, uint64_t offset)
{
    while (bytes > 0) {
        ssize_t n = pread(fd, to, bytes, (off_t)offset);

        must(n > 0, "pread");
        to = (char *)to + n;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
}

static struct stat stat_of(int fd)
{
    struct stat st;

    must(fstat(fd, &st) == 0, "fstat");
    return st;
}

uint64_t disk_file_bytes(int fd)
{
    return (uint64_t)stat_of(fd).st_size;
}

uint64_t disk_file_space(int fd)
{
    return (uint64_t)stat_of(fd).st_blocks * 512;
}
