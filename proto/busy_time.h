/* SPDX-License-Identifier: Apache-2.0 */
/* Total time during which something was working that can do several things at a time. Periods in
 * which it did several things count once. */
#ifndef CST_BUSY_TIME_H
#define CST_BUSY_TIME_H

#include <stdint.h>
#include <string.h>

/* Commands overlap when urgent ones interrupt others, only a few levels deep. */
#define CST_BUSY_TIME_KEPT 16

struct cst_busy_time {
    uint64_t ns; /* Total so far. */
    struct {
        uint64_t began, ended;
    } last[CST_BUSY_TIME_KEPT]; /* Last periods of work: disjoint, in ascending order. */
    uint32_t n;                 /* Number of entries in last. */
};

/* Add the period from @began to @ended. It may overlap or contain earlier periods. Periods are
 * added in the order of their ends. */
static inline void cst_busy_time_add(struct cst_busy_time *busy, uint64_t began, uint64_t ended)
{
    while (busy->n > 0 && busy->last[busy->n - 1].ended >= began) {
        busy->n--;
        busy->ns -= busy->last[busy->n].ended - busy->last[busy->n].began;
        began = busy->last[busy->n].began < began ? busy->last[busy->n].began : began;
        ended = busy->last[busy->n].ended > ended ? busy->last[busy->n].ended : ended;
    }
    /* The oldest period is dropped. A later one that overlaps it would be counted twice. */
    if (busy->n == CST_BUSY_TIME_KEPT) {
        busy->n--;
        memmove(&busy->last[0], &busy->last[1], busy->n * sizeof busy->last[0]);
    }
    busy->last[busy->n].began = began;
    busy->last[busy->n++].ended = ended;
    busy->ns += ended - began;
}

#endif
