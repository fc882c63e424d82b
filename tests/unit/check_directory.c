/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of client/checkpoint/directory: what a save or the removal of old checkpoints may not harm,
 * also if the process is killed before any call that changes the disk. Linked with wrappers of
 * these calls. */
#include "client/checkpoint/directory.h"

#include "cistern/checkpoint.h"
#include "client/checkpoint/manifest.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static char path[] = "/tmp/cistern-directory.XXXXXX";
static struct cst_err err;

/* -- calls that change the disk --------------------------------------------------------------- */

int __real_mkdirat(int fd, const char *name, mode_t mode);
int __real_renameat(int from, const char *old, int to, const char *name);
int __real_unlinkat(int fd, const char *name, int flags);
int __real_fsync(int fd);
int __wrap_mkdirat(int fd, const char *name, mode_t mode);
int __wrap_renameat(int from, const char *old, int to, const char *name);
int __wrap_unlinkat(int fd, const char *name, int flags);
int __wrap_fsync(int fd);

static unsigned calls_left;       /* Number of calls until this process is killed; 0: it is not. */
static void (*after_mkdir)(void); /* Called once, when a directory has just been made. */

static void count_call(void)
{
    if (calls_left > 0 && --calls_left == 0) {
        (void)kill(getpid(), SIGKILL);
    }
}

int __wrap_mkdirat(int fd, const char *name, mode_t mode)
{
    void (*then)(void) = after_mkdir;
    int rc;

    count_call();
    rc = __real_mkdirat(fd, name, mode);
    after_mkdir = NULL;
    if (then != NULL) {
        then();
    }
    return rc;
}

int __wrap_renameat(int from, const char *old, int to, const char *name)
{
    count_call();
    return __real_renameat(from, old, to, name);
}

int __wrap_unlinkat(int fd, const char *name, int flags)
{
    count_call();
    return __real_unlinkat(fd, name, flags);
}

int __wrap_fsync(int fd)
{
    count_call();
    return __real_fsync(fd);
}

/* -- checkpoints ------------------------------------------------------------------------------ */

static void setup(void)
{
    memcpy(path + sizeof path - 7, "XXXXXX", 6);
    ck_assert_ptr_nonnull(mkdtemp(path));
}

static void teardown(void)
{
    char command[96];

    (void)snprintf(command, sizeof command, "chmod -R u+w %s && rm -rf %s", path, path);
    ck_assert_int_eq(system(command), 0);
}

/* Make or truncate the file that @format names in the directory of the test. */
__attribute__((format(printf, 1, 2))) static void touch(const char *format, ...)
{
    char name[128], full[192];
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(name, sizeof name, format, ap);
    va_end(ap);
    (void)snprintf(full, sizeof full, "%s/%s", path, name);
    ck_assert_int_eq(close(open(full, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)), 0);
}

static bool exists(const char *name)
{
    char full[192];
    struct stat st;

    (void)snprintf(full, sizeof full, "%s/%s", path, name);
    return lstat(full, &st) == 0;
}

/* Write the files of a checkpoint of @directory's job. */
static void fill(const struct cstc_directory *directory)
{
    Cistern__JobDescription job = CISTERN__JOB_DESCRIPTION__INIT;
    struct cstc_manifest_file file = {.name = "model.safetensors"};
    struct cstc_manifest manifest = {.description = &job, .files = &file, .n_files = 1};
    struct cstc_file_writer *writer;
    uint64_t bytes;

    job.name = (char *)(uintptr_t)directory->job;
    ck_assert_int_eq(cstc_file_writer_open(&writer, directory->fd, file.name, &err), CST_OK);
    ck_assert_int_eq(cstc_file_writer_append(writer, "weights", 7, &err), CST_OK);
    ck_assert_int_eq(cstc_file_writer_finish(writer, &file.bytes, &file.hash, &err), CST_OK);
    ck_assert_int_eq(cstc_manifest_write(&manifest, directory->fd, &bytes, &err), CST_OK);
}

