/* SPDX-License-Identifier: Apache-2.0 */
/* Resources that simultaneous efforts share: cores and memory bandwidth of a node, and each
 * direction of a device's link. An effort has a number of nanoseconds of work at full speed. If
 * efforts need more cores than a node has, those that use cores are slowed down in proportion. If
 * what they and the others then need of the memory bandwidth is more than the node has, all that
 * use memory are slowed down in proportion. The two directions of a link slow each other down as
 * measured; efforts in one direction share it evenly. Knows nothing about chunks. */
#ifndef CST_PLAN_SHARED_RATES_H
#define CST_PLAN_SHARED_RATES_H

#include "proto/rates.h"

#include <stdbool.h>
#include <stdint.h>

/* Latest end of an effort, in ns. Only wrong rates can reach it; times never overflow. */
#define CST_SHARED_RATES_END (UINT64_C(1) << 62)

enum cst_link { CST_LINK_NONE, CST_LINK_UP, CST_LINK_DOWN };

struct cst_effort {
    double left;        /* Remaining work at full speed, in ns. */
    uint32_t node;      /* Node whose cores and memory it uses. */
    double cores;       /* Cores that it uses at full speed. */
    double bytes;       /* Memory traffic at full speed, reads and writes, in bytes per ns. */
    uint32_t device;    /* Device whose link it uses. */
    enum cst_link link; /* Direction of the link. */
    bool active;        /* Started and not stopped. */
    double speed;       /* If active: current speed, 0..1. */
    uint32_t place;     /* If active: index in the machine's list. */
    void *owner;        /* For the caller. */
};

struct cst_shared_rates_node {
    double cores;        /* Cores of the node. */
    double pass;         /* Memory bandwidth in bytes per ns. */
    double wanted_cores; /* Cores that the active efforts use at full speed. */
    /* Memory traffic of the active efforts at full speed: of those that use cores, and of others.
     */
    double core_bytes, other_bytes;
};

struct cst_shared_rates_link {
    double up_both,
        down_both;         /* Share of the rate that remains while the other direction is in use. */
    uint32_t n_up, n_down; /* Number of active efforts. */
};

struct cst_shared_rates {
    struct cst_shared_rates_node nodes[CST_RATES_MAX_NODES];
    struct cst_shared_rates_link *links; /* n_links elements; owned. */
    uint32_t n_links;
    struct cst_effort **active; /* Owned. */
    uint32_t n_active, capacity;
    uint64_t now; /* Time, in ns, for which `left` of the active efforts is valid. */
};

/* Initialise with @n_links links; link i is that of @devices[i]. CST_ENOMEM. */
int cst_shared_rates_init(struct cst_shared_rates *machine, const struct cst_rates *rates,
                          const struct cst_rates_device *const *devices, uint32_t n_links);
/* Free the machine's arrays; the efforts are the caller's. */
void cst_shared_rates_close(struct cst_shared_rates *machine);

/* Advance to @now; no effort may end before. */
void cst_shared_rates_advance(struct cst_shared_rates *machine, uint64_t now);

/* Start or resume @effort at machine->now. CST_ENOMEM. */
int cst_shared_rates_start(struct cst_shared_rates *machine, struct cst_effort *effort);

/* Stop or pause @effort. */
void cst_shared_rates_stop(struct cst_shared_rates *machine, struct cst_effort *effort);

/* The effort that ends first, with its time in *at; or NULL. */
struct cst_effort *cst_shared_rates_next(const struct cst_shared_rates *machine, uint64_t *at);

#endif
