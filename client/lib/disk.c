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
#include <sys/sysmacros.h>
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
        return cst_err_set(err, CST_EIO,
                           "disk: a file in '%.150s': %s: name directories that you can write, one "
                           "on each drive",
                           directory, strerror(errno));
    }
    *out = fd;
    return CST_OK;
}

/* Lock the whole file @fd, so that no other start and no daemon uses it. The lock ends with the
 * last descriptor of this opening of the file, and the daemon gets one. */
static int lock(int fd, const char *path, struct cst_err *err)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    if (fcntl(fd, F_OFD_SETLK, &all) == 0) {
        return CST_OK;
    }
    return errno == EAGAIN || errno == EACCES
               ? cst_err_set(err, CST_EEXIST,
                             "disk: '%.200s' is in use for the states of another job", path)
               : cst_err_errno(err, CST_EIO, errno, "disk: '%.200s': lock", path);
}

/* True if the @n bytes of @data are zero. */
static bool is_zero(const char *data, size_t n)
{
    return data[0] == 0 && memcmp(data, data + 1, n - 1) == 0;
}

/* Look at the file @fd, which has the name @path already, and which this process has locked.
 * CST_OK: a start that failed has left it, and nothing is lost with it: it has neither heads nor a
 * record of a step. Anything that cannot be read counts as something. */
static int check_old(int fd, const char *path, struct cst_err *err)
{
    char data[CST_DURABLE_SEALS + CST_DURABLE_BLOCK];
    struct stat st, named;
    uint64_t magic;
    ssize_t n;

    if (fstat(fd, &st) != 0 || stat(path, &named) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "disk: '%.200s'", path);
    }
    if (!S_ISREG(st.st_mode) || st.st_ino != named.st_ino || st.st_dev != named.st_dev) {
        return cst_err_set(err, CST_EEXIST, "disk: '%.200s' is another file: move it away", path);
    }
    n = pread(fd, data, sizeof data, 0);
    if (n < 0) {
        return cst_err_errno(err, CST_EIO, errno,
                             "disk: '%.200s', which exists, cannot be read: move it away", path);
    }
    if (n == 0 || (n == sizeof data && is_zero(data, sizeof data))) {
        return CST_OK;
    }
    memcpy(&magic, data, sizeof magic);
    if (n == sizeof data && magic != CST_DURABLE_MAGIC) {
        memcpy(&magic, data + CST_DURABLE_BLOCK, sizeof magic);
    }
    return n == sizeof data && magic == CST_DURABLE_MAGIC
               ? cst_err_set(err, CST_EEXIST,
                             "disk: '%.200s' has the last step of an earlier job of this name: "
                             "make a checkpoint of it with 'cistern adopt FILE... DIR', then "
                             "remove it; or take another name for the job",
                             path)
               : cst_err_set(err, CST_EEXIST,
                             "disk: '%.200s' exists, and is no file of cistern: move it away",
                             path);
}

/* Remove the file @path, which a start that failed has left, and give its name to @temporary. Who
 * does the same at this moment is refused by the lock. */
static int replace(const char *path, const char *temporary, struct cst_err *err)
{
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), rc;

    if (fd < 0) {
        return errno == ELOOP
                   ? cst_err_set(err, CST_EEXIST, "disk: '%.200s' is a symbolic link: move it away",
                                 path)
                   : cst_err_errno(err, CST_EIO, errno, "disk: '%.200s', which exists", path);
    }
    rc = lock(fd, path, err);
    rc = rc == CST_OK ? check_old(fd, path, err) : rc;
    if (rc == CST_OK && rename(temporary, path) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "disk: '%.200s'", path);
    }
    (void)close(fd);
    return rc;
}

/* The name lasts. */
static int flush_names(const char *directory, struct cst_err *err)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = CST_OK;

    if (fd < 0 || fsync(fd) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "disk: flush of '%.200s'", directory);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return rc;
}

