/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of --rates of the engines: the output can be parsed and is plausible, and errors are
 * reported. */
#include "tests/kernels/rates_json.h"

#include "tests/lib/disk_file.h"

/* Every number of the host's engine is there, and none exceeds the memory's rate: an update moves
 * 28 bytes per element, and a sum of two contributions 6. */
START_TEST(test_host)
{
    json_t *rates = rates_run("./cistern-engine-host --rates --threads 2 --copy-threads 1");
    static const char *const names[] = {"cores",  "memory_bytes", "pass",    "update",
                                        "reduce", "copy",         "products"};

    ck_assert_ptr_nonnull(rates);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ck_assert_msg(rates_number(rates, names[i]) > 0.0, "%s", names[i]);
    }
    ck_assert(rates_number(rates, "threads") == 2.0);
    ck_assert(rates_number(rates, "copy_threads") == 1.0);
    ck_assert(rates_number(rates, "node") == 0.0);
    ck_assert(json_is_string(json_object_get(rates, "isa")));
    ck_assert(rates_number(rates, "memory_bytes") > 1e8);
    json_decref(rates);
}
END_TEST

/* A drive's rates are there, and the file that was measured has the size that was asked for, in
 * whole pieces. */
START_TEST(test_drive)
{
    static const char *const names[] = {"disk_read", "disk_write", "disk_mixed", "disk_flush_s",
                                        "copy_threads"};
    char command[512];
    json_t *rates;

    if (disk_file_is_missing("check_rates")) {
        return;
    }
    (void)snprintf(command, sizeof command,
                   "./cistern-engine-host --rates --directory '%s' --bytes 65M", disk_file_dir());
    rates = rates_run(command);
    ck_assert_ptr_nonnull(rates);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ck_assert_msg(rates_number(rates, names[i]) > 0.0, "%s", names[i]);
    }
    ck_assert(rates_number(rates, "bytes") == 72.0 * (1 << 20));
    json_decref(rates);
}
END_TEST

/* A node that does not exist, an invalid number of threads, and unknown options are refused. */
START_TEST(test_host_refuses)
{
    static const char *const wrong[] = {"--rates --node 900",
                                        "--rates --node x",
                                        "--rates --threads 0",
                                        "--rates --threads 1001",
                                        "--rates --copy-threads -1",
                                        "--rates more",
                                        "--rates --directory nowhere",
                                        "--rates --directory ./cistern-engine-host",
                                        "--rates --directory . --bytes 1",
                                        "--rates --directory . --bytes 4000000T"};
    char command[128];

    (void)snprintf(command, sizeof command, "./cistern-engine-host %s 2>&1 >&2", wrong[_i]);
    /* The message goes to stderr, which is this test's log. */
    ck_assert_int_ne(system(command), 0);
    (void)snprintf(command, sizeof command, "./cistern-engine-host %s 2>/dev/null", wrong[_i]);
    ck_assert_ptr_null(rates_run(command));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rates");
    TCase *host = suite_case(suite, "host", NULL, NULL);

    tcase_set_timeout(host, 120);
    tcase_add_test(host, test_host);
    tcase_add_test(host, test_drive);
    tcase_add_loop_test(host, test_host_refuses, 0, 10);
    return suite_run(suite);
}
