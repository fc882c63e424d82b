/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of kernels/cuda/driver and the engine's --probe on machines with and without GPUs. */
#include "kernels/cuda/driver.h"
#include "tests/lib/fake_gpu.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct cst_cuda_driver driver;
static struct cst_err err;

static void open_driver(void)
{
    ck_assert_msg(cst_cuda_driver_open(&driver, &err) == CST_OK, "%s", err.text);
}

static void must_not_open(const char *beginning)
{
    ck_assert_int_eq(cst_cuda_driver_open(&driver, &err), CST_EUNSUPPORTED);
    ck_assert_msg(strncmp(err.text, beginning, strlen(beginning)) == 0, "%s", err.text);
}

/* -- errors without a GPU ------------------------------------------------------------------- */

/* If the linker cannot load libcuda.so.1, there is no driver, and the error has the linker's
 * message. On machines with a driver the test's library is still found first. */
START_TEST(test_no_driver)
{
    char folder[] = "/tmp/cst-no-driver-XXXXXX", path[64];
    const char *json;
    FILE *library;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/libcuda.so.1", folder);
    library = fopen(path, "w");
    ck_assert_ptr_nonnull(library);
    ck_assert_int_ge(fputs("this is no library\n", library), 0);
    ck_assert_int_eq(fclose(library), 0);
    ck_assert_int_eq(setenv("LD_LIBRARY_PATH", folder, 1), 0);
    json = fake_gpu_probe();
    (void)unlink(path);
    (void)rmdir(folder);
    ck_assert_ptr_nonnull(json);
    ck_assert_ptr_eq(strstr(json, "{\"error\":\"no NVIDIA driver: "), json);
    ck_assert_ptr_nonnull(strstr(json, "libcuda.so.1"));
}
END_TEST

/* A driver may report that it is not loaded. */
START_TEST(test_not_loaded)
{
    (void)setenv("CST_FAKECUDA_FAIL", _i == 0 ? "cuInit:1=304" : "cuDriverGetVersion:1=34", 1);
    must_not_open("no NVIDIA driver: ");
}
END_TEST

/* A driver may have no device. The error names CUDA_VISIBLE_DEVICES if that may be the reason. */
START_TEST(test_no_device)
{
    (void)setenv("CST_FAKECUDA_DEVICES", "0", 1);
    must_not_open("no GPU: ");
    ck_assert_ptr_null(strstr(err.text, "CUDA_VISIBLE_DEVICES"));
}
END_TEST

START_TEST(test_none_visible)
{
    (void)setenv("CUDA_VISIBLE_DEVICES", "", 1);
    must_not_open("no GPU: ");
    ck_assert_ptr_nonnull(strstr(err.text, "CUDA_VISIBLE_DEVICES"));
}
END_TEST

/* A driver older than the required version is refused with both versions. */
START_TEST(test_too_old)
{
    (void)setenv("CST_FAKECUDA_DRIVER", "11040", 1);
    must_not_open("the NVIDIA driver is too old: ");
    ck_assert_ptr_nonnull(strstr(err.text, "11.4"));
    ck_assert_ptr_nonnull(strstr(err.text, "12.0"));
}
END_TEST

/* The oldest supported driver is accepted. */
START_TEST(test_old_enough)
{
    (void)setenv("CST_FAKECUDA_DRIVER", "12000", 1);
    open_driver();
    ck_assert_int_eq(driver.version, 12000);
    ck_assert_ptr_nonnull(driver.cuLaunchKernel);
    cst_cuda_driver_close(&driver);
    ck_assert_ptr_null(driver.cuLaunchKernel);
}
END_TEST

/* -- devices -------------------------------------------------------------------------------- */

