/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of --rates of a GPU's engine on tests/lib/fakecuda: all numbers are there, memory is freed,
 * and failures are reported. */
#include "tests/kernels/rates_json.h"
#include "tests/lib/fake_gpu.h"

static const char *command(unsigned gpu, const char *more)
{
    static char text[256];

    (void)snprintf(text, sizeof text, FAKE_GPU_ENGINE " --rates --device %s %s", fake_gpu_uuid(gpu),
                   more);
    return text;
}

static void check_figures(json_t *rates)
{
    static const char *const names[] = {"memory_bytes", "up",     "down",           "up_both",
                                        "down_both",    "memory", "copy_latency_s", "copy_threads"};

    ck_assert_ptr_nonnull(rates);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ck_assert_msg(rates_number(rates, names[i]) > 0.0, "%s", names[i]);
    }
    ck_assert(rates_number(rates, "flops") == 0.0);
    ck_assert(rates_number(rates, "update") == 0.0);
    ck_assert(json_is_string(json_object_get(rates, "name")));
}

/* The rates of a single GPU have no rate to a peer. */
START_TEST(test_one)
{
    json_t *rates;

    (void)setenv("CST_FAKECUDA_DEVICES", "1", 1);
    fake_gpu_open_ledger();
    rates = rates_run(command(0, "--copy-threads 1"));
    check_figures(rates);
    ck_assert(rates_number(rates, "peer") == 0.0);
    ck_assert(rates_number(rates, "copy_threads") == 1.0);
    ck_assert_str_eq(json_string_value(json_object_get(rates, "uuid")), fake_gpu_uuid(0));
    ck_assert_uint_eq(fake_gpu_used(), 0);
    fake_gpu_close_ledger();
    json_decref(rates);
}
END_TEST

/* The rates of a GPU that can access another one, and of one that cannot. */
START_TEST(test_peer)
{
    json_t *rates;

    (void)setenv("CST_FAKECUDA_DEVICES", "2", 1);
    (void)setenv("CST_FAKECUDA_PEERS", _i == 0 ? "all" : "none", 1);
    rates = rates_run(command(1, ""));
    check_figures(rates);
    ck_assert((rates_number(rates, "peer") > 0.0) == (_i == 0));
    json_decref(rates);
}
END_TEST

/* An unknown or missing name, too little memory, and a copy that fails end with a message and a
 * status. */
START_TEST(test_failures)
{
    static char line[320];

    switch (_i) {
    case 0:
        ck_assert_ptr_null(rates_run(FAKE_GPU_ENGINE " --rates --device GPU-none"));
        break;
    case 1:
        ck_assert_ptr_null(rates_run(FAKE_GPU_ENGINE " --rates"));
        break;
    case 2:
        (void)setenv("CST_FAKECUDA_MEMORY", "300MiB", 1);
        ck_assert_ptr_null(rates_run(command(0, "")));
        break;
    case 3:
        (void)setenv("CST_FAKECUDA_PINNED", "300MiB", 1);
        ck_assert_ptr_null(rates_run(command(0, "")));
        break;
    default:
        (void)snprintf(line, sizeof line, "CST_FAKECUDA_FAIL=copy:9=719 %s", command(0, ""));
        ck_assert_ptr_null(rates_run(line));
        break;
    }
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("cuda_rates");
    TCase *tcase = suite_case(suite, "rates", NULL, NULL);

    (void)argc;
    fake_gpu_use(argv);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, test_one);
    tcase_add_loop_test(tcase, test_peer, 0, 2);
    tcase_add_loop_test(tcase, test_failures, 0, 5);
    return suite_run(suite);
}
