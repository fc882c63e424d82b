/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/process.h"

#include "kernels/cuda/kernels.h"
#include "tests/bench/timing.h"
#include "tests/gpu/link.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REGISTER_BYTES ((uint64_t)256 << 20)
#define BUSY_ELEMS ((uint64_t)16 << 20) /* elements of the kernels that keep the GPU busy */

struct process {
    struct cst_cuda_driver driver;
    bool has_driver, has_context, has_kernels;
    CUdevice device;
    CUcontext context;
    struct cst_cuda_kernels kernels;
    CUstream up, down;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr slab; /* 0: there is no slab */
    uint64_t slab_bytes;
    char *host; /* NULL: there is no host memory */
    uint64_t host_bytes;
};

static struct process p;

#define CHECK(call) cst_cuda_check(&p.driver, p.driver.call, err, "%s", #call)

/* -- helpers -------------------------------------------------------------------------------- */

static int need_driver(struct cst_err *err)
{
    int rc = p.has_driver ? CST_OK : cst_cuda_driver_open(&p.driver, err);

    p.has_driver = rc == CST_OK;
    return rc;
}

static int need_context(struct cst_err *err)
{
    int rc = need_driver(err);

    if (rc != CST_OK || p.has_context) {
        return rc;
    }
    rc = CHECK(cuDeviceGet(&p.device, 0));
    if (rc == CST_OK) {
        rc = CHECK(cuDevicePrimaryCtxRetain(&p.context, p.device));
    }
    if (rc == CST_OK) {
        rc = CHECK(cuCtxSetCurrent(p.context));
    }
    if (rc == CST_OK) {
        rc = CHECK(cuStreamCreateWithPriority(&p.up, CU_STREAM_NON_BLOCKING, 0));
    }
    if (rc == CST_OK) {
        rc = CHECK(cuStreamCreateWithPriority(&p.down, CU_STREAM_NON_BLOCKING, 0));
    }
    p.has_context = rc == CST_OK;
    return rc;
}

static int need_both(struct cst_err *err)
{
    int rc = need_context(err);

    if (rc == CST_OK && (p.slab == 0 || p.host == NULL)) {
        rc = cst_err_set(err, CST_EINVAL, "slab and host memory come first");
    }
    return rc;
}

/* -- slab ----------------------------------------------------------------------------------- */

static CUmemAllocationProp slab_form(void)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = p.device}};
}

static int map_slab(uint64_t bytes, struct cst_err *err)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = p.device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at;
    int rc = CHECK(cuMemAddressReserve(&at, bytes, 0, 0, 0));

    if (rc == CST_OK) {
        rc = CHECK(cuMemMap(at, bytes, 0, p.handle, 0));
    }
    if (rc == CST_OK) {
        rc = CHECK(cuMemSetAccess(at, bytes, &access, 1));
    }
    if (rc == CST_OK) {
        p.slab = at;
        p.slab_bytes = bytes;
    }
    return rc;
}

