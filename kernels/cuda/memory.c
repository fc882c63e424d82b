/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/memory.h"

#include "kernels/cuda/flight.h"
#include "proto/segment_map.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static CUdeviceptr device_pointer(struct cste_addr addr)
{
    return addr.mem->device + addr.offset;
}

/* -- host memory ---------------------------------------------------------------------------- */

/* Map host memory. The engines of nodes bind and populate host memory. */
int cste_gpu_map(void *state, int fd, int node, struct cste_mem *mem, struct cst_err *note,
                 struct cst_err *err)
{
    void *at = cst_segment_map(fd, mem->bytes);

    (void)state;
    (void)node;
    (void)note;
    if (at == MAP_FAILED) {
        return cst_err_errno(err, errno == ENOMEM ? CST_ENOMEM : CST_EINVAL, errno,
                             "mapping %" PRIu64 " bytes", mem->bytes);
    }
    mem->base = at;
    return CST_OK;
}

static uint64_t n_registrations(const struct cste_mem *mem)
{
    return (mem->bytes + CSTE_GPU_REGISTRATION - 1) / CSTE_GPU_REGISTRATION;
}

static char *registration(const struct cste_mem *mem, uint64_t i)
{
    return (char *)mem->base + i * CSTE_GPU_REGISTRATION;
}

/* Undo the first @n registrations, the last one first. Returns false if the driver did not release
 * one. */
static bool unregister(struct cste_gpu *gpu, const struct cste_mem *mem, uint64_t n)
{
    bool all = true;

    while (n-- > 0) {
        all = gpu->driver.cuMemHostUnregister(registration(mem, n)) == CUDA_SUCCESS && all;
    }
    return all;
}

int cste_gpu_lock(void *state, const struct cste_mem *mem, struct cst_err *err)
{
    struct cste_gpu *gpu = state;
    int rc = cste_gpu_enter(gpu, err);

    for (uint64_t i = 0; i < n_registrations(mem) && rc == CST_OK; i++) {
        uint64_t at = i * CSTE_GPU_REGISTRATION, left = mem->bytes - at;
        size_t bytes = left < CSTE_GPU_REGISTRATION ? left : CSTE_GPU_REGISTRATION;

        rc = cst_cuda_check(
            &gpu->driver,
            gpu->driver.cuMemHostRegister(registration(mem, i), bytes, CU_MEMHOSTREGISTER_PORTABLE),
            err, "registering %zu bytes at %" PRIu64 " of %" PRIu64, bytes, at, mem->bytes);
        if (rc != CST_OK) {
            (void)unregister(gpu, mem, i);
        }
    }
    if (rc != CST_OK) {
        struct cst_err why = *err;

        atomic_store(&gpu->has_unregistered, true);
        (void)cst_err_set(err, rc, "%.400s; its copies go through pinned buffers", why.text);
    }
    return rc;
}

/* -- memory of a GPU ------------------------------------------------------------------------ */

/* Append ": x of y bytes are free" to the message if the driver can tell. Returns the status. */
static int add_free_bytes(struct cste_gpu *gpu, struct cst_err *err)
{
    size_t n_free = 0, total = 0;
    struct cst_err what = *err;

    if (gpu->driver.cuMemGetInfo(&n_free, &total) == CUDA_SUCCESS) {
        (void)cst_err_set(err, what.status, "%.256s: %zu of %zu bytes are free", what.text, n_free,
                          total);
    }
    return what.status;
}

