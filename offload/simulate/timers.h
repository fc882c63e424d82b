/* SPDX-License-Identifier: Apache-2.0 */
/* Timers of a simulation: a heap ordered by the time of the simulation's virtual clock. No real
 * time passes, and the timers call nothing: the simulator (simulate.h) takes the earliest timer,
 * sets its clock to the timer's time and acts. Timers for the same time are taken in the order in
 * which they were set. A struct cst_timers belongs to one simulation; only the thread that runs the
 * simulation uses it. */
#ifndef CST_PLAN_TIMERS_H
#define CST_PLAN_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

struct cst_timer {
    uint64_t at;       /* Time of the virtual clock in ns. */
    uint64_t sequence; /* Orders timers for the same time. */
    unsigned kind;     /* What happens: an enum of the caller, which only the caller reads. */
    uint64_t arg;      /* A value that only the caller reads. */
};

struct cst_timers {
    struct cst_timer *heap; /* Owned. */
    uint32_t n;             /* Number of timers that are set. */
    uint32_t capacity;      /* Number of timers for which heap has memory. */
    uint64_t sequence;      /* Sequence number of the newest timer. */
};

/* Initialise an empty set of timers. */
void cst_timers_init(struct cst_timers *timers);

/* Free the heap and drop all timers. @timers is an empty set again. */
void cst_timers_close(struct cst_timers *timers);

/* Set a timer for the time @at. CST_ENOMEM: no memory, and the timer is not set. */
int cst_timers_set(struct cst_timers *timers, uint64_t at, unsigned kind, uint64_t arg);

/* Return the time of the earliest timer. UINT64_MAX: no timer is set. */
uint64_t cst_timers_next(const struct cst_timers *timers);

/* Remove the earliest timer and return it. At least one timer must be set. */
struct cst_timer cst_timers_take(struct cst_timers *timers);

#endif
