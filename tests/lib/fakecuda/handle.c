/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of device memory: created, exported as descriptors, imported. */
#include "tests/lib/fakecuda/handle.h"
#include "tests/lib/fakecuda/context.h"
#include "tests/lib/fakecuda/device.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/ledger.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static struct cst_fake_handle *handles;
static CUmemGenericAllocationHandle last_number = 0xfa000;

size_t cst_fake_n_handles(void)
{
    size_t n = 0;

    for (const struct cst_fake_handle *h = handles; h != NULL; h = h->next) {
        n++;
    }
    return n;
}

struct cst_fake_handle *cst_fake_handle_find(CUmemGenericAllocationHandle number)
{
    struct cst_fake_handle *h = handles;

    while (h != NULL && h->number != number) {
        h = h->next;
    }
    return h;
}

/* Add a handle. On success it takes over the reference to @memory. */
static CUresult add_handle(struct cst_fake_memory *memory, CUmemGenericAllocationHandle *out)
{
    struct cst_fake_handle *h = malloc(sizeof *h);

    if (h == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *h = (struct cst_fake_handle){.next = handles, .number = ++last_number, .memory = memory};
    handles = h;
    *out = h->number;
    return CUDA_SUCCESS;
}

bool cst_fake_is_granular(unsigned long long n)
{
    return n % CST_FAKE_GRANULARITY == 0;
}

/* -- handles -------------------------------------------------------------------------------- */

static CUresult check_properties(const CUmemAllocationProp *prop)
{
    if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_NOT_SUPPORTED; /* CUDA's own library would support host memory */
    }
    if (!cst_fake_device_is(prop->location.id)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    return prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE ||
                   prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
               ? CUDA_SUCCESS
               : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_INIT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (granularity == NULL || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
                                option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    result = check_properties(prop);
    if (result == CUDA_SUCCESS) {
        *granularity = CST_FAKE_GRANULARITY;
    }
    return cst_fake_end(result);
}

static CUresult create(size_t bytes, const CUmemAllocationProp *prop,
                       CUmemGenericAllocationHandle *out)
{
    struct cst_fake_memory *memory;
    CUresult result = cst_fake_memory_make(prop->location.id, bytes, &memory);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    memory->exportable = prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    result = add_handle(memory, out);
    if (result != CUDA_SUCCESS) {
        cst_fake_memory_put(memory);
    }
    return result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || size == 0 || !cst_fake_is_granular(size) || flags != 0) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    result = check_properties(prop);
    return cst_fake_end(result == CUDA_SUCCESS ? create(size, prop, handle) : result);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_INIT);
    struct cst_fake_handle **at = &handles, *h;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    h = cst_fake_handle_find(handle);
    if (h == NULL) {
        cst_fake_misuse("cuMemRelease of no handle");
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    while (*at != h) {
        at = &(*at)->next;
    }
    *at = h->next;
    cst_fake_memory_put(h->memory);
    free(h);
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType,
                                      unsigned long long flags)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_INIT);
    struct cst_fake_handle *h;
    int fd;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    h = cst_fake_handle_find(handle);
    if (shareableHandle == NULL || h == NULL || flags != 0 || !h->memory->exportable ||
        handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    fd = fcntl(h->memory->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return cst_fake_end(CUDA_ERROR_OPERATING_SYSTEM);
    }
    *(int *)shareableHandle = fd;
    return cst_fake_end(CUDA_SUCCESS);
}

/* Find or make the memory of @fd, with one reference. The caller keeps @fd. */
static CUresult import(int fd, struct cst_fake_memory **out)
{
    struct cst_fake_memory *memory;
    CUdevice device;
    size_t bytes;
    int physical, copy;

    if (cst_fake_ledger_identify(fd, &physical, &bytes) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    device = cst_fake_device_visible(physical);
    if (device < 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    memory = malloc(sizeof *memory);
    if (copy < 0 || memory == NULL) {
        if (copy >= 0) {
            (void)close(copy);
        }
        free(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *memory = (struct cst_fake_memory){.fd = copy,
                                       .device = device,
                                       .physical = physical,
                                       .bytes = bytes,
                                       .imported = true,
                                       /* Only the handle that created the memory can export it. */
                                       .exportable = false,
                                       .refs = 1};
    *out = memory;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                        CUmemAllocationHandleType shHandleType)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    struct cst_fake_memory *memory;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    result = import((int)(intptr_t)osHandle, &memory);
    if (result != CUDA_SUCCESS) {
        return cst_fake_end(result);
    }
    result = add_handle(memory, handle);
    if (result != CUDA_SUCCESS) {
        cst_fake_memory_put(memory);
    }
    return cst_fake_end(result);
}
