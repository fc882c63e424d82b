/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of client/checkpoint/directory: how a checkpoint is made, what that may not harm, also if
 * the process is killed before any call that changes the disk, and which one a load chooses. Linked
 * with wrappers of these calls. check_retention tests the removal of old checkpoints. */
#include "tests/lib/suite.h"
#include "tests/unit/directory_rig.h"

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct cst_err err;

/* -- calls that change the disk --------------------------------------------------------------- */

int __real_mkdirat(int fd, const char *name, mode_t mode);
int __real_renameat(int from, const char *old, int to, const char *name);
int __real_unlinkat(int fd, const char *name, int flags);
int __real_fsync(int fd);
int __real_flock(int fd, int operation);
int __wrap_mkdirat(int fd, const char *name, mode_t mode);
int __wrap_renameat(int from, const char *old, int to, const char *name);
int __wrap_unlinkat(int fd, const char *name, int flags);
int __wrap_fsync(int fd);
int __wrap_flock(int fd, int operation);

static unsigned calls_left;       /* Number of calls until this process is killed; 0: it is not. */
static void (*after_mkdir)(void); /* Called once, when a directory has just been made. */
static unsigned n_locks;          /* Locks that this process has waited for. */
static bool interrupts;           /* A signal interrupts every wait once. */

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

int __wrap_flock(int fd, int operation)
{
    static bool interrupted;
    int rc;

    interrupted = interrupts && !interrupted && operation == LOCK_EX;
    if (interrupted) {
        errno = EINTR;
        return -1;
    }
    rc = __real_flock(fd, operation);
    n_locks += rc == 0 && operation == LOCK_EX;
    return rc;
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

/* A signal that arrives while the directory is awaited does not let the process go on without the
 * lock. */
START_TEST(interrupted)
{
    struct cstc_directory directory;

    interrupts = true;
    ck_assert_int_eq(cstc_directory_begin(&directory, path, "job", 1, &err), CST_OK);
    ck_assert_uint_eq(n_locks, 1);
    fill(&directory);
    ck_assert_int_eq(cstc_directory_commit(&directory, &err), CST_OK);
    ck_assert_uint_eq(n_locks, 2);
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
        directory_rig_teardown();
        directory_rig_setup();
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
    TCase *tc = suite_case(s, "making", directory_rig_setup, directory_rig_teardown);

    tcase_add_test(tc, stale);
    tcase_add_test(tc, simultaneous);
    tcase_add_test(tc, interrupted);
    tcase_add_test(tc, same_step);
    tcase_add_test(tc, torn);
    tcase_add_test(tc, torn_foreign);
    tcase_add_test(tc, not_ours);
    tcase_add_test(tc, read_only);
    tcase_add_test(tc, other_job);
    tcase_add_test(tc, newest_torn);
    tc = suite_case(s, "death", directory_rig_setup, directory_rig_teardown);
    tcase_add_test(tc, killed);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
