/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/machines/homes.h"

#include <assert.h>

/* The order of a chunk, of the machines below some number. */
struct order {
    uint32_t v[CST_SET_MAX];
    uint32_t n;
};

/* A multiplier for each number, so that the multiples of each, modulo 2^64, are spread evenly and
 * independently of those of the others: the output function of splitmix64. Of the first 600 seeds,
 * this one has the best balance for up to 12 machines that become twice as many. */
static uint64_t multiplier(uint32_t number)
{
    uint64_t x = (number + UINT64_C(592)) * 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) | 1;
}

static void first_machines(struct order *order, uint32_t n, uint32_t chunk)
{
    uint32_t home = chunk % n, turn = chunk / n;

    order->v[0] = home;
    for (uint32_t i = 1; i < n; i++) {
        order->v[i] = (home + 1 + (turn + i - 1) % (n - 1)) % n;
    }
    order->n = n;
}

/* Insert the machines that were added later, below @end. */
static void later_machines(struct order *order, uint32_t end, uint32_t chunk)
{
    for (uint32_t k = order->n; k < end; k++) {
        uint64_t part = (chunk + UINT64_C(1)) * multiplier(k) >> 32;
        uint32_t at = (uint32_t)(part * (k + 1) >> 32);

        memmove(&order->v[at + 1], &order->v[at], (k - at) * sizeof order->v[0]);
        order->v[at] = k;
        order->n++;
    }
}

/* Return the end of the numbers that have an order: the machines that have left keep their places
 * among racks. */
static uint32_t find_end(const struct cst_homes *homes, const struct cst_set *machines)
{
    uint32_t last = cst_set_last(machines), end = last == CST_SET_MAX ? 0 : last + 1;

    for (uint32_t m = CST_SET_MAX; homes->racks != NULL && m-- > end;) {
        if (homes->racks[m] < CST_SET_MAX) {
            return m + 1;
        }
    }
    return end;
}

/* Sort the order by how many machines of the same rack come before; stable. */
static void spread_racks(struct order *order, const uint32_t *racks)
{
    struct order sorted = {.n = 0};
    uint32_t before[CST_SET_MAX], seen[CST_SET_MAX] = {0}, last = 0;

    for (uint32_t i = 0; i < order->n; i++) {
        uint32_t rack = racks[order->v[i]];

        before[i] = rack < CST_SET_MAX ? seen[rack]++ : order->n; /* Never its turn. */
        last = rack < CST_SET_MAX && before[i] > last ? before[i] : last;
    }
    for (uint32_t round = 0; round <= last; round++) {
        for (uint32_t i = 0; i < order->n; i++) {
            if (before[i] == round) {
                sorted.v[sorted.n++] = order->v[i];
            }
        }
    }
    *order = sorted;
}

uint32_t cst_homes_copies(const struct cst_homes *homes, uint32_t chunk,
                          const struct cst_set *machines, uint32_t *out)
{
    struct order order;
    uint32_t n = 0;

    assert(homes->n_first > 0 && homes->n_first <= CST_SET_MAX && homes->n_copies > 0);
    first_machines(&order, homes->n_first, chunk);
    later_machines(&order, find_end(homes, machines), chunk);
    if (homes->racks != NULL) {
        spread_racks(&order, homes->racks);
    }
    for (uint32_t i = 0; i < order.n && n < homes->n_copies; i++) {
        if (cst_set_has(machines, order.v[i])) {
            out[n++] = order.v[i];
        }
    }
    return n;
}

uint32_t cst_homes_home(const struct cst_homes *homes, uint32_t chunk,
                        const struct cst_set *machines)
{
    struct cst_homes one = {.n_first = homes->n_first, .n_copies = 1, .racks = homes->racks};
    uint32_t home = CST_SET_MAX;

    (void)cst_homes_copies(&one, chunk, machines, &home);
    return home;
}
