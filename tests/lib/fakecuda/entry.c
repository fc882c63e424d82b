/* SPDX-License-Identifier: Apache-2.0 */
/* Entry: cuInit, the driver's version, and cuGetProcAddress with all entry points that exist. */
#include "tests/lib/fakecuda/device.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/settings.h"

#include <string.h>

/* -- start ---------------------------------------------------------------------------------- */

CUresult cuInit(unsigned int Flags)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_NOTHING);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (Flags != 0) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (cst_fake_n_devices() == 0) {
        return cst_fake_end(CUDA_ERROR_NO_DEVICE);
    }
    cst_fake_set_ready();
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuDriverGetVersion(int *driverVersion)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_NOTHING);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (driverVersion == NULL) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    *driverVersion = cst_fake_settings()->driver;
    return cst_fake_end(CUDA_SUCCESS);
}

/* -- cuGetProcAddress ----------------------------------------------------------------------- */

typedef void (*any_fn)(void);

struct entry {
    const char *name;
    int since;       /* CUDA version of this form */
    any_fn function; /* NULL: the form is known and does not exist here */
};

/* Old forms, whose names cuda.h defines as their successors. */
CUresult first_elapsed_time(float *ms, CUevent start, CUevent end) __asm__("cuEventElapsedTime");
CUresult first_get_proc_address(const char *symbol, void **pfn, int version,
                                cuuint64_t flags) __asm__("cuGetProcAddress");