/* Make the checkpoint of @step. */
static void save(uint64_t step)
{
    struct cstc_directory directory;
    int rc = cstc_directory_begin(&directory, path, "job", step, &err);

    ck_assert_msg(rc == CST_OK, "%s", err.text);
    fill(&directory);
    rc = cstc_directory_commit(&directory, &err);
    ck_assert_msg(rc == CST_OK, "%s", err.text);
}

/* True if the checkpoint of @step is whole, with the right checksums. */
static bool whole(uint64_t step)
{
    struct cst_checkpoint *all = NULL;
    bool found = false;
    uint32_t n = 0;

    ck_assert_int_eq(cst_checkpoints(path, true, &all, &n, &err), CST_OK);
    for (uint32_t i = 0; i < n; i++) {
        found = found || (all[i].step == step && all[i].whole);
    }
    free(all);
    return found;
}

/* Number of names in the directory, with those that are hidden. */
static unsigned count_names(void)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    unsigned n = 0;

    while ((entry = readdir(dir)) != NULL) {
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    (void)closedir(dir);
    return n;
}

static void drop_rights(void)
{
    if (geteuid() == 0) {
        ck_assert_int_eq(chown(path, NOBODY, NOBODY), 0);
        ck_assert_int_eq(setegid(NOBODY), 0);
        ck_assert_int_eq(seteuid(NOBODY), 0);
    }
}

static void regain_rights(void)
{
    if (getuid() == 0) {
        ck_assert_int_eq(seteuid(0), 0);
        ck_assert_int_eq(setegid(0), 0);
    }
}

/* -- making ----------------------------------------------------------------------------------- */

/* What a dead process left is removed, and what a living one writes is not. */
START_TEST(stale)
{
    struct cstc_directory living, other;
    char left[] = "/tmp/cistern-directory.XXXXXX/.step-00000007.1-2.tmp";

    memcpy(left, path, strlen(path));
    ck_assert_int_eq(mkdir(left, 0700), 0);
    touch(".step-00000007.1-2.tmp/states-00001-of-00001.safetensors");
    ck_assert_int_eq(cstc_directory_begin(&living, path, "job", 1, &err), CST_OK);
    ck_assert(!exists(".step-00000007.1-2.tmp"));
    ck_assert_int_eq(cstc_directory_begin(&other, path, "job", 1, &err), CST_OK);
    ck_assert(exists(living.temporary));
    cstc_directory_abandon(&other);
    fill(&living);
    ck_assert_int_eq(cstc_directory_commit(&living, &err), CST_OK);
    ck_assert(whole(1));
    ck_assert_uint_eq(count_names(), 1);
}
END_TEST

static void begin_another(void)
{
    struct cstc_directory directory;

    if (fork() == 0) {
        (void)cstc_directory_begin(&directory, path, "job", 2, NULL);
        _exit(0);
    }
    (void)usleep(100000);
}

/* A process that begins while another one has made its directory, but not locked it yet, does not
 * remove that directory as stale. */
START_TEST(simultaneous)
{
    struct cstc_directory directory;

    after_mkdir = begin_another;
    ck_assert_int_eq(cstc_directory_begin(&directory, path, "job", 1, &err), CST_OK);
    (void)wait(NULL);
    ck_assert(exists(directory.temporary));
    fill(&directory);
    ck_assert_int_eq(cstc_directory_commit(&directory, &err), CST_OK);
    ck_assert(whole(1));
}
END_TEST

/* Of two processes that save the same step, the first to commit wins: its checkpoint is not
 * replaced. */
START_TEST(same_step)
{
    struct cstc_directory first, second;
    struct stat before, after;
    char full[96];

    ck_assert_int_eq(cstc_directory_begin(&first, path, "job", 1, &err), CST_OK);
    ck_assert_int_eq(cstc_directory_begin(&second, path, "job", 1, &err), CST_OK);
    fill(&first);
    fill(&second);
    ck_assert_int_eq(cstc_directory_commit(&first, &err), CST_OK);
    (void)snprintf(full, sizeof full, "%s/step-00000001", path);
    ck_assert_int_eq(stat(full, &before), 0);
    ck_assert_int_eq(cstc_directory_commit(&second, &err), CST_EEXIST);
    ck_assert_int_eq(stat(full, &after), 0);
    ck_assert_uint_eq(before.st_ino, after.st_ino);
    ck_assert(whole(1));
    ck_assert_uint_eq(count_names(), 1);
    ck_assert_int_eq(cstc_directory_begin(&first, path, "job", 1, &err), CST_EEXIST);
}
END_TEST

