/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/base/keeper and kept_name: what the service manager's store holds, and under
 * which names. */
#include "daemon/base/keeper.h"
#include "daemon/base/notify.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LIMIT = 16384, MAX_STRING = 128 << 10 };

static struct cstd_notify notify = {.fd = -1};

/* With --wrap the linker redirects all calls. */
void *__real_reallocarray(void *p, size_t n, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size);

static int fail_in = -1; /* number of allocations until all fail; negative: none fails */

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
    if (fail_in == 0) {
        return NULL;
    }
    fail_in -= fail_in > 0;
    return __real_reallocarray(p, n, size);
}

static void free_keeper(struct cstd_keeper *keeper)
{
    free(keeper->stored);
    free(keeper->fds);
    free(keeper->kept);
}

static void open_keeper(struct cstd_keeper *keeper, const char *limit)
{
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", "@none", 1), 0);
    ck_assert_int_eq(setenv("FDSTORE", limit, 1), 0);
    cstd_keeper_init(keeper, &notify);
}

static void assert_names(const struct cstd_kept_name *name, const char *brief, const char *full)
{
    char text[CSTD_KEPT_NAME_BYTES];
    struct cstd_kept_name read;
    bool is_long;

    ck_assert_str_eq(cstd_kept_name_write(name, false, text), brief);
    ck_assert(cstd_kept_name_is_one(text) && cstd_kept_name_read(text, &read, &is_long));
    ck_assert(!is_long && cstd_kept_name_same(&read, name));
    ck_assert_str_eq(cstd_kept_name_write(name, true, text), full);
    ck_assert(cstd_kept_name_is_one(text) && cstd_kept_name_read(text, &read, &is_long));
    ck_assert(is_long && cstd_kept_name_same(&read, name));
}

/* Each name is read as it was written, short and as earlier versions wrote it. */
START_TEST(names_are_read_again)
{
    assert_names(&(struct cstd_kept_name){.kind = CSTD_KEPT_LEDGER, .serial = 1}, "!1",
                 "kept-ledger-1");
    assert_names(&(struct cstd_kept_name){.kind = CSTD_KEPT_HOST, .serial = 260}, "+4C",
                 "kept-job-260");
    assert_names(&(struct cstd_kept_name){.kind = CSTD_KEPT_HOST, .serial = UINT64_MAX},
                 "+LygHa16AHYF", "kept-job-18446744073709551615");
    assert_names(&(struct cstd_kept_name){.kind = CSTD_KEPT_DEVICE, .serial = 3, .i = 61}, "=3-z",
                 "kept-device-3-61");
    assert_names(&(struct cstd_kept_name){.kind = CSTD_KEPT_SLAB, .serial = 9, .i = 1, .k = 62},
                 "~9-1-10", "kept-slab-9-1-62");
    assert_names(&(struct cstd_kept_name){.kind = CSTD_KEPT_TRAFFIC, .k = UINT32_MAX}, "%4gfFC3",
                 "kept-traffic-4294967295");
    assert_names(&(struct cstd_kept_name){.kind = CSTD_KEPT_UNDO, .i = 0, .k = 7}, "#0-7",
                 "kept-undo-0-7");
}
END_TEST

/* What is not a name that this version writes is not taken for one, and no socket's name is. */
START_TEST(other_names_are_refused)
{
    static const char *const broken[] = {"+",           "+0",         "+1-2",   "=1",
                                         "+4gfFC3x!",   "?1",         "kept-1", "kept-job",
                                         "kept-job-1x", "kept-job-0", "~1-2",   "+zzzzzzzzzzzzzzz"};
    struct cstd_kept_name name;
    bool is_long;

    for (unsigned i = 0; i < sizeof broken / sizeof *broken; i++) {
        ck_assert_msg(!cstd_kept_name_read(broken[i], &name, &is_long), "%s", broken[i]);
        ck_assert_msg(cstd_kept_name_is_one(broken[i]), "%s", broken[i]);
        ck_assert_int_eq(name.kind, CSTD_KEPT_UNKNOWN);
    }
    ck_assert(!cstd_kept_name_is_one("cisternd.socket") && !cstd_kept_name_is_one("manager"));
    ck_assert(!cstd_kept_name_is_one("unknown") && !cstd_kept_name_is_one(""));
}
END_TEST