/* The form of a device's name. A MIG instance has a form of its own. */
START_TEST(test_uuid)
{
    char whole[CST_CUDA_UUID_BYTES], part[CST_CUDA_UUID_BYTES];

    (void)setenv("CST_FAKECUDA_DEVICES", "2", 1);
    (void)setenv("CST_FAKECUDA_MIG", "1", 1);
    open_driver();
    ck_assert_int_eq(cst_cuda_uuid(&driver, 0, whole, &err), CST_OK);
    ck_assert_int_eq(cst_cuda_uuid(&driver, 1, part, &err), CST_OK);
    ck_assert_ptr_eq(strstr(whole, "GPU-"), whole);
    ck_assert_ptr_eq(strstr(part, "MIG-"), part);
    for (unsigned i = 4; i < 40; i++) {
        bool dash = i == 12 || i == 17 || i == 22 || i == 27;

        ck_assert_msg(dash ? whole[i] == '-' : strchr("0123456789abcdef", whole[i]) != NULL, "%s",
                      whole);
    }
    ck_assert_uint_eq(strlen(whole), 40);
    ck_assert_int_eq(cst_cuda_uuid(&driver, 7, whole, &err), CST_EINTERNAL);
}
END_TEST

/* A device is found by its name, or by a beginning that only this name has. */
START_TEST(test_find)
{
    char uuid[CST_CUDA_UUID_BYTES];
    CUdevice device = 99;

    (void)setenv("CST_FAKECUDA_DEVICES", "3", 1);
    (void)setenv("CST_FAKECUDA_MIG", "2", 1);
    open_driver();
    ck_assert_int_eq(cst_cuda_uuid(&driver, 1, uuid, &err), CST_OK);
    ck_assert_int_eq(cst_cuda_find(&driver, uuid, &device, &err), CST_OK);
    ck_assert_int_eq(device, 1);
    ck_assert_int_eq(cst_cuda_find(&driver, "MIG-", &device, &err), CST_OK);
    ck_assert_int_eq(device, 2);
    ck_assert_int_eq(cst_cuda_find(&driver, "GPU-", &device, &err), CST_ENOTFOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "more than one"));
    ck_assert_int_eq(cst_cuda_find(&driver, "GPU-none", &device, &err), CST_ENOTFOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "'GPU-none'"));
    ck_assert_ptr_nonnull(strstr(err.text, uuid));
    ck_assert_int_eq(device, 2);
}
END_TEST

/* --probe lists the visible devices only. The kernel does not know their PCI slots, so they have no
 * nearest NUMA node. */
START_TEST(test_probe)
{
    char expected[512];

    (void)setenv("CST_FAKECUDA_DEVICES", "2", 1);
    (void)setenv("CST_FAKECUDA_MEMORY", "1GiB,2GiB", 1);
    (void)setenv("CST_FAKECUDA_DRIVER", "12080", 1);
    (void)snprintf(expected, sizeof expected,
                   "{\"gpus\":[{\"index\":0,\"uuid\":\"%s\",\"name\":\"Fake GPU\",\"memory_bytes\":"
                   "1073741824,\"node\":-1,\"unreachable\":[],\"mps\":false},"
                   "{\"index\":1,\"uuid\":\"%s\",\"name\":\"Fake GPU\",\"memory_bytes\":"
                   "2147483648,\"node\":-1,\"unreachable\":[],\"mps\":false}],\"driver\":12080}\n",
                   fake_gpu_uuid(0), fake_gpu_uuid(1));
    ck_assert_str_eq(fake_gpu_probe(), expected);
    (void)setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    ck_assert_ptr_null(strstr(fake_gpu_probe(), "\"index\":1"));
    ck_assert_ptr_nonnull(strstr(fake_gpu_probe(), "2147483648"));
}
END_TEST