/* A torn checkpoint of the same step is replaced. */
START_TEST(torn)
{
    save(1);
    touch("step-00000001/model.safetensors");
    ck_assert(!whole(1));
    save(1);
    ck_assert(whole(1));
    ck_assert_uint_eq(count_names(), 1);
}
END_TEST

/* A torn checkpoint that has a foreign file is not replaced. The error comes before anything is
 * written, and also if the file comes later. */
START_TEST(torn_foreign)
{
    struct cstc_directory directory;

    save(1);
    touch("step-00000001/model.safetensors");
    ck_assert_int_eq(cstc_directory_begin(&directory, path, "job", 1, &err), CST_OK);
    fill(&directory);
    touch("step-00000001/notes");
    ck_assert_int_eq(cstc_directory_commit(&directory, &err), CST_EIO);
    ck_assert_ptr_nonnull(strstr(err.text, "step-00000001 cannot be removed: its file notes"));
    ck_assert_int_eq(cstc_directory_begin(&directory, path, "job", 1, &err), CST_EIO);
    ck_assert_ptr_nonnull(strstr(err.text, "step-00000001 cannot be removed: its file notes"));
    ck_assert(exists("step-00000001/notes") && exists("step-00000001/cistern.json"));
    ck_assert_uint_eq(count_names(), 1);
}
END_TEST

/* A directory that has the name of a checkpoint, but is not one of cistern, is not replaced. */
START_TEST(not_ours)
{
    struct cstc_directory directory;
    char full[96];

    (void)snprintf(full, sizeof full, "%s/step-00000001", path);
    ck_assert_int_eq(mkdir(full, 0700), 0);
    touch("step-00000001/model.safetensors");
    ck_assert_int_eq(cstc_directory_begin(&directory, path, "job", 1, &err), CST_EIO);
    ck_assert_ptr_nonnull(strstr(err.text, full));
    ck_assert_ptr_nonnull(strstr(err.text, "no cistern.json"));
    save(2);
    save(3);
    ck_assert_int_eq(cstc_directory_keep(path, "job", 1, 3, &err), CST_OK);
    ck_assert(exists("step-00000001/model.safetensors"));
    ck_assert(!exists("step-00000002") && whole(3));
}
END_TEST

/* In a directory without write permission nothing is made or lost, and the error says so. */
START_TEST(read_only)
{
    struct cstc_directory directory;
    struct cst_err why_begin, why_keep;
    int begin, keep;

    drop_rights();
    save(1);
    save(2);
    ck_assert_int_eq(chmod(path, 0555), 0);
    begin = cstc_directory_begin(&directory, path, "job", 3, &why_begin);
    keep = cstc_directory_keep(path, "job", 1, 2, &why_keep);
    regain_rights();
    ck_assert(whole(1) && whole(2));
    ck_assert_uint_eq(count_names(), 2);
    ck_assert_int_eq(begin, CST_EIO);
    ck_assert_msg(strstr(why_begin.text, path) != NULL &&
                      strstr(why_begin.text, "Permission denied") != NULL,
                  "%s", why_begin.text);
    ck_assert_int_eq(keep, CST_EIO);
    ck_assert_msg(strstr(why_keep.text, path) != NULL &&
                      strstr(why_keep.text, "Permission denied") != NULL,
                  "%s", why_keep.text);
}
END_TEST

/* -- removing --------------------------------------------------------------------------------- */

