/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/files.h"

#include "daemon/base/daemon_state.h"
#include "daemon/budget/quota.h"
#include "daemon/engine/drives.h"
#include "daemon/engine/engines.h"
#include "daemon/memory/tiers/tier.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* -- descriptors that may take long to close -------------------------------------------------- */

/* Threads that close one: those that a hostile peer keeps waiting count, too. */
enum { MAX_CLOSING = 16 };
static atomic_uint n_closing;

static void *close_it(void *arg)
{
    (void)close((int)(intptr_t)arg);
    atomic_fetch_sub(&n_closing, 1);
    return NULL;
}

bool cstd_files_may_come(void)
{
    return atomic_load(&n_closing) < MAX_CLOSING;
}

void cstd_files_close_apart(int fd)
{
    pthread_t thread;

    atomic_fetch_add(&n_closing, 1);
    if (pthread_create(&thread, NULL, close_it, (void *)(intptr_t)fd) == 0) {
        (void)pthread_detach(thread);
    } else {
        (void)close_it((void *)(intptr_t)fd);
    }
}

/* -- checks ------------------------------------------------------------------------------------ */

static const char *read_path(int fd, char out[], size_t size)
{
    char link[40];
    ssize_t n;

    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, out, size - 1);
    out[n > 0 ? n : 0] = '\0';
    return out;
}

const char *cstd_files_path(int fd, char out[160])
{
    return read_path(fd, out, 160);
}

bool cstd_files_name(int fd, char out[], size_t size)
{
    static const char deleted[] = " (deleted)"; /* The kernel's word for a file without a name. */
    struct statx st;
    size_t length = strlen(read_path(fd, out, size));

    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_NLINK, &st) == 0 &&
        st.stx_nlink > 0) {
        return false;
    }
    length -= length >= sizeof deleted ? sizeof deleted - 1 : 0;
    if (strcmp(out + length, deleted) == 0) {
        out[length] = '\0';
    }
    return true;
}

/* No other job may write there. The lock belongs to the open file, and ends with its last
 * descriptor. */
static int lock(int fd, const char *path, struct cst_err *err)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    if (fcntl(fd, F_OFD_SETLK, &all) == 0) {
        return CST_OK;
    }
    return errno == EAGAIN || errno == EACCES
               ? cst_err_set(
                     err, CST_EBUSY,
                     "file '%.150s' is in use for the states of another job: make one for each job",
                     path)
               : cst_err_errno(err, CST_EIO, errno, "file '%.150s': lock", path);
}

/* Check that @fd is a regular file of a file system on a block device, without a call that a server
 * in user space or a network answers: the peer might be that server. */
static int check_kind(int fd, const char *path, struct cst_err *err)
{
    struct statx st;

    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &st) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "file '%.150s'", path);
    }
    if (!S_ISREG(st.stx_mode)) {
        return cst_err_set(err, CST_EINVAL,
                           "'%.150s' is no regular file: states need a file on a drive", path);
    }
    return st.stx_dev_major != 0
               ? CST_OK
               : cst_err_set(
                     err, CST_EINVAL,
                     "'%.150s' is on no block device (device 0:%u): states need a file on a "
                     "drive with ext4, XFS or the like, not on a network, in memory or in "
                     "an overlay",
                     path, st.stx_dev_minor);
}

/* Check that @fd is a file that can be read and written past the page cache, by this job alone. */
static int check(int fd, struct cst_err *err)
{
    int flags = fcntl(fd, F_GETFL);
    char path[160];
    int rc = check_kind(fd, cstd_files_path(fd, path), err);

    if (rc != CST_OK) {
        return rc;
    }
    if ((flags & O_ACCMODE) != O_RDWR || (flags & O_DIRECT) == 0 || (flags & O_APPEND) != 0) {
        return cst_err_set(err, CST_EINVAL,
                           "file '%.150s' is open with flags 0%o: O_RDWR and O_DIRECT are needed, "
                           "without O_APPEND",
                           path, (unsigned)flags);
    }
    return lock(fd, path, err);
}

static int find_tier(struct cstd_daemon *daemon, int fd, const struct cstd_tier **out,
                     struct cst_err *err)
{
    struct cstd_drive *drive;
    char uuid[sizeof drive->uuid];
    int rc = cstd_drive_of_file(fd, uuid, sizeof uuid, err);

    rc = rc == CST_OK ? cstd_drives_get(daemon->drives, uuid, &drive, err) : rc;
    if (rc == CST_OK) {
        *out = cstd_tiers_of_drive(daemon, drive);
    }
    return rc;
}

/* Add the file @fd, which stays the caller's until all are there. Its drive is in use from now on,
 * so that the next file's drive does not take its place in the list. */
static int add(struct cstd_files *files, struct cstd_daemon *daemon, int fd, struct cst_err *err)
{
    const struct cstd_tier *tier;
    char path[160];
    int rc = check(fd, err);

    rc = rc == CST_OK ? find_tier(daemon, fd, &tier, err) : rc;
    if (rc == CST_OK && cstd_files_on(files, tier) != NULL) {
        return cst_err_set(err, CST_EINVAL,
                           "file '%.150s' is the second one on drive %s: one file for each drive",
                           cstd_files_path(fd, path), tier->label);
    }
    if (rc == CST_OK) {
        files->v[files->n++] = (struct cstd_file){.fd = fd, .tier = tier};
        cstd_tier_use(tier);
    }
    return rc;
}

