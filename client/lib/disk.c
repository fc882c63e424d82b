/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/disk.h"

#include "client/lib/call.h"
#include "proto/cistern.pb-c.h"
#include "proto/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Files of one job. */
struct files {
    int fds[CST_FRAME_MAX_FDS];
    unsigned n;
};

static void close_all(struct files *files)
{
    while (files->n > 0) {
        (void)close(files->fds[--files->n]);
    }
}

/* Make a file without a name in @directory: whoever dies, nothing is left there. */
static int make(const char *directory, int *out, struct cst_err *err)
{
    int fd = open(directory, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);

    if (fd < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) {
        return cst_err_errno(err, CST_EUNSUPPORTED, errno,
                             "disk: the file system of '%.150s' has no files with O_DIRECT and "
                             "O_TMPFILE, which states need; ext4 and XFS on a drive have",
                             directory);
    }
    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "disk: a file in '%.150s'", directory);
    }
    *out = fd;
    return CST_OK;
}

/* Look at the file that has the name @path already. CST_OK: it has no record of a step, and no job
 * uses it, so that nothing is lost with it: a start that failed has left it. */
static int check_old(const char *path, struct cst_err *err)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    uint64_t magics[CST_DURABLE_HEADS] = {0};
    bool recorded = false, other = false;
    int rc = CST_OK;

    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "disk: '%.200s'", path);
    }
    if (fcntl(fd, F_OFD_GETLK, &all) == 0 && all.l_type != F_UNLCK) {
        rc = cst_err_set(err, CST_EEXIST, "disk: '%.200s' is in use for the states of another job",
                         path);
    }
    for (int k = 0; k < CST_DURABLE_HEADS; k++) {
        (void)!pread(fd, &magics[k], sizeof magics[k], (off_t)k * CST_DURABLE_BLOCK);
        recorded = recorded || magics[k] == CST_DURABLE_MAGIC;
        other = other || (magics[k] != 0 && magics[k] != CST_DURABLE_MAGIC);
    }
    if (rc == CST_OK && recorded) {
        rc = cst_err_set(err, CST_EEXIST,
                         "disk: '%.200s' has the last step of an earlier job of this name: make a "
                         "checkpoint of it with 'cistern adopt', then remove it; or take another "
                         "name for the job",
                         path);
    } else if (rc == CST_OK && other) {
        rc = cst_err_set(err, CST_EEXIST,
                         "disk: '%.200s' exists, and is no file of cistern: move it away", path);
    }
    (void)close(fd);
    return rc;
}

/* Open the file *@file by its name @path, in its place. */
static int open_named(const char *path, int *file, struct cst_err *err)
{
    int fd = open(path, O_RDWR | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
    struct stat mine, named;

    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "disk: '%.200s'", path);
    }
    if (fstat(*file, &mine) != 0 || fstat(fd, &named) != 0 || mine.st_ino != named.st_ino ||
        mine.st_dev != named.st_dev) {
        (void)close(fd);
        return cst_err_set(err, CST_EBUSY, "disk: '%.200s' was replaced meanwhile", path);
    }
    (void)close(*file);
    *file = fd;
    return CST_OK;
}

/* Give the file *@file, the one number @number of job @job, its name in @directory. The name lasts.
 * *file becomes a descriptor that was opened by it, so that the kernel tells it in messages. */
static int name_it(const char *directory, const char *job, unsigned number, int *file,
                   struct cst_err *err)
{
    const int fd = *file;
    char link[40], path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s.%u.cistern", directory, job, number);
    int there, rc = CST_OK;

    if (n < 0 || (size_t)n >= sizeof path) {
        return cst_err_set(err, CST_EINVAL, "disk: a too long directory '%.150s'", directory);
    }
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW) != 0) {
        rc = errno == EEXIST ? check_old(path, err)
                             : cst_err_errno(err, CST_EIO, errno, "disk: '%.200s'", path);
        if (rc == CST_OK &&
            (unlink(path) != 0 || linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW) != 0)) {
            rc = cst_err_errno(err, CST_EIO, errno, "disk: '%.200s'", path);
        }
    }
    if (rc != CST_OK) {
        return rc;
    }
    there = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (there < 0 || fsync(there) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "disk: '%.200s': flush of its directory", path);
    }
    if (there >= 0) {
        (void)close(there);
    }
    return rc == CST_OK ? open_named(path, file, err) : rc;
}

/* Make a file in each of the directories @list; for a durable job it has a name. */
static int make_all(const char *list, const struct cst_job_spec *spec, struct files *files,
                    struct cst_err *err)
{
    int rc = CST_OK;

    while (rc == CST_OK && list != NULL) {
        const char *comma = strchrnul(list, ',');
        char directory[PATH_MAX];

        if (comma == list || comma - list >= PATH_MAX) {
            return cst_err_set(err, CST_EINVAL, "disk: an empty or too long directory in '%.150s'",
                               list);
        }
        if (files->n == CST_FRAME_MAX_FDS) {
            return cst_err_set(err, CST_EINVAL, "disk: more than %d directories",
                               CST_FRAME_MAX_FDS);
        }
        memcpy(directory, list, (size_t)(comma - list));
        directory[comma - list] = '\0';
        rc = make(directory, &files->fds[files->n], err);
        files->n += rc == CST_OK;
        if (rc == CST_OK && spec->states.durable) {
            rc = name_it(directory, spec->name, files->n - 1, &files->fds[files->n - 1], err);
        }
        list = *comma == ',' ? comma + 1 : NULL;
    }
    return rc;
}

int cstc_disk_give(struct cst_client *client, const struct cst_job_spec *spec, struct cst_err *err)
{
    struct files files = {.n = 0};
    struct cstc_call call = {.sent_fds = files.fds};
    int rc = make_all(spec->states.disk, spec, &files, err);

    /* The daemon accepts descriptors only after a request without any. */
    for (int i = 0; i < 2 && rc == CST_OK; i++) {
        call.n_sent_fds = i == 0 ? 0 : files.n;
        rc = cstc_call_sync(client, &call, CISTERN__MSG_TYPE__MSG_JOB_FILES, NULL,
                            CISTERN__MSG_TYPE__MSG_OK, NULL, err);
        if (rc == CST_OK) {
            cstc_call_reset(&call);
        }
    }
    close_all(&files);
    return rc;
}