/* Make the file number @number of the durable job @job in @directory. It gets its name when it is
 * locked, so that no other start takes it for one that was left. */
static int make_named(const char *directory, const char *job, unsigned number, int *out,
                      struct cst_err *err)
{
    char path[PATH_MAX], temporary[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s.%u.cistern", directory, job, number);
    int m = snprintf(temporary, sizeof temporary, "%s/.%s.%u.cistern.%d", directory, job, number,
                     (int)getpid());
    int fd, rc;

    if (n < 0 || (size_t)n >= sizeof path || m < 0 || (size_t)m >= sizeof temporary) {
        return cst_err_set(err, CST_EINVAL, "disk: a too long directory '%.150s'", directory);
    }
    fd = open(temporary, O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "disk: a file in '%.150s'", directory);
        if (errno == EINVAL) {
            (void)unlink(temporary); /* It was made, and then could not be opened so. */
        }
        return rc;
    }
    rc = lock(fd, temporary, err);
    if (rc == CST_OK && renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_NOREPLACE) != 0) {
        rc = errno == EEXIST ? replace(path, temporary, err)
                             : cst_err_errno(err, CST_EIO, errno, "disk: '%.200s'", path);
    }
    rc = rc == CST_OK ? flush_names(directory, err) : rc;
    if (rc != CST_OK) {
        (void)unlink(temporary);
        (void)close(fd);
        return rc;
    }
    *out = fd;
    return CST_OK;
}

/* Copy the first directory of *@list to @out, and move *@list on; it is NULL after the last one.
 * @n: how many there were before. */
static int next_directory(const char **list, unsigned n, char out[PATH_MAX], struct cst_err *err)
{
    const char *comma = strchrnul(*list, ',');

    if (comma == *list || comma - *list >= PATH_MAX) {
        return cst_err_set(err, CST_EINVAL, "disk: an empty or too long directory in '%.150s'",
                           *list);
    }
    if (n == CST_FRAME_MAX_FDS) {
        return cst_err_set(
            err, CST_EINVAL,
            "disk: more than %d directories: name fewer, or make one drive of several "
            "(RAID 0)",
            CST_FRAME_MAX_FDS);
    }
    memcpy(out, *list, (size_t)(comma - *list));
    out[comma - *list] = '\0';
    *list = *comma == ',' ? comma + 1 : NULL;
    return CST_OK;
}

int cstc_disk_find(const struct cst_job_spec *spec, struct cstc_disk_drives *out,
                   struct cst_err *err)
{
    const char *list = spec->rank == 0 ? spec->states.disk : NULL;
    char directory[PATH_MAX];
    struct stat st;
    int rc = CST_OK;

    out->n = 0;
    while (rc == CST_OK && list != NULL) {
        rc = next_directory(&list, (unsigned)out->n, directory, err);
        if (rc == CST_OK && stat(directory, &st) != 0) {
            rc = cst_err_errno(err, CST_EIO, errno, "disk: directory '%.150s'", directory);
        }
        if (rc == CST_OK) {
            (void)snprintf(out->text[out->n], sizeof out->text[0], "%u:%u", major(st.st_dev),
                           minor(st.st_dev));
            out->list[out->n] = out->text[out->n];
            out->n++;
        }
    }
    return rc;
}

/* Make a file in each of the directories @list; for a durable job it has a name. */
static int make_all(const char *list, const struct cst_job_spec *spec, struct files *files,
                    struct cst_err *err)
{
    int rc = CST_OK;

    while (rc == CST_OK && list != NULL) {
        char directory[PATH_MAX];

        rc = next_directory(&list, files->n, directory, err);
        rc = rc == CST_OK ? make(directory, &files->fds[files->n], err) : rc;
        if (rc == CST_OK && spec->states.durable) {
            /* The file system has what states need. */
            (void)close(files->fds[files->n]);
            rc = make_named(directory, spec->name, files->n, &files->fds[files->n], err);
        }
        files->n += rc == CST_OK;
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
