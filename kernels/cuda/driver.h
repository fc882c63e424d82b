/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver, loaded at run time. No part of cistern is linked with libcuda. libcuda.so.1 is
 * opened by name. Each entry point is requested from cuGetProcAddress in the version for which the
 * code was written. One binary therefore runs with any driver from CST_CUDA_MIN_DRIVER on, and
 * starts on machines without a driver.
 *
 * Used by the CUDA engine, by libcistern-cuda and by the reference worker. cisternd never opens the
 * driver. */
#ifndef CST_CUDA_DRIVER_H
#define CST_CUDA_DRIVER_H

#include "cistern/status.h"

#include <cuda.h>

/* Oldest supported driver, as cuDriverGetVersion counts: 12.0 was the first with
 * cuGetProcAddress_v2. */
#define CST_CUDA_MIN_DRIVER 12000

/* Every entry point that cistern uses, as CALL(name, CUDA version in which its form appeared). */
#define CST_CUDA_DRIVER_CALLS(CALL)                                                                \
    CALL(cuInit, 2000)                                                                             \
    CALL(cuDriverGetVersion, 2020)                                                                 \
    CALL(cuGetErrorName, 6000)                                                                     \
    CALL(cuGetErrorString, 6000)                                                                   \
    CALL(cuDeviceGetCount, 2000)                                                                   \
    CALL(cuDeviceGet, 2000)                                                                        \
    CALL(cuDeviceGetName, 2000)                                                                    \
    CALL(cuDeviceGetUuid, 11040)                                                                   \
    CALL(cuDeviceGetAttribute, 2000)                                                               \
    CALL(cuDeviceTotalMem, 3020)                                                                   \
    CALL(cuDeviceGetPCIBusId, 4010)                                                                \
    CALL(cuDeviceCanAccessPeer, 4000)                                                              \
    CALL(cuDevicePrimaryCtxRetain, 7000)                                                           \
    CALL(cuDevicePrimaryCtxRelease, 11000)                                                         \
    CALL(cuDevicePrimaryCtxSetFlags, 11000)                                                        \
    CALL(cuCtxSetCurrent, 4000)                                                                    \
    CALL(cuCtxGetCurrent, 4000)                                                                    \
    CALL(cuCtxGetDevice, 2000)                                                                     \
    CALL(cuCtxSynchronize, 2000)                                                                   \
    CALL(cuMemGetInfo, 3020)                                                                       \
    CALL(cuMemGetAllocationGranularity, 10020)                                                     \
    CALL(cuMemCreate, 10020)                                                                       \
    CALL(cuMemRelease, 10020)                                                                      \
    CALL(cuMemExportToShareableHandle, 10020)                                                      \
    CALL(cuMemImportFromShareableHandle, 10020)                                                    \
    CALL(cuMemAddressReserve, 10020)                                                               \
    CALL(cuMemAddressFree, 10020)                                                                  \
    CALL(cuMemMap, 10020)                                                                          \
    CALL(cuMemUnmap, 10020)                                                                        \
    CALL(cuMemSetAccess, 10020)                                                                    \
    CALL(cuMemAlloc, 3020)                                                                         \
    CALL(cuMemFree, 3020)                                                                          \
    CALL(cuMemHostAlloc, 2020)                                                                     \
    CALL(cuMemFreeHost, 2000)                                                                      \
    CALL(cuMemHostRegister, 6050)                                                                  \
    CALL(cuMemHostUnregister, 4000)                                                                \
    CALL(cuMemHostGetDevicePointer, 3020)                                                          \
    CALL(cuMemcpyAsync, 4000)                                                                      \
    CALL(cuMemcpyHtoDAsync, 3020)                                                                  \
    CALL(cuMemcpyDtoHAsync, 3020)                                                                  \
    CALL(cuMemcpyDtoDAsync, 3020)                                                                  \
    CALL(cuMemsetD8Async, 3020)                                                                    \
    CALL(cuMemsetD32Async, 3020)                                                                   \
    CALL(cuStreamCreateWithPriority, 5050)                                                         \
    CALL(cuCtxGetStreamPriorityRange, 5050)                                                        \
    CALL(cuStreamDestroy, 4000)                                                                    \
    CALL(cuStreamSynchronize, 2000)                                                                \
    CALL(cuStreamQuery, 2000)                                                                      \
    CALL(cuStreamWaitEvent, 3020)                                                                  \
    CALL(cuStreamWriteValue64, 12000)                                                              \
    CALL(cuStreamWaitValue64, 12000)                                                               \
    CALL(cuLaunchHostFunc, 10000)                                                                  \
    CALL(cuEventCreate, 2000)                                                                      \
    CALL(cuEventDestroy, 4000)                                                                     \
    CALL(cuEventRecord, 2000)                                                                      \
    CALL(cuEventQuery, 2000)                                                                       \
    CALL(cuEventSynchronize, 2000)                                                                 \
    CALL(cuEventElapsedTime, 2000)                                                                 \
    CALL(cuModuleLoadData, 2000)                                                                   \
    CALL(cuModuleUnload, 2000)                                                                     \
    CALL(cuModuleGetFunction, 2000)                                                                \
    CALL(cuFuncSetAttribute, 9000)                                                                 \
    CALL(cuLaunchKernel, 4000)

