/* SPDX-License-Identifier: Apache-2.0 */
/* Reserved addresses, memory that is mapped there, and access to it. */
#include "tests/lib/fakecuda/device.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/handle.h"
#include "tests/lib/fakecuda/stream.h"

#include <sys/mman.h>

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
    if (ptr == NULL || size == 0 || !cst_fake_is_granular(size) ||
        (alignment & (alignment - 1)) != 0 || flags != 0) {
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

/* True if [ptr, ptr + bytes) lies inside one reservation and contains no mapping. */
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
    struct cst_fake_handle *h;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    h = cst_fake_handle_find(handle);
    if (h == NULL || size == 0 || !cst_fake_is_granular(size) || !cst_fake_is_granular(ptr) ||
        offset != 0 || flags != 0 || size > h->memory->bytes || !can_map(ptr, size)) {
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

/* True if [ptr, ptr + bytes) consists of whole mappings. */
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

/* The processor represents all devices, so it may access what any of them may. */
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
