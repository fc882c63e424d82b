/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of a job's pools: they are given back to the system, and their bytes to the budgets,
 * and added again. The segments stay, and so do their mappings in engines and workers: whoever
 * touches a block meanwhile gets a new page, not a signal. Not for memory that devices have pinned
 * or that is a driver's.
 *
 *   WHOLE --give--> GIVING --> GIVEN --take--> TAKING --> WHOLE
 *
 * A failure leads back to the state before. Loop thread only. */
#ifndef CSTD_POOL_PAGES_H
#define CSTD_POOL_PAGES_H

#include "daemon/memory/page_work.h"

struct cstd_memory;

enum cstd_pool_pages_state {
    CSTD_POOL_PAGES_WHOLE,
    CSTD_POOL_PAGES_GIVING,
    CSTD_POOL_PAGES_GIVEN,
    CSTD_POOL_PAGES_TAKING,
};

/* The pages were given back or added, or *err says why not. */
typedef void (*cstd_pool_pages_cb)(struct cstd_memory *memory, const struct cst_err *err);

/* Zeroed: WHOLE. */
struct cstd_pool_pages {
    enum cstd_pool_pages_state state;
    uint64_t bytes;              /* GIVEN, TAKING: bytes that were given back. */
    struct cstd_page_work *work; /* GIVING, TAKING: removes or adds pages; NULL: none does. */
    cstd_pool_pages_cb done;     /* GIVING, TAKING: called at the end. */
    struct cst_err err;          /* TAKING: why pages that were added are removed again. */
};

/* True if the pages of all pools of @memory can be given back: no engine that maps them pins them,
 * and none belongs to a driver. */
bool cstd_pool_pages_can(const struct cstd_memory *memory);

/* Give the pages of all slabs back. Nobody uses a block, @memory is ready and its pools exist.
 * @done follows, never within this call. CST_ENOMEM: nothing has begun. Statuses of @done:
 * CST_EIO. */
int cstd_pool_pages_give(struct cstd_memory *memory, cstd_pool_pages_cb done, struct cst_err *err);

/* Charge the bytes again, and add the pages. @done follows, never within this call. CST_EBUDGET: a
 * limit would be exceeded; CST_ENOMEM. Nothing has begun then. Statuses of @done: CST_ENOMEM,
 * CST_EIO. */
int cstd_pool_pages_take(struct cstd_memory *memory, cstd_pool_pages_cb done, struct cst_err *err);

/* The slabs are about to be released: forget their state. Work in progress tells nobody. */
void cstd_pool_pages_forget(struct cstd_memory *memory);

/* True if pages are being given back or added. */
bool cstd_pool_pages_are_moving(const struct cstd_memory *memory);

#endif