/* The newest whole checkpoints remain, and with them torn ones that are newer than the last. */
START_TEST(retention)
{
    for (uint64_t step = 1; step <= 5; step++) {
        save(step);
    }
    touch("step-00000003/model.safetensors");
    touch("step-00000005/model.safetensors");
    ck_assert_int_eq(cstc_directory_keep(path, "job", 2, 4, &err), CST_OK);
    ck_assert(!whole(1) && whole(2) && whole(4));
    ck_assert_uint_eq(count_names(), 4);
    ck_assert_int_eq(cstc_directory_keep(path, "job", 1, 4, &err), CST_OK);
    ck_assert(whole(4) && exists("step-00000005"));
    ck_assert_uint_eq(count_names(), 2);
    ck_assert_int_eq(cstc_directory_keep(path, "job", 0, 4, &err), CST_OK);
    ck_assert(whole(4));
}
END_TEST

/* A checkpoint with a foreign file stays as it is. Others are removed nevertheless. */
START_TEST(foreign)
{
    struct cst_err why;
    int rc;

    for (uint64_t step = 1; step <= 3; step++) {
        save(step);
    }
    touch("step-00000001/buffers.safetensors"); /* Not foreign. */
    touch("step-00000002/notes");
    rc = cstc_directory_keep(path, "job", 1, 3, &why);
    ck_assert(whole(2) && whole(3) && exists("step-00000002/notes"));
    ck_assert(!exists("step-00000001"));
    ck_assert_int_eq(rc, CST_EIO);
    ck_assert_msg(strstr(why.text, path) != NULL && strstr(why.text, "step-00000002") != NULL &&
                      strstr(why.text, "notes") != NULL,
                  "%s", why.text);
}
END_TEST

/* A job that went back to an earlier step keeps what it has just saved. Then the checkpoints with
 * the fewest steps are removed. */
START_TEST(gone_back)
{
    save(5);
    save(6);
    save(1);
    ck_assert_int_eq(cstc_directory_keep(path, "job", 2, 1, &err), CST_OK);
    ck_assert(whole(1) && whole(6) && !exists("step-00000005"));
    save(2);
    ck_assert_int_eq(cstc_directory_keep(path, "job", 1, 2, &err), CST_OK);
    ck_assert(whole(2));
    ck_assert_uint_eq(count_names(), 1);
}
END_TEST

/* Change the format in the manifest of @step to @format. */
static void set_format(uint64_t step, const char *format)
{
    char command[192];

    (void)snprintf(command, sizeof command,
                   "sed -i 's/\"format\": 1,/\"format\": %s,/' %s/step-%08" PRIu64 "/cistern.json",
                   format, path, step);
    ck_assert_int_eq(system(command), 0);
}

/* A checkpoint of a later format is named as such. It is neither removed nor replaced, and none
 * that is older is loaded in its place. What is no format is torn. */
START_TEST(later_format)
{
    char warning[CSTC_LISTING_WARNING_BYTES];
    struct cstc_directory directory;
    struct cst_checkpoint *all;
    uint32_t n;
    int fd;

    save(1);
    save(2);
    save(3);
    set_format(1, "7");
    set_format(2, "-7");
    ck_assert_int_eq(cst_checkpoints(path, true, &all, &n, &err), CST_OK);
    ck_assert_uint_eq(n, 3);
    ck_assert_int_eq(all[0].status, CST_EUNSUPPORTED);
    ck_assert_str_eq(all[0].why, "format 7, this version reads 1");
    ck_assert_int_eq(all[1].status, CST_EINVAL);
    ck_assert(all[2].whole && all[2].status == CST_OK);
    free(all);
    ck_assert_int_eq(cstc_directory_keep(path, "job", 1, 3, &err), CST_OK);
    ck_assert(exists("step-00000001/model.safetensors") && !exists("step-00000002") && whole(3));
    ck_assert_int_eq(cstc_directory_begin(&directory, path, "job", 1, &err), CST_EIO);
    ck_assert_ptr_nonnull(strstr(err.text, "format 7, this version reads 1"));
    ck_assert_int_eq(cstc_listing_open(path, &fd, warning, &err), CST_OK);
    ck_assert_int_eq(close(fd), 0);
    set_format(3, "7");
    ck_assert_int_eq(cstc_listing_open(path, &fd, warning, &err), CST_EUNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "step-00000003: format 7, this version reads 1"));
}
END_TEST