/* --probe names the host node nearest to each GPU on a machine whose PCI slots are known. */
START_TEST(test_probe_nodes)
{
    const char *top = getenv("srcdir"), *first, *second;
    char path[512];

    (void)snprintf(path, sizeof path, "%s/tests/lib/superchips.xml", top != NULL ? top : ".");
    (void)setenv("HWLOC_XMLFILE", path, 1);
    (void)setenv("CST_FAKECUDA_DEVICES", "2", 1);
    first = strstr(fake_gpu_probe(), "\"node\":");
    ck_assert_ptr_nonnull(first);
    ck_assert_int_eq(atoi(first + 7), 1);
    second = strstr(first + 1, "\"node\":");
    ck_assert_ptr_nonnull(second);
    ck_assert_int_eq(atoi(second + 7), 0);
}
END_TEST

/* --probe says which GPUs cannot access each other's memory. */
START_TEST(test_probe_peers)
{
    const char *at;

    (void)setenv("CST_FAKECUDA_DEVICES", "3", 1);
    (void)setenv("CST_FAKECUDA_PEERS", "0-2", 1);
    at = strstr(fake_gpu_probe(), "\"unreachable\":[1]");
    ck_assert_ptr_nonnull(at);
    at = strstr(at, "\"unreachable\":[0,2]");
    ck_assert_ptr_nonnull(at);
    ck_assert_ptr_nonnull(strstr(at, "\"unreachable\":[1]"));
}
END_TEST

/* A failure after the driver was opened is an error, too. */
START_TEST(test_probe_fails)
{
    (void)setenv("CST_FAKECUDA_FAIL", "cuDeviceGetUuid:1=999", 1);
    ck_assert_ptr_eq(strstr(fake_gpu_probe(), "{\"error\":\"UUID of device 0: CUDA_ERROR_UNKNOWN"),
                     fake_gpu_probe());
}
END_TEST

/* -- results -------------------------------------------------------------------------------- */

/* Results are translated to a status and a message. */
START_TEST(test_check)
{
    static const struct {
        CUresult result;
        int status;
        const char *name;
    } results[] = {
        {CUDA_ERROR_OUT_OF_MEMORY, CST_ENOMEM, "CUDA_ERROR_OUT_OF_MEMORY"},
        {CUDA_ERROR_NOT_SUPPORTED, CST_EUNSUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
        {CUDA_ERROR_ILLEGAL_ADDRESS, CST_EGPU, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {CUDA_ERROR_ECC_UNCORRECTABLE, CST_EGPU, "CUDA_ERROR_ECC_UNCORRECTABLE"},
        {CUDA_ERROR_INVALID_VALUE, CST_EINTERNAL, "CUDA_ERROR_INVALID_VALUE"},
        {(CUresult)12345, CST_EINTERNAL, "12345"},
    };

    open_driver();
    ck_assert_int_eq(cst_cuda_check(&driver, CUDA_SUCCESS, &err, "nothing"), CST_OK);
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) {
        ck_assert_int_eq(cst_cuda_check(&driver, results[i].result, &err, "thing %d", 7),
                         results[i].status);
        ck_assert_int_eq(err.status, results[i].status);
        ck_assert_ptr_eq(strstr(err.text, "thing 7: "), err.text);
        ck_assert_ptr_nonnull(strstr(err.text, results[i].name));
        ck_assert_int_eq(cst_cuda_is_sticky(results[i].result), results[i].status == CST_EGPU);
    }
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("cuda_driver");
    TCase *tcase = suite_case(suite, "driver", NULL, NULL);

    (void)argc;
    fake_gpu_use(argv);
    tcase_add_test(tcase, test_no_driver);
    tcase_add_loop_test(tcase, test_not_loaded, 0, 2);
    tcase_add_test(tcase, test_no_device);
    tcase_add_test(tcase, test_none_visible);
    tcase_add_test(tcase, test_too_old);
    tcase_add_test(tcase, test_old_enough);
    tcase_add_test(tcase, test_uuid);
    tcase_add_test(tcase, test_find);
    tcase_add_test(tcase, test_probe);
    tcase_add_test(tcase, test_probe_nodes);
    tcase_add_test(tcase, test_probe_peers);
    tcase_add_test(tcase, test_probe_fails);
    tcase_add_test(tcase, test_check);
    return suite_run(suite);
}
