/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses. All device pointers lie in one window of the processor's address space. A list has
 * what is known of ranges inside the window, and of pinned host memory outside it. The processor
 * cannot access addresses of the window that are not mapped or not accessible yet: an access
 * faults.
 *
 *   window  | reserved [ mapped | mapped |        ] | allocated |        reserved [ ... ]   |
 *   host      ... | registered | ...  | pinned | ...
 *
 * All functions need the lock. */
#ifndef CST_FAKE_ADDRESS_H
#define CST_FAKE_ADDRESS_H

#include "tests/lib/fakecuda/settings.h"

#include <cuda.h>

#define CST_FAKE_GRANULARITY ((size_t)2 << 20)

/* Kinds of address ranges. */
enum cst_fake_kind {
    CST_FAKE_RESERVED,   /* addresses without memory */
    CST_FAKE_MAPPED,     /* memory of a handle, mapped inside a reservation */
    CST_FAKE_ALLOCATED,  /* memory of cuMemAlloc */
    CST_FAKE_PINNED,     /* host memory of cuMemHostAlloc */
    CST_FAKE_REGISTERED, /* host memory of cuMemHostRegister */
    CST_FAKE_N_KINDS,
};

/* An allocation of device memory. */
struct cst_fake_memory {
    int fd;          /* descriptor of the memory's file */
    CUdevice device; /* the device that has the memory */
    int physical;    /* number of that device in the machine */
    size_t bytes;    /* size of the memory */
    bool imported;   /* the memory was imported from a file descriptor */
    bool exportable; /* the memory can be exported as a file descriptor */
    unsigned refs;   /* number of references by handles and ranges */
};

/* A range of addresses of which the library knows. */
struct cst_fake_range {
    struct cst_fake_range *next;
    enum cst_fake_kind kind;
    uintptr_t addr;  /* address of the first byte */
    size_t bytes;    /* bytes that the program may use */
    CUdevice device; /* device of the range's context, or for mapped ranges of the memory */
    unsigned char access[CST_FAKE_MAX_DEVICES]; /* mapped ranges: CUmemAccess_flags per device */
    struct cst_fake_memory *memory;             /* mapped and allocated ranges: a reference */
};

/* How an operation may use an address range. */
enum cst_fake_verdict {
    CST_FAKE_IS_DEVICE,   /* device memory with the required access */
    CST_FAKE_IS_PINNED,   /* range inside one piece of pinned host memory */
    CST_FAKE_IS_PAGEABLE, /* host memory that CUDA does not know */
    CST_FAKE_STRADDLES,   /* range that is only partly in pinned host memory */
    CST_FAKE_IS_ILLEGAL,  /* address in the window without memory or without the required access */
};

/* Classify the use of [addr, addr + bytes) by @device; @write: it is written. */
enum cst_fake_verdict cst_fake_classify(uintptr_t addr, size_t bytes, CUdevice device, bool write);

/* Find free addresses of the window for @bytes with a gap after them, at @hint if that is free.
 * Addresses are used again only after all addresses behind them were used. Returns 0 if there are
 * none. */
uintptr_t cst_fake_place(size_t bytes, size_t align, uintptr_t hint);

/* Add a range to the list, which owns it. @memory (or NULL) gains a reference. Returns NULL if
 * memory is exhausted. */
struct cst_fake_range *cst_fake_range_add(enum cst_fake_kind kind, uintptr_t addr, size_t bytes,
                                          CUdevice device, struct cst_fake_memory *memory);

/* Remove @range from the list, with its reference. */
void cst_fake_range_drop(struct cst_fake_range *range);

/* The range of @kind that begins at @addr; the one that contains @addr; the first one that overlaps
 * [addr, addr + bytes). NULL: none. */
struct cst_fake_range *cst_fake_range_at(enum cst_fake_kind kind, uintptr_t addr);
struct cst_fake_range *cst_fake_range_around(enum cst_fake_kind kind, uintptr_t addr);
struct cst_fake_range *cst_fake_range_over(enum cst_fake_kind kind, uintptr_t addr, size_t bytes);

/* The number of ranges of @kind. *@bytes receives their total size, unless @bytes is NULL. */
size_t cst_fake_range_count(enum cst_fake_kind kind, size_t *bytes);

/* Drop every range of @kind that belongs to the context of @device, and name each on stderr. */
void cst_fake_range_sweep(enum cst_fake_kind kind, CUdevice device);

/* cst_fake_show maps @memory at @addr with @protection, and can return CUDA_ERROR_MAP_FAILED.
 * cst_fake_hide unmaps it, so that the addresses fault. */
CUresult cst_fake_show(uintptr_t addr, size_t bytes, const struct cst_fake_memory *memory,
                       int protection);
void cst_fake_hide(uintptr_t addr, size_t bytes);

/* Allocate memory of @device with one reference. Can return CUDA_ERROR_OUT_OF_MEMORY. Some of its
 * bytes are 0xff, so that a program that expects zeros finds NaN. */
CUresult cst_fake_memory_make(CUdevice device, size_t bytes, struct cst_fake_memory **out);
void cst_fake_memory_put(struct cst_fake_memory *memory);

#endif
