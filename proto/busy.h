/* How long something was at work that may do several things at a time: moments at which it did two
 * count once. */
#ifndef CST_PROTO_BUSY_H
#define CST_PROTO_BUSY_H

#include <stdint.h>

struct cst_busy {
    uint64_t ns;    /* so far */
    uint64_t until; /* when the last of it ended */
};

/* It was at work from @began to @ended. In the order of the ends; what began before one that was
 * told already, and is nobody else's, is left out. */
static inline void cst_busy_add(struct cst_busy *busy, uint64_t began, uint64_t ended)
{
    uint64_t from = began > busy->until ? began : busy->until;

    busy->ns += ended > from ? ended - from : 0;
    busy->until = ended > busy->until ? ended : busy->until;
}

#endif
