/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/directory.h"

#include "cistern/checkpoint.h"
#include "client/checkpoint/listing.h"
#include "client/checkpoint/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TEMPORARY_BYTES = sizeof((struct cstc_directory *)0)->temporary };

/* Names of a checkpoint's files. */
static const char *const patterns[] = {
    "model.safetensors",    "model-*.safetensors",       "model.safetensors.index.json",
    "states-*.safetensors", "adapter_model.safetensors", "adapter_model-*.safetensors",
    CSTC_BUFFERS_NAME,      CSTC_MODEL_CONFIG_NAME,      CSTC_ADAPTER_CONFIG_NAME,
    CSTC_MANIFEST_NAME};

static bool is_ours(const char *name)
{
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        if (fnmatch(patterns[i], name, 0) == 0) {
            return true;
        }
    }
    return false;
}

/* Open a directory that is changed: a link to another one is not followed. */
static int open_own(int dirfd, const char *name)
{
    return openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Write a temporary name for the checkpoint @name. Processes of other hosts may have the same pid.
 */
static void make_temporary(const char *name, char out[TEMPORARY_BYTES])
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)snprintf(out, TEMPORARY_BYTES, ".%.63s.%d-%ld.tmp", name, (int)getpid(), now.tv_nsec);
}

static bool is_temporary(const char *name)
{
    return fnmatch(".step-*.tmp", name, FNM_PERIOD) == 0;
}

/* -- removing ------------------------------------------------------------------------------- */

/* Remove the temporary directory @name. */
static int remove_temporary(int parent, const char *name)
{
    int fd = open_own(parent, name);
    DIR *dir = fd >= 0 ? cstc_dir_list(fd) : NULL;
    struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (is_ours(entry->d_name)) {
            (void)unlinkat(fd, entry->d_name, 0);
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return unlinkat(parent, name, AT_REMOVEDIR);
}

/* Remove what processes have left that died while they saved or removed: a living one holds a lock
 * on its directory. */
static void remove_stale(int parent)
{
    DIR *dir = cstc_dir_list(parent);
    struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        int fd = is_temporary(entry->d_name) ? open_own(parent, entry->d_name) : -1;

        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) {
            (void)remove_temporary(parent, entry->d_name);
        }
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
}

static bool has_manifest(int fd)
{
    return faccessat(fd, CSTC_MANIFEST_NAME, F_OK, 0) == 0;
}

/* CST_OK if the directory @fd has a manifest, and only files of a checkpoint. */
static int check_removable(int fd, const char *path, const char *name, struct cst_err *err)
{
    struct dirent *entry;
    int rc = CST_OK;
    DIR *dir;

    if (!has_manifest(fd)) {
        return cst_err_set(err, CST_EIO, "%.128s/%s is not a checkpoint: it has no %s", path, name,
                           CSTC_MANIFEST_NAME);
    }
    dir = cstc_dir_list(fd);
    if (dir == NULL) {
        return cst_err_errno(err, CST_EIO, errno, "%.128s/%s", path, name);
    }
    while (rc == CST_OK && (entry = readdir(dir)) != NULL) {
        if (!is_ours(entry->d_name) && strcmp(entry->d_name, ".") != 0 &&
            strcmp(entry->d_name, "..") != 0) {
            rc = cst_err_set(err, CST_EIO,
                             "%.128s/%s cannot be removed: its file %.64s is not a checkpoint's",
                             path, name, entry->d_name);
        }
    }
    (void)closedir(dir);
    return rc;
}

/* Remove the checkpoint @name. It loses its name before its first file, so that it is whole or gone
 * whenever this process dies. */
