/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cgroup.h"
#include "tests/lib/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];
static char group[CST_CGROUP_BYTES];

/* Let process 7 have @lines in /proc/7/cgroup. */
static void write_lines(const char *lines)
{
    char path[128];
    FILE *file;

    (void)strcpy(root, "/tmp/cistern-cgroup-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    (void)snprintf(path, sizeof path, "%s/proc", root);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/proc/7", root);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/proc/7/cgroup", root);
    file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(lines, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void remove_lines(void)
{
    static const char *const parts[] = {"/proc/7/cgroup", "/proc/7", "/proc", ""};
    char path[128];

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        (void)snprintf(path, sizeof path, "%s%s", root, parts[i]);
        ck_assert_int_eq(remove(path), 0);
    }
}

static void assert_group(const char *lines, const char *want)
{
    write_lines(lines);
    ck_assert_int_eq(cst_cgroup_of(root, 7, group), want != NULL);
    if (want != NULL) {
        ck_assert_str_eq(group, want);
    }
    remove_lines();
}

/* The group is that of version 2, or that of the memory controller if version 1 has it. */
START_TEST(the_group_of_memory)
{
    assert_group("0::/system.slice/cisternd.service\n", "/system.slice/cisternd.service");
    assert_group("5:cpu:/c\n4:cpuset,memory:/m\n1:name=systemd:/s\n0::/\n", "/m");
    assert_group("2:cpu:/c\n0::/v2\n", "/v2");
    assert_group("2:memory_recursive:/c\n", NULL);
    assert_group("nonsense\n:\n", NULL);
    assert_group("", NULL);
}
END_TEST

/* A process that is not there has no group, and this one has one where there are any. */
START_TEST(processes)
{
    ck_assert(!cst_cgroup_of("/nowhere", 7, group));
    ck_assert(cst_cgroup_of("", 0, group) == cst_cgroup_of("", (int)getpid(), group));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cgroup");
    TCase *tc = suite_case(suite, "cgroup", NULL, NULL);

    tcase_add_test(tc, the_group_of_memory);
    tcase_add_test(tc, processes);
    return suite_run(suite);
}
