/* SPDX-License-Identifier: Apache-2.0 */
/* Total time during which something was working that can do several things at a time. Periods in
 * which it did several things count once.
 *
 * The total is exact as long as each period begins among the last CST_BUSY_TIME_KEPT disjoint
 * periods, or before all of them. Older periods are merged into one, of which only the sum is
 * known. If a period begins inside of the merged period, the total becomes too low, never too high:
 * it lacks the gaps between that beginning and the end of the merged period. A later period that
 * contains the merged period corrects the total. */
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
        uint64_t ns; /* Busy time of the period, which is shorter if the period has gaps. */
    } last[CST_BUSY_TIME_KEPT]; /* Last periods of work: disjoint, in ascending order. */
    uint32_t n;                 /* Number of entries in last. */
};

/* Make one period of the two oldest ones, with a gap between them. */
static inline void cst_busy_time_merge(struct cst_busy_time *busy)
{
    busy->last[1].began = busy->last[0].began;
    busy->last[1].ns += busy->last[0].ns;
    busy->n--;
    memmove(&busy->last[0], &busy->last[1], busy->n * sizeof busy->last[0]);
}

/* Add the period from @began to @ended. It may overlap or contain earlier periods. Periods are
 * added in the order of their ends. */
static inline void cst_busy_time_add(struct cst_busy_time *busy, uint64_t began, uint64_t ended)
{
    uint64_t ns = ended - began;

    while (busy->n > 0 && busy->last[busy->n - 1].ended >= began) {
        uint64_t first = busy->last[busy->n - 1].began, last = busy->last[busy->n - 1].ended;

        busy->n--;
        busy->ns -= busy->last[busy->n].ns;
        if (first < began) {
            ns += busy->last[busy->n].ns - ((last < ended ? last : ended) - began);
            began = first;
        } else if (last > ended) {
            ns += last - ended;
        }
        ended = last > ended ? last : ended;
    }
    if (busy->n == CST_BUSY_TIME_KEPT) {
        cst_busy_time_merge(busy);
    }
    busy->last[busy->n].began = began;
    busy->last[busy->n].ended = ended;
    busy->last[busy->n++].ns = ns;
    busy->ns += ns;
}

#endif
