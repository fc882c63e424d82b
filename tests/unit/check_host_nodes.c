/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/host_nodes on machines that hwloc reads from descriptions. */
#include "proto/host_nodes.h"
#include "daemon/budget/host_memory.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GIB ((uint64_t)1 << 30)

static struct cst_host_nodes nodes;
static struct cst_err err;

/* Path of the description of a machine of two processors and two GPUs, whose memories are nodes. */
static void name_superchips(char *path, size_t n)
{
    const char *top = getenv("srcdir");

    (void)snprintf(path, n, "%s/tests/lib/superchips.xml", top != NULL ? top : ".");
}

/* Open the machine @synthetic (hwloc's notation) or, if that is NULL, superchips.xml. */
static void open_machine(const char *synthetic, enum cst_host_nodes_detail detail)
{
    char path[512];

    name_superchips(path, sizeof path);
    if (synthetic != NULL) {
        (void)setenv("HWLOC_SYNTHETIC", synthetic, 1);
    } else {
        (void)setenv("HWLOC_XMLFILE", path, 1);
    }
    ck_assert_int_eq(cst_host_nodes_open(&nodes, detail, &err), CST_OK);
}

/* Assert that the host nodes are the @n in @numbers. */
static void expect(unsigned n, const unsigned *numbers)
{
    ck_assert_uint_eq(nodes.n, n);
    for (unsigned i = 0; i < n; i++) {
        ck_assert_uint_eq(nodes.v[i].os_index, numbers[i]);
    }
    cst_host_nodes_close(&nodes);
}

/* A node with processors and memory is a host node. */
START_TEST(test_ordinary)
{
    open_machine("pack:2 [numa(memory=4GiB)] core:4 pu:2", CST_HOST_NODES_ONLY);
    ck_assert_uint_eq(nodes.others_bytes, 0);
    ck_assert_uint_gt(nodes.v[1].memory_bytes, 4000000000u);
    expect(2, (unsigned[]){0, 1});
}
END_TEST

/* Each package has a second node, whose processors are the first one's, such as one of HBM. */
START_TEST(test_second_memory)
{
    open_machine("pack:2 [numa(memory=4GiB)] [numa(memory=1GiB)] core:4 pu:1", CST_HOST_NODES_ONLY);
    ck_assert_uint_gt(nodes.others_bytes, 2000000000u);
    ck_assert_uint_lt(nodes.others_bytes, 3000000000u);
    expect(2, (unsigned[]){0, 2});
}
END_TEST

/* If hwloc does not know the memory of any node, all nodes with processors are host nodes. */
START_TEST(test_unknown_memory)
{
    open_machine("pack:2 [numa(memory=0)] core:4 pu:1", CST_HOST_NODES_ONLY);
    expect(2, (unsigned[]){0, 1});
}
END_TEST

/* A processor next to which no memory is plugged in. */
START_TEST(test_no_memory)
{
    static const char bytes[] = "8589934592";
    char path[512], text[16384], copy[] = "/tmp/check_host_nodes.XXXXXX", *at;
    FILE *file;
    size_t n;

    name_superchips(path, sizeof path);
    file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    n = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[n] = '\0';
    /* The second processor's memory. */
    at = strstr(strstr(text, bytes) + 1, bytes);
    memset(at, '0', strlen(bytes));
    file = fdopen(mkstemp(copy), "we");
    ck_assert_uint_eq(fwrite(text, 1, n, file), n);
    ck_assert_int_eq(fclose(file), 0);
    (void)setenv("HWLOC_XMLFILE", copy, 1);
    ck_assert_int_eq(cst_host_nodes_open(&nodes, CST_HOST_NODES_WITH_DEVICES, &err), CST_OK);
    (void)unlink(copy);
    /* The only host node that is left is the nearest one of both GPUs. */
    ck_assert_int_eq(cst_host_nodes_nearest(&nodes, "ffff:01:00.0"), 0);
    ck_assert_int_eq(cst_host_nodes_nearest(&nodes, "ffff:02:00.0"), 0);
    expect(1, (unsigned[]){0});
}
END_TEST

/* The memory of GPUs is in nodes without processors, which hwloc shows next to all processors. */
START_TEST(test_gpu_memory)
{
    open_machine(NULL, CST_HOST_NODES_ONLY);
    ck_assert_uint_eq(nodes.others_bytes, 2 * GIB);
    ck_assert_uint_eq(nodes.v[0].memory_bytes, 8 * GIB);
    expect(2, (unsigned[]){0, 1});
}
END_TEST

/* The memory of GPUs is not counted as host memory. */
START_TEST(test_budget)
{
    uint64_t all;

    (void)setenv("HWLOC_SYNTHETIC", "numa:1 core:2 pu:1", 1);
    all = cstd_host_memory_memory("/nonexistent");
    ck_assert_int_eq(unsetenv("HWLOC_SYNTHETIC"), 0);
    open_machine(NULL, CST_HOST_NODES_ONLY);
    cst_host_nodes_close(&nodes);
    ck_assert_uint_eq(cstd_host_memory_memory("/nonexistent"), all - 2 * GIB);
}
END_TEST

/* The nearest host node is that of the smallest part of the machine around the GPU. */
START_TEST(test_nearest)
{
    open_machine(NULL, CST_HOST_NODES_WITH_DEVICES);
    ck_assert_int_eq(cst_host_nodes_nearest(&nodes, "FFFF:01:00.0"), 1);
    ck_assert_int_eq(cst_host_nodes_nearest(&nodes, "ffff:02:00.0"), 0);
    ck_assert_int_eq(cst_host_nodes_nearest(&nodes, "ffff:03:00.0"), -1);
    ck_assert_int_eq(cst_host_nodes_nearest(&nodes, "nonsense"), -1);
    cst_host_nodes_close(&nodes);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("host_nodes");
    TCase *tcase = suite_case(suite, "host_nodes", NULL, NULL);

    tcase_add_test(tcase, test_ordinary);
    tcase_add_test(tcase, test_second_memory);
    tcase_add_test(tcase, test_unknown_memory);
    tcase_add_test(tcase, test_no_memory);
    tcase_add_test(tcase, test_gpu_memory);
    tcase_add_test(tcase, test_budget);
    tcase_add_test(tcase, test_nearest);
    return suite_run(suite);
}
