/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of fakecuda's memory: device memory by handle and by address, in several processes, and
 * pinned host memory. */
#include "tests/lib/fakecuda/ledger.h"
#include "tests/lib/suite.h"
#include "tests/unit/fakecuda_rig.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* -- handles and addresses ------------------------------------------------------------------ */

/* A copy reads what the processor wrote at a device address, and the processor reads what a copy
 * wrote. */
START_TEST(test_mapped)
{
    struct piece piece;
    unsigned char *host;

    rig_open();
    piece = rig_piece(2 * SLAB);
    host = rig_host(4096);
    ck_ok(cu.cuMemHostRegister(host, 4096, 0));
    memset((void *)(piece.at + SLAB - 100), 7, 200);
    ck_ok(cu.cuMemcpyDtoHAsync(host, piece.at + SLAB - 100, 200, NULL));
    ck_ok(cu.cuStreamSynchronize(NULL));
    for (int i = 0; i < 200; i++) {
        ck_assert_uint_eq(host[i], 7);
    }
    memset(host, 9, 100);
    ck_ok(cu.cuMemcpyHtoDAsync(piece.at, host, 100, NULL));
    ck_ok(cu.cuStreamSynchronize(NULL));
    ck_assert_int_eq(memcmp((void *)piece.at, host, 100), 0);
    ck_ok(cu.cuMemHostUnregister(host));
    rig_unmap(&piece);
}
END_TEST

/* New device memory is not zero: a program that needs zeros must write them. */
START_TEST(test_dirty)
{
    struct piece piece;
    CUdeviceptr small;

    rig_open();
    piece = rig_piece(2 * SLAB);
    ck_assert_uint_eq(*(unsigned char *)piece.at, 0xff);
    ck_assert_uint_eq(*(unsigned char *)(piece.at + SLAB), 0xff);
    ck_assert_uint_eq(*(unsigned char *)(piece.at + 2 * SLAB - 1), 0xff);
    ck_ok(cu.cuMemAlloc(&small, 10));
    ck_assert_uint_eq(*(unsigned char *)(small + 9), 0xff);
}
END_TEST

/* Reserved and mapped addresses cannot be accessed before cuMemSetAccess. */
START_TEST(test_no_access_yet)
{
    struct piece piece = {.bytes = SLAB};

    rig_open();
    ck_ok(rig_create(0, SLAB, &piece.handle));
    ck_ok(cu.cuMemAddressReserve(&piece.at, SLAB, 0, 0, 0));
    ck_ok(cu.cuMemMap(piece.at, SLAB, 0, piece.handle, 0));
    *(volatile char *)piece.at = 1;
}
END_TEST

/* Unmapped addresses cannot be accessed, even if other memory is mapped meanwhile. */
START_TEST(test_no_access_any_more)
{
    struct piece piece;

    rig_open();
    piece = rig_piece(SLAB);
    rig_unmap(&piece);
    (void)rig_piece(SLAB);
    *(volatile char *)piece.at = 1;
}
END_TEST

