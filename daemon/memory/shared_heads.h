/* SPDX-License-Identifier: Apache-2.0 */
/* The heads of the memory that ranks of a job share with each other (proto/shared.h). The daemon
 * maps the heads alone, and uses them only to wake ranks: it reads nothing there, because every
 * rank can write the memory. Loop thread only. */
#ifndef CSTD_SHARED_HEADS_H
#define CSTD_SHARED_HEADS_H

#include "cistern/status.h"

#include <stdint.h>

struct cst_shared_head;

/* Zeros: there are no heads. */
struct cstd_shared_heads {
    struct cst_shared_head **v; /* The mapped heads. Owned. */
    uint32_t n;
    uint64_t over; /* The last attempt that was ended here. */
};

/* Map the head of the memory @fd, which begins with zeros. CST_ENOMEM. */
int cstd_shared_heads_add(struct cstd_shared_heads *heads, int fd, struct cst_err *err);

/* The attempts up to @attempt are over: wake all ranks that wait in one of the memories. Does
 * nothing if this is known. */
void cstd_shared_heads_end(struct cstd_shared_heads *heads, uint64_t attempt);

/* The memories are given back: wake all ranks that wait, and unmap the heads. There are no heads
 * afterwards. */
void cstd_shared_heads_close(struct cstd_shared_heads *heads);

#endif
