/* SPDX-License-Identifier: Apache-2.0 */
/* Who works at the same time shares what there is: the cores and the memory of a node, a device's
 * link in each direction. An effort has so many nanoseconds of work at full speed; where a node's
 * cores or memory are asked for more than they have, all that ask are slowed down in proportion; a
 * link's two directions slow each other down as measured, efforts in the same direction share it
 * evenly. Knows nothing of chunks. */
#ifndef CST_PLAN_MACHINE_H
#define CST_PLAN_MACHINE_H

#include "offload/plan/rates.h"

#include <stdbool.h>
#include <stdint.h>

/* ns: the latest that anything ends. Who comes there has rates that cannot be right; time never
 * wraps. */
#define CST_MACHINE_END (UINT64_C(1) << 62)

enum cst_link { CST_LINK_NONE, CST_LINK_UP, CST_LINK_DOWN };

struct cst_effort {
    double left;        /* ns of work at full speed */
    uint32_t node;      /* whose cores and memory it uses */
    double cores;       /* that it keeps busy at full speed */
    double bytes;       /* memory traffic at full speed, bytes per ns, read and written */
    uint32_t device;    /* whose link it uses */
    enum cst_link link; /* which direction */
    bool active;        /* begun, not stopped */
    double speed;       /* 0..1, while active */
    uint32_t place;     /* in the machine's list, while active */
    void *owner;        /* for whoever hears that it ended */
};

struct cst_machine_node {
    double cores;                      /* that it has */
    double pass;                       /* bytes per ns */
    double wanted_cores, wanted_bytes; /* by what is active, at full speed */
};

struct cst_machine_link {
    double up_both,
        down_both;         /* share of the rate that is left while the other direction is busy */
    uint32_t n_up, n_down; /* active efforts */
};

struct cst_machine {
    struct cst_machine_node nodes[CST_RATES_MAX_NODES];
    struct cst_machine_link *links; /* n_links; owned */
    uint32_t n_links;
    struct cst_effort **active; /* owned */
    uint32_t n_active, capacity;
    uint64_t now; /* up to which `left` of the active ones is true */
};

/* A link for each of @n_links devices, device i as rates' devices[kinds[i]]. CST_ENOMEM. */
int cst_machine_init(struct cst_machine *machine, const struct cst_rates *rates,
                     const uint32_t *kinds, uint32_t n_links);
void cst_machine_close(struct cst_machine *machine);

/* Go on to @now; nothing ends before. */
void cst_machine_advance(struct cst_machine *machine, uint64_t now);

/* @effort begins, or goes on, at machine->now. CST_ENOMEM. */
int cst_machine_start(struct cst_machine *machine, struct cst_effort *effort);

/* It ends or pauses. */
void cst_machine_stop(struct cst_machine *machine, struct cst_effort *effort);

/* The effort that ends first and when, or NULL. */
struct cst_effort *cst_machine_next(const struct cst_machine *machine, uint64_t *at);

#endif
