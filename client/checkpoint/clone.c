/* SPDX-License-Identifier: Apache-2.0 */
/* cstc_clone: the daemon holds the next commit as in a save (save.c), but it answers when the last
 * step is recorded. Nothing writes to the files then.
 *
 *   SAVE, JobInfo -> FICLONE of each file -> the step checked -> the other step's states
 *   given back -> SAVE_END -> a new id -> flushed -> named
 *
 * FICLONE and not copy_file_range, which copies where it cannot share: the job would wait. */
#include "client/checkpoint/clone.h"

#include "client/lib/call.h"
#include "proto/cistern.pb-c.h"
#include "proto/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#define MAX_FILES CSTC_ADOPT_MAX_FILES

struct clone {
    const char *job;
    char *const *dirs;
    uint32_t n_dirs;
    uint32_t n_files;
    char *names[MAX_FILES];     /* Of the job's files, in the order of JobInfo; owned. */
    int fds[MAX_FILES];         /* Of the clones, to write them; owned. -1: none. */
    uint32_t dir_of[MAX_FILES]; /* Index of the directory of each clone. */
    struct cstc_adopt_files files;
    struct cst_durable_seal *seal; /* Of the step; owned. */
    struct cstc_clone_result *out;
};

/* -- the job's files -------------------------------------------------------------------------- */

/* Open the job's file @name. CST_EINVAL: it is not the one that the daemon has locked. */
static int open_source(const char *name, int *out, struct cst_err *err)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "file '%.200s' of the job", name);
    }
    if (fcntl(fd, F_OFD_GETLK, &all) != 0 || all.l_type == F_UNLCK) {
        (void)close(fd);
        return cst_err_set(err, CST_EINVAL,
                           "'%.200s' is not the file that the daemon uses: it was replaced, or the "
                           "daemon is in another container; clone where the daemon runs",
                           name);
    }
    *out = fd;
    return CST_OK;
}

/* Find the directory in the file system of the job's file @i, which is @source. */
static int find_directory(struct clone *c, uint32_t i, int source, struct cst_err *err)
{
    struct stat file, dir;

    if (fstat(source, &file) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "'%.200s'", c->names[i]);
    }
    for (uint32_t d = 0; d < c->n_dirs; d++) {
        if (stat(c->dirs[d], &dir) != 0) {
            return cst_err_errno(err, CST_EIO, errno, "directory '%.200s'", c->dirs[d]);
        }
        if (dir.st_dev == file.st_dev) {
            c->dir_of[i] = d;
            return CST_OK;
        }
    }
    return cst_err_set(
        err, CST_EINVAL,
        "no directory is in the file system of '%.200s': name one there in addition, "
        "or save the job, which copies its states to any directory",
        c->names[i]);
}

