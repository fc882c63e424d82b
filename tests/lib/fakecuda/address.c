/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fakecuda/address.h"
#include "tests/lib/fakecuda/device.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/ledger.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WINDOW_BYTES ((size_t)256 << 30)
#define DIRTY_BYTES 4096 /* number of bytes set to 0xff at both ends of each granule */

static uintptr_t window; /* begin of the window; 0: not reserved yet */
static uintptr_t cursor; /* address at which the next search begins */
static struct cst_fake_range *ranges;

static const char *const kind_names[CST_FAKE_N_KINDS] = {
    "reserved addresses", "mapped memory",          "allocated memory",
    "pinned host memory", "registered host memory",
};

/* -- the list ------------------------------------------------------------------------------- */

struct cst_fake_range *cst_fake_range_add(enum cst_fake_kind kind, uintptr_t addr, size_t bytes,
                                          CUdevice device, struct cst_fake_memory *memory)
{
    struct cst_fake_range *range = calloc(1, sizeof *range);

    if (range == NULL) {
        return NULL;
    }
    *range = (struct cst_fake_range){.next = ranges,
                                     .kind = kind,
                                     .addr = addr,
                                     .bytes = bytes,
                                     .device = device,
                                     .memory = memory};
    if (memory != NULL) {
        memory->refs++;
    }
    ranges = range;
    return range;
}

void cst_fake_range_drop(struct cst_fake_range *range)
{
    struct cst_fake_range **at = &ranges;

    while (*at != range) {
        at = &(*at)->next;
    }
    *at = range->next;
    if (range->memory != NULL) {
        cst_fake_memory_put(range->memory);
    }
    free(range);
}

struct cst_fake_range *cst_fake_range_over(enum cst_fake_kind kind, uintptr_t addr, size_t bytes)
{
    for (struct cst_fake_range *r = ranges; r != NULL; r = r->next) {
        if (r->kind == kind && r->addr < addr + bytes && addr < r->addr + r->bytes) {
            return r;
        }
    }
    return NULL;
}

struct cst_fake_range *cst_fake_range_around(enum cst_fake_kind kind, uintptr_t addr)
{
    return cst_fake_range_over(kind, addr, 1);
}

struct cst_fake_range *cst_fake_range_at(enum cst_fake_kind kind, uintptr_t addr)
{
    struct cst_fake_range *range = cst_fake_range_around(kind, addr);

    return range != NULL && range->addr == addr ? range : NULL;
}

size_t cst_fake_range_count(enum cst_fake_kind kind, size_t *bytes)
{
    size_t n = 0, sum = 0;

    for (struct cst_fake_range *r = ranges; r != NULL; r = r->next) {
        if (r->kind == kind) {
            n++;
            sum += r->bytes;
        }
    }
    if (bytes != NULL) {
        *bytes = sum;
    }
    return n;
}

void cst_fake_range_sweep(enum cst_fake_kind kind, CUdevice device)
{
    struct cst_fake_range *next;

    for (struct cst_fake_range *r = ranges; r != NULL; r = next) {
        next = r->next;
        if (r->kind != kind || r->device != device) {
            continue;
        }
        cst_fake_leak("%s of device %d, %zu bytes at %#zx", kind_names[kind], device, r->bytes,
                      (size_t)r->addr);
        if (kind == CST_FAKE_ALLOCATED) {
            cst_fake_hide(r->addr, r->bytes);
        } else if (kind == CST_FAKE_PINNED) {
            (void)munmap((void *)r->addr, r->bytes);
        }
        cst_fake_range_drop(r);
    }
}

/* -- classification ------------------------------------------------------------------------- */

static bool in_window(uintptr_t addr, size_t bytes)
{
    return window != 0 && addr < window + WINDOW_BYTES && addr + bytes > window;
}

/* An access to mapped memory may continue in the next mapping. Allocated memory ends at its
 * size. */
static bool device_may(uintptr_t addr, size_t bytes, CUdevice device, bool write)
{
    int needed = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    struct cst_fake_range *r = cst_fake_range_around(CST_FAKE_ALLOCATED, addr);
    uintptr_t end = addr + bytes;

    if (r != NULL) {
        return end <= r->addr + r->bytes;
    }
    while (addr < end) {
        r = cst_fake_range_around(CST_FAKE_MAPPED, addr);
        if (r == NULL || (r->access[device] & needed) != needed) {
            return false;
        }
        addr = r->addr + r->bytes;
    }
    return true;
}

static bool holds(const struct cst_fake_range *r, uintptr_t addr, size_t bytes)
{
    return r->addr <= addr && addr + bytes <= r->addr + r->bytes;
}

enum cst_fake_verdict cst_fake_classify(uintptr_t addr, size_t bytes, CUdevice device, bool write)
{
    static const enum cst_fake_kind host[] = {CST_FAKE_REGISTERED, CST_FAKE_PINNED};
    struct cst_fake_range *r;

