/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of fakecuda's streams: events, words that streams write and wait for, host functions,
 * kernels. */
#include "tests/lib/suite.h"
#include "tests/unit/fakecuda_rig.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_SEEDS 50 /* most seeds that are tried until both orders of two streams were seen */
#define N_STEPS 20

static unsigned char *host;   /* registered host memory */
static uint64_t *gate;        /* a word in `host`; streams wait until it is 1 */
static CUdeviceptr device;    /* SLAB bytes of device memory */
static CUstream first, other; /* non-blocking streams */

static void set_up(void)
{
    rig_open();
    host = rig_host(MIB);
    ck_ok(cu.cuMemHostRegister(host, MIB, 0));
    gate = (uint64_t *)(host + MIB / 2);
    ck_ok(cu.cuMemAlloc(&device, SLAB));
    ck_ok(cu.cuStreamCreateWithPriority(&first, CU_STREAM_NON_BLOCKING, 0));
    ck_ok(cu.cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, -5));
}

static void close_gate(CUstream stream)
{
    ck_ok(cu.cuStreamWaitValue64(stream, (CUdeviceptr)gate, 1, CU_STREAM_WAIT_VALUE_GEQ));
}

static void open_gate(void)
{
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
}

/* -- order ---------------------------------------------------------------------------------- */

/* A stream executes its operations in order, whatever the delays are. */
START_TEST(test_in_order)
{
    setenv("CST_FAKECUDA_DELAY_US", "100", 1);
    set_up();
    for (unsigned i = 1; i <= N_STEPS; i++) {
        ck_ok(cu.cuMemsetD8Async(device, (unsigned char)i, 64, first));
        ck_ok(cu.cuMemcpyDtoHAsync(host + 64 * i, device, 64, first));
    }
    ck_ok(cu.cuStreamSynchronize(first));
    for (unsigned i = 1; i <= N_STEPS; i++) {
        ck_assert_uint_eq(host[64 * i + 63], i);
    }
}
END_TEST

/* One stream writes 1, and then the other one 2. Returns the final value. */
static unsigned race(CUstream a, CUstream b)
{
    /* atomic, because the two writes race on purpose. */
    ck_ok(cu.cuStreamWriteValue64(a, device, 1, 0));
    ck_ok(cu.cuStreamWriteValue64(b, device, 2, 0));
    ck_ok(cu.cuCtxSynchronize());
    return *(unsigned char *)device;
}

/* Streams without an order overtake each other: with some seed the second stream is first. */
START_TEST(test_overtake)
{
    unsigned seen[3] = {0};

    setenv("CST_FAKECUDA_DELAY_US", "200", 1);
    set_up();
    for (int i = 0; i < MAX_SEEDS && (seen[1] == 0 || seen[2] == 0); i++) {
        seen[race(first, other)]++;
    }
    ck_assert_uint_gt(seen[1], 0);
    ck_assert_uint_gt(seen[2], 0);
}
END_TEST

/* An event orders two streams: operations before its record are done before operations that wait
 * for it. */