/* Clone file @i into a file without a name. */
static int clone_file(struct clone *c, uint32_t i, struct cst_err *err)
{
    const char *dir;
    int source = -1, rc = open_source(c->names[i], &source, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = find_directory(c, i, source, err);
    dir = rc == CST_OK ? c->dirs[c->dir_of[i]] : NULL;
    if (rc == CST_OK) {
        c->fds[i] = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        rc =
            c->fds[i] >= 0 ? CST_OK : cst_err_errno(err, CST_EIO, errno, "a file in '%.200s'", dir);
    }
    if (rc == CST_OK && ioctl(c->fds[i], FICLONE, source) != 0) {
        rc = errno == ENOSPC || errno == EIO || errno == EDQUOT
                 ? cst_err_errno(err, CST_EIO, errno, "clone of '%.200s'", c->names[i])
                 : cst_err_errno(err, CST_EUNSUPPORTED, errno,
                                 "the file system of '%.200s' cannot clone files, as XFS with "
                                 "reflink=1 can: save the job, which copies its states",
                                 c->names[i]);
    }
    (void)close(source);
    return rc;
}

/* Ask for the names of the job's files. */
static int find_files(struct clone *c, struct cst_client *client, struct cst_err *err)
{
    Cistern__JobName msg = CISTERN__JOB_NAME__INIT;
    struct cstc_call call = {0};
    const Cistern__JobInfo *info;
    int rc;

    msg.name = (char *)(uintptr_t)c->job;
    rc = cstc_call_sync(client, &call, CISTERN__MSG_TYPE__MSG_JOB_INFO, &msg.base,
                        CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY, &cistern__job_info_reply__descriptor,
                        err);
    if (rc != CST_OK) {
        return rc;
    }
    info = ((const Cistern__JobInfoReply *)call.reply)->job;
    for (size_t i = 0; i < info->n_files && rc == CST_OK; i++) {
        if (i == MAX_FILES) {
            rc = cst_err_set(err, CST_EPROTO, "a job of %zu files", info->n_files);
        } else if (info->files[i]->has_unnamed && info->files[i]->unnamed) {
            rc = cst_err_set(err, CST_EINVAL,
                             "a file of the job in '%.200s' was removed and has no name: save the "
                             "job instead",
                             info->files[i]->path);
        } else {
            c->names[i] = strdup(info->files[i]->path);
            c->n_files += c->names[i] != NULL;
            rc = c->names[i] != NULL ? CST_OK : cst_err_set(err, CST_ENOMEM, "no memory");
        }
    }
    cstc_call_reset(&call);
    return rc;
}

/* -- the step --------------------------------------------------------------------------------- */

/* Read what the clones are, and find the record of the step. */
static int check_step(struct clone *c, struct cst_err *err)
{
    int fds[MAX_FILES], rc = CST_OK;

    for (uint32_t i = 0; i < c->n_files; i++) {
        fds[i] = fcntl(c->fds[i], F_DUPFD_CLOEXEC, 0);
        if (fds[i] < 0) {
            rc = cst_err_errno(err, CST_EIO, errno, "'%.200s'", c->names[i]);
        }
    }
    if (rc == CST_OK) {
        rc = cstc_adopt_files_take(&c->files, fds, (const char *const *)c->names, c->n_files, err);
    }
    for (uint32_t i = 0; i < c->n_files; i++) {
        if (fds[i] >= 0) {
            (void)close(fds[i]);
        }
    }
    if (rc == CST_OK && strcmp(c->files.job->name, c->job) != 0) {
        return cst_err_set(err, CST_EINVAL, "'%.200s' is of job '%.63s'", c->names[0],
                           c->files.job->name);
    }
    if (rc == CST_OK) {
        rc = cstc_adopt_seal(&c->files, (uint32_t)(c->out->step % 2), &c->seal, err);
    }
    return rc != CST_OK || (c->seal != NULL && c->seal->step == c->out->step)
               ? rc
               : cst_err_set(err, CST_EINVAL,
                             "step %" PRIu64 " of job '%s' is not recorded in '%.200s': save the "
                             "job instead",
                             c->out->step, c->job, c->files.names[0]);
}

/* The clone with the number @file of the job. */
static uint32_t index_of(const struct clone *c, uint32_t file)
{
    uint32_t i = 0;

    while (c->names[i] != c->files.names[file]) {
        i++;
    }
    return i;
}

/* Give back the whole blocks in [@at, @at + @bytes) of the clone @i. */
static int give_back(const struct clone *c, uint32_t i, uint64_t at, uint64_t bytes,
                     struct cst_err *err)
{
    const uint64_t first = cst_round_up(at, CST_DURABLE_BLOCK);
    const uint64_t last = (at + bytes) / CST_DURABLE_BLOCK * CST_DURABLE_BLOCK;

    return last <= first || fallocate(c->fds[i], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                      (off_t)first, (off_t)(last - first)) == 0
               ? CST_OK
               : cst_err_errno(err, CST_EIO, errno, "clone of '%.200s'", c->names[i]);
}

/* Give back the states of the other step, and its record. They would take the space of the job's
 * files again when the job goes on. */
static int drop_other(const struct clone *c, struct cst_err *err)
{
    const Cistern__DurableLayout *layout = c->files.layout;
    const uint64_t bytes = c->files.head.seal_bytes;
    int rc = give_back(c, index_of(c, 0), CST_DURABLE_SEALS + (1 - c->out->step % 2) * bytes, bytes,
                       err);

    for (size_t k = 0; k < layout->n_chunks; k++) {
        for (size_t r = 0; r < layout->chunks[k]->n_rows && rc == CST_OK; r++) {
            const Cistern__DurableRow *row = layout->chunks[k]->rows[r];

            if (row->twin > 0) {
                rc = give_back(c, index_of(c, row->file),
                               row->offset + (1 - c->seal->place) * row->twin, row->bytes, err);
            }
        }
    }
    return rc;
}

/* The job writes the blocks that it shares anew within two steps: there must be space for that. */
static int check_space(const struct clone *c, uint32_t i, struct cst_err *err)
{
    struct statvfs space;
    struct stat st;
    uint64_t bytes, left;

    if (fstat(c->fds[i], &st) != 0 || fstatvfs(c->fds[i], &space) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "clone of '%.200s'", c->names[i]);
    }
    bytes = (uint64_t)st.st_blocks * 512;
    left = (uint64_t)space.f_bavail * space.f_frsize;
    c->out->bytes += bytes;
    return bytes <= left
               ? CST_OK
               : cst_err_set(err, CST_EBUDGET,
                             "the next steps of job '%s' would write %" PRIu64 " bytes anew that "
                             "'%.150s' shares with the clone, and the file system has %" PRIu64
                             " free: free space there, or save the job to another drive",
                             c->job, bytes, c->names[i], left);
}

