/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver, found at run time: nothing in cistern is linked with libcuda. libcuda.so.1 is
 * opened by name and each entry point is asked of cuGetProcAddress for the version it was written
 * against, so that one binary runs with any driver from CST_CUDA_MIN_DRIVER on and starts on
 * machines that have none.
 *
 * Used by the CUDA engine, by libcistern-cuda and by the reference worker. cisternd never opens it.
 */
#ifndef CST_CUDA_DRIVER_H
#define CST_CUDA_DRIVER_H

#include "cistern/status.h"

#include <cuda.h>

#define CST_CUDA_MIN_DRIVER                                                                        \
    12000 /* as cuDriverGetVersion has it: 12.0, the first with cuGetProcAddress_v2 */

/* Every entry point that cistern uses, with the CUDA version whose form of it is meant. CALL(name,
 * version) */
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

struct cst_cuda_driver {
    void *library; /* dlopen's */
    int version;   /* of the driver, as cuDriverGetVersion has it */
#define CST_CUDA_DRIVER_FIELD(name, version) __typeof__(&name) name;
    CST_CUDA_DRIVER_CALLS(CST_CUDA_DRIVER_FIELD)
#undef CST_CUDA_DRIVER_FIELD
};

/* Open the library and call cuInit. CST_EUNSUPPORTED with one of these sentences and nothing else
 * to tell them apart by: "no NVIDIA driver: ..."                   libcuda.so.1 is not there (what
 * dlopen says), or it says that no driver is loaded "no GPU: ..."                             the
 * driver is there and has no device (CUDA_VISIBLE_DEVICES is named if it is set) "the NVIDIA driver
 * is too old: ..."       its version, and the one that is needed; or the entry point that it lacks
 * Any thread; not after fork (CUDA forbids it). On success: cst_cuda_driver_close. */
int cst_cuda_driver_open(struct cst_cuda_driver *driver, struct cst_err *err);

/* Forget the entry points. The library stays loaded: it cannot be taken out safely. */
void cst_cuda_driver_close(struct cst_cuda_driver *driver);

/* @err := @what, the name and the words of @result. Returns the status: CST_OK for CUDA_SUCCESS;
 * CST_ENOMEM for out of memory; CST_EUNSUPPORTED where the device cannot do it; CST_EGPU for
 * everything that leaves the context unusable (sticky: the process must end and be started again);
 * CST_EINTERNAL for the rest. */
int cst_cuda_check(const struct cst_cuda_driver *driver, CUresult result, struct cst_err *err,
                   const char *what, ...) __attribute__((format(printf, 4, 5)));

/* Can the context be used after @result? False for what CUDA calls sticky: faults, hardware errors,
 * launches that failed. */
bool cst_cuda_is_sticky(CUresult result);

/* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" (or "MIG-..."), the device's name on the wire, in the
 * configuration and in all words. */
#define CST_CUDA_UUID_BYTES 64

/* The UUID of device number @device of this process, as text. A MIG instance has "MIG-". */
int cst_cuda_uuid(const struct cst_cuda_driver *driver, CUdevice device,
                  char text[CST_CUDA_UUID_BYTES], struct cst_err *err);

/* The device of this process that goes by @uuid (as cst_cuda_uuid writes it; an unambiguous
 * beginning of it will do). CST_ENOTFOUND: none, with the list of those that are there. */
int cst_cuda_find(const struct cst_cuda_driver *driver, const char *uuid, CUdevice *out,
                  struct cst_err *err);

#endif