/* All descriptors that the unit allows have names that the kernel passes on in one string, also for
 * the jobs of many years. One more is refused with numbers, before the store refuses it. */
START_TEST(all_descriptors_fit)
{
    const struct cstd_kept_name name = {.kind = CSTD_KEPT_HOST, .serial = 900000000},
                                ledger = {.kind = CSTD_KEPT_LEDGER, .serial = 900000000};
    int *fds = calloc(LIMIT, sizeof *fds);
    struct cstd_keeper keeper;
    struct cst_err err = {0};

    open_keeper(&keeper, "16384");
    ck_assert_int_eq(cstd_keeper_check(&keeper, &name, LIMIT, &err), CST_OK);
    ck_assert_int_eq(cstd_keeper_store(&keeper, &name, fds, LIMIT - 1, false, &err), CST_OK);
    ck_assert_int_eq(cstd_keeper_check(&keeper, &ledger, 1, &err), CST_OK);
    ck_assert_int_eq(cstd_keeper_store(&keeper, &ledger, fds, 1, false, &err), CST_OK);
    ck_assert_uint_lt(keeper.name_bytes + 1024, MAX_STRING);
    ck_assert_int_eq(cstd_keeper_check(&keeper, &name, 1, &err), CST_EBUDGET);
    ck_assert_msg(strstr(err.text, "16384 of 16384") != NULL, "%s", err.text);
    cstd_keeper_forget(&keeper, &name);
    ck_assert_uint_eq(keeper.n_used, 1);
    cstd_keeper_forget(&keeper, &ledger);
    ck_assert_uint_eq(keeper.name_bytes, 0);
    free_keeper(&keeper);
    free(fds);
}
END_TEST

/* A larger store is limited by the names. */
START_TEST(names_are_a_limit)
{
    const struct cstd_kept_name name = {.kind = CSTD_KEPT_HOST, .serial = 900000000};
    int *fds = calloc(40000, sizeof *fds);
    struct cstd_keeper keeper;
    struct cst_err err = {0};

    open_keeper(&keeper, "65536");
    ck_assert_int_eq(cstd_keeper_check(&keeper, &name, 18000, &err), CST_OK);
    ck_assert_int_eq(cstd_keeper_store(&keeper, &name, fds, 18000, false, &err), CST_OK);
    ck_assert_int_eq(cstd_keeper_check(&keeper, &name, 1000, &err), CST_EBUDGET);
    ck_assert_msg(strstr(err.text, "names") != NULL, "%s", err.text);
    free_keeper(&keeper);
    free(fds);
}
END_TEST

static int make_file(uint64_t *inode)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    struct stat st;

    ck_assert_int_eq(fstat(fd, &st), 0);
    *inode = st.st_ino;
    return fd;
}

/* Descriptors of an earlier version are found under their names, and count until they are removed,
 * whether a job goes on with them or not. */
