/* Memory that may be used: the least of the machine's and of the limits of the control groups that
 * the process lies in. */
#include "daemon/machine.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/check_machine.XXXXXX";

static void make_dir(const char *name)
{
    char path[256];

    (void)snprintf(path, sizeof path, "%s%s", root, name);
    ck_assert_int_eq(mkdir(path, 0700), 0);
}

static void write_file(const char *name, const char *words)
{
    char path[256];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s%s", root, name);
    file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(words, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void set_up(void)
{
    ck_assert_ptr_nonnull(mkdtemp(root));
    make_dir("/proc");
    make_dir("/proc/self");
    make_dir("/sys");
    make_dir("/sys/fs");
    make_dir("/sys/fs/cgroup");
    make_dir("/sys/fs/cgroup/system.slice");
    make_dir("/sys/fs/cgroup/system.slice/cisternd.service");
}

static void tear_down(void)
{
    char command[64];

    (void)snprintf(command, sizeof command, "rm -rf %s", root);
    ck_assert_int_eq(system(command), 0);
}

/* Without control groups, and with those that allow everything, it is the machine's. */
START_TEST(no_limit_is_the_machine)
{
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

    ck_assert_uint_eq(cst_machine_memory(root), machine);
    write_file("/proc/self/cgroup", "4:memory:/old\n0::/system.slice/cisternd.service\n");
    ck_assert_uint_eq(cst_machine_memory(root), machine);
    write_file("/sys/fs/cgroup/system.slice/cisternd.service/memory.max", "max\n");
    ck_assert_uint_eq(cst_machine_memory(root), machine);
    write_file("/proc/self/cgroup", "0::/\n");
    ck_assert_uint_eq(cst_machine_memory(root), machine);
}
END_TEST

/* The limit of a group further up holds as well; the least counts. */
START_TEST(the_least_limit_counts)
{
    write_file("/proc/self/cgroup", "0::/system.slice/cisternd.service\n");
    write_file("/sys/fs/cgroup/system.slice/memory.max", "1073741824\n");
    ck_assert_uint_eq(cst_machine_memory(root), 1073741824u);
    write_file("/sys/fs/cgroup/system.slice/cisternd.service/memory.max", "536870912\n");
    ck_assert_uint_eq(cst_machine_memory(root), 536870912u);
    write_file("/sys/fs/cgroup/system.slice/cisternd.service/memory.max", "2147483648\n");
    ck_assert_uint_eq(cst_machine_memory(root), 1073741824u);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("machine");
    TCase *tc = tcase_create("memory");

    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, no_limit_is_the_machine);
    tcase_add_test(tc, the_least_limit_counts);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