/* A checkpoint that cannot be read now may be whole: it is not removed. */
START_TEST(unreadable)
{
    char full[96];

    drop_rights();
    save(1);
    save(2);
    (void)snprintf(full, sizeof full, "%s/step-00000001/cistern.json", path);
    ck_assert_int_eq(chmod(full, 0), 0);
    ck_assert_int_eq(cstc_directory_keep(path, "job", 1, 2, &err), CST_OK);
    ck_assert_int_eq(chmod(full, 0600), 0);
    regain_rights();
    ck_assert(whole(1) && whole(2));
}
END_TEST

/* A link that has the name of a temporary directory does not let a save remove the files of the
 * checkpoint to which it points. */
START_TEST(linked_stale)
{
    char link[96];

    save(1);
    (void)snprintf(link, sizeof link, "%s/.step-00000009.1-2.tmp", path);
    ck_assert_int_eq(symlink("step-00000001", link), 0);
    save(2);
    ck_assert(whole(1) && whole(2));
}
END_TEST

/* Nobody waits for the writer of a FIFO that has the name of a checkpoint's file. */
START_TEST(fifos)
{
    char full[96];

    save(1);
    save(2);
    (void)snprintf(full, sizeof full, "%s/step-00000001/cistern.json", path);
    ck_assert_int_eq(unlink(full), 0);
    ck_assert_int_eq(mkfifo(full, 0600), 0);
    ck_assert(!whole(1));
    (void)snprintf(full, sizeof full, "%s/step-00000002/model.safetensors", path);
    ck_assert_int_eq(unlink(full), 0);
    ck_assert_int_eq(mkfifo(full, 0600), 0);
    ck_assert(!whole(2));
}
END_TEST

/* A link to a checkpoint elsewhere is not followed to remove that one. */
START_TEST(linked)
{
    char from[96], to[96];

    save(1);
    save(2);
    (void)snprintf(from, sizeof from, "%s/step-00000001", path);
    (void)snprintf(to, sizeof to, "%s/elsewhere", path);
    ck_assert_int_eq(rename(from, to), 0);
    ck_assert_int_eq(symlink("elsewhere", from), 0);
    ck_assert_int_eq(cstc_directory_keep(path, "job", 1, 2, &err), CST_EIO);
    ck_assert(exists("elsewhere/cistern.json") && exists("elsewhere/model.safetensors"));
}
END_TEST

/* -- death ------------------------------------------------------------------------------------ */

/* Replace the torn checkpoint of step 2, save step 4, and keep two, until the call @moment that
 * changes the disk. False: there are fewer calls. */
