/* SPDX-License-Identifier: Apache-2.0 */
/* How long something was at work that may do several things at a time: moments at which it did two
 * count once. */
#ifndef CST_PROTO_BUSY_H
#define CST_PROTO_BUSY_H

#include <stdint.h>
#include <string.h>

#define CST_BUSY_KEPT 16 /* of what is urgent interrupts what is not, so a few deep */

struct cst_busy {
    uint64_t ns; /* so far */
    struct {
        uint64_t began, ended;
    } last[CST_BUSY_KEPT]; /* the last stretches of it, apart from each other, in their order */
    uint32_t n;            /* of last */
};

/* It was at work from @began to @ended, also if that is around what was told already; in the order
 * of the ends. */
static inline void cst_busy_add(struct cst_busy *busy, uint64_t began, uint64_t ended)
{
    while (busy->n > 0 && busy->last[busy->n - 1].ended >= began) {
        busy->n--;
        busy->ns -= busy->last[busy->n].ended - busy->last[busy->n].began;
        began = busy->last[busy->n].began < began ? busy->last[busy->n].began : began;
        ended = busy->last[busy->n].ended > ended ? busy->last[busy->n].ended : ended;
    }
    if (busy->n == CST_BUSY_KEPT) {
        busy->n--;
        memmove(&busy->last[0], &busy->last[1], busy->n * sizeof busy->last[0]);
    }
    busy->last[busy->n].began = began;
    busy->last[busy->n++].ended = ended;
    busy->ns += ended - began;
}

#endif
