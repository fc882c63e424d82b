/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/listing.h"

#include "client/checkpoint/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int cstc_dir_open(int dirfd, const char *name)
{
    return openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

DIR *cstc_dir_list(int dirfd)
{
    int fd = cstc_dir_open(dirfd, ".");
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;

    if (dir == NULL && fd >= 0) {
        (void)close(fd);
    }
    return dir;
}

int cstc_listing_check(int parent, bool hashes, struct cst_checkpoint *out, struct cst_err *err)
{
    const char *name = out->name;
    struct cstc_manifest manifest;
    int fd = cstc_dir_open(parent, name), rc;

    if (fd < 0) {
        return cst_err_errno(err, errno == ENOENT ? CST_ENOTFOUND : CST_EIO, errno, "%s", name);
    }
    rc = cstc_manifest_read(&manifest, fd, err);
    if (rc == CST_OK) {
        rc = cstc_manifest_check(&manifest, fd, hashes, err);
        (void)snprintf(out->job, sizeof out->job, "%s", manifest.description->name);
        for (uint32_t i = 0; i < manifest.n_files; i++) {
            out->bytes += manifest.files[i].bytes;
        }
        cstc_manifest_close(&manifest);
    }
    (void)close(fd);
    return rc;
}

/* True if @name is the name of a checkpoint. */
static bool is_checkpoint(const char *name, uint64_t *step)
{
    unsigned long long number;
    int length = 0;

    if (sscanf(name, "step-%llu%n", &number, &length) != 1 || name[length] != '\0' ||
        strlen(name) >= sizeof((struct cst_checkpoint *)0)->name) {
        return false;
    }
    *step = number;
    return true;
}

/* Read whose checkpoint @name is. False: that cannot be read. */
static bool read_job(int parent, const char *name, char job[CSTC_LISTING_JOB_BYTES])
{
    struct cstc_manifest manifest;
    int fd = cstc_dir_open(parent, name);
    bool read = fd >= 0 && cstc_manifest_read(&manifest, fd, NULL) == CST_OK;

    if (read) {
        (void)snprintf(job, CSTC_LISTING_JOB_BYTES, "%s", manifest.description->name);
        cstc_manifest_close(&manifest);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return read;
}

bool cstc_listing_job(int parent, char job[CSTC_LISTING_JOB_BYTES])
{
    DIR *dir = cstc_dir_list(parent);
    struct dirent *entry;
    bool known = false;
    uint64_t step;

    while (dir != NULL && !known && (entry = readdir(dir)) != NULL) {
        known = is_checkpoint(entry->d_name, &step) && read_job(parent, entry->d_name, job);
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return known;
}

static int compare(const void *a, const void *b)
{
    const struct cst_checkpoint *x = a, *y = b;

    return (x->step > y->step) - (x->step < y->step);
}

/* Append an entry for @name, if it is that of a checkpoint. */
static int append(struct cst_checkpoint **list, uint32_t *n, const char *name, struct cst_err *err)
{
    struct cst_checkpoint *more;
    uint64_t step;

    if (!is_checkpoint(name, &step)) {
        return CST_OK;
    }
    more = realloc(*list, (*n + 1) * sizeof *more);
    if (more == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of %" PRIu32 " checkpoints", *n);
    }
    *list = more;
    more[*n] = (struct cst_checkpoint){.step = step};
    memcpy(more[*n].name, name, strlen(name) + 1);
    (*n)++;
    return CST_OK;
}

/* Check all of @list. One that another process removes meanwhile is taken off the list. */
static void check_all(int parent, bool hashes, struct cst_checkpoint *list, uint32_t *n)
{
    uint32_t n_left = 0;
    struct stat st;

    for (uint32_t i = 0; i < *n; i++) {
        struct cst_checkpoint *now = &list[n_left];
        struct cst_err why;

        *now = list[i];
        now->status = cstc_listing_check(parent, hashes, now, &why);
        now->whole = now->status == CST_OK;
        if (!now->whole) {
            (void)snprintf(now->why, sizeof now->why, "%.255s", why.text);
        }
        n_left += now->whole || fstatat(parent, now->name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    }
    *n = n_left;
}

int cstc_listing_make(int parent, const char *path, bool hashes, struct cst_checkpoint **out,
                      uint32_t *n_out, struct cst_err *err)
{
    struct cst_checkpoint *all = NULL;
    struct dirent *entry;
    uint32_t n = 0;
    DIR *dir = cstc_dir_list(parent);
    int rc = dir != NULL ? CST_OK : cst_err_errno(err, CST_EIO, errno, "directory %.128s", path);

    while (rc == CST_OK && (entry = readdir(dir)) != NULL) {
        rc = append(&all, &n, entry->d_name, err);
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    if (rc != CST_OK) {
        free(all);
        return rc;
    }
    check_all(parent, hashes, all, &n);
    if (n > 0) {
        qsort(all, n, sizeof *all, compare);
    }
    *out = all;
    *n_out = n;
    return CST_OK;
}

/* Make the error for a directory of checkpoints that cannot be opened. */
static int no_directory(const char *path, int errnum, struct cst_err *err)
{
    return errnum == ENOENT || errnum == ENOTDIR
               ? cst_err_set(err, errnum == ENOENT ? CST_ENOTFOUND : CST_EIO,
                             "%.128s: %s: name a directory to which jobs were saved (cistern save "
                             "JOB DIR), or one of its checkpoints",
                             path, strerror(errnum))
               : cst_err_errno(err, CST_EIO, errnum, "%.128s", path);
}

int cst_checkpoints(const char *dir, bool check_hashes, struct cst_checkpoint **out,
                    uint32_t *n_out, struct cst_err *err)
{
    int fd = cstc_dir_open(AT_FDCWD, dir), rc;

    if (fd < 0) {
        return no_directory(dir, errno, err);
    }
    rc = cstc_listing_make(fd, dir, check_hashes, out, n_out, err);
    (void)close(fd);
    return rc;
}

/* Find the newest whole checkpoint of the directory @path among the @n ones in @all. */
static int find_newest(const char *path, const struct cst_checkpoint *all, uint32_t n,
                       uint32_t *newest, struct cst_err *err)
{
    uint32_t at = n;

    while (at > 0 && !all[at - 1].whole && all[at - 1].status != CST_EUNSUPPORTED) {
        at--;
    }
    if (at == 0) {
        return cst_err_set(
            err, CST_ENOTFOUND,
            n == 0 ? "%1$.128s: there is no whole checkpoint: name a directory to which jobs were "
                     "saved (cistern save JOB DIR), or one of its checkpoints"
                   : "%1$.128s: there is no whole checkpoint, but %2$u that are not, and why "
                     "they are not: cistern checkpoints %1$.128s",
            path, n);
    }
    *newest = --at;
    if (!all[at].whole) {
        return cst_err_set(err, CST_EUNSUPPORTED, "%.128s/%s: %s", path, all[at].name, all[at].why);
    }
    for (uint32_t i = 0; i < at; i++) {
        if (all[i].whole && strcmp(all[i].job, all[at].job) != 0) {
            return cst_err_set(err, CST_EINVAL,
                               "%.128s has checkpoints of the jobs '%s' and '%s': name one of "
                               "them, such as %.128s/%s",
                               path, all[at].job, all[i].job, path, all[at].name);
        }
    }
    return CST_OK;
}

int cstc_listing_open(const char *path, int *fd, char warning[CSTC_LISTING_WARNING_BYTES],
                      struct cst_err *err)
{
    struct cst_checkpoint *all = NULL;
    uint32_t n = 0, at = 0;
    int parent = cstc_dir_open(AT_FDCWD, path), rc;

    warning[0] = '\0';
    if (parent < 0) {
        return no_directory(path, errno, err);
    }
    if (faccessat(parent, CSTC_MANIFEST_NAME, F_OK, 0) == 0) {
        *fd = parent;
        return CST_OK;
    }
    rc = cstc_listing_make(parent, path, false, &all, &n, err);
    rc = rc == CST_OK ? find_newest(path, all, n, &at, err) : rc;
    if (rc == CST_OK && at + 1 < n) {
        (void)snprintf(warning, CSTC_LISTING_WARNING_BYTES, "%s is newer but not whole: %.160s",
                       all[n - 1].name, all[n - 1].why);
    }
    if (rc == CST_OK) {
        *fd = cstc_dir_open(parent, all[at].name);
        rc = *fd >= 0 ? CST_OK : cst_err_errno(err, CST_EIO, errno, "%s", all[at].name);
    }
    free(all);
    (void)close(parent);
    return rc;
}