/* With read access only, operations of the device that write fail. */
START_TEST(test_read_only)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
    struct piece piece;
    CUdeviceptr other;

    rig_open();
    piece = rig_piece(SLAB);
    ck_ok(cu.cuMemAlloc(&other, 64));
    ck_ok(cu.cuMemSetAccess(piece.at, SLAB, &access, 1));
    ck_ok(cu.cuMemcpyDtoDAsync(other, piece.at, 64, NULL));
    ck_ok(cu.cuStreamSynchronize(NULL));
    ck_ok(cu.cuMemcpyDtoDAsync(piece.at, other, 64, NULL));
    ck_assert_int_eq(cu.cuStreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

/* Sizes, addresses and handles that the CUDA driver refuses are refused. */
START_TEST(test_refusals)
{
    CUmemAllocationProp properties, unexportable;
    CUmemGenericAllocationHandle handle;
    struct piece piece;
    CUdeviceptr at;
    size_t granularity;
    int fd;

    rig_open();
    properties = unexportable = rig_properties(0);
    unexportable.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    ck_ok(cu.cuMemGetAllocationGranularity(&granularity, &properties, 0));
    ck_assert_uint_eq(granularity, SLAB);
    ck_assert_int_eq(rig_create(0, MIB, &handle), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(rig_create(1, SLAB, &handle), CUDA_ERROR_INVALID_DEVICE);
    ck_assert_int_eq(cu.cuMemAddressReserve(&at, MIB, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    ck_ok(cu.cuMemCreate(&handle, SLAB, &unexportable, 0));
    ck_assert_int_eq(
        cu.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_ERROR_INVALID_VALUE);
    piece = rig_piece(2 * SLAB);
    ck_assert_int_eq(cu.cuMemMap(piece.at, SLAB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cu.cuMemMap(piece.at + 64 * SLAB, SLAB, 0, handle, 0),
                     CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cu.cuMemUnmap(piece.at, SLAB), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cu.cuMemAddressFree(piece.at, 2 * SLAB), CUDA_ERROR_INVALID_VALUE);
    ck_ok(cu.cuMemRelease(handle));
    ck_assert_int_eq(cu.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                     CUDA_ERROR_INVALID_VALUE);
    rig_unmap(&piece);
}
END_TEST

/* Without a current context no memory can be allocated. */
START_TEST(test_no_context)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;

    rig_open();
    ck_ok(cu.cuCtxSetCurrent(NULL));
    ck_assert_int_eq(rig_create(0, SLAB, &handle), CUDA_ERROR_INVALID_CONTEXT);
    ck_assert_int_eq(cu.cuMemAlloc(&at, 64), CUDA_ERROR_INVALID_CONTEXT);
}
END_TEST

/* A device can access another device's memory if the settings allow it, and only after
 * cuMemSetAccess for it. */
START_TEST(test_peers)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    struct piece piece;
    CUdeviceptr own;
    int can;

    setenv("CST_FAKECUDA_DEVICES", "3", 1);
    setenv("CST_FAKECUDA_PEERS", "0-1", 1);
    rig_open();
    ck_ok(cu.cuDeviceCanAccessPeer(&can, 0, 1));
    ck_assert_int_eq(can, 1);
    ck_ok(cu.cuDeviceCanAccessPeer(&can, 0, 2));
    ck_assert_int_eq(can, 0);
    piece = rig_piece(SLAB);
    access.location.id = 2;
    ck_assert_int_eq(cu.cuMemSetAccess(piece.at, SLAB, &access, 1), CUDA_ERROR_INVALID_DEVICE);
    access.location.id = 1;
    ck_ok(cu.cuMemSetAccess(piece.at, SLAB, &access, 1));
    rig_use_device(1);
    ck_ok(cu.cuMemAlloc(&own, 64));
    ck_ok(cu.cuMemcpyDtoDAsync(own, piece.at, 64, NULL));
    ck_ok(cu.cuStreamSynchronize(NULL));
    rig_use_device(2);
    ck_ok(cu.cuMemAlloc(&own, 64));
    ck_ok(cu.cuMemcpyDtoDAsync(own, piece.at, 64, NULL));
    ck_assert_int_eq(cu.cuStreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

/* -- several processes ---------------------------------------------------------------------- */

static void make_and_send(int socket)
{
    struct piece piece;
    int fd;

    rig_open();
    piece = rig_piece(SLAB);
    memset((void *)piece.at, 42, SLAB);
    ck_ok(cu.cuMemExportToShareableHandle(&fd, piece.handle,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    rig_send_fd(socket, fd);
    (void)close(fd);
    rig_take_byte(socket);
    ck_assert_uint_eq(*(unsigned char *)(piece.at + 1), 43);
    rig_unmap(&piece);
    ck_ok(cu.cuDevicePrimaryCtxRelease(0));
}

static struct piece import_piece(int fd)
{
    struct piece piece = {.bytes = SLAB};

    ck_ok(cu.cuMemImportFromShareableHandle(&piece.handle, (void *)(intptr_t)fd,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    rig_map(&piece, 0);
    return piece;
}

/* Two processes see the same bytes through an exported descriptor. An imported handle cannot be
 * exported. */
START_TEST(test_import)
{
    int socket, fd;
    pid_t child = rig_fork(make_and_send, &socket);
    struct piece piece;

    rig_open();
    fd = rig_take_fd(socket);
    piece = import_piece(fd);
    ck_assert_int_eq(cu.cuMemExportToShareableHandle(&fd, piece.handle,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                     CUDA_ERROR_INVALID_VALUE);
    ck_assert_uint_eq(*(unsigned char *)(piece.at + SLAB - 1), 42);
    *(unsigned char *)(piece.at + 1) = 43;
    rig_send_byte(socket);
    rig_join(child);
    rig_unmap(&piece);
}
END_TEST

/* Memory outlives its killed maker as long as a descriptor exists: its bytes stay, and it is
 * counted. It is freed with the last descriptor and mapping. */
START_TEST(test_survives)
{
    const char *state = rig_state();
    int socket, fd;
    pid_t child = rig_fork(make_and_send, &socket);
    struct cst_fake_use use;
    struct piece piece;

    rig_open();
    fd = rig_take_fd(socket);
    rig_kill(child);
    ck_assert_int_eq(cst_fake_ledger_use(state, 0, &use), 0);
    ck_assert_uint_eq(use.bytes, SLAB);
    piece = import_piece(fd);
    (void)close(fd);
    ck_assert_uint_eq(*(unsigned char *)piece.at, 42);
    ck_assert_int_eq(cst_fake_ledger_use(state, 0, &use), 0);
    ck_assert_uint_eq(use.bytes, SLAB);
    rig_unmap(&piece);
    ck_assert_int_eq(cst_fake_ledger_use(state, -1, &use), 0);
    ck_assert_uint_eq(use.bytes, 0);
    ck_assert_uint_eq(use.n_objects, 0);
}
END_TEST

/* A descriptor in a socket's queue keeps the memory, too. */
START_TEST(test_on_its_way)
{
    const char *state = rig_state();
    struct cst_fake_use use;
    int socket;
    pid_t child = rig_fork(make_and_send, &socket);
    char byte;

    rig_open();
    ck_assert_int_eq(recv(socket, &byte, 1, MSG_PEEK), 1);
    rig_kill(child);
    ck_assert_int_eq(cst_fake_ledger_use(state, 0, &use), 0);
    ck_assert_uint_eq(use.bytes, SLAB);
    ck_assert_int_eq(close(rig_take_fd(socket)), 0);
    ck_assert_int_eq(cst_fake_ledger_use(state, 0, &use), 0);
    ck_assert_uint_eq(use.bytes, 0);
}
END_TEST

static void hold_three(int socket)
{
    CUmemGenericAllocationHandle handle;

    rig_open();
    ck_ok(rig_create(0, 3 * SLAB, &handle));
    rig_send_byte(socket);
    rig_take_byte(socket);
}

/* Device memory is counted over all processes: one process has less while another one holds some,
 * until the other one is killed. */
START_TEST(test_shared_out_of_memory)
{
    CUmemGenericAllocationHandle handle;
    size_t left, total;
    CUdeviceptr at;
    int socket;
    pid_t child;

    (void)rig_state();
    setenv("CST_FAKECUDA_MEMORY", "8M", 1);
    child = rig_fork(hold_three, &socket);
    rig_take_byte(socket);
    rig_open();
    ck_ok(cu.cuMemGetInfo(&left, &total));
    ck_assert_uint_eq(left, SLAB);
    ck_assert_uint_eq(total, 4 * SLAB);
    ck_assert_int_eq(rig_create(0, 2 * SLAB, &handle), CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert_int_eq(cu.cuMemAlloc(&at, 2 * SLAB), CUDA_ERROR_OUT_OF_MEMORY);
    rig_kill(child);
    ck_ok(rig_create(0, 4 * SLAB, &handle));
    ck_assert_int_eq(cu.cuMemAlloc(&at, 1), CUDA_ERROR_OUT_OF_MEMORY);
    ck_ok(cu.cuMemRelease(handle));
    ck_ok(cu.cuMemAlloc(&at, 4 * SLAB));
    ck_ok(cu.cuMemFree(at));
}
END_TEST

/* Without a ledger's folder each process counts its own memory, in mappings and handles. */
START_TEST(test_own_out_of_memory)
{
    CUmemGenericAllocationHandle handle;
    struct piece piece;

    setenv("CST_FAKECUDA_MEMORY", "4MiB", 1);
    rig_open();
    piece = rig_piece(2 * SLAB);
    ck_ok(cu.cuMemRelease(piece.handle));
    ck_assert_int_eq(rig_create(0, SLAB, &handle), CUDA_ERROR_OUT_OF_MEMORY);
    ck_ok(cu.cuMemUnmap(piece.at, piece.bytes));
    ck_ok(rig_create(0, 2 * SLAB, &handle));
}
END_TEST

/* -- pinned host memory --------------------------------------------------------------------- */

/* Registrations cannot overlap, can be undone once, and have a limit. */
START_TEST(test_register)
{
    unsigned char *host;
    CUdeviceptr at;

    setenv("CST_FAKECUDA_PINNED", "3M", 1);
    rig_open();
    host = rig_host(4 * MIB);
    ck_ok(cu.cuMemHostRegister(host, MIB, CU_MEMHOSTREGISTER_PORTABLE));
    ck_assert_int_eq(cu.cuMemHostRegister(host + MIB - 4096, MIB, 0),
                     CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    ck_ok(cu.cuMemHostRegister(host + MIB, 2 * MIB, 0));
    ck_assert_int_eq(cu.cuMemHostRegister(host + 3 * MIB, 4096, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ck_ok(cu.cuMemHostGetDevicePointer(&at, host + 100, 0));
    ck_assert_uint_eq(at, (uintptr_t)host + 100);
    ck_assert_int_eq(cu.cuMemHostGetDevicePointer(&at, host + 3 * MIB, 0),
                     CUDA_ERROR_INVALID_VALUE);
    ck_ok(cu.cuMemHostUnregister(host));
    ck_assert_int_eq(cu.cuMemHostUnregister(host), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    ck_assert_int_eq(cu.cuMemHostUnregister(host + MIB + 4096),
                     CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    munmap(host, MIB);
    ck_assert_int_eq(cu.cuMemHostRegister(host, MIB, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

/* A copy that begins in one registration and ends outside of it, or in the next one, is refused. */
START_TEST(test_straddle)
{
    struct piece piece;
    unsigned char *host;

    rig_open();
    piece = rig_piece(SLAB);
    host = rig_host(3 * MIB);
    ck_ok(cu.cuMemHostRegister(host, MIB, 0));
    ck_ok(cu.cuMemHostRegister(host + MIB, MIB, 0));
    ck_assert_int_eq(cu.cuMemcpyHtoDAsync(piece.at, host + MIB - 64, 128, NULL),
                     CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cu.cuMemcpyDtoHAsync(host + 2 * MIB - 64, piece.at, 128, NULL),
                     CUDA_ERROR_INVALID_VALUE);
    ck_ok(cu.cuMemcpyHtoDAsync(piece.at, host + MIB - 64, 64, NULL));
    ck_ok(cu.cuMemcpyDtoHAsync(host + MIB, piece.at, MIB, NULL));
    ck_ok(cu.cuStreamSynchronize(NULL));
}
END_TEST

/* Copies from host memory that is not pinned work or fail as the test has set. */
START_TEST(test_pageable)
{
    struct piece piece;
    unsigned char *host;

    if (_i == 1) {
        setenv("CST_FAKECUDA_PAGEABLE", "no", 1);
    }
    rig_open();
    piece = rig_piece(SLAB);
    host = rig_host(4096);
    memset(host, 5, 4096);
    ck_assert_int_eq(cu.cuMemcpyHtoDAsync(piece.at, host, 4096, NULL),
                     _i == 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
    ck_ok(cu.cuStreamSynchronize(NULL));
    ck_assert_uint_eq(*(unsigned char *)(piece.at + 4095), _i == 1 ? 0xff : 5);
}
END_TEST

/* Memory of cuMemAlloc ends at its size: an access to the next byte is an illegal address, and the
 * error is sticky. */
START_TEST(test_out_of_bounds)
{
    CUdeviceptr at, other;
    size_t left, total;

    rig_open();
    ck_ok(cu.cuMemAlloc(&at, 1000));
    ck_ok(cu.cuMemAlloc(&other, 1000));
    ck_ok(cu.cuMemsetD8Async(at, 0, 1000, NULL));
    ck_ok(cu.cuCtxSynchronize());
    ck_ok(cu.cuMemsetD8Async(at, 0, 1001, NULL));
    ck_assert_int_eq(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_assert_int_eq(cu.cuMemGetInfo(&left, &total), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_assert_int_eq(cu.cuMemFree(other), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_assert_int_eq(cu.cuDevicePrimaryCtxRetain(&rig_context, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("fakecuda_memory");
    TCase *handles = suite_case(suite, "handles", NULL, NULL);
    TCase *processes = suite_case(suite, "processes", NULL, rig_end);
    TCase *pinned = suite_case(suite, "pinned", NULL, NULL);

    (void)argc;
    rig_find_library(argv);
    tcase_add_test(handles, test_mapped);
    tcase_add_test(handles, test_dirty);
    tcase_add_test_raise_signal(handles, test_no_access_yet, SIGSEGV);
    tcase_add_test_raise_signal(handles, test_no_access_any_more, SIGSEGV);
    tcase_add_test(handles, test_read_only);
    tcase_add_test(handles, test_refusals);
    tcase_add_test(handles, test_no_context);
    tcase_add_test(handles, test_peers);
    tcase_add_test(processes, test_import);
    tcase_add_test(processes, test_survives);
    tcase_add_test(processes, test_on_its_way);
    tcase_add_test(processes, test_shared_out_of_memory);
    tcase_add_test(processes, test_own_out_of_memory);
    tcase_add_test(pinned, test_register);
    tcase_add_test(pinned, test_straddle);
    tcase_add_loop_test(pinned, test_pageable, 0, 2);
    tcase_add_test(pinned, test_out_of_bounds);
    return suite_run(suite);
}
