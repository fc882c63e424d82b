/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of memory that was dropped, but that processes may still hold. */
#include "daemon/budget/quota.h"
#include "daemon/budget/remains.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 64 * 4096 };

static uv_loop_t loop;
static struct cstd_remains remains;
static struct cstd_budget budget;
static struct cst_err err;

static void setup(void)
{
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    cstd_remains_init(&remains, &loop);
    budget = (struct cstd_budget){.name = "pools", .limit = 2 * BYTES, .remains = &remains};
    err = (struct cst_err){0};
}

static void teardown(void)
{
    cstd_remains_close(&remains);
    ck_assert_uint_eq(budget.used, 0);
    ck_assert_uint_eq(budget.kept, 0);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static uint64_t size_of(int fd)
{
    struct stat st;

    ck_assert_int_eq(fstat(fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

/* Make a segment with all of its memory. *@fd: a descriptor of it as a worker has one. */
static struct cstd_segment *make(int *fd)
{
    struct cstd_segment *segment;
    int shared;

    ck_assert_int_eq(cstd_segment_open(&segment, 7, BYTES, &budget, NULL, "x", &err), CST_OK);
    ck_assert_int_eq(fallocate(segment->fd, 0, 0, BYTES), 0);
    if (fd != NULL) {
        ck_assert_int_eq(cstd_segment_share(segment, &shared, &err), CST_OK);
        *fd = dup(shared);
        ck_assert_int_ge(*fd, 0);
        ck_assert_uint_eq(size_of(*fd), BYTES);
    }
    return segment;
}

static char *map(int fd)
{
    char *bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    ck_assert(bytes != MAP_FAILED);
    return bytes;
}

/* A segment that no worker holds, or holds any more, is closed. */
START_TEST(nobody_has_it)
{
    int theirs = -1, fd;
    struct cstd_segment *segment = make(_i == 0 ? NULL : &theirs);

    if (theirs >= 0) {
        (void)close(theirs);
    }
    fd = segment->fd;
    cstd_segment_unref(segment);
    ck_assert_uint_eq(remains.n, 0);
    ck_assert_uint_eq(budget.used, 0);
    ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
}
END_TEST

/* A process that keeps the file or a mapping of it keeps no memory: the budget gets all of it
 * back. */
START_TEST(it_is_empty)
{
    int fd;
    struct cstd_segment *segment = make(&fd);
    char *bytes = map(fd);

    memset(bytes, 1, BYTES);
    cstd_segment_unref(segment);
    ck_assert_uint_eq(size_of(fd), 0);
    ck_assert_uint_eq(budget.used, 0);
    ck_assert_uint_eq(remains.n, 1);
    (void)close(fd); /* the mapping is enough */
    cstd_remains_look(&remains);
    ck_assert_uint_eq(remains.n, 1);
    (void)munmap(bytes, BYTES);
    cstd_remains_look(&remains);
    ck_assert_uint_eq(remains.n, 0);
}
END_TEST

/* Memory that is written afterwards is charged to the budget and taken away again. A refusal of
 * other memory meanwhile mentions it. */
START_TEST(what_comes_back_is_charged)
{
    int fd;
    struct cstd_segment *segment = make(&fd), *other = NULL;
    char *bytes = map(fd);

    cstd_segment_unref(segment);
    memset(bytes, 1, BYTES / 2);
    cstd_remains_look(&remains);
    ck_assert_uint_eq(budget.used, BYTES / 2);
    ck_assert_uint_eq(budget.kept, BYTES / 2);
    ck_assert_uint_eq(size_of(fd), 0);
    ck_assert_int_eq(cstd_segment_open(&other, 8, 2 * BYTES, &budget, NULL, "job 'b'", &err),
                     CST_EBUDGET);
    ck_assert_msg(strstr(err.text, "processes that keep memory of removed jobs") != NULL, "%s",
                  err.text);
    memset(bytes, 1, BYTES);
    cstd_remains_look(&remains);
    ck_assert_uint_eq(budget.used, BYTES);
    cstd_remains_look(&remains); /* the memory has not been written again */
    ck_assert_uint_eq(budget.used, 0);
    (void)munmap(bytes, BYTES);
    (void)close(fd);
    cstd_remains_look(&remains);
    ck_assert_uint_eq(remains.n, 0);
}
END_TEST

/* The files of several jobs may be written again beyond the budget: nothing more is granted, with a
 * message. */
START_TEST(beyond_the_budget)
{
    char *bytes[3];

    for (unsigned i = 0; i < 3; i++) {
        int fd;
        struct cstd_segment *segment = make(&fd);

        bytes[i] = map(fd);
        (void)close(fd);
        cstd_segment_unref(segment);
    }
    for (unsigned i = 0; i < 3; i++) {
        memset(bytes[i], 1, BYTES);
    }
    cstd_remains_look(&remains);
    ck_assert_uint_eq(budget.used, 3 * BYTES);
    ck_assert_uint_eq(cstd_budget_unused(&budget), 0);
    ck_assert_int_eq(cstd_budget_take(&budget, NULL, 1, "one byte", &err), CST_EBUDGET);
    for (unsigned i = 0; i < 3; i++) {
        (void)munmap(bytes[i], BYTES);
    }
    cstd_remains_look(&remains);
    ck_assert_uint_eq(remains.n, 0);
}
END_TEST

/* A user who has a limit stays charged for the whole file while a process can write it again, and a
 * request that would be refused finds out that the last one has let go. */
START_TEST(the_whole_file_is_charged)
{
    static struct cstd_quota_rules rules;
    static struct cstd_quota quota;
    struct cstd_quota_account *account;
    struct cstd_segment *segment;
    gid_t group = 70001;
    int shared, fd;

    cstd_quota_init(&quota, &rules, NULL);
    cstd_quota_set_total(&quota, CSTD_QUOTA_HOST, 2 * BYTES);
    cstd_quota_set_total(&quota, CSTD_QUOTA_FILES, 100);
    ck_assert_int_eq(cstd_quota_open(&quota, 70001, &group, 1, &account, &err), CST_OK);
    budget.resource = CSTD_QUOTA_HOST;
    ck_assert_int_eq(cstd_segment_open(&segment, 7, BYTES, &budget, account, "x", &err), CST_OK);
    ck_assert_uint_eq(account->used[CSTD_QUOTA_FILES], 2);
    ck_assert_int_eq(fallocate(segment->fd, 0, 0, BYTES), 0);
    ck_assert_int_eq(cstd_segment_share(segment, &shared, &err), CST_OK);
    fd = dup(shared);
    cstd_segment_unref(segment);
    ck_assert_uint_eq(size_of(fd), 0);
    ck_assert_uint_eq(budget.used, BYTES);
    ck_assert_uint_eq(account->used[CSTD_QUOTA_HOST], BYTES);
    ck_assert_uint_eq(account->used[CSTD_QUOTA_FILES], 1);
    cstd_remains_look(&remains);
    ck_assert_uint_eq(budget.used, BYTES);
    ck_assert_int_eq(cstd_segment_open(&segment, 8, BYTES, &budget, account, "y", &err),
                     CST_EBUDGET);
    (void)close(fd);
    remains.took_ns = 0; /* As if checks took no time. */
    ck_assert_int_eq(cstd_segment_open(&segment, 8, BYTES, &budget, account, "y", &err), CST_OK);
    ck_assert_uint_eq(remains.n, 0);
    cstd_segment_unref(segment);
    ck_assert_uint_eq(account->used[CSTD_QUOTA_HOST], 0);
    ck_assert_uint_eq(account->used[CSTD_QUOTA_FILES], 0);
    cstd_quota_unref(account);
}
END_TEST

/* A descriptor that was passed to another process counts like any other. */
START_TEST(another_process_has_it)
{
    int fd, ends[2], status;
    struct cstd_segment *segment = make(&fd);
    char byte;
    pid_t pid;

    ck_assert_int_eq(pipe(ends), 0);
    pid = fork();
    /* The child keeps fd until it is told to end, and closes what the daemon has, as exec would. */
    if (pid == 0) {
        (void)close(ends[1]);
        (void)close(segment->fd);
        (void)close(segment->worker_fd);
        _exit(read(ends[0], &byte, 1) != 0);
    }
    (void)close(fd);
    cstd_segment_unref(segment);
    cstd_remains_look(&remains);
    ck_assert_uint_eq(remains.n, 1);
    (void)close(ends[0]);
    (void)close(ends[1]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    cstd_remains_look(&remains);
    ck_assert_uint_eq(remains.n, 0);
}
END_TEST

/* A timer looks at the remains as long as there are some. */
START_TEST(it_is_looked_after)
{
    int fd;
    struct cstd_segment *segment = make(&fd);

    cstd_segment_unref(segment);
    ck_assert(uv_is_active((uv_handle_t *)&remains.timer));
    uv_ref((uv_handle_t *)&remains.timer); /* the timer alone does not keep the loop running */
    (void)close(fd);
    (void)uv_run(&loop, UV_RUN_DEFAULT); /* runs until the timer stops */
    ck_assert_uint_eq(remains.n, 0);
    uv_unref((uv_handle_t *)&remains.timer);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("remains");
    TCase *tc = suite_case(suite, "remains", setup, teardown);

    tcase_add_loop_test(tc, nobody_has_it, 0, 2);
    tcase_add_test(tc, it_is_empty);
    tcase_add_test(tc, what_comes_back_is_charged);
    tcase_add_test(tc, beyond_the_budget);
    tcase_add_test(tc, the_whole_file_is_charged);
    tcase_add_test(tc, another_process_has_it);
    tcase_add_test(tc, it_is_looked_after);
    return suite_run(suite);
}
