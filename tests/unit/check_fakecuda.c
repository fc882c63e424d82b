/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of fakecuda as a library: devices, entry points, faults that the test asks for, forks, and
 * reports at the end. */
#include "tests/lib/suite.h"
#include "tests/unit/fakecuda_rig.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct cst_err err;

/* -- devices -------------------------------------------------------------------------------- */

static void expect_uuid(CUdevice device, const char *expected)
{
    char text[CST_CUDA_UUID_BYTES];

    ck_assert_int_eq(cst_cuda_uuid(&cu, device, text, &err), CST_OK);
    ck_assert_str_eq(text, expected);
}

/* There are as many devices as configured, each with its own memory, name, UUID and PCI address. */
START_TEST(test_devices)
{
    char name[64], id[16];
    size_t bytes;
    int n, value;

    setenv("CST_FAKECUDA_DEVICES", "2", 1);
    setenv("CST_FAKECUDA_MEMORY", "1GiB,2GiB", 1);
    setenv("CST_FAKECUDA_MIG", "1", 1);
    setenv("CST_FAKECUDA_ATTRIBUTES", "103=0", 1);
    rig_open();
    ck_ok(cu.cuDeviceGetCount(&n));
    ck_assert_int_eq(n, 2);
    expect_uuid(0, "GPU-facec0da-0000-4000-8000-000000000000");
    expect_uuid(1, "MIG-facec0da-0000-4000-8000-000000000001");
    ck_ok(cu.cuDeviceTotalMem(&bytes, 1));
    ck_assert_uint_eq(bytes, (size_t)2 << 30);
    ck_ok(cu.cuDeviceGetName(name, sizeof name, 0));
    ck_assert_str_eq(name, "Fake GPU");
    ck_ok(cu.cuDeviceGetPCIBusId(id, sizeof id, 1));
    ck_assert_str_eq(id, "FFFF:02:00.0");
    ck_ok(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    ck_assert_int_eq(value, 9);
    ck_ok(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                  0));
    ck_assert_int_eq(value, 1);
    ck_ok(cu.cuDeviceGetAttribute(
        &value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0));
    ck_assert_int_eq(value, 0);
    ck_assert_int_eq(cu.cuDeviceTotalMem(&bytes, 2), CUDA_ERROR_INVALID_DEVICE);
}
END_TEST

/* CUDA_VISIBLE_DEVICES selects devices by number and by the beginning of a UUID, in its own order.
 * An entry that names no device hides the entries after it; a device named twice hides all. */
START_TEST(test_visible)
{
    static const struct {
        const char *value;
        int n;
        char last; /* last character of device 0's UUID */
    } cases[] = {
        {"2,0", 2, '2'},    {"GPU-facec0da-0000-4000-8000-000000000001", 1, '1'},
        {"1,7,0", 1, '1'},  {"GPU-", 0, 0},
        {"GPU-face", 0, 0}, {"0,0", 0, 0},
        {"", 0, 0},         {"-1", 0, 0},
    };
    CUresult expected = cases[_i].n > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
    CUuuid uuid;
    int n;

    setenv("CST_FAKECUDA_DEVICES", "3", 1);
    setenv("CUDA_VISIBLE_DEVICES", cases[_i].value, 1);
    if (expected != CUDA_SUCCESS) {
        ck_assert_int_eq(cst_cuda_driver_open(&cu, &err), CST_EUNSUPPORTED);
        ck_assert_msg(strncmp(err.text, "no GPU: ", 8) == 0, "%s", err.text);
        return;
    }
    rig_open();
    ck_ok(cu.cuDeviceGetCount(&n));
    ck_assert_int_eq(n, cases[_i].n);
    ck_ok(cu.cuDeviceGetUuid(&uuid, 0));
    ck_assert_int_eq(uuid.bytes[15], cases[_i].last - '0');
}
END_TEST

/* A machine without devices, a driver that is too old, and a broken driver give three different
 * errors. */