static int make_handle(uint64_t bytes, int *fd, struct cst_err *err)
{
    CUmemAllocationProp form = slab_form();
    int rc = CHECK(cuMemCreate(&p.handle, bytes, &form, 0));

    return rc != CST_OK ? rc
                        : CHECK(cuMemExportToShareableHandle(
                              fd, p.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static int no_context(uint64_t bytes, int *fd, struct cst_err *err)
{
    int rc = need_driver(err);

    return rc != CST_OK ? rc : make_handle(bytes, fd, err);
}

static int create(uint64_t bytes, int *fd, struct cst_err *err)
{
    int rc = need_context(err);

    if (rc == CST_OK) {
        rc = make_handle(bytes, fd, err);
    }
    return rc != CST_OK ? rc : map_slab(bytes, err);
}

static int import(uint64_t bytes, int fd, struct cst_err *err)
{
    int rc = need_context(err);

    if (rc == CST_OK) {
        rc = CHECK(cuMemImportFromShareableHandle(&p.handle, (void *)(uintptr_t)fd,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    }
    return rc != CST_OK ? rc : map_slab(bytes, err);
}

static int paint(uint32_t word, struct cst_err *err)
{
    int rc = CHECK(cuMemsetD32Async(p.slab, word, p.slab_bytes / 4, p.up));

    return rc != CST_OK ? rc : CHECK(cuStreamSynchronize(p.up));
}

/* Read the slab's words, which the caller frees. */
static int read_slab(uint32_t **out, struct cst_err *err)
{
    uint32_t *words = malloc(p.slab_bytes);
    int rc;

    if (words == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %" PRIu64 " bytes", p.slab_bytes);
    }
    rc = CHECK(cuMemcpyDtoHAsync(words, p.slab, p.slab_bytes, p.down));
    if (rc == CST_OK) {
        rc = CHECK(cuStreamSynchronize(p.down));
    }
    if (rc != CST_OK) {
        free(words);
        return rc;
    }
    *out = words;
    return CST_OK;
}

static int count_others(uint32_t word, double *out, struct cst_err *err)
{
    uint32_t *words;
    int rc = read_slab(&words, err);
    uint64_t n = 0;

    if (rc != CST_OK) {
        return rc;
    }
    for (uint64_t i = 0; i < p.slab_bytes / 4; i++) {
        n += words[i] != word;
    }
    free(words);
    *out = (double)n;
    return CST_OK;
}

/* The checksum has 52 bits, so that a double can hold it. */
static int checksum(double *out, struct cst_err *err)
{
    uint32_t *words;
    int rc = read_slab(&words, err);
    uint64_t sum = 0;

    if (rc != CST_OK) {
        return rc;
    }
    for (uint64_t i = 0; i < p.slab_bytes / 4; i++) {
        sum = sum * 6364136223846793005u + words[i] + 1442695040888963407u;
    }
    free(words);
    *out = (double)(sum >> 12);
    return CST_OK;
}

static int free_bytes(double *out, double *all, struct cst_err *err)
{
    size_t free_now, total;
    int rc = CHECK(cuMemGetInfo(&free_now, &total));

    if (rc == CST_OK) {
        *out = (double)free_now;
        *all = (double)total;
    }
    return rc;
}

/* -- host memory and copies ----------------------------------------------------------------- */

static int host(uint64_t bytes, int fd, double *ms, struct cst_err *err)
{
    int rc = need_context(err);
    double began;

    if (rc != CST_OK) {
        return rc;
    }
    p.host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (p.host == MAP_FAILED) {
        p.host = NULL;
        return cst_err_errno(err, CST_ENOMEM, errno, "mmap of %" PRIu64 " bytes", bytes);
    }
    p.host_bytes = bytes;
    began = bench_now();
    for (uint64_t at = 0; at < bytes && rc == CST_OK; at += REGISTER_BYTES) {
        uint64_t n = bytes - at < REGISTER_BYTES ? bytes - at : REGISTER_BYTES;

        rc = CHECK(cuMemHostRegister(p.host + at, n,
                                     CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    }
    *ms = (bench_now() - began) * 1e3;
    return rc;
}

static uint64_t copy_bytes(void)
{
    uint64_t n = p.host_bytes < p.slab_bytes ? p.host_bytes : p.slab_bytes;

    /* A copy must not cross the border of registrations. */
    return n < REGISTER_BYTES ? n : REGISTER_BYTES;
}

/* Copy until this process is killed. The words contain the number of their round. */
static int copy_for_ever(struct cst_err *err)
{
    uint32_t *words = (uint32_t *)(void *)p.host;
    int rc = CST_OK;

    for (uint32_t round = 1; rc == CST_OK; round++) {
        words[round % 1024] = round;
        rc = CHECK(cuMemcpyHtoDAsync(p.slab, p.host, copy_bytes(), p.up));
        if (rc == CST_OK && round % 16 == 0) {
            rc = CHECK(cuStreamSynchronize(p.up));
        }
    }
    return rc;
}

static int time_copies(unsigned n, bool up, double *gb_s, struct cst_err *err)
{
    CUstream stream = up ? p.up : p.down;
    double began = 0;
    int rc = CST_OK;

    for (unsigned i = 0; i < n + 1 && rc == CST_OK; i++) {
        if (i == 1) { /* the first run warms up */
            rc = CHECK(cuStreamSynchronize(stream));
            began = bench_now();
        }
        if (rc == CST_OK) {
            rc = up ? CHECK(cuMemcpyHtoDAsync(p.slab, p.host, copy_bytes(), stream))
                    : CHECK(cuMemcpyDtoHAsync(p.host, p.slab, copy_bytes(), stream));
        }
    }
    if (rc == CST_OK) {
        rc = CHECK(cuStreamSynchronize(stream));
    }
    *gb_s = (double)copy_bytes() * n / (bench_now() - began) * 1e-9;
    return rc;
}

static int bandwidth(unsigned n, double *up, double *down, struct cst_err *err)
{
    int rc = time_copies(n, true, up, err);

    return rc != CST_OK ? rc : time_copies(n, false, down, err);
}

/* -- kernels -------------------------------------------------------------------------------- */

static int busy(double seconds, double *per_second, struct cst_err *err)
{
    const uint64_t n = BUSY_ELEMS;
    double began = bench_now();
    CUdeviceptr rows = 0;
    uint64_t done = 0;
    int rc = CST_OK;

    if (!p.has_kernels) {
        rc = cst_cuda_kernels_open(&p.kernels, &p.driver, err);
        p.has_kernels = rc == CST_OK;
    }
    if (rc == CST_OK) {
        rc = CHECK(cuMemAlloc(&rows, 6 * n));
    }
    if (rc == CST_OK) {
        rc = CHECK(cuMemsetD8Async(rows, 0, 6 * n, p.up));
    }
    while (rc == CST_OK && bench_now() - began < seconds) {
        for (int i = 0; i < 16 && rc == CST_OK; i++, done++) {
            rc = cst_cuda_upcast(&p.kernels, p.up, n, rows + 4 * n, rows, err);
        }
        if (rc == CST_OK) {
            rc = CHECK(cuStreamSynchronize(p.up));
        }
    }
    *per_second = (double)done / (bench_now() - began);
    if (rows != 0) {
        (void)p.driver.cuMemFree(rows);
    }
    return rc;
}

/* -- timeline page -------------------------------------------------------------------------- */

static int word(unsigned i, CUdeviceptr *out, struct cst_err *err)
{
    int rc = CHECK(cuMemHostGetDevicePointer(out, p.host, 0));

    *out += 8 * i;
    return rc;
}

/* Enqueue @rounds rounds: wait for word @waits and write word @writes, or with @write_first in the
 * opposite order. */
static int enqueue_rounds(unsigned rounds, unsigned waits, unsigned writes, bool write_first,
                          struct cst_err *err)
{
    CUdeviceptr wait_at, write_at;
    int rc = word(waits, &wait_at, err);

    if (rc == CST_OK) {
        rc = word(writes, &write_at, err);
    }
    for (unsigned i = 1; i <= rounds && rc == CST_OK; i++) {
        if (write_first) {
            rc = CHECK(cuStreamWriteValue64(p.up, write_at, i, CU_STREAM_WRITE_VALUE_DEFAULT));
        }
        if (rc == CST_OK) {
            rc = CHECK(cuStreamWaitValue64(p.up, wait_at, i, CU_STREAM_WAIT_VALUE_GEQ));
        }
        if (rc == CST_OK && !write_first) {
            rc = CHECK(cuStreamWriteValue64(p.up, write_at, i, CU_STREAM_WRITE_VALUE_DEFAULT));
        }
    }
    return rc;
}

static int drive(unsigned rounds, double *us, struct cst_err *err)
{
    double began = bench_now();
    int rc = enqueue_rounds(rounds, 1, 0, true, err);

    if (rc == CST_OK) {
        rc = CHECK(cuStreamSynchronize(p.up));
    }
    *us = (bench_now() - began) * 1e6 / rounds;
    return rc;
}

static int sync_streams(struct cst_err *err)
{
    int rc = CHECK(cuStreamSynchronize(p.up));

    return rc != CST_OK ? rc : CHECK(cuStreamSynchronize(p.down));
}

/* -- serving -------------------------------------------------------------------------------- */

static int open_all(struct gpu_message *answer, struct cst_err *err)
{
    int rc = need_context(err);

    if (rc == CST_OK) {
        rc = free_bytes(&answer->values[0], &answer->values[1], err);
    }
    if (rc == CST_OK) {
        answer->values[2] = p.driver.version;
        rc = CHECK(cuDeviceGetName(answer->text, sizeof answer->text, p.device));
    }
    return rc;
}

static int obey(const struct gpu_message *asked, int fd, struct gpu_message *answer, int *out_fd,
                struct cst_err *err)
{
    double v = asked->values[0];
    uint64_t n = v > 0 ? (uint64_t)v : 0;
    int rc = CST_OK;

    switch ((enum gpu_verb)asked->what) {
    case GPU_OPEN:
        return open_all(answer, err);
    case GPU_NO_CONTEXT:
        return no_context(n, out_fd, err);
    case GPU_CREATE:
        return create(n, out_fd, err);
    case GPU_IMPORT:
        return import(n, fd, err);
    case GPU_HOST:
        return host(n, fd, &answer->values[0], err);
    case GPU_FREE_BYTES:
        return free_bytes(&answer->values[0], &answer->values[1], err);
    case GPU_PAINT:
        return paint((uint32_t)n, err);
    case GPU_COUNT_OTHERS:
        return count_others((uint32_t)n, &answer->values[0], err);
    case GPU_CHECKSUM:
        return checksum(&answer->values[0], err);
    case GPU_BUSY:
        rc = need_context(err);
        return rc != CST_OK ? rc : busy(v, &answer->values[0], err);
    case GPU_BANDWIDTH:
        rc = need_both(err);
        return rc != CST_OK ? rc
                            : bandwidth((unsigned)n, &answer->values[0], &answer->values[1], err);
    case GPU_COPY_FOR_EVER:
        return need_both(err);
    case GPU_TIMELINE_ECHO:
        return enqueue_rounds((unsigned)n, 0, 1, false, err);
    case GPU_TIMELINE_DRIVE:
        return drive((unsigned)n, &answer->values[0], err);
    case GPU_SYNC:
        return sync_streams(err);
    }
    return cst_err_set(err, CST_EINVAL, "verb %u", asked->what);
}

/* Execute one request. CST_ECONN: the parent is gone. */
static int serve_one(struct cst_err *err)
{
    struct gpu_message asked, answer = {0};
    int fd = -1, out_fd = -1;
    int rc = gpu_link_recv(GPU_LINK_FD, -1, &asked, &fd, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = obey(&asked, fd, &answer, &out_fd, err);
    if (rc != CST_OK) {
        answer.status = rc;
        (void)snprintf(answer.text, sizeof answer.text, "%s", err->text);
    }
    rc = gpu_link_send(GPU_LINK_FD, &answer, out_fd, err);
    if (fd >= 0) {
        (void)close(fd);
    }
    if (out_fd >= 0) {
        (void)close(out_fd);
    }
    if (rc == CST_OK && answer.status == 0 && asked.what == GPU_COPY_FOR_EVER) {
        rc = copy_for_ever(err);
    }
    return rc;
}

int gpu_process_run(void)
{
    struct cst_err err;
    int rc;

    do {
        rc = serve_one(&err);
    } while (rc == CST_OK);
    if (rc != CST_ECONN) {
        (void)fprintf(stderr, "experiments: %s\n", err.text);
    }
    return rc == CST_ECONN ? EXIT_SUCCESS : EXIT_FAILURE;
}