static bool dies(unsigned moment)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        calls_left = moment;
        save(2);
        save(4);
        _exit(cstc_directory_keep(path, "job", 2, 4, &err) == CST_OK ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

/* What was whole before the death of a process is whole after it, unless it was to be removed.
 * Every checkpoint is as it was, whole or absent, and the next save removes what is left. */
START_TEST(killed)
{
    unsigned moment = 1;

    for (bool dead = true; dead; moment++) {
        for (uint64_t step = 1; step <= 3; step++) {
            save(step);
        }
        touch("step-00000002/model.safetensors");
        dead = dies(moment);
        ck_assert_msg(whole(3), "moment %u", moment);
        ck_assert_msg(whole(1) || (!exists("step-00000001") && whole(4)), "moment %u", moment);
        ck_assert_msg(whole(4) || !exists("step-00000004"), "moment %u", moment);
        save(5);
        ck_assert_int_eq(cstc_directory_keep(path, "job", 1, 5, &err), CST_OK);
        ck_assert(whole(5));
        ck_assert_msg(count_names() == 1, "moment %u: %u names", moment, count_names());
        teardown();
        setup();
    }
    ck_assert_uint_gt(moment, 20);
}
END_TEST

/* A directory is of one job. Another one can neither save there nor remove what is there, whoever
 * was first. */
START_TEST(other_job)
{
    struct cstc_directory first, second;

    ck_assert_int_eq(cstc_directory_begin(&first, path, "job", 1, &err), CST_OK);
    ck_assert_int_eq(cstc_directory_begin(&second, path, "other", 2, &err), CST_OK);
    fill(&first);
    fill(&second);
    ck_assert_int_eq(cstc_directory_commit(&first, &err), CST_OK);
    ck_assert_int_eq(cstc_directory_commit(&second, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "checkpoints of job 'job': job 'other' needs another"));
    ck_assert(whole(1) && count_names() == 1);
    ck_assert_int_eq(cstc_directory_begin(&second, path, "other", 1, &err), CST_EINVAL);
    ck_assert_int_eq(cstc_directory_keep(path, "other", 1, 2, &err), CST_OK);
    ck_assert(whole(1) && count_names() == 1);
}
END_TEST

/* A directory into which somebody has copied checkpoints of two jobs: a load must name one of them,
 * and each job removes only its own. */
START_TEST(mixed_jobs)
{
    char warning[CSTC_LISTING_WARNING_BYTES], command[256];
    struct cst_checkpoint *all;
    struct cstc_directory other;
    uint32_t n;
    int fd;

    (void)snprintf(command, sizeof command, "%s/elsewhere", path);
    ck_assert_int_eq(cstc_directory_begin(&other, command, "other", 5, &err), CST_OK);
    fill(&other);
    ck_assert_int_eq(cstc_directory_commit(&other, &err), CST_OK);
    save(1);
    save(3);
    (void)snprintf(command, sizeof command, "mv %s/elsewhere/step-00000005 %s", path, path);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(cst_checkpoints(path, false, &all, &n, &err), CST_OK);
    ck_assert_uint_eq(n, 3);
    ck_assert_str_eq(all[1].job, "job");
    ck_assert_str_eq(all[2].job, "other");
    free(all);
    ck_assert_int_eq(cstc_listing_open(path, &fd, warning, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "the jobs 'other' and 'job'"));
    ck_assert_int_eq(cstc_directory_keep(path, "job", 1, 3, &err), CST_OK);
    ck_assert(!exists("step-00000001") && whole(3) && whole(5));
    ck_assert_int_eq(cstc_directory_keep(path, "other", 1, 5, &err), CST_OK);
    ck_assert(whole(3) && whole(5));
}
END_TEST

/* A load says which newer checkpoint it leaves out. */
START_TEST(newest_torn)
{
    char warning[CSTC_LISTING_WARNING_BYTES];
    int fd;

    save(1);
    save(2);
    ck_assert_int_eq(cstc_listing_open(path, &fd, warning, &err), CST_OK);
    ck_assert_str_eq(warning, "");
    ck_assert_int_eq(close(fd), 0);
    touch("step-00000002/model.safetensors");
    ck_assert_int_eq(cstc_listing_open(path, &fd, warning, &err), CST_OK);
    ck_assert_ptr_nonnull(strstr(warning, "step-00000002 is newer but not whole: model.safet"));
    ck_assert_int_eq(close(fd), 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("directory");
    TCase *tc = suite_case(s, "making", setup, teardown);

    tcase_add_test(tc, stale);
    tcase_add_test(tc, simultaneous);
    tcase_add_test(tc, same_step);
    tcase_add_test(tc, torn);
    tcase_add_test(tc, torn_foreign);
    tcase_add_test(tc, not_ours);
    tcase_add_test(tc, read_only);
    tcase_add_test(tc, other_job);
    tcase_add_test(tc, mixed_jobs);
    tcase_add_test(tc, newest_torn);
    tc = suite_case(s, "removing", setup, teardown);
    tcase_add_test(tc, retention);
    tcase_add_test(tc, foreign);
    tcase_add_test(tc, gone_back);
    tcase_add_test(tc, later_format);
    tcase_add_test(tc, unreadable);
    tcase_add_test(tc, linked);
    tcase_add_test(tc, linked_stale);
    tcase_add_test(tc, fifos);
    tc = suite_case(s, "death", setup, teardown);
    tcase_add_test(tc, killed);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
