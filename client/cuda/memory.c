/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cuda/cuda.h"

#include <inttypes.h>

static int map_handle(struct cst_cuda *cuda, CUmemGenericAllocationHandle handle, uint64_t bytes,
                      CUdeviceptr *out, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &cuda->driver;
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at;
    int rc;

    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = cuda->device;
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
                        "access of %s to %" PRIu64 " bytes", cuda->uuid, bytes);
    if (rc != CST_OK) {
        goto err_after_map;
    }
    *out = at;
    return CST_OK;

err_after_map:
    (void)driver->cuMemUnmap(at, bytes);
err_after_reserve:
    (void)driver->cuMemAddressFree(at, bytes);
    return rc;
}

/* Say what prevents imports. Returns the status. */
static int explain_import(struct cst_err *err)
{
    struct cst_err why = *err;

    return cst_err_set(
        err, why.status,
        "%.300s; the worker and cistern-engine-cuda must use the same driver and see "
        "the same GPUs, also in containers (see GPUS in cisternd(8))",
        why.text);
}

int cstc_cuda_map(void *arg, int fd, uint64_t bytes, void **base, struct cst_err *err)
{
    struct cst_cuda *cuda = arg;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at = 0;
    int rc = cstc_cuda_enter(cuda, err);

    if (rc == CST_OK) {
        rc = cst_cuda_check(
            &cuda->driver,
            cuda->driver.cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
                                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            err, "importing %" PRIu64 " bytes for %s", bytes, cuda->uuid);
    }
    if (rc != CST_OK) {
        return rc == CST_EGPU || rc == CST_ENOMEM ? rc : explain_import(err);
    }
    rc = map_handle(cuda, handle, bytes, &at, err);
    /* The mapping keeps a reference to the memory. */
    (void)cuda->driver.cuMemRelease(handle);
    if (rc == CST_OK) {
        *base = (void *)(uintptr_t)at;
    }
    return rc;
}

void cstc_cuda_unmap(void *arg, void *base, uint64_t bytes)
{
    struct cst_cuda *cuda = arg;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)base;

    if (cstc_cuda_enter(cuda, NULL) == CST_OK &&
        cuda->driver.cuMemUnmap(at, bytes) == CUDA_SUCCESS) {
        (void)cuda->driver.cuMemAddressFree(at, bytes);
    }
}

int cstc_cuda_zero(void *arg, void *at, uint64_t bytes, struct cst_err *err)
{
    struct cst_cuda *cuda = arg;
    int rc = cstc_cuda_enter(cuda, err);

    return rc != CST_OK ? rc
                        : cst_cuda_check(&cuda->driver,
                                         cuda->driver.cuMemsetD8Async((CUdeviceptr)(uintptr_t)at, 0,
                                                                      bytes, cuda->stream),
                                         err, "clearing %" PRIu64 " bytes", bytes);
}
