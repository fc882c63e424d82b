/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/gpu.h"

#include "kernels/cuda/flight.h"
#include "kernels/cuda/memory.h"

#include <stdio.h>
#include <stdlib.h>

/* -- the device ----------------------------------------------------------------------------- */

static int attribute(struct cste_gpu *gpu, CUdevice_attribute which, int *out, struct cst_err *err)
{
    return cst_cuda_check(&gpu->driver, gpu->driver.cuDeviceGetAttribute(out, which, gpu->device),
                          err, "attribute %d of %s", (int)which, gpu->uuid);
}

/* Check for the features that cistern needs. */
static int check_abilities(struct cste_gpu *gpu, struct cst_err *err)
{
    static const struct {
        CUdevice_attribute which;
        const char *what;
    } needed[] = {
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, "one address space with the host"},
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management"},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
         "memory shared by file descriptor; " CSTE_GPU_NO_SHARING},
    };

    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        int has = 0, rc = attribute(gpu, needed[i].which, &has, err);

        if (rc != CST_OK) {
            return rc;
        }
        if (!has) {
            return cst_err_set(err, CST_EUNSUPPORTED, "%s (%s) has no %s", gpu->name, gpu->uuid,
                               needed[i].what);
        }
    }
    return CST_OK;
}

static int describe(struct cste_gpu *gpu, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &gpu->driver;
    CUmemAllocationProp prop = cste_gpu_memory_prop(gpu);
    size_t bytes = 0, granularity = 0;
    int major = 0, minor = 0, rc = cst_cuda_uuid(driver, gpu->device, gpu->uuid, err);

    if (rc == CST_OK) {
        rc = cst_cuda_check(driver,
                            driver->cuDeviceGetName(gpu->name, sizeof gpu->name - 1, gpu->device),
                            err, "name of %s", gpu->uuid);
    }
    if (rc == CST_OK) {
        rc = cst_cuda_check(driver, driver->cuDeviceTotalMem(&bytes, gpu->device), err,
                            "memory of %s", gpu->uuid);
    }
    if (rc == CST_OK) {
        rc = attribute(gpu, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major, err);
    }
    if (rc == CST_OK) {
        rc = attribute(gpu, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor, err);
    }
    if (rc == CST_OK) {
        rc = check_abilities(gpu, err);
    }
    if (rc == CST_OK) {
        rc = cst_cuda_check(driver,
                            driver->cuMemGetAllocationGranularity(
                                &granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                            err, "granularity of memory of %s", gpu->uuid);
    }
    (void)snprintf(gpu->isa, sizeof gpu->isa, "sm_%d%d", major, minor);
    gpu->bytes = bytes;
    gpu->granularity = granularity;
    return rc;
}

/* Retain the primary context. Threads that wait for the GPU sleep, because the workers need the
 * processors. */
static int open_context(struct cste_gpu *gpu, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &gpu->driver;
    int rc = cst_cuda_check(
        driver, driver->cuDevicePrimaryCtxSetFlags(gpu->device, CU_CTX_SCHED_BLOCKING_SYNC), err,
        "flags of the context of %s", gpu->uuid);
    CUcontext context;

    if (rc == CST_OK) {
        rc = cst_cuda_check(driver, driver->cuDevicePrimaryCtxRetain(&context, gpu->device), err,
                            "context of %s", gpu->uuid);
    }
    if (rc == CST_OK) {
        gpu->context = context;
        rc = cste_gpu_enter(gpu, err);
    }
    return rc;
}

/* -- opening -------------------------------------------------------------------------------- */

static int open_parts(struct cste_gpu *gpu, const char *uuid, struct cst_err *err)
{
    int rc = cst_cuda_find(&gpu->driver, uuid, &gpu->device, err);

    if (rc == CST_OK) {
        rc = describe(gpu, err);
    }
    if (rc == CST_OK) {
        rc = open_context(gpu, err);
    }
    if (rc == CST_OK) {
        rc = cste_gpu_check_sharing(gpu, err);
    }
    if (rc == CST_OK) {
        rc = cst_cuda_kernels_open(&gpu->kernels, &gpu->driver, err);
    }
    return rc == CST_OK ? cste_gpu_open_threads(gpu, err) : rc;
}

int cste_gpu_open(struct cste_gpu **out, const struct cste_device_spec *spec, struct cst_err *err)
{
    struct cste_gpu *gpu;
    int rc;

    if (spec->id == NULL || spec->id[0] == '\0') {
        return cst_err_set(err, CST_EINVAL, "no GPU is named");
    }
    gpu = calloc(1, sizeof *gpu);
    if (gpu == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a GPU");
    }
    gpu->n_threads = spec->n_threads;
    gpu->n_team = spec->n_team;
    gpu->processor = cst_kernels_get(NULL);
    rc = cst_cuda_driver_open(&gpu->driver, err);
    if (rc != CST_OK) {
        free(gpu);
        return rc;
    }
    rc = open_parts(gpu, spec->id, err);
    if (rc != CST_OK) {
        cste_gpu_close(gpu);
        return rc;
    }
    *out = gpu;
    return CST_OK;
}

void cste_gpu_close(struct cste_gpu *gpu)
{
    if (gpu->context != NULL) {
        (void)gpu->driver.cuCtxSetCurrent(gpu->context);
        cste_gpu_close_threads(gpu);
        if (gpu->kernels.driver != NULL) {
            cst_cuda_kernels_close(&gpu->kernels);
        }
        (void)gpu->driver.cuDevicePrimaryCtxRelease(gpu->device);
    }
    cst_cuda_driver_close(&gpu->driver);
    free(gpu);
}

/* -- in use --------------------------------------------------------------------------------- */

int cste_gpu_enter(struct cste_gpu *gpu, struct cst_err *err)
{
    return cst_cuda_check(&gpu->driver, gpu->driver.cuCtxSetCurrent(gpu->context), err,
                          "context of %s", gpu->uuid);
}

CUmemAllocationProp cste_gpu_memory_prop(const struct cste_gpu *gpu)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};

    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = gpu->device;
    return prop;
}