/* -- while the commit is held ----------------------------------------------------------------- */

static int begin(struct clone *c, struct cst_client *client, struct cst_err *err)
{
    Cistern__JobName msg = CISTERN__JOB_NAME__INIT;
    struct cstc_call call = {.max_fds = 1}; /* A description, which the files have, too. */
    int rc;

    msg.name = (char *)(uintptr_t)c->job;
    msg.has_recorded = msg.recorded = true;
    rc = cstc_call_sync(client, &call, CISTERN__MSG_TYPE__MSG_SAVE, &msg.base,
                        CISTERN__MSG_TYPE__MSG_SAVE_BEGUN, &cistern__save_begun__descriptor, err);
    if (rc == CST_OK) {
        c->out->step = ((const Cistern__SaveBegun *)call.reply)->step;
        cstc_call_reset(&call);
    }
    return rc;
}

/* End the save in the daemon, which may have begun even if @rc is its error. Returns @rc, or the
 * status of the end: it says whether the commit was held until now. */
static int end(struct cst_client *client, int rc, struct cst_err *err)
{
    struct cstc_call call = {0};
    int status = cstc_call_sync(client, &call, CISTERN__MSG_TYPE__MSG_SAVE_END, NULL,
                                CISTERN__MSG_TYPE__MSG_OK, NULL, rc == CST_OK ? err : NULL);

    if (status == CST_OK) {
        cstc_call_reset(&call);
    }
    return rc == CST_OK ? status : rc;
}

static void close_clones(struct clone *c)
{
    cstc_adopt_files_close(&c->files);
    cstc_adopt_files_init(&c->files);
    for (uint32_t i = 0; i < MAX_FILES; i++) {
        if (c->fds[i] >= 0) {
            (void)close(c->fds[i]);
        }
        c->fds[i] = -1;
    }
}

/* If the clones are not wanted, they are gone before the job goes on and needs their space. */
static int clone_files(struct clone *c, struct cst_client *client, struct cst_err *err)
{
    int rc = begin(c, client, err);
    const double began = cst_clock_s();

    rc = rc == CST_OK ? find_files(c, client, err) : rc;
    for (uint32_t i = 0; i < c->n_files && rc == CST_OK; i++) {
        rc = clone_file(c, i, err);
    }
    rc = rc == CST_OK ? check_step(c, err) : rc;
    rc = rc == CST_OK ? drop_other(c, err) : rc;
    for (uint32_t i = 0; i < c->n_files && rc == CST_OK; i++) {
        rc = check_space(c, i, err);
    }
    if (rc != CST_OK) {
        close_clones(c);
    }
    rc = end(client, rc, err);
    c->out->held_seconds = cst_clock_s() - began;
    return rc;
}

/* -- the id ----------------------------------------------------------------------------------- */

