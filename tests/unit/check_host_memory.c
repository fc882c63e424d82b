/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/budget/host_memory: usable memory is the minimum of the machine's memory and the
 * limits of the process's control groups. */
#include "daemon/budget/host_memory.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/check_host_memory.XXXXXX";

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
    make_dir("/sys/fs/cgroup/memory");
    make_dir("/sys/fs/cgroup/memory/jobs");
    make_dir("/sys/fs/cgroup/memory/jobs/7");
    make_dir("/sys/fs/cgroup/unified");
}

static void tear_down(void)
{
    char command[64];

    (void)snprintf(command, sizeof command, "rm -rf %s", root);
    ck_assert_int_eq(system(command), 0);
}

/* Without control groups, and with groups that set no limit, it is the machine's memory. */
START_TEST(no_limit_is_the_machine)
{
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

    ck_assert_uint_eq(cstd_host_memory_memory(root), machine);
    write_file("/proc/self/cgroup", "4:memory:/old\n0::/system.slice/cisternd.service\n");
    ck_assert_uint_eq(cstd_host_memory_memory(root), machine);
    write_file("/sys/fs/cgroup/system.slice/cisternd.service/memory.max", "max\n");
    ck_assert_uint_eq(cstd_host_memory_memory(root), machine);
    write_file("/proc/self/cgroup", "0::/\n");
    ck_assert_uint_eq(cstd_host_memory_memory(root), machine);
}
END_TEST

/* The limit of a parent group applies as well; the smallest limit counts. */
START_TEST(the_least_limit_counts)
{
    write_file("/proc/self/cgroup", "0::/system.slice/cisternd.service\n");
    write_file("/sys/fs/cgroup/system.slice/memory.max", "1073741824\n");
    ck_assert_uint_eq(cstd_host_memory_memory(root), 1073741824u);
    write_file("/sys/fs/cgroup/system.slice/cisternd.service/memory.max", "536870912\n");
    ck_assert_uint_eq(cstd_host_memory_memory(root), 536870912u);
    write_file("/sys/fs/cgroup/system.slice/cisternd.service/memory.max", "2147483648\n");
    ck_assert_uint_eq(cstd_host_memory_memory(root), 1073741824u);
}
END_TEST

/* The limits of version 1 count, whatever the order of the hierarchies and the names next to
 * "memory". */
START_TEST(version_1_counts)
{
    struct cstd_host_memory_limit limit;

    write_file("/proc/self/cgroup", _i == 0 ? "9:name=systemd:/x\n4:memory:/jobs/7\n0::/\n"
                                            : "0::/\n4:cpuset,memory:/jobs/7\n");
    write_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write_file("/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "1073741824\n");
    write_file("/sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "9223372036854771712\n");
    ck_assert_uint_eq(cstd_host_memory_memory(root), 1073741824u);
    write_file("/sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "104857600\n");
    ck_assert(cstd_host_memory_limit(root, &limit));
    ck_assert_uint_eq(limit.bytes, 104857600u);
    ck_assert_msg(strstr(limit.file, "/memory/jobs/7/memory.limit_in_bytes") != NULL, "%s",
                  limit.file);
    /* No hierarchy of this line limits memory. */
    write_file("/proc/self/cgroup", "4:cpu:/jobs/7\n5:memoryless:/jobs/7\n");
    ck_assert(!cstd_host_memory_limit(root, &limit));
}
END_TEST

/* In a container the top of the hierarchy is the container's own group, and the process's path may
 * lie outside of it. Version 2 may exist next to version 1. */
START_TEST(containers)
{
    write_file("/proc/self/cgroup", "4:memory:/docker/0123\n0::/docker/0123\n");
    write_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    ck_assert_uint_eq(cstd_host_memory_memory(root), 1073741824u);
    write_file("/sys/fs/cgroup/memory.max", "536870912\n");
    ck_assert_uint_eq(cstd_host_memory_memory(root), 536870912u);
    write_file("/sys/fs/cgroup/unified/memory.max", "268435456\n");
    ck_assert_uint_eq(cstd_host_memory_memory(root), 268435456u);
}
END_TEST

/* A limit that is lowered is seen at the next call. */
START_TEST(a_lowered_limit_is_seen)
{
    write_file("/proc/self/cgroup", "0::/system.slice\n");
    write_file("/sys/fs/cgroup/system.slice/memory.max", "max\n");
    ck_assert_uint_gt(cstd_host_memory_memory(root), 104857600u);
    write_file("/sys/fs/cgroup/system.slice/memory.max", "104857600\n");
    ck_assert_uint_eq(cstd_host_memory_memory(root), 104857600u);
}
END_TEST

/* Malformed lines, and paths that are too long, are ignored. */
START_TEST(nonsense_is_passed_over)
{
    static char words[8000];

    memset(words, 'x', sizeof words - 1);
    memcpy(words, "0::/", 4);
    write_file("/proc/self/cgroup", words);
    ck_assert_uint_gt(cstd_host_memory_memory(root), 0);
    write_file("/proc/self/cgroup", "\n:\n::\n4:memory\n4:memory:relative\n0::");
    ck_assert_uint_gt(cstd_host_memory_memory(root), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("host_memory");
    TCase *tc = suite_case(suite, "memory", set_up, tear_down);

    tcase_add_test(tc, no_limit_is_the_machine);
    tcase_add_test(tc, the_least_limit_counts);
    tcase_add_loop_test(tc, version_1_counts, 0, 2);
    tcase_add_test(tc, containers);
    tcase_add_test(tc, a_lowered_limit_is_seen);
    tcase_add_test(tc, nonsense_is_passed_over);
    return suite_run(suite);
}
