/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/budget/arena: budgets and sealed segments. */
#include "daemon/budget/arena.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static struct cstd_budget budget;
static struct cst_err err;
static unsigned n_gone;

static void setup(void)
{
    budget =
        (struct cstd_budget){.name = "host memory", .key = "memory in [host]", .limit = 100000};
    err = (struct cst_err){0};
    n_gone = 0;
}

static void on_gone(struct cstd_segment *segment)
{
    ck_assert_uint_eq(segment->n_refs, 0);
    n_gone++;
}

/* A budget is charged to the byte. A charge that exceeds the budget is refused with the budget's
 * name and all numbers, and charges nothing. */
START_TEST(a_budget_is_kept_to_the_byte)
{
    ck_assert_int_eq(cstd_budget_take(&budget, NULL, 60000, "a", &err), CST_OK);
    ck_assert_int_eq(cstd_budget_take(&budget, NULL, 40001, "job 'b'", &err), CST_EBUDGET);
    ck_assert_str_eq(
        err.text, "host memory: job 'b' wants 39.1 KiB (40001 bytes), 58.6 KiB of 97.7 KiB are in "
                  "use: 1 bytes short (memory in [host])");
    ck_assert_uint_eq(budget.used, 60000);
    ck_assert_int_eq(cstd_budget_take(&budget, NULL, 40000, "c", &err), CST_OK);
    cstd_budget_give(&budget, NULL, 60000);
    ck_assert_uint_eq(budget.used, 40000);
    ck_assert_int_eq(cstd_budget_take(&budget, NULL, UINT64_MAX, "d", &err), CST_EBUDGET);
    ck_assert_uint_eq(budget.used, 40000);
}
END_TEST

/* A segment can be neither shrunk nor grown nor sealed further, and only the uid of its owner can
 * open it. */
START_TEST(a_segment_is_sealed)
{
    struct cstd_segment *segment;
    struct stat st;

    ck_assert_int_eq(cstd_segment_open(&segment, 7, 8192, &budget, NULL, "x", &err), CST_OK);
    ck_assert_int_eq(fstat(segment->fd, &st), 0);
    ck_assert_int_eq(st.st_size, 8192);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    ck_assert_int_eq(fcntl(segment->fd, F_GETFD), FD_CLOEXEC);
    ck_assert_int_eq(ftruncate(segment->fd, 4096), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(ftruncate(segment->fd, 16384), -1);
    ck_assert_int_eq(fcntl(segment->fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    cstd_segment_unref(segment);
}
END_TEST

/* A segment can be mapped for writing more than once, because a later engine must be able to map
 * it. */
START_TEST(a_segment_can_be_mapped_again)
{
    struct cstd_segment *segment;
    char *first, *second;

    ck_assert_int_eq(cstd_segment_open(&segment, 7, 4096, NULL, NULL, "x", &err), CST_OK);
    first = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd, 0);
    second = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd, 0);
    ck_assert(first != MAP_FAILED && second != MAP_FAILED);
    first[100] = 'x';
    ck_assert_int_eq(second[100], 'x');
    (void)munmap(first, 4096);
    (void)munmap(second, 4096);
    cstd_segment_unref(segment);
}
END_TEST

/* A segment is charged to its budget until its last reference is dropped. The owner is then
 * told. */
START_TEST(a_segment_is_charged_to_the_last_reference)
{
    struct cstd_segment *segment;
    int fd;

    ck_assert_int_eq(cstd_segment_open(&segment, 7, 50000, &budget, NULL, "x", &err), CST_OK);
    segment->on_gone = on_gone;
    fd = segment->fd;
    cstd_segment_ref(segment);
    cstd_segment_unref(segment);
    ck_assert_uint_eq(budget.used, 50000);
    ck_assert_uint_eq(n_gone, 0);
    cstd_segment_unref(segment);
    ck_assert_uint_eq(budget.used, 0);
    ck_assert_uint_eq(n_gone, 1);
    ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
}
END_TEST

/* A segment that cannot be made charges nothing and leaves no descriptor open. */
START_TEST(failure_leaves_nothing)
{
    struct cstd_segment *segment = NULL;
    struct rlimit limit, none;

    ck_assert_int_eq(cstd_segment_open(&segment, 7, 0, &budget, NULL, "x", &err), CST_EINVAL);
    ck_assert_int_eq(cstd_segment_open(&segment, 7, UINT64_MAX, &budget, NULL, "x", &err),
                     CST_EINVAL);
    ck_assert_int_eq(cstd_segment_open(&segment, 7, 100001, &budget, NULL, "x", &err), CST_EBUDGET);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 3;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    ck_assert_int_eq(cstd_segment_open(&segment, 7, 100, &budget, NULL, "x", &err), CST_ENOMEM);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_ptr_null(segment);
    ck_assert_uint_eq(budget.used, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("arena");
    TCase *tc = suite_case(suite, "arena", setup, NULL);

    tcase_add_test(tc, a_budget_is_kept_to_the_byte);
    tcase_add_test(tc, a_segment_is_sealed);
    tcase_add_test(tc, a_segment_can_be_mapped_again);
    tcase_add_test(tc, a_segment_is_charged_to_the_last_reference);
    tcase_add_test(tc, failure_leaves_nothing);
    return suite_run(suite);
}
