/* SPDX-License-Identifier: Apache-2.0 */
/* What a call does when its turn in the stream comes: it sends to other ranks, receives from them,
 * and sums. A device pointer is a pointer of the processor (tests/lib/fakecuda). Sums are taken in
 * fp32 in the order of the ranks, and bf16 is rounded once, so that tests know the bits. NCCL
 * promises no order. */
#ifndef FAKENCCL_WORK_H
#define FAKENCCL_WORK_H

#include "tests/lib/fakenccl/arena.h"

enum work_kind { WORK_SEND, WORK_RECEIVE, WORK_COPY, WORK_SUM };

/* A part of a call. */
struct work {
    enum work_kind kind;
    uint32_t peer;  /* SEND, RECEIVE: the other rank, which may be the own one. */
    const char *in; /* SEND, COPY, SUM: the input. */
    char *out;      /* RECEIVE, COPY, SUM: the output. SUM: NULL if this rank gets no sum. */
    size_t bytes;   /* SEND, RECEIVE, COPY: length. */
    size_t done;    /* SEND, RECEIVE: bytes that are done. */
    /* SUM: the elements of each sum; the distance of the inputs for two ranks, in elements, which
     * is 0 if all get the same sum; which ranks get one. */
    size_t n_elems, stride;
    uint32_t receivers; /* One bit each. */
    ncclDataType_t type;
};

/* Whose work it is, and when it is given up. */
struct work_place {
    struct arena *arena;
    uint32_t rank, size;
    const _Atomic bool *aborted;
};

/* Do the @n parts of @works. Waits for the other ranks. Returns false if it was aborted. */
bool work_run(const struct work_place *place, struct work *works, size_t n);

/* Bytes of an element of @type; 0: the type is not known. */
size_t work_elem_bytes(ncclDataType_t type);

#endif
