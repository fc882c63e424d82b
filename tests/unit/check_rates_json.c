/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of rates in files: a file is read as it was written, the rates of several engines are
 * combined, and errors are reported with their place. */
#include "proto/fingerprint.h"
#include "proto/rates_json.h"
#include "tests/lib/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int add(struct cst_rates *rates, const char *text, struct cst_err *err)
{
    json_t *root = json_loads(text, 0, NULL);
    int rc;

    ck_assert_ptr_nonnull(root);
    rc = cst_rates_add_json(rates, root, err);
    json_decref(root);
    return rc;
}

/* Every field is kept in a file, in a directory that the writer creates. */
START_TEST(test_round_trip)
{
    char directory[] = "/tmp/cistern-check.XXXXXX", inner[64], path[96];
    struct cst_rates rates = {
        .fingerprint = "0123abcd",
        .n_devices = 1,
        .devices = {{"NVIDIA H200", 1ull << 37, 1e9, 2e9, 3e9, 4e9, 5e-6, 6e9, 7e14, 8e10, 9e12,
                     1e13}},
        .n_nodes = 2,
        .nodes = {{2, 1ull << 34, 1e10, 2e9, 3e9, 4e9, 1e11},
                  {4, 1ull << 35, 5e10, 6e9, 7e9, 8e9, 2e11}},
        .disk_read = 2.5e9,
        .disk_write = 1.5e9,
        .disk_mixed = 1.75e9,
        .disk_flush_s = 3e-3,
        .request_s = 1.25e-5,
    };
    struct cst_rates again;
    struct cst_err err = {0};

    ck_assert_ptr_nonnull(mkdtemp(directory));
    (void)snprintf(inner, sizeof inner, "%s/new", directory);
    (void)snprintf(path, sizeof path, "%s/rates.json", inner);
    ck_assert_int_eq(cst_rates_write(&rates, path, &err), CST_OK);
    ck_assert_msg(cst_rates_read(&again, path, &err) == CST_OK, "%s", err.text);
    ck_assert_str_eq(again.fingerprint, rates.fingerprint);
    ck_assert_uint_eq(again.n_devices, 1);
    ck_assert_mem_eq(&again.devices[0], &rates.devices[0], sizeof rates.devices[0]);
    ck_assert_uint_eq(again.n_nodes, 2);
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_uint_eq(again.nodes[i].cores, rates.nodes[i].cores);
        ck_assert_uint_eq(again.nodes[i].memory_bytes, rates.nodes[i].memory_bytes);
        ck_assert_double_eq(again.nodes[i].pass, rates.nodes[i].pass);
        ck_assert_double_eq(again.nodes[i].update, rates.nodes[i].update);
        ck_assert_double_eq(again.nodes[i].reduce, rates.nodes[i].reduce);
        ck_assert_double_eq(again.nodes[i].copy, rates.nodes[i].copy);
        ck_assert_double_eq(again.nodes[i].products, rates.nodes[i].products);
    }
    ck_assert_double_eq(again.disk_read, 2.5e9);
    ck_assert_double_eq(again.disk_write, 1.5e9);
    ck_assert_double_eq(again.disk_mixed, 1.75e9);
    ck_assert_double_eq(again.disk_flush_s, 3e-3);
    ck_assert_double_eq(again.request_s, 1.25e-5);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(inner), 0); /* no other file is left */
    ck_assert_int_eq(rmdir(directory), 0);
}
END_TEST

/* Without a measurement of reads and writes at once, a drive does no more of them than of one kind.
 */
START_TEST(test_mixed)
{
    struct cst_rates rates = {.disk_read = 3e9, .disk_write = 2e9};

    ck_assert_double_eq(cst_rates_mixed(&rates), 2e9);
    rates.disk_read = 1e9;
    ck_assert_double_eq(cst_rates_mixed(&rates), 1e9);
    rates.disk_mixed = 2.5e9;
    ck_assert_double_eq(cst_rates_mixed(&rates), 2.5e9);
}
END_TEST

