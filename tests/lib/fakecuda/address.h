/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses: one window of the processor's address space that all device pointers lie in, and a
 * list of what is known about ranges inside it and about pinned host memory outside it. What is not
 * mapped, or not accessible yet, has no access by the processor either: touching it faults.
 *
 *   window  | reserved [ mapped | mapped |        ] | allocated |        reserved [ ... ]   |
 *   host      ... | registered | ...  | pinned | ...
 *
 * All with the lock. */
#ifndef CST_FAKE_ADDRESS_H
#define CST_FAKE_ADDRESS_H

#include "tests/lib/fakecuda/settings.h"

#include <cuda.h>

#define CST_FAKE_GRANULARITY ((size_t)2 << 20)

enum cst_fake_kind {
    CST_FAKE_RESERVED,   /* addresses alone */
    CST_FAKE_MAPPED,     /* a handle's memory, inside a reservation */
    CST_FAKE_ALLOCATED,  /* cuMemAlloc's */
    CST_FAKE_PINNED,     /* cuMemHostAlloc's */
    CST_FAKE_REGISTERED, /* cuMemHostRegister's */
    CST_FAKE_N_KINDS,
};

/* Device memory. */
struct cst_fake_memory {
    int fd;          /* its file */
    CUdevice device; /* whose it is */
    int physical;    /* the number of that in the machine */
    size_t bytes;    /* of it */
    bool imported;   /* made elsewhere */
    bool exportable; /* as a file descriptor */
    unsigned refs;   /* handles and ranges */
};

struct cst_fake_range {
    struct cst_fake_range *next;
    enum cst_fake_kind kind;
    uintptr_t addr;  /* of the first byte */
    size_t bytes;    /* usable */
    CUdevice device; /* of the context it belongs to; mapped: of the memory */
    unsigned char access[CST_FAKE_MAX_DEVICES]; /* mapped: CUmemAccess_flags, by device */
    struct cst_fake_memory *memory;             /* mapped, allocated: a reference */
};

/* What an address range is to an operation. */
enum cst_fake_verdict {
    CST_FAKE_IS_DEVICE,   /* device memory that may be touched so */
    CST_FAKE_IS_PINNED,   /* inside one piece of pinned host memory */
    CST_FAKE_IS_PAGEABLE, /* host memory of which CUDA knows nothing */
    CST_FAKE_STRADDLES,   /* begins or ends in pinned host memory and leaves it */
    CST_FAKE_IS_ILLEGAL,  /* in the window, and not there, or not so */
};

/* May @device touch [addr, addr + bytes), and write it if @write? */
enum cst_fake_verdict cst_fake_classify(uintptr_t addr, size_t bytes, CUdevice device, bool write);

/* Free addresses of the window for @bytes with a gap behind them; at @hint if that is free. An area
 * is used again only when all behind it is used up. 0: none. */
uintptr_t cst_fake_place(size_t bytes, size_t align, uintptr_t hint);

/* Note a range. It is the list's; NULL: no memory. @memory gains a reference. */
struct cst_fake_range *cst_fake_range_add(enum cst_fake_kind kind, uintptr_t addr, size_t bytes,
                                          CUdevice device, struct cst_fake_memory *memory);

/* Forget @range, and its reference. */
void cst_fake_range_drop(struct cst_fake_range *range);

/* The range of @kind that begins at @addr; that holds it; or the first that overlaps. NULL: none.
 */
struct cst_fake_range *cst_fake_range_at(enum cst_fake_kind kind, uintptr_t addr);
struct cst_fake_range *cst_fake_range_around(enum cst_fake_kind kind, uintptr_t addr);
struct cst_fake_range *cst_fake_range_over(enum cst_fake_kind kind, uintptr_t addr, size_t bytes);

/* How many of @kind there are, and how many bytes in *bytes (NULL: not wanted). */
size_t cst_fake_range_count(enum cst_fake_kind kind, size_t *bytes);

/* Drop every range of @kind that belongs to the context of @device, naming each on stderr. */
void cst_fake_range_sweep(enum cst_fake_kind kind, CUdevice device);

/* Show @memory at @addr with @protection; show nothing there. CUDA_ERROR_MAP_FAILED. */
CUresult cst_fake_show(uintptr_t addr, size_t bytes, const struct cst_fake_memory *memory,
                       int protection);
void cst_fake_hide(uintptr_t addr, size_t bytes);

/* New memory of @device with one reference. CUDA_ERROR_OUT_OF_MEMORY. Its bytes are 0xff here and
 * there: who counts on zeros finds NaN. */
CUresult cst_fake_memory_make(CUdevice device, size_t bytes, struct cst_fake_memory **out);
void cst_fake_memory_put(struct cst_fake_memory *memory);

#endif
