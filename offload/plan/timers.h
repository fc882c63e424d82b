/* SPDX-License-Identifier: Apache-2.0 */
/* Timers of the virtual clock: a heap ordered by time. Timers for the same time fire in the order
 * in which they were set. */
#ifndef CST_PLAN_TIMERS_H
#define CST_PLAN_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

struct cst_timer {
    uint64_t at;       /* In ns. */
    uint64_t sequence; /* Breaks ties. */
    unsigned kind;     /* For the caller. */
    uint64_t arg;      /* For the caller. */
};

struct cst_timers {
    struct cst_timer *heap; /* Owned. */
    uint32_t n;             /* Number of timers that are set. */
    uint32_t capacity;      /* Capacity of heap. */
    uint64_t sequence;      /* Last assigned sequence number. */
};

/* Initialise an empty set of timers, or free one. */
void cst_timers_init(struct cst_timers *timers);
void cst_timers_close(struct cst_timers *timers);

/* Set a timer. CST_ENOMEM. */
int cst_timers_set(struct cst_timers *timers, uint64_t at, unsigned kind, uint64_t arg);

/* Time of the next timer, or UINT64_MAX. */
uint64_t cst_timers_next(const struct cst_timers *timers);

/* Remove and return the next timer; there must be one. */
struct cst_timer cst_timers_take(struct cst_timers *timers);

#endif