/* The rates of several engines are combined into one set. A failure changes nothing. */
START_TEST(test_add)
{
    struct cst_rates rates = {.n_nodes = 0};
    struct cst_err err = {0};

    ck_assert_int_eq(add(&rates, "{\"nodes\": [{\"cores\": 2, \"update\": 1e9}]}", &err), CST_OK);
    ck_assert_int_eq(add(&rates, "{\"devices\": [{\"name\": \"a\"}, {\"name\": \"b\"}]}", &err),
                     CST_OK);
    ck_assert_int_eq(add(&rates, "{\"nodes\": [{\"cores\": 3}], \"request_s\": 1e-5}", &err),
                     CST_OK);
    ck_assert_int_eq(add(&rates, "{\"nodes\": [{\"cores\": 4}, {\"cores\": -1}]}", &err),
                     CST_EINVAL);
    ck_assert_str_eq(err.text, "nodes[1].cores: -1 is not within 0 to 4294967295");
    ck_assert_uint_eq(rates.n_nodes, 2);
    ck_assert_uint_eq(rates.nodes[1].cores, 3);
    ck_assert_uint_eq(rates.n_devices, 2);
    ck_assert_str_eq(rates.devices[1].name, "b");
}
END_TEST

/* Unknown keys, wrong types and too many entries are refused. */
START_TEST(test_refused)
{
    struct cst_rates rates = {.n_nodes = 0};
    struct cst_err err = {0};

    ck_assert_int_eq(add(&rates, "{\"device\": []}", &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "the file: unknown key 'device'");
    ck_assert_int_eq(add(&rates, "{\"devices\": [{\"name\": \"a\", \"upp\": 1}]}", &err),
                     CST_EINVAL);
    ck_assert_str_eq(err.text, "devices[0]: unknown key 'upp'");
    ck_assert_int_eq(add(&rates, "{\"devices\": [{\"up\": 1}]}", &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "devices[0]: no 'name'");
    ck_assert_int_eq(add(&rates, "{\"nodes\": [{}, {}, {}, {}, {}, {}, {}, {}, {}]}", &err),
                     CST_EINVAL);
    ck_assert_str_eq(err.text, "nodes: 9 values, allowed are 0 to 8");
}
END_TEST

/* The output of an engine adds one node or device, whatever else is in it. */
START_TEST(test_engine)
{
    static const char node[] = "{\"node\": 0, \"isa\": \"avx2\", \"cores\": 2, \"update\": 3}",
                      gpu[] = "{\"uuid\": \"GPU-1\", \"name\": \"x\", \"up\": 4}",
                      bad[] = "{\"update\": -3, \"up\": true, \"name\": \"x\"}";
    json_t *a = json_loads(node, 0, NULL), *b = json_loads(gpu, 0, NULL),
           *c = json_loads(bad, 0, NULL);
    struct cst_rates rates = {.n_nodes = 0};
    struct cst_err err = {0};

    ck_assert_int_eq(cst_rates_add_device(&rates, b, &err), CST_OK);
    ck_assert_double_eq(rates.devices[0].up, 4);
    ck_assert_int_eq(cst_rates_add_node(&rates, c, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "node.update: -3 is negative or not finite");
    ck_assert_int_eq(cst_rates_add_device(&rates, c, &err), CST_EINVAL);
    for (int i = 0; i < CST_RATES_MAX_NODES; i++) {
        ck_assert_int_eq(cst_rates_add_node(&rates, a, &err), CST_OK);
    }
    ck_assert_int_eq(cst_rates_add_node(&rates, a, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "more than 8 NUMA nodes");
    ck_assert_double_eq(rates.nodes[7].update, 3);
    ck_assert_uint_eq(rates.n_devices, 1);
    json_decref(a);
    json_decref(b);
    json_decref(c);
}
END_TEST

/* The fingerprint of a machine is the same each time, and includes its GPUs in any order. */
START_TEST(test_fingerprint)
{
    static const char *const gpus[] = {"GPU-1", "GPU-2"}, *const turned[] = {"GPU-2", "GPU-1"};
    char none[CST_FINGERPRINT_BYTES], two[CST_FINGERPRINT_BYTES], again[CST_FINGERPRINT_BYTES];

    cst_fingerprint(NULL, 0, none);
    cst_fingerprint(gpus, 2, two);
    cst_fingerprint(turned, 2, again);
    ck_assert_uint_eq(strlen(none), 2 * CST_FINGERPRINT_HALF);
    ck_assert_str_ne(none, two);
    ck_assert_str_eq(two, again);
    ck_assert(cst_fingerprint_same_host(none, two));
    two[3] = two[3] == 'x' ? 'y' : 'x';
    ck_assert(!cst_fingerprint_same_host(none, two));
    ck_assert(!cst_fingerprint_same_host("", ""));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rates_json");
    TCase *tcase = suite_case(suite, "rates_json", NULL, NULL);

    tcase_add_test(tcase, test_round_trip);
    tcase_add_test(tcase, test_mixed);
    tcase_add_test(tcase, test_add);
    tcase_add_test(tcase, test_refused);
    tcase_add_test(tcase, test_engine);
    tcase_add_test(tcase, test_fingerprint);
    return suite_run(suite);
}