START_TEST(test_no_driver)
{
    static const struct {
        const char *name, *value, *words;
    } cases[] = {
        {"CST_FAKECUDA_DEVICES", "0", "no GPU: "},
        {"CST_FAKECUDA_DRIVER", "11080", "the NVIDIA driver is too old: "},
        {"CST_FAKECUDA_FAIL", "cuInit:1=803", "no NVIDIA driver: "},
        {"CST_FAKECUDA_FAIL", "cuDriverGetVersion:1=34", "no NVIDIA driver: "},
    };

    setenv(cases[_i].name, cases[_i].value, 1);
    ck_assert_int_eq(cst_cuda_driver_open(&cu, &err), CST_EUNSUPPORTED);
    ck_assert_msg(strncmp(err.text, cases[_i].words, strlen(cases[_i].words)) == 0, "%s", err.text);
}
END_TEST

/* -- entry points --------------------------------------------------------------------------- */

typedef CUresult (*get_proc_fn)(const char *, void **, int, cuuint64_t,
                                CUdriverProcAddressQueryResult *);

static get_proc_fn find_get_proc(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *symbol;
    get_proc_fn get_proc;

    ck_assert_ptr_nonnull(library);
    symbol = dlsym(library, "cuGetProcAddress_v2");
    ck_assert_ptr_nonnull(symbol);
    memcpy(&get_proc, &symbol, sizeof get_proc);
    return get_proc;
}

/* A version of a function is found from its driver version on. Functions newer than the driver, or
 * unknown, are not found. */
START_TEST(test_entry_points)
{
    get_proc_fn get_proc;
    CUdriverProcAddressQueryResult found;
    void *pfn, *newer;

    setenv("CST_FAKECUDA_DRIVER", "12080", 1);
    get_proc = find_get_proc();
    ck_ok(get_proc("cuMemAlloc", &pfn, 3020, 0, &found));
    ck_assert_ptr_nonnull(pfn);
    ck_assert_int_eq(found, CU_GET_PROC_ADDRESS_SUCCESS);
    ck_assert_int_eq(get_proc("cuMemAlloc", &pfn, 2000, 0, &found), CUDA_ERROR_NOT_FOUND);
    ck_assert_ptr_null(pfn);
    ck_assert_int_eq(found, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    ck_assert_int_eq(get_proc("cuGraphLaunch", &pfn, 12000, 0, &found), CUDA_ERROR_NOT_FOUND);
    ck_assert_int_eq(found, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    ck_assert_int_eq(get_proc("cuMemAlloc", &pfn, 13000, 0, &found), CUDA_ERROR_INVALID_VALUE);
    ck_ok(get_proc("cuEventElapsedTime", &pfn, 12070, 0, NULL));
    ck_ok(get_proc("cuEventElapsedTime", &newer, 12080, 0, NULL));
    ck_assert_ptr_ne(pfn, newer);
}
END_TEST

/* As documented for CUDA 13.0, a missing function gives success and a null pointer. */
START_TEST(test_entry_points_null)
{
    get_proc_fn get_proc;
    CUdriverProcAddressQueryResult found;
    void *pfn = &pfn;

    setenv("CST_FAKECUDA_PROC", "null", 1);
    get_proc = find_get_proc();
    ck_ok(get_proc("cuGraphLaunch", &pfn, 12000, 0, &found));
    ck_assert_ptr_null(pfn);
    ck_assert_int_eq(found, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}
END_TEST

/* Results have names and descriptions. */
START_TEST(test_words)
{
    const char *name, *words;

    rig_open();
    ck_ok(cu.cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &name));
    ck_assert_str_eq(name, "CUDA_ERROR_ILLEGAL_ADDRESS");
    ck_ok(cu.cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &words));
    ck_assert_str_eq(words, "out of memory");
    ck_assert_int_eq(cu.cuGetErrorName((CUresult)12345, &name), CUDA_ERROR_INVALID_VALUE);
    ck_assert_ptr_null(name);
}
END_TEST

/* Before cuInit every call fails. */
START_TEST(test_not_initialized)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *symbol;
    CUresult (*get_count)(int *);
    int n;

    symbol = dlsym(library, "cuDeviceGetCount");
    memcpy(&get_count, &symbol, sizeof get_count);
    ck_assert_int_eq(get_count(&n), CUDA_ERROR_NOT_INITIALIZED);
}
END_TEST

/* -- faults --------------------------------------------------------------------------------- */