START_TEST(test_event_orders)
{
    CUevent event;

    setenv("CST_FAKECUDA_DELAY_US", "100", 1);
    set_up();
    ck_ok(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (unsigned i = 1; i <= N_STEPS; i++) {
        ck_ok(cu.cuMemsetD8Async(device, (unsigned char)i, 64, first));
        ck_ok(cu.cuEventRecord(event, first));
        ck_ok(cu.cuStreamWaitEvent(other, event, 0));
        ck_ok(cu.cuMemcpyDtoHAsync(host, device, 64, other));
        ck_ok(cu.cuStreamSynchronize(other));
        ck_assert_uint_eq(host[63], i);
    }
    ck_ok(cu.cuEventDestroy(event));
    ck_assert_int_eq(cu.cuEventRecord(event, first), CUDA_ERROR_INVALID_HANDLE);
    ck_assert_int_eq(cu.cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
}
END_TEST

/* The default stream waits for blocking streams, and they wait for it. Other streams are
 * independent of it. */
START_TEST(test_legacy)
{
    unsigned seen[3] = {0};
    CUstream blocking;

    setenv("CST_FAKECUDA_DELAY_US", "200", 1);
    set_up();
    ck_ok(cu.cuStreamCreateWithPriority(&blocking, CU_STREAM_DEFAULT, 0));
    for (int i = 0; i < N_STEPS; i++) {
        ck_assert_uint_eq(race(NULL, blocking), 2);
        ck_assert_uint_eq(race(blocking, CU_STREAM_LEGACY), 2);
    }
    for (int i = 0; i < MAX_SEEDS && (seen[1] == 0 || seen[2] == 0); i++) {
        seen[race(NULL, other)]++;
    }
    ck_assert_uint_gt(seen[1], 0);
    ck_assert_uint_gt(seen[2], 0);
}
END_TEST

/* A query of a stream or an event reports "not ready" while an operation before it is not done. */
START_TEST(test_query)
{
    CUevent before, never;

    set_up();
    ck_ok(cu.cuEventCreate(&before, 0));
    ck_ok(cu.cuEventCreate(&never, 0));
    close_gate(first);
    ck_ok(cu.cuEventRecord(before, first));
    ck_assert_int_eq(cu.cuStreamQuery(first), CUDA_ERROR_NOT_READY);
    ck_assert_int_eq(cu.cuEventQuery(before), CUDA_ERROR_NOT_READY);
    ck_ok(cu.cuStreamQuery(other));
    ck_ok(cu.cuEventQuery(never));
    ck_ok(cu.cuEventSynchronize(never));
    open_gate();
    ck_ok(cu.cuEventSynchronize(before));
    ck_ok(cu.cuEventQuery(before));
    ck_ok(cu.cuStreamSynchronize(first));
    ck_ok(cu.cuStreamQuery(first));
}
END_TEST

/* The elapsed time of two events is the time between them. Without timing or a record there is an
 * error. */
START_TEST(test_elapsed)
{
    CUevent a, b, untimed;
    float ms;

    set_up();
    ck_ok(cu.cuEventCreate(&a, 0));
    ck_ok(cu.cuEventCreate(&b, 0));
    ck_ok(cu.cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    ck_ok(cu.cuEventRecord(a, first));
    ck_assert_int_eq(cu.cuEventElapsedTime(&ms, a, b), CUDA_ERROR_INVALID_HANDLE);
    close_gate(first);
    ck_ok(cu.cuEventRecord(b, first));
    ck_ok(cu.cuEventRecord(untimed, first));
    ck_assert_int_eq(cu.cuEventElapsedTime(&ms, a, b), CUDA_ERROR_NOT_READY);
    open_gate();
    ck_ok(cu.cuStreamSynchronize(first));
    ck_ok(cu.cuEventElapsedTime(&ms, a, b));
    ck_assert_float_ge(ms, 0);
    ck_ok(cu.cuEventElapsedTime(&ms, b, a));
    ck_assert_float_le(ms, 0);
    ck_assert_int_eq(cu.cuEventElapsedTime(&ms, a, untimed), CUDA_ERROR_INVALID_HANDLE);
}
END_TEST

/* A destroyed stream completes its operations, and its handle is invalid. */
START_TEST(test_destroyed)
{
    CUevent event;

    set_up();
    ck_ok(cu.cuEventCreate(&event, 0));
    close_gate(first);
    ck_ok(cu.cuMemsetD8Async(device, 6, 64, first));
    ck_ok(cu.cuEventRecord(event, first));
    ck_ok(cu.cuStreamDestroy(first));
    ck_assert_int_eq(cu.cuStreamQuery(first), CUDA_ERROR_INVALID_HANDLE);
    open_gate();
    ck_ok(cu.cuEventSynchronize(event));
    ck_assert_uint_eq(*(unsigned char *)device, 6);
}
END_TEST

/* -- words ---------------------------------------------------------------------------------- */

/* GEQ compares modulo the word's size: 2 counts as greater than the largest number. */
START_TEST(test_value_cyclic)
{
    set_up();
    __atomic_store_n(gate, UINT64_MAX - 1, __ATOMIC_RELEASE);
    ck_ok(
        cu.cuStreamWaitValue64(first, (CUdeviceptr)gate, UINT64_MAX - 5, CU_STREAM_WAIT_VALUE_GEQ));
    ck_ok(cu.cuStreamSynchronize(first));
    ck_ok(cu.cuStreamWaitValue64(first, (CUdeviceptr)gate, 1, CU_STREAM_WAIT_VALUE_GEQ));
    ck_ok(cu.cuStreamWriteValue64(first, device, 5, 0));
    ck_assert_int_eq(cu.cuStreamQuery(first), CUDA_ERROR_NOT_READY);
    __atomic_store_n(gate, 2, __ATOMIC_RELEASE);
    ck_ok(cu.cuStreamSynchronize(first));
    ck_assert_uint_eq(*(uint64_t *)device, 5);
    ck_ok(
        cu.cuStreamWaitValue64(first, (CUdeviceptr)gate, UINT64_MAX - 1, CU_STREAM_WAIT_VALUE_GEQ));
    ck_ok(cu.cuStreamSynchronize(first));
}
END_TEST

/* A stream waits for a value that another stream writes. EQ, AND and NOR compare as specified. */
START_TEST(test_value_between)
{
    uint64_t *word;

    set_up();
    word = (uint64_t *)device;
    memset(word, 0, 64);
    ck_ok(cu.cuStreamWaitValue64(other, (CUdeviceptr)word, 12, CU_STREAM_WAIT_VALUE_EQ));
    ck_ok(cu.cuMemsetD8Async(device + 64, 3, 64, other));
    ck_ok(cu.cuStreamWriteValue64(first, (CUdeviceptr)word, 12, 0));
    ck_ok(cu.cuStreamSynchronize(other));
    ck_assert_uint_eq(*(unsigned char *)(device + 64), 3);
    ck_ok(cu.cuStreamWaitValue64(other, (CUdeviceptr)word, 8, CU_STREAM_WAIT_VALUE_AND));
    ck_ok(cu.cuStreamWaitValue64(other, (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_NOR));
    ck_ok(cu.cuStreamSynchronize(other));
    ck_ok(cu.cuStreamWaitValue64(other, (CUdeviceptr)word, 3, CU_STREAM_WAIT_VALUE_AND));
    ck_assert_int_eq(cu.cuStreamQuery(other), CUDA_ERROR_NOT_READY);
    ck_ok(cu.cuStreamWriteValue64(first, (CUdeviceptr)word, 1, 0));
    ck_ok(cu.cuStreamSynchronize(other));
}
END_TEST

/* A word must be in memory that the device can access, and aligned to its size. */
START_TEST(test_value_refusals)
{
    set_up();
    ck_assert_int_eq(cu.cuStreamWriteValue64(first, device + 4, 1, 0), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cu.cuStreamWriteValue64(first, device, 1, 1), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cu.cuStreamWaitValue64(first, (CUdeviceptr)rig_host(4096), 1, 0),
                     CUDA_ERROR_INVALID_VALUE);
}
END_TEST

/* -- memory and time ------------------------------------------------------------------------ */

/* A pinned source is read when the copy runs, and a pageable one before the call returns. */
START_TEST(test_source_read)
{
    unsigned char *pageable;

    set_up();
    pageable = rig_host(64);
    memset(pageable, 1, 64);
    memset(host, 1, 64);
    close_gate(first);
    ck_ok(cu.cuMemcpyHtoDAsync(device, host, 64, first));
    ck_ok(cu.cuMemcpyHtoDAsync(device + 64, pageable, 64, first));
    memset(host, 2, 64);
    memset(pageable, 2, 64);
    open_gate();
    ck_ok(cu.cuStreamSynchronize(first));
    ck_assert_uint_eq(*(unsigned char *)device, 2);
    ck_assert_uint_eq(*(unsigned char *)(device + 64), 1);
}
END_TEST

/* Memory that is unmapped during a copy is an illegal address for the copy. */
START_TEST(test_taken_away)
{
    struct piece piece;

    set_up();
    piece = rig_piece(SLAB);
    close_gate(first);
    ck_ok(cu.cuMemcpyDtoDAsync(device, piece.at, SLAB, first));
    ck_ok(cu.cuMemUnmap(piece.at, SLAB));
    ck_assert_int_eq(cu.cuStreamSynchronize(first), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

/* Host memory that is unregistered during a copy is an illegal address, too. A stream that waits
 * for a word in it is released. */
START_TEST(test_unregistered)
{
    set_up();
    close_gate(first);
    ck_ok(cu.cuMemHostUnregister(host));
    ck_assert_int_eq(cu.cuStreamSynchronize(first), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

/* A copy is checked in the current context: its stream must belong to that context. */
START_TEST(test_foreign_stream)
{
    CUdeviceptr own;

    setenv("CST_FAKECUDA_DEVICES", "2", 1);
    set_up();
    rig_use_device(1);
    ck_ok(cu.cuMemAlloc(&own, 64));
    ck_assert_int_eq(cu.cuMemcpyDtoDAsync(own, own + 32, 32, first), CUDA_ERROR_INVALID_VALUE);
    ck_ok(cu.cuMemcpyDtoDAsync(own, own + 32, 32, NULL));
    ck_ok(cu.cuCtxSynchronize());
}
END_TEST

/* cuMemFree waits until the device is idle, so operations that were submitted before can still use
 * the memory. */
START_TEST(test_free_waits)
{
    CUdeviceptr source;

    setenv("CST_FAKECUDA_DELAY_US", "2000", 1);
    set_up();
    ck_ok(cu.cuMemAlloc(&source, 64));
    ck_ok(cu.cuMemsetD32Async(source, 0x01020304, 16, first));
    ck_ok(cu.cuMemcpyDtoHAsync(host, source, 64, first));
    ck_ok(cu.cuMemFree(source));
    ck_ok(cu.cuStreamQuery(first));
    ck_assert_uint_eq(*(uint32_t *)(host + 60), 0x01020304);
}
END_TEST

/* -- host functions ------------------------------------------------------------------------- */

static CUresult in_callback;

static void check_seen(void *data)
{
    CUdeviceptr at;

    *(unsigned char *)data = *(unsigned char *)device;
    in_callback = cu.cuMemAlloc(&at, 64);
}

/* A host function runs in the order of its stream, and must not call CUDA. */
START_TEST(test_host_function)
{
    unsigned char seen = 0;

    setenv("CST_FAKECUDA_DELAY_US", "100", 1);
    set_up();
    ck_ok(cu.cuMemsetD8Async(device, 8, 64, first));
    ck_ok(cu.cuLaunchHostFunc(first, check_seen, &seen));
    ck_ok(cu.cuMemsetD8Async(device, 9, 64, first));
    ck_ok(cu.cuStreamSynchronize(first));
    ck_assert_uint_eq(seen, 8);
    ck_assert_int_eq(in_callback, CUDA_ERROR_NOT_PERMITTED);
}
END_TEST

/* -- kernels -------------------------------------------------------------------------------- */

static const char ptx[] = ".version 8.0\n"; /* the content does not matter here */
static CUmodule module;

static CUfunction load(const char *name)
{
    CUfunction function;

    ck_ok(cu.cuModuleLoadData(&module, ptx));
    ck_ok(cu.cuModuleGetFunction(&function, module, name));
    return function;
}

/* A kernel runs in the order of its stream, on device memory, with the parameters of the call. */
START_TEST(test_launch)
{
    CUfunction upcast;
    CUdeviceptr to;
    uint64_t n = 1000;
    CUdeviceptr from;
    void *params[] = {&n, &from, &to};

    set_up();
    from = device;
    to = device + MIB;
    upcast = load("cst_upcast_kernel");
    close_gate(first);
    ck_ok(cu.cuMemsetD32Async(device, 0x3f803f80, 500, first)); /* fills with ones */
    ck_ok(cu.cuLaunchKernel(upcast, 4, 1, 1, 256, 1, 1, 0, first, params, NULL));
    n = 0;
    from = to = 0;
    open_gate();
    ck_ok(cu.cuStreamSynchronize(first));
    for (int i = 0; i < 1000; i++) {
        ck_assert(((float *)(device + MIB))[i] == 1.0f);
    }
    ck_ok(cu.cuModuleUnload(module));
    ck_assert_int_eq(cu.cuLaunchKernel(upcast, 4, 1, 1, 256, 1, 1, 0, first, params, NULL),
                     CUDA_ERROR_INVALID_HANDLE);
}
END_TEST

#ifndef __SANITIZE_THREAD__
/* A kernel that accesses an invalid address breaks the context, and does not end the process. */
START_TEST(test_launch_illegal)
{
    CUdeviceptr from, to;
    uint64_t n = 1000;
    void *params[] = {&n, &from, &to};
    CUfunction upcast;

    set_up();
    from = device;
    to = device + 2 * SLAB;
    upcast = load("cst_upcast_kernel");
    ck_ok(cu.cuLaunchKernel(upcast, 4, 1, 1, 256, 1, 1, 0, first, params, NULL));
    ck_assert_int_eq(cu.cuStreamSynchronize(first), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_assert_int_eq(cu.cuLaunchKernel(upcast, 4, 1, 1, 256, 1, 1, 0, first, params, NULL),
                     CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST
#endif

/* A fault in the program itself still ends the process. */
START_TEST(test_own_fault)
{
    set_up();
    ck_ok(cu.cuMemsetD8Async(device, 8, 64, first));
    ck_ok(cu.cuStreamSynchronize(first));
    *(volatile char *)(device + 2 * SLAB) = 1;
}
END_TEST

/* Launches, images and names that no device accepts are refused. */
START_TEST(test_launch_refusals)
{
    uint64_t n = 0;
    void *params[] = {&n, &device, &device};
    CUfunction upcast, none;
    CUmodule bad;

    set_up();
    upcast = load("cst_upcast_kernel");
    ck_assert_int_eq(cu.cuModuleGetFunction(&none, module, "no_kernel"), CUDA_ERROR_NOT_FOUND);
    ck_assert_int_eq(cu.cuModuleLoadData(&bad, "nonsense"), CUDA_ERROR_INVALID_IMAGE);
    ck_assert_int_eq(cu.cuLaunchKernel(upcast, 1, 1, 1, 1025, 1, 1, 0, first, params, NULL),
                     CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cu.cuLaunchKernel(upcast, 0, 1, 1, 32, 1, 1, 0, first, params, NULL),
                     CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cu.cuLaunchKernel(upcast, 1, 1, 1, 32, 1, 1, 64 << 10, first, params, NULL),
                     CUDA_ERROR_INVALID_VALUE);
    ck_ok(cu.cuFuncSetAttribute(upcast, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 << 10));
    ck_ok(cu.cuLaunchKernel(upcast, 1, 1, 1, 32, 1, 1, 64 << 10, first, params, NULL));
    ck_assert_int_eq(
        cu.cuFuncSetAttribute(upcast, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 228 << 10),
        CUDA_ERROR_INVALID_VALUE);
    ck_ok(cu.cuStreamSynchronize(first));
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("fakecuda_stream");
    TCase *order = suite_case(suite, "order", NULL, NULL);
    TCase *words = suite_case(suite, "words", NULL, NULL);
    TCase *memory = suite_case(suite, "memory", NULL, NULL);
    TCase *kernels = suite_case(suite, "kernels", NULL, NULL);

    (void)argc;
    rig_find_library(argv);
    tcase_add_test(order, test_in_order);
    tcase_add_test(order, test_overtake);
    tcase_add_test(order, test_event_orders);
    tcase_add_test(order, test_legacy);
    tcase_add_test(order, test_query);
    tcase_add_test(order, test_elapsed);
    tcase_add_test(order, test_destroyed);
    tcase_add_test(words, test_value_cyclic);
    tcase_add_test(words, test_value_between);
    tcase_add_test(words, test_value_refusals);
    tcase_add_test(memory, test_source_read);
    tcase_add_test(memory, test_taken_away);
    tcase_add_test(memory, test_unregistered);
    tcase_add_test(memory, test_foreign_stream);
    tcase_add_test(memory, test_free_waits);
    tcase_add_test(memory, test_host_function);
    tcase_add_test(kernels, test_launch);
#ifndef __SANITIZE_THREAD__ /* ThreadSanitizer cannot follow a jump from a fiber out of a signal   \
                             * handler */
    tcase_add_test(kernels, test_launch_illegal);
#endif
    tcase_add_test_raise_signal(kernels, test_own_fault, SIGSEGV);
    tcase_add_test(kernels, test_launch_refusals);
    return suite_run(suite);
}
