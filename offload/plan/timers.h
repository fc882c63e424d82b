/* SPDX-License-Identifier: Apache-2.0 */
/* What is to happen when, under the virtual clock: a heap by time; what comes at the same time
 * comes in the order in which it was set. Knows nothing of what it is. */
#ifndef CST_PLAN_TIMERS_H
#define CST_PLAN_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

struct cst_timer {
    uint64_t at;       /* ns */
    uint64_t sequence; /* breaks ties */
    unsigned kind;     /* the owner's business */
    uint64_t arg;      /* same */
};

struct cst_timers {
    struct cst_timer *heap; /* owned */
    uint32_t n;             /* set */
    uint32_t capacity;      /* of heap */
    uint64_t sequence;      /* last given */
};

void cst_timers_init(struct cst_timers *timers);
void cst_timers_close(struct cst_timers *timers);

/* CST_ENOMEM. */
int cst_timers_set(struct cst_timers *timers, uint64_t at, unsigned kind, uint64_t arg);

/* The next one's time, or UINT64_MAX. */
uint64_t cst_timers_next(const struct cst_timers *timers);

/* Take the next one out; there is one. */
struct cst_timer cst_timers_take(struct cst_timers *timers);

#endif