START_TEST(inherited_descriptors_count)
{
    const struct cstd_kept_name name = {.kind = CSTD_KEPT_HOST, .serial = 12},
                                other = {.kind = CSTD_KEPT_HOST, .serial = 13};
    struct cstd_keeper keeper;
    struct cst_err err = {0};
    uint64_t inodes[3];
    int fds[3];

    open_keeper(&keeper, "4");
    for (int i = 0; i < 3; i++) {
        fds[i] = make_file(&inodes[i]);
        ck_assert_int_eq(cstd_keeper_inherit(&keeper, i < 2 ? "kept-job-12" : "+D", fds[i], &err),
                         CST_OK);
    }
    ck_assert_int_eq(cstd_keeper_inherit(&keeper, "?1", dup(fds[0]), &err), CST_EVERSION);
    ck_assert_uint_eq(keeper.n_used, 3);
    ck_assert_uint_eq(keeper.name_bytes, 2 * sizeof "kept-job-12" + sizeof "+D");
    ck_assert_int_eq(cstd_keeper_check(&keeper, &name, 2, &err), CST_EBUDGET);
    ck_assert_int_eq(cstd_keeper_take(&keeper, &name, inodes[2]), -1);
    for (int i = 1; i >= 0; i--) {
        ck_assert_int_eq(cstd_keeper_take(&keeper, &name, inodes[i]), fds[i]);
        ck_assert_int_eq(cstd_keeper_take(&keeper, &name, inodes[i]), -1);
    }
    ck_assert_int_eq(cstd_keeper_store(&keeper, &name, fds, 2, true, &err), CST_OK);
    ck_assert_uint_eq(keeper.n_used, 3);
    cstd_keeper_forget(&keeper, &name);
    ck_assert_uint_eq(keeper.n_used, 1);
    cstd_keeper_forget(&keeper, &other);
    ck_assert_uint_eq(keeper.n_used, 0);
    ck_assert_uint_eq(keeper.name_bytes, 0);
    cstd_keeper_close(&keeper);
    (void)close(fds[0]);
    (void)close(fds[1]);
    free_keeper(&keeper);
}
END_TEST

/* Jobs that go on own their memory, which ends with them, as soon as it is stored: all of it is, or
 * nothing. Storing what was inherited cannot fail after a reservation, and a reservation that fails
 * leaves everything as it was. _i: number of the allocation that fails. */
START_TEST(inherited_descriptors_have_room)
{
    const struct cstd_kept_name host = {.kind = CSTD_KEPT_HOST, .serial = 12},
                                ledger = {.kind = CSTD_KEPT_LEDGER, .serial = 12};
    struct cstd_keeper keeper;
    struct cst_err err = {0};
    int fds[] = {dup(0), dup(0), dup(0)};

    open_keeper(&keeper, "4");
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(cstd_keeper_inherit(&keeper, i < 2 ? "+C" : "!C", fds[i], &err), CST_OK);
    }
    fail_in = _i;
    if (_i < 2) {
        ck_assert_int_eq(cstd_keeper_reserve(&keeper, 3, &err), CST_ENOMEM);
        ck_assert_uint_eq(keeper.n_stored, 0);
        ck_assert_uint_eq(keeper.n_used, 3);
    } else {
        ck_assert_int_eq(cstd_keeper_reserve(&keeper, 3, &err), CST_OK);
        ck_assert_int_eq(cstd_keeper_store(&keeper, &host, fds, 2, true, &err), CST_OK);
        ck_assert_int_eq(cstd_keeper_store(&keeper, &ledger, fds + 2, 1, true, &err), CST_OK);
        ck_assert_uint_eq(keeper.n_used, 3);
        ck_assert(cstd_keeper_has(&keeper, &ledger));
        ck_assert_int_eq(cstd_keeper_store(&keeper, &host, fds, 1, true, &err), CST_ENOMEM);
        ck_assert_uint_eq(keeper.n_stored, 3);
    }
    fail_in = -1;
    cstd_keeper_close(&keeper);
    free_keeper(&keeper);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("keeper");
    TCase *tcase = suite_case(suite, "keeper", NULL, NULL);

    tcase_add_test(tcase, names_are_read_again);
    tcase_add_test(tcase, other_names_are_refused);
    tcase_add_test(tcase, all_descriptors_fit);
    tcase_add_test(tcase, names_are_a_limit);
    tcase_add_test(tcase, inherited_descriptors_count);
    tcase_add_loop_test(tcase, inherited_descriptors_have_room, 0, 3);
    return suite_run(suite);
}