static int write_at(const struct clone *c, uint32_t i, const void *data, uint64_t bytes,
                    uint64_t at, struct cst_err *err)
{
    const char *next = data;

    while (bytes > 0) {
        ssize_t n = pwrite(c->fds[i], next, bytes, (off_t)at);

        if (n < 0 && errno != EINTR) {
            return cst_err_errno(err, CST_EIO, errno, "clone of '%.200s'", c->names[i]);
        }
        n = n > 0 ? n : 0;
        next += n;
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return CST_OK;
}

/* Give the clone an id of its own. With that of the job, a file of the one could be adopted with
 * those of the other, which are of another step. */
static int write_id(struct clone *c, struct cst_err *err)
{
    const uint64_t bytes = cst_durable_sealed_bytes(c->files.head.n_chunks);
    struct cst_durable_head head = c->files.head;
    int rc = CST_OK;

    if (getrandom(head.id, sizeof head.id, 0) != sizeof head.id) {
        return cst_err_errno(err, CST_EIO, errno, "random bytes");
    }
    for (uint32_t f = 0; f < head.n_files && rc == CST_OK; f++) {
        head.file = f;
        head.sum = XXH3_64bits(&head, offsetof(struct cst_durable_head, sum));
        for (uint64_t k = 0; k < CST_DURABLE_HEADS && rc == CST_OK; k++) {
            rc = write_at(c, index_of(c, f), &head, sizeof head, k * CST_DURABLE_BLOCK, err);
        }
    }
    memcpy(c->seal->id, head.id, sizeof head.id);
    c->seal->sum = XXH3_64bits(c->seal, bytes);
    return rc == CST_OK ? write_at(c, index_of(c, 0), c->seal, bytes,
                                   CST_DURABLE_SEALS + c->seal->step % 2 * head.seal_bytes, err)
                        : rc;
}

/* -- names ------------------------------------------------------------------------------------ */

/* Name the clone with the number @file of the job. */
static int name_file(struct clone *c, uint32_t file, struct cst_err *err)
{
    const uint32_t i = index_of(c, file);
    char *path = c->out->paths[file], from[64];
    int n = snprintf(path, PATH_MAX, "%s/%s.step-%08" PRIu64 ".%" PRIu32 ".cistern",
                     c->dirs[c->dir_of[i]], c->job, c->out->step, file);

    if (n < 0 || n >= PATH_MAX) {
        return cst_err_set(err, CST_EINVAL, "a too long directory '%.200s'", c->dirs[c->dir_of[i]]);
    }
    (void)snprintf(from, sizeof from, "/proc/self/fd/%d", c->fds[i]);
    if (linkat(AT_FDCWD, from, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0) {
        c->out->n++;
        return CST_OK;
    }
    return errno == EEXIST
               ? cst_err_set(err, CST_EEXIST, "'%.300s' exists already: the step was cloned", path)
               : cst_err_errno(err, CST_EIO, errno, "'%.300s'", path);
}

/* The names in all directories last. */
static int flush_names(const struct clone *c, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < c->n_files && rc == CST_OK; i++) {
        const char *dir = c->dirs[c->dir_of[i]];
        int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (fd < 0 || fsync(fd) != 0) {
            rc = cst_err_errno(err, CST_EIO, errno, "flush of '%.200s'", dir);
        }
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    return rc;
}

/* Flush and name all clones; that of file 0, without which the others are nothing, is the last one.
 */
static int name_files(struct clone *c, struct cst_err *err)
{
    const uint32_t n = c->files.head.n_files;
    int rc = CST_OK;

    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        rc = fsync(c->fds[i]) == 0
                 ? CST_OK
                 : cst_err_errno(err, CST_EIO, errno, "clone of '%.200s'", c->names[i]);
    }
    while (c->out->n < n && rc == CST_OK) {
        rc = name_file(c, n - 1 - c->out->n, err);
    }
    rc = rc == CST_OK ? flush_names(c, err) : rc;
    while (rc != CST_OK && c->out->n > 0) {
        (void)unlink(c->out->paths[n - c->out->n--]);
    }
    return rc;
}

/* -- the call --------------------------------------------------------------------------------- */

static void close_clone(struct clone *c)
{
    close_clones(c);
    for (uint32_t i = 0; i < MAX_FILES; i++) {
        free(c->names[i]);
    }
    free(c->seal);
}

int cstc_clone(struct cst_client *client, const char *job, char *const *dirs, uint32_t n,
               struct cstc_clone_result *out, struct cst_err *err)
{
    const double began = cst_clock_s();
    struct clone c = {.job = job, .dirs = dirs, .n_dirs = n, .out = out};
    int rc;

    memset(out, 0, sizeof *out);
    memset(c.fds, 0xff, sizeof c.fds);
    cstc_adopt_files_init(&c.files);
    rc = clone_files(&c, client, err);
    rc = rc == CST_OK ? write_id(&c, err) : rc;
    rc = rc == CST_OK ? name_files(&c, err) : rc;
    out->seconds = cst_clock_s() - began;
    close_clone(&c);
    return rc;
}
