/* Virtual memory management: handles of device memory, reserved addresses, and the one mapped at
 * the other. */
#include "tests/lib/fakecuda/address.h"
#include "tests/lib/fakecuda/device.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/ledger.h"
#include "tests/lib/fakecuda/leak.h"
#include "tests/lib/fakecuda/stream.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct handle {
    struct handle *next;
    CUmemGenericAllocationHandle number; /* never used again */
    struct cst_fake_memory *memory;      /* a reference */
};

static struct handle *handles;
static CUmemGenericAllocationHandle last_number = 0xfa000;

size_t cst_fake_n_handles(void)
{
    size_t n = 0;

    for (const struct handle *h = handles; h != NULL; h = h->next) {
        n++;
    }
    return n;
}

static struct handle *find_handle(CUmemGenericAllocationHandle number)
{
    struct handle *h = handles;

    while (h != NULL && h->number != number) {
        h = h->next;
    }
    return h;
}

/* Takes over the reference to @memory, if it succeeds. */
static CUresult add_handle(struct cst_fake_memory *memory, CUmemGenericAllocationHandle *out)
{
    struct handle *h = malloc(sizeof *h);

    if (h == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *h = (struct handle){.next = handles, .number = ++last_number, .memory = memory};
    handles = h;
    *out = h->number;
    return CUDA_SUCCESS;
}

static bool is_granular(unsigned long long n)
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
        return CUDA_ERROR_NOT_SUPPORTED; /* host memory, by the real one */
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
    if (handle == NULL || size == 0 || !is_granular(size) || flags != 0) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    result = check_properties(prop);
    return cst_fake_end(result == CUDA_SUCCESS ? create(size, prop, handle) : result);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_INIT);
    struct handle **at = &handles, *h;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    h = find_handle(handle);
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
    struct handle *h;
    int fd;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    h = find_handle(handle);
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

/* The memory that @fd is, with one reference; @fd stays the caller's. */
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
                                       .exportable = false, /* the maker alone exports */
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

/* -- addresses ------------------------------------------------------------------------------ */

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    size_t align = alignment > CST_FAKE_GRANULARITY ? alignment : CST_FAKE_GRANULARITY;
    uintptr_t at;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (ptr == NULL || size == 0 || !is_granular(size) || (alignment & (alignment - 1)) != 0 ||
        flags != 0) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    at = cst_fake_place(size, align, addr);
    if (at == 0 || cst_fake_range_add(CST_FAKE_RESERVED, at, size, -1, NULL) == NULL) {
        return cst_fake_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *ptr = at;
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_INIT);
    struct cst_fake_range *r;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    r = cst_fake_range_at(CST_FAKE_RESERVED, ptr);
    if (r == NULL || r->bytes != size) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (cst_fake_range_over(CST_FAKE_MAPPED, ptr, size) != NULL) {
        cst_fake_misuse("cuMemAddressFree of addresses at which memory is mapped");
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    cst_fake_range_drop(r);
    return cst_fake_end(CUDA_SUCCESS);
}

/* Is [ptr, ptr + bytes) inside one reservation, and nothing mapped there? */
static bool can_map(CUdeviceptr ptr, size_t bytes)
{
    struct cst_fake_range *r = cst_fake_range_around(CST_FAKE_RESERVED, ptr);

    return r != NULL && ptr + bytes <= r->addr + r->bytes &&
           cst_fake_range_over(CST_FAKE_MAPPED, ptr, bytes) == NULL;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    struct cst_fake_range *r;
    struct handle *h;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    h = find_handle(handle);
    if (h == NULL || size == 0 || !is_granular(size) || !is_granular(ptr) || offset != 0 ||
        flags != 0 || size > h->memory->bytes || !can_map(ptr, size)) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    r = cst_fake_range_add(CST_FAKE_MAPPED, ptr, size, h->memory->device, h->memory);
    if (r == NULL) {
        return cst_fake_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    result = cst_fake_show(ptr, size, h->memory, PROT_NONE);
    if (result != CUDA_SUCCESS) {
        cst_fake_range_drop(r);
    }
    return cst_fake_end(result);
}

/* Is [ptr, ptr + bytes) made up of whole mappings? */
static bool are_mappings(CUdeviceptr ptr, size_t bytes)
{
    CUdeviceptr at = ptr, end = ptr + bytes;
    struct cst_fake_range *r;

    while (at < end) {
        r = cst_fake_range_at(CST_FAKE_MAPPED, at);
        if (r == NULL) {
            return false;
        }
        at += r->bytes;
    }
    return bytes > 0 && at == end;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_INIT);
    struct cst_fake_range *r;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!are_mappings(ptr, size)) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    cst_fake_streams_revoke(ptr, size, "cuMemUnmap");
    cst_fake_hide(ptr, size);
    while ((r = cst_fake_range_over(CST_FAKE_MAPPED, ptr, size)) != NULL) {
        cst_fake_range_drop(r);
    }
    return cst_fake_end(CUDA_SUCCESS);
}

/* -- access --------------------------------------------------------------------------------- */

static CUresult check_access(CUdeviceptr ptr, const CUmemAccessDesc *desc)
{
    const struct cst_fake_range *r = cst_fake_range_at(CST_FAKE_MAPPED, ptr);

    if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
         desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
         desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return cst_fake_device_is(desc->location.id) &&
                   cst_fake_device_reaches(desc->location.id, r->device)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_DEVICE;
}

/* The processor, which stands for every device, may do what any of them may. */
static int protection_of(const struct cst_fake_range *r)
{
    unsigned char all = 0;

    for (int i = 0; i < CST_FAKE_MAX_DEVICES; i++) {
        all |= r->access[i];
    }
    return all == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
           : all == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                     : PROT_NONE;
}

static CUresult set_access(struct cst_fake_range *r, const CUmemAccessDesc *desc, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        r->access[desc[i].location.id] = (unsigned char)desc[i].flags;
    }
    return mprotect((void *)r->addr, r->bytes, protection_of(r)) == 0 ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    struct cst_fake_range *r;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (desc == NULL || count == 0 || !are_mappings(ptr, size)) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    for (CUdeviceptr at = ptr; result == CUDA_SUCCESS && at < ptr + size; at += r->bytes) {
        r = cst_fake_range_at(CST_FAKE_MAPPED, at);
        for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
            result = check_access(at, &desc[i]);
        }
    }
    for (CUdeviceptr at = ptr; result == CUDA_SUCCESS && at < ptr + size; at += r->bytes) {
        r = cst_fake_range_at(CST_FAKE_MAPPED, at);
        result = set_access(r, desc, count);
    }
    return cst_fake_end(result);
}