    if (addr + bytes < addr) {
        return CST_FAKE_IS_ILLEGAL;
    }
    if (in_window(addr, bytes)) {
        return device_may(addr, bytes, device, write) ? CST_FAKE_IS_DEVICE : CST_FAKE_IS_ILLEGAL;
    }
    for (size_t i = 0; i < 2; i++) {
        r = cst_fake_range_over(host[i], addr, bytes);
        if (r != NULL) {
            return holds(r, addr, bytes) ? CST_FAKE_IS_PINNED : CST_FAKE_STRADDLES;
        }
    }
    return CST_FAKE_IS_PAGEABLE;
}

/* -- the window ----------------------------------------------------------------------------- */

static bool make_window(void)
{
    void *addr;

    if (window != 0) {
        return true;
    }
    addr = mmap(NULL, WINDOW_BYTES + CST_FAKE_GRANULARITY, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (addr == MAP_FAILED) {
        return false;
    }
    /* A forked child has no device memory, and must not keep any from being freed. */
    (void)madvise(addr, WINDOW_BYTES + CST_FAKE_GRANULARITY, MADV_DONTFORK);
    window = ((uintptr_t)addr + CST_FAKE_GRANULARITY - 1) & ~(CST_FAKE_GRANULARITY - 1);
    cursor = window + CST_FAKE_GRANULARITY;
    return true;
}

static struct cst_fake_range *taken(uintptr_t addr, size_t bytes)
{
    struct cst_fake_range *r = cst_fake_range_over(CST_FAKE_RESERVED, addr, bytes);

    return r != NULL ? r : cst_fake_range_over(CST_FAKE_ALLOCATED, addr, bytes);
}

static uintptr_t search(uintptr_t from, uintptr_t to, size_t bytes, size_t align)
{
    uintptr_t at = (from + align - 1) & ~(align - 1);
    struct cst_fake_range *r;

    while (at + bytes <= to && at + bytes > at) {
        r = taken(at, bytes);
        if (r == NULL) {
            return at;
        }
        at = (r->addr + r->bytes + align) & ~(align - 1);
    }
    return 0;
}

uintptr_t cst_fake_place(size_t bytes, size_t align, uintptr_t hint)
{
    uintptr_t at;

    if (bytes >= WINDOW_BYTES || align >= WINDOW_BYTES || !make_window()) {
        return 0;
    }
    if (hint != 0 && hint % align == 0 && hint >= window && hint + bytes <= window + WINDOW_BYTES &&
        taken(hint, bytes) == NULL) {
        return hint;
    }
    at = search(cursor, window + WINDOW_BYTES, bytes, align);
    if (at == 0) {
        at = search(window, cursor, bytes, align);
    }
    if (at != 0) {
        cursor = at + bytes + CST_FAKE_GRANULARITY;
    }
    return at;
}

CUresult cst_fake_show(uintptr_t addr, size_t bytes, const struct cst_fake_memory *memory,
                       int protection)
{
    void *at = mmap((void *)addr, bytes, protection, MAP_SHARED | MAP_FIXED, memory->fd, 0);

    if (at == MAP_FAILED) {
        return CUDA_ERROR_MAP_FAILED;
    }
    (void)madvise(at, bytes, MADV_DONTFORK);
    return CUDA_SUCCESS;
}

void cst_fake_hide(uintptr_t addr, size_t bytes)
{
    void *at = mmap((void *)addr, bytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);

    if (at == MAP_FAILED) {
        perror("fakecuda: mmap");
        abort();
    }
    (void)madvise(at, bytes, MADV_DONTFORK);
}

/* -- memory --------------------------------------------------------------------------------- */

static void make_dirty(int fd, size_t bytes)
{
    unsigned char dirt[DIRTY_BYTES];
    size_t last;

    memset(dirt, 0xff, sizeof dirt);
    for (size_t at = 0; at < bytes; at += CST_FAKE_GRANULARITY) {
        last = bytes - at < CST_FAKE_GRANULARITY ? bytes - at : CST_FAKE_GRANULARITY;
        if (pwrite(fd, dirt, last < sizeof dirt ? last : sizeof dirt, (off_t)at) < 0 ||
            (last > sizeof dirt &&
             pwrite(fd, dirt, sizeof dirt, (off_t)(at + last - sizeof dirt)) < 0)) {
            perror("fakecuda: pwrite");
            abort();
        }
    }
}

CUresult cst_fake_memory_make(CUdevice device, size_t bytes, struct cst_fake_memory **out)
{
    struct cst_fake_memory *memory = calloc(1, sizeof *memory);
    int physical = cst_fake_device_physical(device), fd, rc;

    if (memory == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    rc = cst_fake_ledger_take(cst_fake_settings()->state_dir, physical, bytes,
                              cst_fake_device_bytes(device), &fd);
    if (rc != 0) {
        if (rc != -ENOMEM) {
            fprintf(stderr, "fakecuda: the ledger: %s\n", strerror(-rc));
        }
        free(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *memory = (struct cst_fake_memory){
        .fd = fd, .device = device, .physical = physical, .bytes = bytes, .refs = 1};
    make_dirty(fd, bytes);
    *out = memory;
    return CUDA_SUCCESS;
}

void cst_fake_memory_put(struct cst_fake_memory *memory)
{
    if (--memory->refs > 0) {
        return;
    }
    (void)close(memory->fd);
    if (!memory->imported) {
        cst_fake_ledger_give(cst_fake_settings()->state_dir, memory->physical, memory->bytes);
    }
    free(memory);
}