/* Create memory on this GPU and a descriptor of it. */
static int make(struct cste_gpu *gpu, uint64_t bytes, CUmemGenericAllocationHandle *handle, int *fd,
                struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &gpu->driver;
    CUmemAllocationProp prop = cste_gpu_memory_prop(gpu);
    int out = -1, rc = cst_cuda_check(driver, driver->cuMemCreate(handle, bytes, &prop, 0), err,
                                      "making %" PRIu64 " bytes of %s", bytes, gpu->uuid);

    if (rc == CST_ENOMEM) {
        return add_free_bytes(gpu, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    rc = cst_cuda_check(driver,
                        driver->cuMemExportToShareableHandle(
                            &out, *handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                        err, "exporting %" PRIu64 " bytes of %s", bytes, gpu->uuid);
    if (rc != CST_OK) {
        (void)driver->cuMemRelease(*handle);
        return rc;
    }
    *fd = out;
    return CST_OK;
}

int cste_gpu_check_sharing(struct cste_gpu *gpu, struct cst_err *err)
{
    CUmemGenericAllocationHandle handle;
    struct cst_err why;
    int fd, rc = make(gpu, gpu->granularity, &handle, &fd, &why);

    if (rc == CST_OK) {
        (void)gpu->driver.cuMemRelease(handle);
        (void)close(fd);
        return CST_OK;
    }
    if (rc == CST_ENOMEM) {
        return CST_OK;
    }
    return cst_err_set(err, rc == CST_EGPU ? rc : CST_EUNSUPPORTED, "%.256s; " CSTE_GPU_NO_SHARING,
                       why.text);
}

/* Map the memory of @handle for reading and writing by this GPU. */
static int map_handle(struct cste_gpu *gpu, CUmemGenericAllocationHandle handle, uint64_t bytes,
                      CUdeviceptr *out, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &gpu->driver;
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at;
    int rc;

    access.location = cste_gpu_memory_prop(gpu).location;
    rc = cst_cuda_check(driver, driver->cuMemAddressReserve(&at, bytes, 0, 0, 0), err,
                        "addresses for %" PRIu64 " bytes", bytes);
    if (rc != CST_OK) {
        return rc;
    }
    rc = cst_cuda_check(driver, driver->cuMemMap(at, bytes, 0, handle, 0), err,
                        "mapping %" PRIu64 " bytes", bytes);
    if (rc != CST_OK) {
        goto err_after_reserve;
    }
    rc = cst_cuda_check(driver, driver->cuMemSetAccess(at, bytes, &access, 1), err,
                        "access of %s to %" PRIu64 " bytes that may be another GPU's", gpu->uuid,
                        bytes);
    if (rc != CST_OK) {
        goto err_after_map;
    }
    *out = at;
    return CST_OK;

err_after_map:
    /* Addresses that are still mapped must not be freed. */
    if (driver->cuMemUnmap(at, bytes) != CUDA_SUCCESS) {
        return rc;
    }
err_after_reserve:
    (void)driver->cuMemAddressFree(at, bytes);
    return rc;
}

static int enqueue_fill(struct cste_gpu *gpu, unsigned thread, struct cste_addr dst, uint64_t bytes,
                        struct cst_err *err)
{
    return cst_cuda_check(
        &gpu->driver,
        gpu->driver.cuMemsetD8Async(device_pointer(dst), 0, bytes, cste_gpu_stream(gpu, thread)),
        err, "clearing %" PRIu64 " bytes", bytes);
}

/* Import the handle that @fd stands for. */
static int import(struct cste_gpu *gpu, int fd, CUmemGenericAllocationHandle *handle,
                  struct cst_err *err)
{
    int rc =
        cst_cuda_check(&gpu->driver,
                       gpu->driver.cuMemImportFromShareableHandle(
                           handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                       err, "importing the handle of a GPU's memory");

    if (rc == CST_EINTERNAL) {
        /* The descriptor came from outside. */
        err->status = rc = CST_EINVAL;
    }
    return rc;
}

/* Fill @bytes of device memory at @dst with zeros, and wait for it. */
static int clear(struct cste_gpu *gpu, unsigned thread, struct cste_addr dst, uint64_t bytes,
                 struct cst_err *err)
{
    return cste_gpu_settle(gpu, thread, enqueue_fill(gpu, thread, dst, bytes, err), err);
}

int cste_gpu_import(void *state, unsigned thread, int *fd, struct cste_mem *mem,
                    struct cst_err *err)
{
    struct cste_gpu *gpu = state;
    CUmemGenericAllocationHandle handle;
    struct cste_addr start = {.mem = mem};
    CUdeviceptr at = 0;
    int made = -1, rc = cste_gpu_enter(gpu, err);

    if (rc == CST_OK) {
        rc = *fd < 0 ? make(gpu, mem->bytes, &handle, &made, err) : import(gpu, *fd, &handle, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    rc = map_handle(gpu, handle, mem->bytes, &at, err);
    /* The mapping keeps the memory alive. */
    (void)gpu->driver.cuMemRelease(handle);
    if (rc != CST_OK) {
        goto err_after_make;
    }
    mem->device = at;
    if (made >= 0) {
        rc = clear(gpu, thread, start, mem->bytes, err);
        if (rc == CST_EGPU) {
            /* The GPU may still be accessing the memory, which therefore lasts until the process
             * ends. */
            return rc;
        }
        if (rc != CST_OK) {
            goto err_after_map;
        }
        *fd = made;
    }
    return CST_OK;

err_after_map:
    cste_gpu_unmap(gpu, mem);
    mem->device = 0;
err_after_make:
    if (made >= 0) {
        (void)close(made);
    }
    return rc;
}

/* Memory that the driver does not release stays mapped, because the GPU may be accessing it. */
void cste_gpu_unmap(void *state, struct cste_mem *mem)
{
    struct cste_gpu *gpu = state;

    (void)gpu->driver.cuCtxSetCurrent(gpu->context);
    if (mem->device != 0) {
        if (gpu->driver.cuMemUnmap(mem->device, mem->bytes) == CUDA_SUCCESS) {
            (void)gpu->driver.cuMemAddressFree(mem->device, mem->bytes);
        }
    } else if (!mem->locked || unregister(gpu, mem, n_registrations(mem))) {
        (void)munmap(mem->base, mem->bytes);
    }
}

/* -- bytes ---------------------------------------------------------------------------------- */

/* Returns the bytes from @addr to the next registration. A copy must not extend over two. */
static uint64_t to_border(struct cste_addr addr)
{
    return addr.mem->device != 0 ? UINT64_MAX
                                 : CSTE_GPU_REGISTRATION - addr.offset % CSTE_GPU_REGISTRATION;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static CUresult enqueue_piece(struct cste_gpu *gpu, CUstream stream, struct cste_addr dst,
                              struct cste_addr src, size_t bytes)
{
    const struct cst_cuda_driver *driver = &gpu->driver;

    if (dst.mem->device == 0) {
        return driver->cuMemcpyDtoHAsync(cste_addr_host(dst), device_pointer(src), bytes, stream);
    }
    if (src.mem->device == 0) {
        return driver->cuMemcpyHtoDAsync(device_pointer(dst), cste_addr_host(src), bytes, stream);
    }
    return driver->cuMemcpyDtoDAsync(device_pointer(dst), device_pointer(src), bytes, stream);
}

int cste_gpu_enqueue_copy(struct cste_gpu *gpu, unsigned thread, struct cste_addr dst,
                          struct cste_addr src, uint64_t bytes, struct cst_err *err)
{
    int rc = CST_OK;

    while (bytes > 0 && rc == CST_OK) {
        uint64_t n = least(bytes, least(to_border(dst), to_border(src)));

        rc = cst_cuda_check(&gpu->driver,
                            enqueue_piece(gpu, cste_gpu_stream(gpu, thread), dst, src, n), err,
                            "copying %" PRIu64 " bytes", n);
        dst.offset += n;
        src.offset += n;
        bytes -= n;
    }
    return rc;
}

/* Returns whether copies from or to @mem go through the pinned buffer of their flight. If the
 * driver refuses this buffer as well, it copies through memory of its own, one piece at a time. */
static bool is_staged(struct cste_gpu *gpu, unsigned thread, const struct cste_mem *mem)
{
    return mem->device == 0 && !mem->locked && cste_gpu_pin(gpu, thread);
}

/* Store bytes that have arrived in the pinned buffer at their place. */
static void end_store(struct cste_gpu *gpu, struct cste_gpu_flight *flight,
                      struct cst_tile_done *done)
{
    (void)gpu;
    (void)done;
    memcpy(flight->store.to, flight->pinned.base, flight->store.bytes);
}

/* Enqueue a copy of at most CSTE_GPU_PIECE_BYTES through the pinned buffer of @flight, which has
 * landed. */
static int enqueue_staged(struct cste_gpu *gpu, unsigned thread, struct cste_gpu_flight *flight,
                          struct cste_addr dst, struct cste_addr src, uint64_t bytes,
                          struct cst_err *err)
{
    struct cste_addr pinned = {.mem = &flight->pinned};

    if (src.mem->device == 0) {
        memcpy(flight->pinned.base, cste_addr_host(src), bytes);
        return cste_gpu_enqueue_copy(gpu, thread, dst, pinned, bytes, err);
    }
    flight->store = (struct cste_gpu_store){.to = cste_addr_host(dst), .bytes = bytes};
    flight->end = end_store;
    return cste_gpu_enqueue_copy(gpu, thread, pinned, src, bytes, err);
}

/* Copy through the pinned buffer of @flight, piece by piece. The last piece is left under way. */
static int copy_staged(struct cste_gpu *gpu, unsigned thread, struct cste_gpu_flight *flight,
                       struct cste_addr dst, struct cste_addr src, uint64_t bytes,
                       struct cst_err *err)
{
    struct cst_tile_done none = {0};
    int rc = CST_OK;

    while (bytes > 0 && rc == CST_OK) {
        uint64_t n = least(bytes, CSTE_GPU_PIECE_BYTES);

        rc = cste_gpu_land(gpu, thread, flight, &none, err);
        if (rc == CST_OK) {
            rc = enqueue_staged(gpu, thread, flight, dst, src, n, err);
            rc = cste_gpu_depart(gpu, thread, flight, rc, err);
        }
        dst.offset += n;
        src.offset += n;
        bytes -= n;
    }
    return rc;
}

int cste_gpu_copy(void *state, unsigned thread, struct cste_addr dst, struct cste_addr src,
                  uint64_t bytes, struct cst_err *err)
{
    struct cste_gpu *gpu = state;
    struct cste_gpu_flight *flight = cste_gpu_take_flight(gpu, thread);
    int rc = CST_OK;

    if (dst.mem->device == 0 && src.mem->device == 0) {
        memcpy(cste_addr_host(dst), cste_addr_host(src), bytes);
        return cste_gpu_leave_under_way(gpu, thread, CST_OK);
    }
    rc = cste_gpu_enter(gpu, err);
    if (rc == CST_OK && (is_staged(gpu, thread, dst.mem) || is_staged(gpu, thread, src.mem))) {
        rc = copy_staged(gpu, thread, flight, dst, src, bytes, err);
    } else if (rc == CST_OK) {
        rc = cste_gpu_enqueue_copy(gpu, thread, dst, src, bytes, err);
        rc = cste_gpu_depart(gpu, thread, flight, rc, err);
    }
    return cste_gpu_leave_under_way(gpu, thread, rc);
}

int cste_gpu_fill(void *state, unsigned thread, struct cste_addr dst, uint64_t bytes,
                  struct cst_err *err)
{
    struct cste_gpu *gpu = state;
    struct cste_gpu_flight *flight = cste_gpu_take_flight(gpu, thread);
    int rc;

    if (dst.mem->device == 0) {
        memset(cste_addr_host(dst), 0, bytes);
        return cste_gpu_leave_under_way(gpu, thread, CST_OK);
    }
    rc = cste_gpu_enter(gpu, err);
    if (rc == CST_OK) {
        rc = enqueue_fill(gpu, thread, dst, bytes, err);
        rc = cste_gpu_depart(gpu, thread, flight, rc, err);
    }
    return cste_gpu_leave_under_way(gpu, thread, rc);
}

/* Set @out to the thread's buffer for values. The buffer is allocated at its first use, because few
 * jobs need it. */
static int find_values(struct cste_gpu *gpu, unsigned thread, struct cste_mem *out,
                       struct cst_err *err)
{
    const uint64_t bytes = CSTE_GPU_CAST_ELEMS * sizeof(float);
    CUdeviceptr *values = &gpu->threads[thread].values;
    int rc = CST_OK;

    if (*values == 0) {
        rc = cst_cuda_check(&gpu->driver, gpu->driver.cuMemAlloc(values, bytes), err,
                            "%" PRIu64 " bytes of %s to make weights in", bytes, gpu->uuid);
    }
    *out = (struct cste_mem){.device = *values, .bytes = bytes};
    return rc;
}

/* Enqueue the cast of @n fp32 values at @src, which is host memory, to weights at @dst. @staged:
 * the values go through the pinned buffer of @flight, which has landed. */
static int enqueue_cast(struct cste_gpu *gpu, unsigned thread, struct cste_gpu_flight *flight,
                        struct cste_addr dst, struct cste_addr src, uint64_t n, bool staged,
                        struct cst_err *err)
{
    const uint64_t bytes = n * sizeof(float);
    struct cste_mem values;
    struct cste_addr to = {.mem = &values};
    int rc = find_values(gpu, thread, &values, err);

    if (rc == CST_OK) {
        rc = staged ? enqueue_staged(gpu, thread, flight, to, src, bytes, err)
                    : cste_gpu_enqueue_copy(gpu, thread, to, src, bytes, err);
    }
    return rc != CST_OK ? rc
                        : cst_cuda_cast(&gpu->kernels, cste_gpu_stream(gpu, thread), n,
                                        values.device, device_pointer(dst), err);
}

/* Cast @n values in parts that fit into the buffers. The last part is left under way. */
static int cast_all(struct cste_gpu *gpu, unsigned thread, struct cste_gpu_flight *flight,
                    struct cste_addr dst, struct cste_addr src, uint64_t n, struct cst_err *err)
{
    bool staged = is_staged(gpu, thread, src.mem);
    struct cst_tile_done none = {0};
    int rc = CST_OK;

    while (n > 0 && rc == CST_OK) {
        uint64_t some = least(n, CSTE_GPU_CAST_ELEMS);

        rc = cste_gpu_land(gpu, thread, flight, &none, err);
        if (rc == CST_OK) {
            rc = enqueue_cast(gpu, thread, flight, dst, src, some, staged, err);
            rc = cste_gpu_depart(gpu, thread, flight, rc, err);
        }
        src.offset += some * sizeof(float);
        dst.offset += some * sizeof(uint16_t);
        n -= some;
    }
    return rc;
}

int cste_gpu_convert(void *state, unsigned thread, const struct cste_device_convert *convert,
                     struct cst_err *err)
{
    struct cste_addr dst = convert->dst[0], src = convert->src;
    struct cste_gpu *gpu = state;
    struct cste_gpu_flight *flight = cste_gpu_take_flight(gpu, thread);
    int rc;

    if (convert->what != CSTE_CONVERT_WEIGHT || convert->split) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "conversions of states must go to the engine of a node");
    }
    if (dst.mem->device == 0) {
        gpu->processor->cast(convert->n_elems, cste_addr_host(src), cste_addr_host(dst));
        return cste_gpu_leave_under_way(gpu, thread, CST_OK);
    }
    rc = cste_gpu_enter(gpu, err);
    if (rc == CST_OK) {
        rc = cast_all(gpu, thread, flight, dst, src, convert->n_elems, err);
    }
    return cste_gpu_leave_under_way(gpu, thread, rc);
}