/* Only the n-th call fails if the test asks for that. */
START_TEST(test_nth_call)
{
    CUmemGenericAllocationHandle handle;

    setenv("CST_FAKECUDA_FAIL", "cuMemCreate:3=2,cuMemAlloc:1+=801", 1);
    rig_open();
    ck_ok(rig_create(0, SLAB, &handle));
    ck_ok(rig_create(0, SLAB, &handle));
    ck_assert_int_eq(rig_create(0, SLAB, &handle), CUDA_ERROR_OUT_OF_MEMORY);
    ck_ok(rig_create(0, SLAB, &handle));
    for (int i = 0; i < 3; i++) {
        CUdeviceptr at;

        ck_assert_int_eq(cu.cuMemAlloc(&at, 64), CUDA_ERROR_NOT_SUPPORTED);
    }
}
END_TEST

/* "*:N" counts the calls of every entry point. */
START_TEST(test_any_call)
{
    CUmemGenericAllocationHandle handle;
    int n;

    setenv("CST_FAKECUDA_FAIL", "*:7=2",
           1); /* the calls are: driver version, cuInit, device count, context, current context */
    rig_open();
    ck_ok(rig_create(0, SLAB, &handle));
    ck_assert_int_eq(cu.cuMemRelease(handle), CUDA_ERROR_OUT_OF_MEMORY);
    ck_ok(cu.cuMemRelease(handle));
    ck_ok(cu.cuDeviceGetCount(&n));
}
END_TEST

/* An operation that fails on its stream is reported to the call that waits for it, and to all later
 * calls. */
