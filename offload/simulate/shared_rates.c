/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/simulate/shared_rates.h"

#include <math.h>
#include <stdlib.h>

static double share(double both, double alone)
{
    return both > 0 && alone > 0 && both < alone ? both / alone : 1;
}

int cst_shared_rates_init(struct cst_shared_rates *machine, const struct cst_rates *rates,
                          const struct cst_rates_device *const *devices, uint32_t n_links)
{
    *machine = (struct cst_shared_rates){.n_links = n_links};
    machine->links = calloc(n_links + 1u, sizeof *machine->links);
    if (machine->links == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t i = 0; i < rates->n_nodes; i++) {
        machine->nodes[i].cores = rates->nodes[i].cores > 0 ? rates->nodes[i].cores : 1;
        machine->nodes[i].pass = rates->nodes[i].pass / 1e9;
    }
    for (uint32_t i = 0; i < n_links; i++) {
        const struct cst_rates_device *d = devices[i];

        machine->links[i].up_both = share(d->up_both, d->up);
        machine->links[i].down_both = share(d->down_both, d->down);
    }
    return CST_OK;
}

void cst_shared_rates_close(struct cst_shared_rates *machine)
{
    free(machine->links);
    free(machine->active);
    *machine = (struct cst_shared_rates){0};
}

void cst_shared_rates_advance(struct cst_shared_rates *machine, uint64_t now)
{
    double passed = (double)(now - machine->now);

    machine->now = now;
    for (uint32_t i = 0; passed > 0 && i < machine->n_active; i++) {
        struct cst_effort *effort = machine->active[i];

        effort->left -= passed * effort->speed;
        effort->left = effort->left > 0 ? effort->left : 0;
    }
}

static double node_speed(const struct cst_shared_rates_node *node, const struct cst_effort *effort)
{
    double core_speed = node->wanted_cores > node->cores ? node->cores / node->wanted_cores : 1;
    double bytes = node->core_bytes * core_speed + node->other_bytes;
    double speed = effort->cores > 0 ? core_speed : 1;

    return effort->bytes > 0 && node->pass > 0 && bytes > node->pass ? speed * node->pass / bytes
                                                                     : speed;
}

static double link_speed(const struct cst_shared_rates_link *link, enum cst_link direction)
{
    bool up = direction == CST_LINK_UP;
    double both = link->n_up > 0 && link->n_down > 0 ? (up ? link->up_both : link->down_both) : 1;

    return both / (up ? link->n_up : link->n_down);
}

static void set_speeds(struct cst_shared_rates *machine)
{
    for (uint32_t i = 0; i < machine->n_active; i++) {
        struct cst_effort *effort = machine->active[i];
        double link = effort->link == CST_LINK_NONE
                          ? 1
                          : link_speed(&machine->links[effort->device], effort->link);
        double node = node_speed(&machine->nodes[effort->node], effort);

        effort->speed = link < node ? link : node;
    }
}

static void count(struct cst_shared_rates *machine, const struct cst_effort *effort, int sign)
{
    struct cst_shared_rates_node *node = &machine->nodes[effort->node];

    node->wanted_cores += sign * effort->cores;
    *(effort->cores > 0 ? &node->core_bytes : &node->other_bytes) += sign * effort->bytes;
    /* Reset the demand when nothing is active, so that rounding errors do not accumulate. */
    if (machine->n_active == 0) {
        for (uint32_t i = 0; i < CST_RATES_MAX_NODES; i++) {
            machine->nodes[i].wanted_cores = 0;
            machine->nodes[i].core_bytes = machine->nodes[i].other_bytes = 0;
        }
    }
    if (effort->link != CST_LINK_NONE) {
        struct cst_shared_rates_link *link = &machine->links[effort->device];

        *(effort->link == CST_LINK_UP ? &link->n_up : &link->n_down) += (uint32_t)sign;
    }
}

int cst_shared_rates_start(struct cst_shared_rates *machine, struct cst_effort *effort)
{
    if (machine->n_active == machine->capacity) {
        uint32_t grown = machine->capacity == 0 ? 16 : 2 * machine->capacity;
        struct cst_effort **active = realloc(machine->active, grown * sizeof(*active));

        if (active == NULL) {
            return CST_ENOMEM;
        }
        machine->active = active;
        machine->capacity = grown;
    }
    effort->active = true;
    effort->place = machine->n_active;
    machine->active[machine->n_active++] = effort;
    count(machine, effort, 1);
    set_speeds(machine);
    return CST_OK;
}

void cst_shared_rates_stop(struct cst_shared_rates *machine, struct cst_effort *effort)
{
    struct cst_effort *last = machine->active[--machine->n_active];

    machine->active[effort->place] = last;
    last->place = effort->place;
    effort->active = false;
    count(machine, effort, -1);
    set_speeds(machine);
}

/* Of efforts that end at the same time, the one with the smaller index counts. The index depends
 * only on the order of starts and stops, so the simulation is deterministic. */
struct cst_effort *cst_shared_rates_next(const struct cst_shared_rates *machine, uint64_t *at)
{
    struct cst_effort *best = NULL;
    double soonest = INFINITY;

    for (uint32_t i = 0; i < machine->n_active; i++) {
        double left = machine->active[i]->left / machine->active[i]->speed;

        if (left < soonest) {
            soonest = left;
            best = machine->active[i];
        }
    }
    if (best != NULL) {
        uint64_t left =
            CST_SHARED_RATES_END > machine->now ? CST_SHARED_RATES_END - machine->now : 0;

        *at = machine->now + (soonest < (double)left ? (uint64_t)ceil(soonest) : left);
    }
    return best;
}