/* Forms of one name are sorted by version, the oldest first. */
static const struct entry entries[] = {
    {"cuGetProcAddress", 11030, (any_fn)first_get_proc_address},
    {"cuGetProcAddress", 12000, (any_fn)cuGetProcAddress},
    {"cuInit", 2000, (any_fn)cuInit},
    {"cuDriverGetVersion", 2020, (any_fn)cuDriverGetVersion},
    {"cuGetErrorName", 6000, (any_fn)cuGetErrorName},
    {"cuGetErrorString", 6000, (any_fn)cuGetErrorString},
    {"cuDeviceGetCount", 2000, (any_fn)cuDeviceGetCount},
    {"cuDeviceGet", 2000, (any_fn)cuDeviceGet},
    {"cuDeviceGetName", 2000, (any_fn)cuDeviceGetName},
    {"cuDeviceGetUuid", 11040, (any_fn)cuDeviceGetUuid},
    {"cuDeviceGetAttribute", 2000, (any_fn)cuDeviceGetAttribute},
    {"cuDeviceTotalMem", 3020, (any_fn)cuDeviceTotalMem},
    {"cuDeviceGetPCIBusId", 4010, (any_fn)cuDeviceGetPCIBusId},
    {"cuDeviceCanAccessPeer", 4000, (any_fn)cuDeviceCanAccessPeer},
    {"cuDevicePrimaryCtxRetain", 7000, (any_fn)cuDevicePrimaryCtxRetain},
    {"cuDevicePrimaryCtxRelease", 11000, (any_fn)cuDevicePrimaryCtxRelease},
    {"cuDevicePrimaryCtxSetFlags", 11000, (any_fn)cuDevicePrimaryCtxSetFlags},
    {"cuCtxSetCurrent", 4000, (any_fn)cuCtxSetCurrent},
    {"cuCtxGetCurrent", 4000, (any_fn)cuCtxGetCurrent},
    {"cuCtxGetDevice", 2000, (any_fn)cuCtxGetDevice},
    {"cuCtxGetDevice", 13000, NULL},
    {"cuCtxSynchronize", 2000, (any_fn)cuCtxSynchronize},
    {"cuCtxSynchronize", 13000, NULL},
    {"cuMemGetInfo", 3020, (any_fn)cuMemGetInfo},
    {"cuMemGetAllocationGranularity", 10020, (any_fn)cuMemGetAllocationGranularity},
    {"cuMemCreate", 10020, (any_fn)cuMemCreate},
    {"cuMemRelease", 10020, (any_fn)cuMemRelease},
    {"cuMemExportToShareableHandle", 10020, (any_fn)cuMemExportToShareableHandle},
    {"cuMemImportFromShareableHandle", 10020, (any_fn)cuMemImportFromShareableHandle},
    {"cuMemAddressReserve", 10020, (any_fn)cuMemAddressReserve},
    {"cuMemAddressFree", 10020, (any_fn)cuMemAddressFree},
    {"cuMemMap", 10020, (any_fn)cuMemMap},
    {"cuMemUnmap", 10020, (any_fn)cuMemUnmap},
    {"cuMemSetAccess", 10020, (any_fn)cuMemSetAccess},
    {"cuMemAlloc", 3020, (any_fn)cuMemAlloc},
    {"cuMemFree", 3020, (any_fn)cuMemFree},
    {"cuMemHostAlloc", 2020, (any_fn)cuMemHostAlloc},
    {"cuMemFreeHost", 2000, (any_fn)cuMemFreeHost},
    {"cuMemHostRegister", 6050, (any_fn)cuMemHostRegister},
    {"cuMemHostUnregister", 4000, (any_fn)cuMemHostUnregister},
    {"cuMemHostGetDevicePointer", 3020, (any_fn)cuMemHostGetDevicePointer},
    {"cuMemcpyAsync", 4000, (any_fn)cuMemcpyAsync},
    {"cuMemcpyHtoDAsync", 3020, (any_fn)cuMemcpyHtoDAsync},
    {"cuMemcpyDtoHAsync", 3020, (any_fn)cuMemcpyDtoHAsync},
    {"cuMemcpyDtoDAsync", 3020, (any_fn)cuMemcpyDtoDAsync},
    {"cuMemsetD8Async", 3020, (any_fn)cuMemsetD8Async},
    {"cuMemsetD32Async", 3020, (any_fn)cuMemsetD32Async},
    {"cuStreamCreateWithPriority", 5050, (any_fn)cuStreamCreateWithPriority},
    {"cuCtxGetStreamPriorityRange", 5050, (any_fn)cuCtxGetStreamPriorityRange},
    {"cuStreamDestroy", 4000, (any_fn)cuStreamDestroy},
    {"cuStreamSynchronize", 2000, (any_fn)cuStreamSynchronize},
    {"cuStreamQuery", 2000, (any_fn)cuStreamQuery},
    {"cuStreamWaitEvent", 3020, (any_fn)cuStreamWaitEvent},
    {"cuStreamWriteValue64", 12000, (any_fn)cuStreamWriteValue64},
    {"cuStreamWaitValue64", 12000, (any_fn)cuStreamWaitValue64},
    {"cuLaunchHostFunc", 10000, (any_fn)cuLaunchHostFunc},
    {"cuEventCreate", 2000, (any_fn)cuEventCreate},
    {"cuEventDestroy", 4000, (any_fn)cuEventDestroy},
    {"cuEventRecord", 2000, (any_fn)cuEventRecord},
    {"cuEventQuery", 2000, (any_fn)cuEventQuery},
    {"cuEventSynchronize", 2000, (any_fn)cuEventSynchronize},
    {"cuEventElapsedTime", 2000, (any_fn)first_elapsed_time},
    {"cuEventElapsedTime", 12080, (any_fn)cuEventElapsedTime},
    {"cuModuleLoadData", 2000, (any_fn)cuModuleLoadData},
    {"cuModuleUnload", 2000, (any_fn)cuModuleUnload},
    {"cuModuleGetFunction", 2000, (any_fn)cuModuleGetFunction},
    {"cuFuncSetAttribute", 9000, (any_fn)cuFuncSetAttribute},
    {"cuLaunchKernel", 4000, (any_fn)cuLaunchKernel},
};

/* The newest form of @name in @version. *@known: the name exists. */
static any_fn find_entry(const char *name, int version, bool *known)
{
    any_fn found = NULL;

    *known = false;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (strcmp(entries[i].name, name) == 0) {
            *known = true;
            if (entries[i].since <= version) {
                found = entries[i].function;
            }
        }
    }
    return found;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *symbolStatus)
{
    const struct cst_fake_settings *s = cst_fake_settings();
    any_fn function;
    bool known;

    if (symbol == NULL || pfn == NULL || cudaVersion > s->driver ||
        flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    function = find_entry(symbol, cudaVersion, &known);
    memcpy(pfn, &function, sizeof *pfn);
    if (symbolStatus != NULL) {
        *symbolStatus = function != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                        : known          ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                         : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return function != NULL || s->proc_null ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult first_get_proc_address(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    return cuGetProcAddress(symbol, pfn, version, flags, NULL);
}
