/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fakecuda/ledger.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_DEVICES 8
#define MAX_NAME 96
#define MEMFD_PREFIX "/memfd:"

static struct cst_fake_use own[MAX_DEVICES]; /* memory of this process, used without a folder */
static unsigned n_made;                      /* number of files that this process has made */

/* Parse "dev<device>-<bytes>-...". False if @name has another form. */
static bool read_name(const char *name, int *device, size_t *bytes)
{
    return sscanf(name, "dev%d-%zu-", device, bytes) == 2 && *device >= 0 && *device < MAX_DEVICES;
}

/* True if a process has locked the file @name. Otherwise the file is removed. */
static bool still_held(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDWR | O_CLOEXEC);
    bool held;

    if (fd < 0) {
        return false;
    }
    held = flock(fd, LOCK_EX | LOCK_NB) != 0;
    if (!held) {
        (void)unlinkat(dir, name, 0);
    }
    (void)close(fd);
    return held;
}

/* Count the files. @dir's lock must be held. */
static int count(int dir, int device, struct cst_fake_use *out)
{
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = copy >= 0 ? fdopendir(copy) : NULL;
    struct dirent *entry;
    size_t bytes;
    int n;

    if (list == NULL) {
        return -errno;
    }
    *out = (struct cst_fake_use){0};
    while ((entry = readdir(list)) != NULL) {
        if (read_name(entry->d_name, &n, &bytes) && (device < 0 || n == device) &&
            still_held(dir, entry->d_name)) {
            out->bytes += bytes;
            out->n_objects++;
        }
    }
    (void)closedir(list);
    return 0;
}

/* Open and lock the folder; *@lock_out receives the lock. */
static int open_locked(const char *path, int *dir_out, int *lock_out)
{
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), lock, rc;

    if (dir < 0) {
        return -errno;
    }
    lock = openat(dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0) {
        rc = -errno;
        (void)close(dir);
        return rc;
    }
    while (flock(lock, LOCK_EX) != 0) {
        if (errno != EINTR) {
            rc = -errno;
            (void)close(lock);
            (void)close(dir);
            return rc;
        }
    }
    *dir_out = dir;
    *lock_out = lock;
    return 0;
}

int cst_fake_ledger_use(const char *path, int device, struct cst_fake_use *out)
{
    struct cst_fake_use use = {0};
    int dir, lock, rc;

    if (path == NULL) {
        for (int i = 0; i < MAX_DEVICES; i++) {
            if (device < 0 || i == device) {
                use.bytes += own[i].bytes;
                use.n_objects += own[i].n_objects;
            }
        }
        *out = use;
        return 0;
    }
    rc = open_locked(path, &dir, &lock);
    if (rc == 0) {
        rc = count(dir, device, out);
        (void)close(lock);
        (void)close(dir);
    }
    return rc;
}

/* Make the file in @dir. It is locked from the moment when other processes can see it. */
static int make_file(int dir, const char *name, size_t bytes, int *fd_out)
{
    int fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600), rc;

    if (fd < 0) {
        return -errno;
    }
    if (ftruncate(fd, (off_t)bytes) != 0 || flock(fd, LOCK_SH) != 0) {
        rc = -errno;
        (void)unlinkat(dir, name, 0);
        (void)close(fd);
        return rc;
    }
    *fd_out = fd;
    return 0;
}

static int take_shared(const char *path, const char *name, int device, size_t bytes, size_t total,
                       int *fd_out)
{
    struct cst_fake_use use;
    int dir, lock, rc = open_locked(path, &dir, &lock);

    if (rc != 0) {
        return rc;
    }
    rc = count(dir, device, &use);
    if (rc == 0 && (use.bytes > total || bytes > total - use.bytes)) {
        rc = -ENOMEM;
    }
    if (rc == 0) {
        rc = make_file(dir, name, bytes, fd_out);
    }
    (void)close(lock);
    (void)close(dir);
    return rc;
}

static int take_own(const char *name, int device, size_t bytes, size_t total, int *fd_out)
{
    struct cst_fake_use *use = &own[device];
    int fd, rc;

    if (bytes > total - use->bytes) {
        return -ENOMEM;
    }
    fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    if (ftruncate(fd, (off_t)bytes) != 0) {
        rc = -errno;
        (void)close(fd);
        return rc;
    }
    use->bytes += bytes;
    use->n_objects++;
    *fd_out = fd;
    return 0;
}

int cst_fake_ledger_take(const char *path, int device, size_t bytes, size_t total, int *fd_out)
{
    char name[MAX_NAME];

    snprintf(name, sizeof name, "dev%d-%zu-%d-%u", device, bytes, (int)getpid(), n_made++);
    return path != NULL ? take_shared(path, name, device, bytes, total, fd_out)
                        : take_own(name, device, bytes, total, fd_out);
}

void cst_fake_ledger_give(const char *path, int device, size_t bytes)
{
    if (path == NULL) {
        own[device].bytes -= bytes;
        own[device].n_objects--;
    }
}

int cst_fake_ledger_identify(int fd, int *device, size_t *bytes)
{
    char link[64], path[PATH_MAX];
    const char *name;
    struct stat st;
    ssize_t n;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    if (n < 0 || fstat(fd, &st) != 0) {
        return -EINVAL;
    }
    path[n] = '\0';
    name = strrchr(path, '/') + 1;
    if (strncmp(path, MEMFD_PREFIX, sizeof MEMFD_PREFIX - 1) == 0) {
        name = path + sizeof MEMFD_PREFIX - 1;
    }
    if (strchr(path, '/') == NULL || !read_name(name, device, bytes) ||
        (off_t)*bytes != st.st_size) {
        return -EINVAL;
    }
    return 0;
}