/* The opened driver: a function pointer for each entry point, with its name. */
struct cst_cuda_driver {
    void *library; /* Handle from dlopen. */
    int version;   /* Version of the driver, as cuDriverGetVersion counts. */
#define CST_CUDA_DRIVER_FIELD(name, version) __typeof__(&name) name;
    CST_CUDA_DRIVER_CALLS(CST_CUDA_DRIVER_FIELD)
#undef CST_CUDA_DRIVER_FIELD
};

/* Open the library and call cuInit. On success, end with cst_cuda_driver_close. Any thread; not
 * after fork, which CUDA forbids. CST_EUNSUPPORTED, with a message that begins with one of these
 * texts:
 *
 * - "no NVIDIA driver: ": libcuda.so.1 cannot be opened (followed by the message of dlopen), or the
 *   library reports that no driver is loaded.
 * - "no GPU: ": the driver has no device. The message contains CUDA_VISIBLE_DEVICES if it is set.
 * - "the NVIDIA driver is too old: ": followed by its version and the required version, or by the
 *   missing entry point. */
int cst_cuda_driver_open(struct cst_cuda_driver *driver, struct cst_err *err);

/* Forget the entry points. The library stays loaded, because it cannot be unloaded safely. */
void cst_cuda_driver_close(struct cst_cuda_driver *driver);

/* Set @err to @what (a format), followed by name and description of @result. Returns the status:
 * - CST_OK for CUDA_SUCCESS; @err is not changed.
 * - CST_EGPU for every sticky error: the context is unusable, and the process must end and be
 *   started again.
 * - CST_EUNSUPPORTED if the device cannot do the operation.
 * - CST_ENOMEM if memory is short.
 * - CST_EINTERNAL for all other errors. */
int cst_cuda_check(const struct cst_cuda_driver *driver, CUresult result, struct cst_err *err,
                   const char *what, ...) __attribute__((format(printf, 4, 5)));

/* Returns whether @result is a sticky error, after which the context cannot be used: faults,
 * hardware errors, failed launches. */
bool cst_cuda_is_sticky(CUresult result);

/* Size of a UUID as text: "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" (or "MIG-..."). This text
 * identifies a GPU in protocol messages, in the configuration and in texts for people. */
#define CST_CUDA_UUID_BYTES 64

/* Write the UUID of device number @device of this process as text. That of a MIG instance begins
 * with "MIG-". Statuses as cst_cuda_check. */
int cst_cuda_uuid(const struct cst_cuda_driver *driver, CUdevice device,
                  char text[CST_CUDA_UUID_BYTES], struct cst_err *err);

/* Find the device of this process with @uuid, as cst_cuda_uuid writes it; an unambiguous beginning
 * is enough. CST_ENOTFOUND: no device or several devices match; the message lists the devices. */
int cst_cuda_find(const struct cst_cuda_driver *driver, const char *uuid, CUdevice *out,
                  struct cst_err *err);

#endif
