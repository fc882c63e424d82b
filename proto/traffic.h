/* SPDX-License-Identifier: Apache-2.0 */
/* A table that all engines of a daemon share: how many copies each accelerator's engine has under
 * way between host memory and its device. Meanwhile the nodes' engines, whose updates compete for
 * the memory's bandwidth, use less of it (kernels/engine/bandwidth_share.h). The daemon makes the
 * table, passes it with SETUP, and clears the slot of an engine that has died. Accesses are atomic
 * and relaxed: the table is a hint, and nothing waits for it. */
#ifndef CST_PROTO_TRAFFIC_H
#define CST_PROTO_TRAFFIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* One engine's slot, by the engine's number; a cache line of its own. */
struct cst_traffic {
    _Atomic uint32_t n_copies; /* Copies over the link to the device, queued or under way. */
    uint8_t pad[60];
};

_Static_assert(sizeof(struct cst_traffic) == 64, "slots have the same size everywhere");

/* Return whether any of the @n slots has copies. */
static inline bool cst_traffic_any(const struct cst_traffic *slots, uint32_t n)
{
    bool any = false;

    for (uint32_t i = 0; i < n && !any; i++) {
        any = atomic_load_explicit(&slots[i].n_copies, memory_order_relaxed) > 0;
    }
    return any;
}

static inline void cst_traffic_add(struct cst_traffic *slot, int32_t n)
{
    (void)atomic_fetch_add_explicit(&slot->n_copies, (uint32_t)n, memory_order_relaxed);
}

static inline void cst_traffic_clear(struct cst_traffic *slot)
{
    atomic_store_explicit(&slot->n_copies, 0, memory_order_relaxed);
}

#endif
