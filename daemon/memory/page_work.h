/* SPDX-License-Identifier: Apache-2.0 */
/* Adds small pages to sparse segments, and gives pages of others back to the system, in a thread:
 * both take milliseconds for every few MiB, which the loop does not have. The daemon maps none of
 * them. Loop thread only. */
#ifndef CST_PAGE_WORK_H
#define CST_PAGE_WORK_H

#include "daemon/budget/arena.h"

#include <uv.h>

/* Consecutive pages of a memfd segment. */
struct cstd_pages {
    struct cstd_segment *segment; /* Borrowed. */
    uint64_t offset, bytes;       /* Multiples of the size of a page. */
    bool remove;                  /* Give the pages back; false: add those that are missing. */
};

struct cstd_page_work; /* private */

/* The work has ended with @err, and is freed. */
typedef void (*cstd_page_work_cb)(void *arg, const struct cst_err *err);

/* Carry out @pages[0..@n) one after the other, and call @done with @arg then. The segments exist
 * until the end. *out may be given to cstd_page_work_abandon before. CST_ENOMEM: nothing has begun.
 *
 * Statuses of @done: CST_ENOMEM: there is no memory for a page; CST_EIO: another failure. What
 * comes after the failure was not carried out. */
int cstd_page_work_start(struct cstd_page_work **out, uv_loop_t *loop,
                         const struct cstd_pages *pages, uint32_t n, cstd_page_work_cb done,
                         void *arg, struct cst_err *err);

/* The work goes on to its end, and nobody is told. NULL is allowed. */
void cstd_page_work_abandon(struct cstd_page_work *work);

#endif
