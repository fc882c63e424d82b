/* SPDX-License-Identifier: Apache-2.0 */
/* Cached blocks of a part, those whose weights nobody leases, in the order in which they are given
 * up. A block costs what bringing its contents back costs, and is the cheaper the later it is
 * wanted: next use / bytes. What stays goes last.
 *
 * Beside it the books of prefetching: blocks that are wanted before `edge` are inside, the others
 * are to be had. O(log n) for each block. */
#ifndef CST_VICTIM_H
#define CST_VICTIM_H

#include "offload/core.h"
#include "offload/heap.h"

enum cst_victim_cost {
    CST_VICTIM_CHEAP, /* its weights fill at most half a block */
    CST_VICTIM_DEAR,
    CST_VICTIM_STAYS, /* its pattern wants it to stay */
    CST_VICTIM_COSTS
};

struct cst_victim {
    enum cst_victim_cost cost;
    uint64_t next;     /* when it is wanted, CST_TRACE_NEVER: not again */
    uint64_t last_use; /* the core's use counter */
};

struct cst_victims {
    enum cst_core_eviction eviction;
    struct cst_heap heaps[CST_VICTIM_COSTS];
    struct cst_victim *v; /* per id; owned */
    uint32_t *at;         /* per id: its place in its heap; owned */
    uint64_t *counted;    /* per id: equals serial where it counts in n_inside; owned */
    uint64_t serial;
    uint64_t edge;     /* a time of the trace */
    uint32_t n;        /* blocks that may be given up, but for those that stay */
    uint32_t n_inside; /* of them, that are wanted before edge */
};

/* Room for ids below @n_blocks. CST_ENOMEM: nothing is owned. */
int cst_victims_init(struct cst_victims *victims, uint32_t n_blocks,
                     enum cst_core_eviction eviction);
void cst_victims_close(struct cst_victims *victims);

/* Block @id may be given up, or what is known of it has changed. */
void cst_victims_put(struct cst_victims *victims, uint32_t id, const struct cst_victim *victim);
/* It may not. Nothing happens if it is not in. */
void cst_victims_remove(struct cst_victims *victims, uint32_t id);
bool cst_victims_have(const struct cst_victims *victims, uint32_t id);

/* The best to lose at @now, UINT32_MAX: none. @limit: of those that are wanted behind it and do not
 * stay; CST_VICTIM_ANY: of all. */
#define CST_VICTIM_ANY UINT64_MAX
uint32_t cst_victims_choose(const struct cst_victims *victims, uint64_t now, uint64_t limit);

/* Nothing is inside any more; the edge is at @edge, before which nothing is wanted. */
void cst_victims_reset_edge(struct cst_victims *victims, uint64_t edge);
/* The edge moves on by one, past what @id is wanted for (UINT32_MAX: no block is). */
void cst_victims_pass(struct cst_victims *victims, uint32_t id);
/* It goes back to @edge. False: a block that is inside would not be; nothing happened. */
bool cst_victims_retreat(struct cst_victims *victims, uint64_t edge);

/* NULL, or the name of an invariant that does not hold. */
const char *cst_victims_check(const struct cst_victims *victims, uint32_t n_blocks);

#endif