START_TEST(test_sticky)
{
    CUdeviceptr at;
    CUstream stream;
    CUcontext second;
    int n;

    setenv("CST_FAKECUDA_FAIL", "set:2=719", 1);
    setenv("CST_FAKECUDA_DEVICES", "2", 1);
    rig_open();
    ck_ok(cu.cuMemAlloc(&at, 64));
    ck_ok(cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    ck_ok(cu.cuMemsetD8Async(at, 1, 64, stream));
    ck_ok(cu.cuStreamSynchronize(stream));
    (void)cu.cuMemsetD8Async(at, 2, 64, stream);
    ck_assert_int_eq(cu.cuStreamSynchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
    ck_assert_uint_eq(*(unsigned char *)at, 1);
    ck_assert_int_eq(cu.cuMemFree(at), CUDA_ERROR_LAUNCH_FAILED);
    ck_ok(cu.cuDeviceGetCount(&n)); /* a call that needs no context still works */
    ck_ok(cu.cuDevicePrimaryCtxRetain(&second, 1));
    ck_ok(cu.cuCtxSetCurrent(second)); /* a call on another device still works */
    ck_ok(cu.cuMemAlloc(&at, 64));
}
END_TEST

/* A sticky error that a call is told to return breaks the context, too. */
START_TEST(test_sticky_call)
{
    CUdeviceptr at;

    setenv("CST_FAKECUDA_FAIL", "cuMemAlloc:1=700", 1);
    rig_open();
    ck_assert_int_eq(cu.cuMemAlloc(&at, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_assert_int_eq(cu.cuMemAlloc(&at, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_assert_int_eq(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

static CUdeviceptr parents;

static void call_in_child(int socket)
{
    unsigned char in_core;
    CUcontext context;
    int n;

    (void)socket;
    ck_assert_int_eq(cu.cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
    ck_assert_int_eq(cu.cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
    ck_assert_int_eq(mincore((void *)parents, 4096, &in_core), -1);
    ck_assert_int_eq(errno, ENOMEM);
    ck_assert_int_eq(cu.cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_NOT_INITIALIZED);
}

/* A forked child of a process that used CUDA can do nothing. It neither has nor frees device memory
 * of the parent. */
START_TEST(test_forked)
{
    int socket, n;

    rig_open();
    parents = rig_piece(SLAB).at;
    rig_join(rig_fork(call_in_child, &socket));
    ck_ok(cu.cuDeviceGetCount(&n));
}
END_TEST

/* -- the end -------------------------------------------------------------------------------- */

static char leak_file[64];

static void leave_things(int socket)
{
    CUdeviceptr at;
    CUstream stream;
    CUevent event;

    (void)socket;
    rig_open();
    (void)rig_piece(SLAB);
    (void)rig_piece(SLAB);
    ck_ok(cu.cuMemAlloc(&at, 64));
    ck_ok(cu.cuStreamCreateWithPriority(&stream, 0, 0));
    ck_ok(cu.cuEventCreate(&event, 0));
    ck_ok(cu.cuMemHostRegister(rig_host(4096), 4096, 0));
}

static void leave_nothing(int socket)
{
    struct piece piece;
    CUdeviceptr at;

    (void)socket;
    rig_open();
    piece = rig_piece(SLAB);
    rig_unmap(&piece);
    ck_ok(cu.cuMemAlloc(&at, 64));
    ck_ok(cu.cuMemFree(at));
    ck_ok(cu.cuDevicePrimaryCtxRelease(0));
}

/* A context's end frees its own objects, but not the handles, which belong to the process. */
static void leave_to_context(int socket)
{
    leave_things(socket);
    ck_ok(cu.cuDevicePrimaryCtxRelease(0));
}

static void read_leaks(char *line, size_t bytes)
{
    FILE *file = fopen(leak_file, "r");

    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(line, (int)bytes, file));
    ck_assert_int_eq(fgetc(file), EOF);
    fclose(file);
    unlink(leak_file);
}

/* Objects that a process leaves behind are counted in a line of the leak file. */
START_TEST(test_leaks)
{
    static const struct {
        void (*fn)(int socket);
        const char *words;
    } cases[] = {
        {leave_things, "\"handles\":2,\"mappings\":2,\"reservations\":2,\"allocations\":1,"
                       "\"pinned\":0,\"registered\":1,\"streams\":1,\"events\":1,\"modules\":0,"
                       "\"contexts\":1,\"swept\":0,\"leaks\":11,\"misuses\":0"},
        {leave_nothing, "\"contexts\":0,\"swept\":0,\"leaks\":0,\"misuses\":0"},
        {leave_to_context, "\"handles\":2,\"mappings\":2,\"reservations\":2,\"allocations\":0,"
                           "\"pinned\":0,\"registered\":0,\"streams\":0,\"events\":0,\"modules\":0,"
                           "\"contexts\":0,\"swept\":4,\"leaks\":10,\"misuses\":0"},
    };
    char line[1024];
    int socket;

    snprintf(leak_file, sizeof leak_file, "/tmp/check_fakecuda.%d", (int)getpid());
    setenv("CST_FAKECUDA_LEAKS", leak_file, 1);
    rig_join(rig_fork(cases[_i].fn, &socket));
    read_leaks(line, sizeof line);
    ck_assert_msg(strstr(line, cases[_i].words) != NULL, "%s", line);
}
END_TEST

/* A context cannot be used after its last release. After another retain it can. */
START_TEST(test_released)
{
    CUdeviceptr at;

    rig_open();
    ck_ok(cu.cuDevicePrimaryCtxRelease(0));
    ck_assert_int_eq(cu.cuMemAlloc(&at, 64), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    ck_assert_int_eq(cu.cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
    ck_ok(cu.cuDevicePrimaryCtxRetain(&rig_context, 0));
    ck_ok(cu.cuMemAlloc(&at, 64));
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("fakecuda");
    TCase *devices = suite_case(suite, "devices", NULL, NULL);
    TCase *entries = suite_case(suite, "entries", NULL, NULL);
    TCase *faults = suite_case(suite, "faults", NULL, NULL);
    TCase *end = suite_case(suite, "end", NULL, NULL);

    (void)argc;
    rig_find_library(argv);
    tcase_add_test(devices, test_devices);
    tcase_add_loop_test(devices, test_visible, 0, 8);
    tcase_add_loop_test(devices, test_no_driver, 0, 4);
    tcase_add_test(entries, test_entry_points);
    tcase_add_test(entries, test_entry_points_null);
    tcase_add_test(entries, test_words);
    tcase_add_test(entries, test_not_initialized);
    tcase_add_test(faults, test_nth_call);
    tcase_add_test(faults, test_any_call);
    tcase_add_test(faults, test_sticky);
    tcase_add_test(faults, test_sticky_call);
    tcase_add_test(faults, test_forked);
    tcase_add_loop_test(end, test_leaks, 0, 3);
    tcase_add_test(end, test_released);
    return suite_run(suite);
}