int cstd_files_take(struct cstd_files *files, struct cstd_daemon *daemon,
                    struct cstd_quota_account *account, const int *fds, unsigned n,
                    struct cst_err *err)
{
    struct cstd_files taken = {.account = account};
    int rc = CST_OK;

    if (n > CST_LAYOUT_MAX_DEVICES) {
        return cst_err_set(err, CST_EINVAL,
                           "%u files for states: a job can have %d drives. Name fewer directories, "
                           "or make one drive of several (RAID 0)",
                           n, CST_LAYOUT_MAX_DEVICES);
    }
    for (unsigned i = 0; i < n && rc == CST_OK; i++) {
        rc = add(&taken, daemon, fds[i], err);
    }
    rc = rc == CST_OK ? cstd_quota_take(account, CSTD_QUOTA_FILES, n, "files for states", err) : rc;
    for (uint32_t i = 0; i < taken.n && rc != CST_OK; i++) {
        cstd_tier_unuse(taken.v[i].tier);
    }
    if (rc != CST_OK) {
        return rc;
    }
    cstd_files_close(files);
    *files = taken;
    return CST_OK;
}

void cstd_files_adopt(struct cstd_files *files, struct cstd_quota_account *account,
                      const struct cstd_tier *tier)
{
    files->account = account;
    files->v[files->n++] = (struct cstd_file){.fd = -1, .tier = tier};
    cstd_quota_force(account, CSTD_QUOTA_FILES, 1);
    cstd_tier_use(tier);
}

void cstd_files_close(struct cstd_files *files)
{
    for (uint32_t i = 0; i < files->n; i++) {
        if (files->v[i].fd >= 0) {
            cstd_files_close_apart(files->v[i].fd); /* The space of a large file is freed now. */
        }
        cstd_tier_unuse(files->v[i].tier);
    }
    cstd_quota_give(files->account, CSTD_QUOTA_FILES, files->n);
    *files = (struct cstd_files){.n = 0};
}

struct cstd_file *cstd_files_on(struct cstd_files *files, const struct cstd_tier *tier)
{
    for (uint32_t i = 0; files != NULL && i < files->n; i++) {
        if (files->v[i].tier == tier) {
            return &files->v[i];
        }
    }
    return NULL;
}

/* -- which drives ------------------------------------------------------------------------------ */

/* True if @tier is the drive with the number @number. Tests have several drives with one number
 * (tests/lib/drives_daemon.c). */
static bool has_number(const struct cstd_tier *tier, const char *number)
{
    const char *own = tier->uuid + strlen(CSTD_DRIVE);
    const size_t n = strlen(number);

    return strncmp(own, number, n) == 0 && (own[n] == '\0' || own[n] == ':');
}

bool cstd_files_are_on(const struct cstd_files *files, char *const *numbers, size_t n)
{
    bool met[CST_LAYOUT_MAX_DEVICES] = {false};
    uint32_t n_met = 0;

    for (size_t i = 0; i < n && n == files->n; i++) {
        uint32_t k = 0;

        while (k < files->n && (met[k] || !has_number(files->v[k].tier, numbers[i]))) {
            k++;
        }
        if (k < files->n) {
            met[k] = true;
            n_met++;
        }
    }
    return n_met == n;
}

/* Add the name of drive @i of @n to the words in @out. */
static void add_name(char out[CSTD_FILES_WORDS], const char *name, size_t i, size_t n)
{
    const size_t at = strlen(out);

    (void)snprintf(out + at, CSTD_FILES_WORDS - at, "%s%s",
                   i == 0       ? "on "
                   : i + 1 == n ? " and "
                                : ", ",
                   name);
}

const char *cstd_files_words(const struct cstd_files *files, char out[CSTD_FILES_WORDS])
{
    (void)snprintf(out, CSTD_FILES_WORDS, "%s", files->n == 0 ? "in memory" : "");
    for (uint32_t i = 0; i < files->n; i++) {
        add_name(out, files->v[i].tier->label, i, files->n);
    }
    return out;
}

const char *cstd_files_words_of(char *const *numbers, size_t n, char out[CSTD_FILES_WORDS])
{
    char name[CSTD_DRIVE_NAME];

    out[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        add_name(out, cstd_drive_name(numbers[i], name), i, n);
    }
    return out;
}

static struct cstd_engine *engine_of(const struct cstd_file *file)
{
    return &file->tier->daemon->engines->v[file->tier->number];
}

void cstd_files_need(const struct cstd_files *files)
{
    for (uint32_t i = 0; i < files->n; i++) {
        cstd_engine_need(engine_of(&files->v[i]));
    }
}

int cstd_files_await(const struct cstd_files *files, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < files->n; i++) {
        const struct cstd_engine *engine = engine_of(&files->v[i]);

        if (engine->state == CSTD_ENGINE_FAILED) {
            return cst_err_set(err, CST_EENGINE, "%s", engine->why);
        }
        rc = engine->granularity == 0 ? CST_EAGAIN : rc;
    }
    return rc;
}
