/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that one call allocates: cuMemAlloc's, and pinned host memory. */
#include "tests/lib/fakecuda/address.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/ledger.h"
#include "tests/lib/fakecuda/stream.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((size_t)4096)

static size_t whole_pages(size_t bytes)
{
    return (bytes + PAGE - 1) & ~(PAGE - 1);
}

/* -- device memory -------------------------------------------------------------------------- */

static CUresult allocate(CUdevice device, size_t bytes, CUdeviceptr *out)
{
    struct cst_fake_memory *memory;
    struct cst_fake_range *r = NULL;
    uintptr_t at;
    CUresult result = cst_fake_memory_make(device, whole_pages(bytes), &memory);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    at = cst_fake_place(whole_pages(bytes), PAGE, 0);
    if (at != 0) {
        r = cst_fake_range_add(CST_FAKE_ALLOCATED, at, bytes, device, memory);
    }
    cst_fake_memory_put(memory);
    if (r == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = cst_fake_show(at, whole_pages(bytes), memory, PROT_READ | PROT_WRITE);
    if (result != CUDA_SUCCESS) {
        cst_fake_range_drop(r);
        return result;
    }
    *out = at;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *dptr, size_t bytesize)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (dptr == NULL || bytesize == 0) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    return cst_fake_end(bytesize < SIZE_MAX - PAGE
                            ? allocate(cst_fake_context_current()->device, bytesize, dptr)
                            : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuMemFree(CUdeviceptr dptr)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    struct cst_fake_range *r;

    if (result != CUDA_SUCCESS || dptr == 0) {
        return result == CUDA_SUCCESS ? cst_fake_end(result) : result;
    }
    if (cst_fake_range_at(CST_FAKE_ALLOCATED, dptr) == NULL) {
        cst_fake_misuse("cuMemFree of what cuMemAlloc did not give");
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    /* The call waits until the device is idle. */
    result = cst_fake_streams_drain(cst_fake_context_current());
    r = cst_fake_range_at(CST_FAKE_ALLOCATED, dptr);
    if (r != NULL) {
        cst_fake_hide(r->addr, whole_pages(r->bytes));
        cst_fake_range_drop(r);
    }
    return cst_fake_end(result);
}

/* -- pinned memory of the driver ------------------------------------------------------------ */

static bool may_pin(size_t bytes)
{
    size_t pinned, registered;

    (void)cst_fake_range_count(CST_FAKE_PINNED, &pinned);
    (void)cst_fake_range_count(CST_FAKE_REGISTERED, &registered);
    return bytes <= cst_fake_settings()->pinned_bytes &&
           pinned + registered <= cst_fake_settings()->pinned_bytes - bytes;
}

static CUresult pin_new(size_t bytes, void **out)
{
    CUdevice device = cst_fake_context_current()->device;
    void *at;

    if (!may_pin(bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (cst_fake_range_add(CST_FAKE_PINNED, (uintptr_t)at, bytes, device, NULL) == NULL) {
        (void)munmap(at, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = at;
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    const unsigned known =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pp == NULL || bytesize == 0 || bytesize > SIZE_MAX - PAGE || (Flags & ~known) != 0) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    return cst_fake_end(pin_new(whole_pages(bytesize), pp));
}

CUresult cuMemFreeHost(void *p)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    struct cst_fake_range *r;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cst_fake_streams_drain(cst_fake_context_current());
    r = cst_fake_range_at(CST_FAKE_PINNED, (uintptr_t)p);
    if (r == NULL) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    /* Other devices may use the memory. */
    cst_fake_streams_revoke(r->addr, r->bytes, "cuMemFreeHost");
    (void)munmap(p, r->bytes);
    cst_fake_range_drop(r);
    return cst_fake_end(result);
}

/* -- memory pinned by the program ----------------------------------------------------------- */

/* True if every page of the range is mapped. */
static bool is_mapped(uintptr_t addr, size_t bytes)
{
    unsigned char in_core[1024];
    uintptr_t at = addr & ~(PAGE - 1), end = addr + bytes;
    size_t step = sizeof in_core * PAGE;

    for (; at < end; at += step) {
        if (mincore((void *)at, end - at < step ? end - at : step, in_core) != 0) {
            return false;
        }
    }
    return true;
}

static CUresult register_memory(uintptr_t addr, size_t bytes)
{
    if (addr == 0 || bytes == 0 || addr + bytes < addr || !is_mapped(addr, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (cst_fake_range_over(CST_FAKE_REGISTERED, addr, bytes) != NULL ||
        cst_fake_range_over(CST_FAKE_PINNED, addr, bytes) != NULL) {
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    if (!may_pin(bytes) || cst_fake_range_add(CST_FAKE_REGISTERED, addr, bytes,
                                              cst_fake_context_current()->device, NULL) == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags)
{
    const unsigned known =
        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((Flags & ~known) != 0) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    return cst_fake_end(register_memory((uintptr_t)p, bytesize));
}

CUresult cuMemHostUnregister(void *p)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    struct cst_fake_range *r;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    r = cst_fake_range_at(CST_FAKE_REGISTERED, (uintptr_t)p);
    if (r == NULL) {
        return cst_fake_end(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    }
    if (!is_mapped(r->addr, r->bytes)) {
        cst_fake_misuse("cuMemHostUnregister of memory that was unmapped before");
    }
    cst_fake_streams_revoke(r->addr, r->bytes, "cuMemHostUnregister");
    cst_fake_range_drop(r);
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pdptr == NULL || Flags != 0 ||
        (cst_fake_range_around(CST_FAKE_REGISTERED, (uintptr_t)p) == NULL &&
         cst_fake_range_around(CST_FAKE_PINNED, (uintptr_t)p) == NULL)) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    *pdptr = (CUdeviceptr)(uintptr_t)p;
    return cst_fake_end(CUDA_SUCCESS);
}