static int remove_checkpoint(int parent, const char *path, const char *name, struct cst_err *err)
{
    int fd = open_own(parent, name);
    char temporary[TEMPORARY_BYTES];
    int rc = fd >= 0
                 ? check_removable(fd, path, name, err)
                 : cst_err_errno(err, CST_EIO, errno, "%.128s/%s cannot be removed", path, name);

    if (rc == CST_OK) {
        make_temporary(name, temporary);
        (void)flock(fd, LOCK_EX | LOCK_NB);
        if (renameat(parent, name, parent, temporary) != 0 ||
            remove_temporary(parent, temporary) != 0) {
            rc = cst_err_errno(err, CST_EIO, errno, "%.128s/%s cannot be removed", path, name);
        }
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return rc;
}

/* -- making --------------------------------------------------------------------------------- */

/* Make the directory @path, unless it exists, and let its name in @parent survive a crash. */
static int make_one(const char *path, const char *parent, struct cst_err *err)
{
    int fd, rc = CST_OK;

    if (mkdir(path, 0777) != 0) {
        return errno == EEXIST
                   ? CST_OK
                   : cst_err_errno(err, CST_EIO, errno, "directory %.128s cannot be made", path);
    }
    fd = cstc_dir_open(AT_FDCWD, parent);
    if (fd < 0 || fsync(fd) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "%.128s: fsync", parent);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return rc;
}

/* Make all directories of @path that do not exist. */
static int make_path(const char *path, struct cst_err *err)
{
    char *part = strdup(path), *parent = strdup(*path == '/' ? "/" : ".");
    int rc = part != NULL && parent != NULL
                 ? CST_OK
                 : cst_err_set(err, CST_ENOMEM, "%.128s: no memory", path);

    for (size_t at = 1; rc == CST_OK && path[at - 1] != '\0'; at++) {
        if (path[at] != '/' && path[at] != '\0') {
            continue;
        }
        part[at] = '\0';
        rc = make_one(part, parent, err);
        free(parent);
        parent = rc == CST_OK ? strdup(part) : NULL;
        if (rc == CST_OK && parent == NULL) {
            rc = cst_err_set(err, CST_ENOMEM, "%.128s: no memory", path);
        }
        part[at] = path[at];
    }
    free(part);
    free(parent);
    return rc;
}

/* CST_EINVAL: the directory is that of another job. */
static int check_job(const struct cstc_directory *directory, struct cst_err *err)
{
    char job[CSTC_LISTING_JOB_BYTES];

    return !cstc_listing_job(directory->parent, job) || strcmp(job, directory->job) == 0
               ? CST_OK
               : cst_err_set(err, CST_EINVAL,
                             "%.128s has checkpoints of job '%s': job '%s' needs another directory",
                             directory->path, job, directory->job);
}

/* See whether the checkpoint's name can be taken. *in_the_way: by a torn checkpoint, which must be
 * removed before. CST_EEXIST: by a whole one. CST_EIO: by something else, or by what cannot be read
 * now and may be whole. */
static int check_name(const struct cstc_directory *directory, bool *in_the_way, struct cst_err *err)
{
    struct cst_checkpoint found = {0};
    struct cst_err why;
    struct stat st;
    int fd, rc;

    memcpy(found.name, directory->name, sizeof found.name);
    *in_the_way = fstatat(directory->parent, directory->name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (!*in_the_way) {
        return CST_OK;
    }
    rc = cstc_listing_check(directory->parent, false, &found, &why);
    if (rc == CST_OK) {
        return cst_err_set(err, CST_EEXIST, "%.128s has a checkpoint of step %" PRIu64 " already",
                           directory->path, directory->step);
    }
    if (rc != CST_EINVAL && rc != CST_ENOTFOUND) {
        return cst_err_set(err, CST_EIO, "%.128s/%s: %.192s", directory->path, directory->name,
                           why.text);
    }
    fd = cstc_dir_open(directory->parent, directory->name);
    rc = fd >= 0
             ? check_removable(fd, directory->path, directory->name, err)
             : cst_err_errno(err, CST_EIO, errno, "%.128s/%s", directory->path, directory->name);
    if (fd >= 0) {
        (void)close(fd);
    }
    return rc;
}

/* Lock the directory @fd. Some file systems have no locks. */
static void lock(int fd)
{
    while (flock(fd, LOCK_EX) != 0 && errno == EINTR) {
    }
}

/* Make and lock the temporary directory. The parent is locked until then, because another process
 * that begins would take a directory without a lock for a stale one. On file systems without locks
 * nobody removes stale directories. */
static int make_directory(struct cstc_directory *directory, struct cst_err *err)
{
    int rc = CST_OK;

    lock(directory->parent);
    remove_stale(directory->parent);
    make_temporary(directory->name, directory->temporary);
    directory->fd = -1;
    if (mkdirat(directory->parent, directory->temporary, 0777) == 0) {
        directory->fd = open_own(directory->parent, directory->temporary);
    }
    if (directory->fd >= 0) {
        (void)flock(directory->fd, LOCK_EX | LOCK_NB);
    } else {
        rc = cst_err_errno(err, CST_EIO, errno, "%.128s/%s cannot be made", directory->path,
                           directory->temporary);
    }
    (void)flock(directory->parent, LOCK_UN);
    return rc;
}

int cstc_directory_begin(struct cstc_directory *directory, const char *path, const char *job,
                         uint64_t step, struct cst_err *err)
{
    bool in_the_way;
    int rc = make_path(path, err);

    if (rc != CST_OK) {
        return rc;
    }
    directory->step = step;
    (void)snprintf(directory->path, sizeof directory->path, "%s", path);
    (void)snprintf(directory->job, sizeof directory->job, "%s", job);
    (void)snprintf(directory->name, sizeof directory->name, "step-%08" PRIu64, step);
    directory->parent = cstc_dir_open(AT_FDCWD, path);
    if (directory->parent < 0) {
        return errno == ENOTDIR
                   ? cst_err_set(err, CST_EIO,
                                 "directory %.128s: %s: name one that does not exist yet, or that "
                                 "has checkpoints of this job",
                                 path, strerror(errno))
                   : cst_err_errno(err, CST_EIO, errno, "directory %.128s", path);
    }
    rc = check_job(directory, err);
    if (rc == CST_OK) {
        rc = check_name(directory, &in_the_way, err);
    }
    if (rc == CST_OK) {
        rc = make_directory(directory, err);
    }
    if (rc != CST_OK) {
        (void)close(directory->parent);
    }
    return rc;
}

/* Give the directory its final name. Another process may have saved the same step, or another job,
 * since the beginning; the lock keeps it from doing so now. */
static int take_name(const struct cstc_directory *directory, struct cst_err *err)
{
    bool in_the_way = false;
    int rc;

    lock(directory->parent);
    rc = check_job(directory, err);
    if (rc == CST_OK) {
        rc = check_name(directory, &in_the_way, err);
    }
    if (rc == CST_OK && in_the_way) {
        rc = remove_checkpoint(directory->parent, directory->path, directory->name, err);
    }
    if (rc == CST_OK && renameat(directory->parent, directory->temporary, directory->parent,
                                 directory->name) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "%.128s/%s cannot be renamed", directory->path,
                           directory->temporary);
    }
    (void)flock(directory->parent, LOCK_UN);
    return rc;
}

int cstc_directory_commit(struct cstc_directory *directory, struct cst_err *err)
{
    int rc = fsync(directory->fd) == 0 ? take_name(directory, err)
                                       : cst_err_errno(err, CST_EIO, errno, "%.128s/%s: fsync",
                                                       directory->path, directory->temporary);

    if (rc != CST_OK) {
        cstc_directory_abandon(directory);
        return rc;
    }
    if (fsync(directory->parent) != 0) {
        rc = cst_err_errno(err, CST_EIO, errno, "%.128s: fsync", directory->path);
    }
    (void)close(directory->fd);
    (void)close(directory->parent);
    return rc;
}

void cstc_directory_abandon(struct cstc_directory *directory)
{
    (void)close(directory->fd);
    (void)remove_temporary(directory->parent, directory->temporary);
    (void)close(directory->parent);
}

/* -- retention ------------------------------------------------------------------------------ */

int cstc_directory_keep(const char *path, const char *job, uint32_t keep, uint64_t newest,
                        struct cst_err *err)
{
    struct cst_checkpoint *all = NULL;
    uint32_t n = 0, n_kept = 1;
    int fd = cstc_dir_open(AT_FDCWD, path), rc, removed = CST_OK;

    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "%.128s", path);
    }
    rc = cstc_listing_make(fd, path, false, &all, &n, err);
    for (uint32_t i = n; rc == CST_OK && i-- > 0;) {
        bool torn = all[i].status == CST_EINVAL && all[i].step < newest;
        bool goes = n_kept >= keep && (all[i].whole || torn);

        if (all[i].step == newest || (all[i].job[0] != '\0' && strcmp(all[i].job, job) != 0)) {
            continue;
        }
        n_kept += all[i].whole;
        /* One that cannot be removed does not keep the others. The first error is reported. */
        if (goes) {
            int one = remove_checkpoint(fd, path, all[i].name, removed == CST_OK ? err : NULL);

            removed = removed == CST_OK ? one : removed;
        }
    }
    free(all);
    (void)close(fd);
    return rc == CST_OK ? removed : rc;
}
