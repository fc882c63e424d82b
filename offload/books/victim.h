/* SPDX-License-Identifier: Apache-2.0 */
/* The cached blocks of a part whose weights nobody leases, in the order of eviction. The cost of a
 * block is that of loading its contents again, divided by the time until its next use. Blocks whose
 * pattern `stays` go last.
 *
 * Also keeps the books of prefetch: blocks that are used before `horizon` are inside, the others
 * are available. O(log n) per operation. */
#ifndef CST_VICTIM_H
#define CST_VICTIM_H

#include "offload/base/core_config.h"
#include "offload/base/heap.h"

enum cst_victim_cost {
    CST_VICTIM_CHEAP, /* The chunk's weights fill at most half a block. */
    /* The chunk's weights fill more than half a block. */
    CST_VICTIM_DEAR,
    CST_VICTIM_STAYS, /* The chunk's pattern wants it to stay in the pool. */
    CST_VICTIM_COSTS
};

struct cst_victim {
    enum cst_victim_cost cost;
    uint64_t next;     /* Time of the next use; CST_TRACE_NEVER: not used again. */
    uint64_t last_use; /* Value of the core's use counter at the last use. */
};

struct cst_victims {
    struct cst_heap heaps[CST_VICTIM_COSTS];
    struct cst_victim *v; /* Per id; owned. */
    uint32_t *at;         /* Per id: its place in its heap; owned. */
    uint64_t *counted;    /* Per id: equals serial if the block counts in n_inside; owned. */
    /* Current value of valid entries of `counted`. */
    uint64_t serial;
    uint64_t horizon;  /* Time of the trace up to which prefetch has looked. */
    uint32_t n;        /* Blocks that may be evicted, without those that stay. */
    uint32_t n_inside; /* Blocks counted in n that are used before horizon. */
};

/* Make room for ids below @n_blocks. CST_ENOMEM: nothing is owned. */
int cst_victims_init(struct cst_victims *victims, uint32_t n_blocks);
/* Free the books. */
void cst_victims_close(struct cst_victims *victims);

/* Block @id may be evicted, or what is known about it has changed. */
void cst_victims_put(struct cst_victims *victims, uint32_t id, const struct cst_victim *victim);
/* Block @id may not be evicted. No effect if it is not there. */
void cst_victims_remove(struct cst_victims *victims, uint32_t id);

/* The best block to evict at time @now; UINT32_MAX: none. Only the first block of each cost is
 * considered. @limit: only blocks that are used after it and do not stay; CST_VICTIM_ANY: all
 * blocks. */
#define CST_VICTIM_ANY UINT64_MAX
uint32_t cst_victims_choose(const struct cst_victims *victims, uint64_t now, uint64_t limit);

/* Set the horizon to @horizon, before which nothing is used, with no blocks inside. */
void cst_victims_reset_horizon(struct cst_victims *victims, uint64_t horizon);
/* Move the horizon on by one, past the use of block @id (UINT32_MAX: of no block). */
void cst_victims_pass(struct cst_victims *victims, uint32_t id);
/* Move the horizon back to @horizon. False, and nothing is changed: a block that is inside would no
 * longer be. */
bool cst_victims_retreat(struct cst_victims *victims, uint64_t horizon);

/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_victims_check(const struct cst_victims *victims, uint32_t n_blocks);

#endif
